"""The race: fair to all arms, honest about chance, and taken up where it ended."""

import math
import time

import pytest
import torch
from torch import nn

from equipoise.data.source import Samples
from equipoise.diagnosis.fix import measure, race
from equipoise.diagnosis.fix.applied import apply
from equipoise.diagnosis.fix.division import Pool, divide
from equipoise.diagnosis.fix.gains import gain_record
from equipoise.diagnosis.fix.measure import fix
from equipoise.diagnosis.fix.options import FixOptions
from equipoise.diagnosis.fix.race import Plan
from equipoise.diagnosis.fix.remedy import Edit, Remedy
from equipoise.diagnosis.fix.runs import Run, _right, train_once
from equipoise.diagnosis.problem import Problem
from equipoise.training.record import History

QUICK = FixOptions("starts", steps=12, arms=2, seeds=2, rates=(0.03, 0.1))


def data(samples: int = 120):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, 6, generator=generator)
    return x, (x[:, 0] > 0).long()


def silenced() -> nn.Module:
    """γ = 0 everywhere, so that nothing but the head's bias learns at first."""
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    nn.init.zeros_(model[1].weight)
    return model


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


class TestDivision:
    def test_held_out_samples_are_not_trained_on(self):
        source = Samples("numbers", torch.arange(100.0), torch.arange(100))
        division = divide(source, 8, 10, 0)
        held = {int(v) for _, y in division.held_out for v in y}
        drawn = division.train.batches(8, 40, torch.Generator())
        assert len(held) == 20
        assert not held & {int(v) for _, y in drawn for v in y}

    def test_a_loaders_batches_are_divided_after_one_pass(self):
        batches = [(torch.full((4, 1), float(i)), torch.full((4,), i)) for i in range(10)]
        from equipoise.data.user import as_source

        division = divide(as_source(batches, "ten"), 4, 100, 0)
        held = {int(y[0]) for _, y in division.held_out}
        assert isinstance(division.train, Pool)
        drawn = division.train.batches(4, 30, torch.Generator())
        assert len(held) == 2
        assert {int(y[0]) for _, y in drawn} == set(range(10)) - held

    def test_few_samples_are_not_divided(self):
        division = divide(Samples("few", torch.zeros(9, 1), torch.zeros(9)), 8, 4, 0)
        assert division.held_out == ()
        assert "too few" in division.remark


