"""What is dear is asked for, or fits the budget."""

import torch
from torch import nn

from equipoise.diagnosis import rehearsal
from equipoise.diagnosis.price import SECONDS, STEPS, free_memory, memory_in_words, plan
from equipoise.diagnosis.problem import Problem

PRICES = {"preconditioning": 3.0, "smoothness": 20.0, "hessian": 60.0}
NAMES = ("preconditioning", "hessian", "smoothness")


def run(chosen):
    return {name for name in NAMES if getattr(chosen, name)}


def test_by_default_nothing_optional_is_run():
    chosen = plan(0.5, PRICES)
    assert run(chosen) == set()
    assert len(chosen.left_out) == len(NAMES)
    assert chosen.seconds == STEPS * 0.5 + SECONDS


def test_more_initialisations_and_batches_cost_their_passes():
    """20 initialisations of a ResNet took 10 s instead of the 7 that were told."""
    usual = plan(0.5, PRICES)
    many = plan(0.5, PRICES, passes=40)
    assert many.seconds == usual.seconds + 30 * 0.5
    assert plan(0.5, PRICES, passes=2).seconds == usual.seconds
    # What theory may take does not suffer for it.
    assert many.theory_seconds(1.0, passes=40) == usual.theory_seconds(1.0, passes=10)


def test_what_is_asked_for_is_run_whatever_the_budget():
    chosen = plan(10.0, PRICES, asked=["smoothness"], budget=1)
    assert run(chosen) == {"smoothness"}


def test_a_budget_takes_the_cheapest_first_and_is_kept():
    alone = plan(0.5, PRICES)
    cheapest = min(alone.left_out, key=lambda one: one.seconds)
    budget = alone.seconds + cheapest.seconds
    chosen = plan(0.5, PRICES, budget=budget)
    assert len(run(chosen)) == 1
    assert cheapest not in chosen.left_out
    assert chosen.seconds <= budget


def test_the_hessian_brings_its_table_along():
    assert run(plan(0.1, PRICES, asked=["hessian"])) == {"hessian", "preconditioning"}


def test_memory_is_told_where_it_is_large_or_scarce():
    small = nn.Linear(100, 100)  # 40 kB
    assert memory_in_words(small, None) == ""
    assert memory_in_words(small, 10**9) == ""
    assert "it may not do" in memory_in_words(small, 50_000)
    with torch.device("meta"):
        large = nn.Linear(10_000, 100_000)
    assert "second model take about 8.0 GB of memory" in memory_in_words(large, None)
    assert "of a batch comes on top" in memory_in_words(large, None)


def test_what_a_forward_pass_keeps_counts_where_the_device_tells():
    """A small model with large maps or logits is no small matter."""
    small = nn.Linear(100, 100)
    words = memory_in_words(small, 20 * 10**9, kept=4 * 10**9)
    assert words.startswith("The check-up takes about 24 GB of memory")
    assert "4.0 GB that a forward pass keeps" in words
    assert words.endswith("20 GB are free: it may not do.")
    assert memory_in_words(small, 20 * 10**9, kept=10**6) == ""


def test_what_a_forward_pass_keeps_is_measured_while_its_loss_is_alive(monkeypatch):
    """On a device that tells; here it tells of the tensors that a loss has made so far."""
    made = []

    def loss_fn(model, x):
        made.append(1000)
        return model(x).square().mean()

    assert Problem.prepare(nn.Linear(2, 2), [torch.ones(3, 2)], loss_fn=loss_fn).kept_bytes is None
    monkeypatch.setattr(rehearsal, "allocated", lambda device: sum(made))
    assert Problem.prepare(nn.Linear(2, 2), [torch.ones(3, 2)], loss_fn=loss_fn).kept_bytes == 1000


def test_free_memory_is_known_of_this_machine_or_not_at_all():
    free = free_memory(torch.device("cpu"))
    assert free is None or free > 10**6
    assert free_memory(torch.device("meta")) is None
