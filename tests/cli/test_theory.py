"""``equipoise theory`` prints predictions."""

import pytest

from equipoise import theory


def test_json_holds_every_combination(equipoise):
    done = equipoise("theory", "--activation", "identity", "relu", "--batch-size", 8, 64, "--json")
    assert done.code == 0
    rows = [(row["activation"], row["batch_size"]) for row in done.json]
    assert rows == [("identity", 8), ("identity", 64), ("relu", 8), ("relu", 64)]
    for row in done.json[:2]:
        B = row["batch_size"]
        assert row["rate"]["value"] == pytest.approx((B - 2) / (B - 3), rel=1e-12)


def test_the_table_shows_the_same(equipoise):
    done = equipoise("theory", "--activation", "identity", "gelu", "--batch-size", 64)
    assert done.code == 0
    assert "×1.016" in done.out
    gelu = next(line for line in done.out.splitlines() if line.strip().startswith("gelu"))
    assert " no " in f"{gelu} "


def test_options_reach_the_theory(equipoise):
    options = ("--eps", 0.3, "--gamma", 0.7, "--beta", 0.2, "--weight-variance", 1.5)
    done = equipoise("theory", "--activation", "tanh", "--batch-size", 16, *options, "--json")
    (row,) = done.json
    expected = theory.explosion_rate("tanh", 16, eps=0.3, gamma=0.7, beta=0.2, weight_variance=1.5)
    assert row["rate"]["value"] == pytest.approx(expected.value)
    assert (row["eps"], row["gamma"], row["beta"], row["weight_variance"]) == (0.3, 0.7, 0.2, 1.5)


def test_negative_numbers_are_arguments(equipoise):
    arguments = ("--activation", "relu", "--batch-size", 8, "--beta", "-0.5", "--json")
    assert equipoise("theory", *arguments).json[0]["beta"] == -0.5


def test_activations_may_have_numbers(equipoise):
    names = ["leaky_relu(0.2)", "alpha_relu(1.5)"]
    done = equipoise("theory", "--activation", *names, "--batch-size", 8, "--json")
    assert [row["activation"] for row in done.json] == names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--activation", "rellu"), "unknown activation 'rellu'"),
        (("--batch-size", 3), "batch_size must be at least 4, got 3"),
        (("--gamma", 0), "gamma must not be 0"),
        (("--eps", -1), "eps must be finite and not negative"),
        (("--eps", "nan"), "eps must be finite and not negative, got nan"),
        (("--weight-variance", 0), "weight_variance must not be 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(equipoise, arguments, message):
    done = equipoise("theory", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