class TestFix:
    def test_finds_that_scales_of_zero_should_start_at_one(self):
        found = fix(silenced, data(), QUICK, batch_size=16)
        assert [one.remedy.name for one in found.proposals] == ["scale=1"]
        assert found.arms[0].remedy is None
        assert found.arms[1].loss.value < found.arms[0].loss.value
        assert found.held_out == 24
        assert found.seeds >= 2

    def test_the_same_weights_and_batches_in_every_arm(self, monkeypatch):
        """A remedy that changes nothing has the losses of the model as it is, bit for bit."""
        monkeypatch.setattr(
            "equipoise.diagnosis.fix.kinds.starts.change_model", lambda model, edit: lambda: None
        )
        found = fix(silenced, data(), QUICK, batch_size=16)
        assert found.arms[1].loss == found.arms[0].loss
        assert found.arms[1].held_out == found.arms[0].held_out
        assert found.best is None
        assert found.code == ()

    def test_neither_model_nor_random_state_changes(self):
        model, state = silenced(), torch.get_rng_state()
        before = [value.clone() for value in model.state_dict().values()]
        fix(model, data(), QUICK, batch_size=16)
        assert all(map(torch.equal, before, model.state_dict().values()))
        assert torch.equal(torch.get_rng_state(), state)

    def test_finished_runs_are_taken_over(self, tmp_path, monkeypatch):
        whole = fix(silenced, data(), QUICK, batch_size=16)
        trained, once = [], race.train_once

        def stop_at_nine(*args, **kwargs):
            trained.append(kwargs)
            if len(trained) == 9:
                raise KeyboardInterrupt
            return once(*args, **kwargs)

        monkeypatch.setattr(race, "train_once", stop_at_nine)
        part = fix(silenced, data(), QUICK, batch_size=16, folder=tmp_path)
        assert part.interrupted
        assert part.best is None
        rest = fix(silenced, data(), QUICK, batch_size=16, folder=tmp_path)
        assert "8 finished runs were taken over." in rest.remarks
        assert not rest.interrupted
        assert [arm.loss for arm in rest.arms] == [arm.loss for arm in whole.arms]

    def test_so_is_what_theory_says_of_the_changed_models(self, tmp_path, monkeypatch):
        judged, once = [], measure.trace
        monkeypatch.setattr(measure, "trace", lambda *given: judged.append(given) or once(*given))
        first, again, other = (
            fix(silenced, data(), QUICK, batch_size=size, folder=tmp_path) for size in (16, 16, 8)
        )
        # The model as it is every time, and its remedy once for each batch size.
        assert [len(batch[0]) for _, batch, _ in judged] == [16, 16, 16, 8, 8]
        assert again.arms[1].measured == first.arms[1].measured
        assert other.arms[1].measured != first.arms[1].measured

    def test_a_file_in_the_place_of_their_folder_is_refused_before_anything_is_trained(
        self, tmp_path
    ):
        (tmp_path / "runs").write_text("")
        with pytest.raises(ValueError, match=r"is a file\. Name a folder"):
            fix(silenced, data(), QUICK, batch_size=16, folder=tmp_path / "runs")

    def test_a_fix_in_the_place_of_its_remedy_is_refused(self):
        found = fix(silenced, data(), QUICK, batch_size=16)
        with pytest.raises(ValueError, match=r"Take its \.best"):
            apply(silenced(), found)

    def test_runs_of_another_model_are_not(self, tmp_path):
        fix(silenced, data(), QUICK, batch_size=16, folder=tmp_path)
        other = fix(
            lambda: nn.Sequential(silenced()), data(), QUICK, batch_size=16, folder=tmp_path
        )
        assert not any("taken over" in remark for remark in other.remarks)

    def test_runs_of_another_version_of_this_library_are_not(self, tmp_path, monkeypatch):
        fix(silenced, data(), QUICK, batch_size=16, folder=tmp_path)
        monkeypatch.setattr("equipoise.diagnosis.fix.runs.version", lambda package: "0.0")
        other = fix(silenced, data(), QUICK, batch_size=16, folder=tmp_path)
        assert not any("taken over" in remark for remark in other.remarks)

    def test_ignored_targets_are_not_wrong(self):
        model = nn.Linear(4, 4, bias=False)
        nn.init.eye_(model.weight)
        batch = torch.eye(4), torch.tensor([0, 1, 3, -100])
        problem = Problem.prepare(model, batch)
        assert _right(problem, model, batch) == (2, 3)

    def test_regression_has_no_accuracy_and_a_custom_loss_is_taken(self):
        x, _ = data()
        options = FixOptions("activations", steps=8, arms=1, seeds=2, rates=(0.01, 0.03))
        build = lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))  # noqa: E731
        loss = lambda model, batch: (model(batch[0]) - batch[1]).abs().mean()  # noqa: E731
        found = fix(build, (x, x[:, :1]), options, loss_fn=loss, batch_size=16)
        assert found.arms[1].remedy is not None
        assert found.arms[1].accuracy is None
        assert math.isfinite(found.arms[1].held_out.value)

    @pytest.mark.parametrize(
        ("gain", "scatter", "seeds", "helps"),
        [
            (0.2, 0.0, 3, True),  # the first seeds decide
            (0.2, 0.2, 9, True),  # further ones do
            (0.01, 0.5, 9, False),  # nor they
            (-0.2, 0.2, 3, False),  # behind, it is not judged again
        ],
    )
    def test_what_three_seeds_leave_open_is_judged_on_more(
        self, monkeypatch, gain, scatter, seeds, helps
    ):
        def made_up(*_, arm, rate, seed, steps):
            loss = 1.0 if arm == "as it is" else 1.0 - gain + scatter * (-1) ** seed
            return Run(arm, rate, seed, steps, History((loss,) * 4, 1.0), math.nan, math.nan)

        monkeypatch.setattr(race, "train_once", made_up)
        options = FixOptions("starts", steps=12, arms=2, rates=(0.03, 0.1))
        found = fix(silenced, data(), options, batch_size=16)
        assert found.seeds == seeds
        assert (found.best is not None) == helps

    @pytest.mark.parametrize(("lead", "seeds"), [(0.5, 3), (0.05, 9), (0.001, 3)])
    def test_a_remedy_that_may_be_better_than_the_best_is_judged_on_more(
        self, monkeypatch, lead, seeds
    ):
        """Not where it is behind beyond chance, nor where it cannot be better by a hundredth."""

        def made_up(*_, arm, rate, seed, steps):
            loss = 3.0 if arm == "as it is" else 1.0
            if "β at 1" in arm:
                loss += lead + min(lead, 0.1) * (-1) ** seed
            return Run(arm, rate, seed, steps, History((loss,) * 4, 1.0), math.nan, math.nan)

        monkeypatch.setattr(race, "train_once", made_up)
        options = FixOptions("starts", steps=12, arms=2, rates=(0.03, 0.1))
        found = fix(normalised, data(), options, batch_size=16)
        assert len(found.gains) == 2
        assert found.seeds == seeds
        assert found.winner is not None
        assert "β at 1" not in found.winner.name

    def test_what_diverged_on_a_seed_gets_no_more_of_them(self, monkeypatch):
        def made_up(*_, arm, rate, seed, steps):
            diverged = 2 if "β at 1" in arm and seed == 2 else None
            loss = 1.0 if arm == "as it is" else 0.5 + 0.4 * (seed % 3 - 1)
            return Run(
                arm, rate, seed, steps, History((loss,) * 4, 1.0, (), diverged), math.nan, math.nan
            )

        monkeypatch.setattr(race, "train_once", made_up)
        options = FixOptions("starts", steps=12, arms=2, rates=(0.03, 0.1))
        found = fix(normalised, data(), options, batch_size=16)
        seeds = {arm.name: arm.seeds for arm in found.arms if arm.rounds > 2}
        assert sorted(seeds.values()) == [3, 9, 9]
        assert seeds[next(name for name in seeds if "β at 1" in name)] == 3

    def test_on_a_plateau_the_largest_rate_goes_on(self, monkeypatch):
        """There the smallest one has the least loss by noise, and is the last to leave it."""

        def made_up(*_, arm, rate, seed, steps):
            loss = 2.303 + 0.1 * rate
            if "β at 1" in arm and rate >= 0.1 and steps == 40:
                loss = 0.5
            return Run(arm, rate, seed, steps, History((loss,) * 4, 1.0), math.nan, math.nan)

        monkeypatch.setattr(race, "train_once", made_up)
        options = FixOptions("starts", steps=40, arms=2, rates=(0.01, 0.03, 0.1))
        found = fix(normalised, data(), options, batch_size=16)
        assert [arm.rate for arm in found.arms[:2]] == [0.1, 0.1]
        assert found.winner is not None
        assert "β at 1" in found.winner.name

    def test_where_something_was_learned_the_rate_with_the_least_loss_goes_on(self, monkeypatch):
        def made_up(*_, arm, rate, seed, steps):
            last = 2.0 + 0.1 * rate
            losses = (2.303, 2.2, 2.1, last)
            return Run(arm, rate, seed, steps, History(losses, 1.0), math.nan, math.nan)

        monkeypatch.setattr(race, "train_once", made_up)
        options = FixOptions("starts", steps=40, arms=1, rates=(0.01, 0.03, 0.1))
        found = fix(normalised, data(), options, batch_size=16)
        assert {arm.rate for arm in found.arms} == {0.01 / (0.1 / 0.03)}

    @pytest.mark.parametrize("name", ["as it is", "β at 1"])
    def test_an_arm_that_diverges_on_a_judging_seed_is_judged_at_a_lower_rate(
        self, monkeypatch, name
    ):
        """A remedy does not help because the model as it is was given too large a rate."""

        def made_up(*_, arm, rate, seed, steps):
            diverged = 2 if name in arm and seed == 2 and rate > 0.05 else None
            losses = (3.0, 2.0, 1.0, 0.995 if rate > 0.05 else 1.0)
            history = History(losses, 1.0, (), diverged)
            return Run(arm, rate, seed, steps, history, math.nan, math.nan)

        monkeypatch.setattr(race, "train_once", made_up)
        options = FixOptions("starts", steps=40, arms=1, rates=(0.01, 0.03, 0.1))
        found = fix(normalised, data(), options, batch_size=16)
        assert found.best is None
        rates = {arm.name: (arm.rate, arm.diverged, arm.seeds) for arm in found.arms}
        assert next(v for n, v in rates.items() if name in n)[:2] == (0.03, 0)
        assert next(v for n, v in rates.items() if name not in n)[0] > 0.05

    @pytest.mark.parametrize(("at_its_rate", "helps"), [(0.8, False), (0.7, False), (0.95, True)])
    def test_a_gain_that_is_the_rates_alone_is_none(self, monkeypatch, at_its_rate, helps):
        """The model as it is may have the rate of the remedy that is ahead of it."""

        def made_up(*_, arm, rate, seed, steps):
            best = 0.1 if arm == "as it is" else 0.03
            last = 1.0 + (rate - best) ** 2
            if seed > 0:
                last = {"as it is": {0.1: 1.0, 0.03: at_its_rate}}.get(arm, {}).get(rate, 0.8)
            history = History((3.0, 2.0, 2.0, last), 1.0)
            return Run(arm, rate, seed, steps, history, math.nan, math.nan)

        monkeypatch.setattr(race, "train_once", made_up)
        options = FixOptions("starts", steps=40, arms=1, rates=(0.01, 0.03, 0.1, 0.3))
        found = fix(normalised, data(), options, batch_size=16)
        assert (found.best is not None) == helps
        assert found.unchanged.rate == 0.03
        assert found.unchanged.loss.value == pytest.approx(at_its_rate)

    def test_the_rate_is_constant_and_then_falls_to_zero(self):
        problem = Problem.prepare(normalised, data(), batch_size=8)
        rates: list[float] = []

        class Watched(torch.optim.SGD):
            def step(self, closure=None):
                rates.append(self.param_groups[0]["lr"])
                return super().step(closure)

        division = divide(problem.source, 8, 8, 0)
        runs_of = {"arm": "", "rate": 0.1, "seed": 0, "steps": 8}
        train_once(problem, division, None, Watched, **runs_of)
        assert rates == pytest.approx([0.1] * 5 + [0.075, 0.05, 0.025])
        with_bnp, rates[:] = rates[:], []
        remedy = Remedy((Edit("bnp", choice="beside"),))
        train_once(problem, division, remedy, Watched, **runs_of)
        assert rates == with_bnp

    @pytest.mark.parametrize(("gain", "chosen"), [(0.1, True), (0.001, False), (-0.1, False)])
    def test_of_norms_the_one_that_is_ahead_is_taken(self, monkeypatch, gain, chosen):
        """One has to be; the record says that it may be chance."""

        def made_up(*_, arm, rate, seed, steps):
            loss = 1.0 if arm == "as it is" else 1.0 - gain + 0.8 * (seed % 3 - 1)
            return Run(arm, rate, seed, steps, History((loss,) * 4, 1.0), math.nan, math.nan)

        monkeypatch.setattr(race, "train_once", made_up)
        options = FixOptions("norms", steps=12, arms=1, rates=(0.03, 0.1))
        found = fix(silenced, data(), options, batch_size=16)
        assert (found.best is not None) == chosen
        assert not found.is_sure
        assert bool(found.code) == chosen

    def test_a_model_without_anything_to_change_gets_no_remedy(self):
        found = fix(
            lambda: nn.Sequential(nn.Linear(6, 2)),
            data(),
            FixOptions("norms", steps=8, seeds=2, rates=(0.01, 0.03)),
            batch_size=16,
        )
        assert found.proposals == ()
        assert found.best is None


def runs(*scores: float) -> list[Run]:
    return [
        Run("arm", 0.1, seed, 10, History((score,), 1.0), math.nan, math.nan)
        for seed, score in enumerate(scores)
    ]


class TestGain:
    def test_equal_gains_help_and_scattered_ones_do_not(self):
        plain = runs(1.0, 2.0, 3.0)
        assert gain_record("a", plain, runs(0.9, 1.9, 2.91)).helps
        assert gain_record("b", plain, runs(0.1, 2.4, 2.9)).ahead
        assert not gain_record("b", plain, runs(0.1, 2.4, 2.9)).helps

    def test_a_sure_gain_that_hardly_matters_is_no_help(self):
        plain = runs(1.0, 2.0, 3.0)
        found = gain_record("a", plain, runs(0.999, 1.999, 2.999))
        assert found.high < 0
        assert found.helps is found.ahead is False

    def test_one_seed_is_no_evidence(self):
        assert gain_record("a", runs(1.0), runs(0.1)).helps is None

    @pytest.mark.parametrize(("last", "helps"), [(1.0, True), (8.0, False), (7.95, False)])
    def test_where_the_model_diverges_a_remedy_has_to_learn(self, last, helps):
        """A finite loss alone is no help: one far above that of guessing is none, either."""
        losses = History((8.0, 8.0, 8.0, last), 1.0)
        changed = [Run("b", 0.1, s, 60, losses, last, math.nan) for s in (1, 2, 3)]
        ended = History((8.0,), 1.0, (), 0)
        plain = [Run("a", 0.1, s, 60, ended, math.nan, math.nan) for s in (1, 2, 3)]
        gain = gain_record("b", plain, changed)
        assert (gain.helps, gain.ahead) == (helps, helps)

    def test_only_seeds_of_both_count(self):
        assert gain_record("a", runs(1.0, 2.0, 9.0), runs(0.9, 1.9)).difference.value == (
            pytest.approx(-0.1)
        )


class TestPlan:
    def test_more_time_makes_more_arms_and_longer_runs(self):
        small, large = (Plan.of(FixOptions(budget=b), 0.01, 30) for b in (10, 100))
        assert small.arms < large.arms
        assert small.steps < large.steps

    def test_given_steps_are_kept(self):
        assert Plan.of(FixOptions(steps=33), 0.01, 5) == Plan(33, 5)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"family": "normals"}, "family must be one of"),
            ({"budget": 0.0}, "budget must be a number in"),
            ({"budget": math.nan}, "budget must be a number in"),
            ({"optimizer": "lbfgs"}, "optimizer must be one of"),
            ({"steps": 1}, "steps must be a whole number of at least"),
            ({"seeds": 1.5}, "seeds must be a whole number of at least 1; got 1.5"),
            ({"arms": True}, "arms must be a whole number of at least 1; got True"),
            ({"rates": (0.1,)}, "at least two"),
        ],
    )
    def test_bad_options_are_refused(self, options, message):
        with pytest.raises(ValueError, match=message):
            FixOptions(**options)

    def test_an_unknown_family_is_answered_without_the_names_of_inner_options(self):
        with pytest.raises(ValueError, match=r"a family's name, all, .*; got 'everything'"):
            FixOptions.of("everything")


def test_proposals_without_time_have_no_prediction(monkeypatch):
    seen = []
    monkeypatch.setattr(measure, "propose", lambda *a, **k: seen.append(k["patience"]) or ())
    fix(silenced, data(), FixOptions(budget=20, rates=(0.01, 0.03), seeds=1), batch_size=16)
    assert seen == [pytest.approx(3.0)]


class TestTheBudget:
    def test_what_went_before_the_race_is_taken_off(self, monkeypatch):
        """Judging changed models takes a part of it, and the race gets what is left."""
        given, allowances = [], []

        class Watched(race.Race):
            def __init__(self, problem, division, options, *rest):
                given.append(options.seconds)
                super().__init__(problem, division, options, *rest)

        def slow(graph, *, allowance=None):
            allowances.append(allowance)
            time.sleep(0.4)
            raise ValueError("theory does not know")

        monkeypatch.setattr(measure, "Race", Watched)
        monkeypatch.setattr(measure, "propagate", slow)
        options = FixOptions("starts", budget=4, rates=(0.01, 0.03), seeds=2)
        found = fix(normalised, data(), options, batch_size=16)
        assert given[0] < 4 - 0.4 * len(allowances)
        assert all(allowance <= 1.0 for allowance in allowances)
        assert len(allowances) < 1 + len(found.arms)  # the last ones were not judged any more

    def test_without_one_nothing_is_taken_off(self):
        found = fix(normalised, data(), QUICK, batch_size=16)
        assert all(arm.measured is not None for arm in found.arms)


@pytest.mark.parametrize(
    ("given", "family"), [("norms", "norms"), (True, "all"), (FixOptions("bnp"), "bnp")]
)
def test_options_are_taken_in_every_form(given, family):
    assert FixOptions.of(given).family == family


@pytest.mark.parametrize("given", ["normals", 3, ["norms"]])
def test_what_is_no_option_is_refused(given):
    with pytest.raises(ValueError, match="norms"):
        FixOptions.of(given)


class ReadsItsNorm(nn.Module):
    """Evaluates by a formula of its own, which needs a bias that some norms do not have."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 2)

    def forward(self, x):
        h = self.norm(self.first(x).relu())
        return self.last(h if self.training else h + 0 * self.norm.bias)


def test_a_remedy_that_breaks_evaluation_is_left_out():
    options = FixOptions("norms", steps=6, seeds=2, rates=(0.03, 0.1))
    arms = {arm.name: arm.reason for arm in fix(ReadsItsNorm, data(), options).arms}
    assert "has no attribute 'bias'" in arms["RMS norm instead of every norm"]
    assert arms["as it is"] is None


def test_bnp_is_left_out_where_all_its_layers_are_frozen():
    def adapted():
        model = nn.Sequential(nn.Linear(6, 16).requires_grad_(False), nn.LayerNorm(16))
        return model.append(nn.Linear(16, 2).requires_grad_(False))

    arms = fix(adapted, data(), FixOptions("bnp", steps=6, seeds=2, rates=(0.03, 0.1))).arms
    assert arms[0].reason is None
    assert all("trains no weight" in arm.reason for arm in arms[1:])
