"""Predict, measure, compare, try remedies, conclude: on small models of every kind."""

import copy
import itertools
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from equipoise import apply, checkup, models, theory
from equipoise.data.user import as_source
from equipoise.diagnosis import FixOptions, SmoothnessOptions
from equipoise.diagnosis.fix.words import in_words
from equipoise.diagnosis.price import Plan
from equipoise.diagnosis.record import CORRELATION, GROWTH, PROFILE, SCHEMA_VERSION, Checkup
from equipoise.diagnosis.short_training import UNCHANGED
from equipoise.diagnosis.smoothness.variants import WITHOUT
from equipoise.records import from_plain, to_plain, wording
from support.diagnosis_examples import DIGITS, fixed_batches

DEPTH, WIDTH = 56, 64
SMALL = {"seeds": 2, "batches": 2, "batch_size": 16}
SEVERITIES = ["critical", "warning", "note", "good"]


def mlp(depth=6, width=64, **keywords):
    return models.mlp(64, 10, depth=depth, width=width, **keywords)


def remediable():
    """About the smallest network that has a remedy."""
    return mlp(depth=20, width=16)


def titles(report):
    return [finding.title for finding in report.findings]


def title_with(report, text):
    return next((title for title in titles(report) if text in title), None)


class TestBatchNormalisedNetworks:
    @pytest.fixture(scope="class")
    @staticmethod
    def report():
        """Deep enough to warn and to try remedies."""
        build = partial(mlp, depth=DEPTH, width=WIDTH)
        return checkup(build, DIGITS, seeds=4, batches=2, target=f"{DEPTH} × {WIDTH}")

    @pytest.fixture(scope="class")
    @staticmethod
    def trained():
        """A short training takes passes for every layer: only just deep enough for a remedy."""
        training = SmoothnessOptions(rate=0.01, steps=4, measurements=2, points=2, seeds=1)
        return checkup(remediable, DIGITS, **SMALL, smoothness=training)

    def test_theory_and_measurement_agree(self, report):
        assert [one.quantity for one in report.comparisons] == [GROWTH, PROFILE, CORRELATION]
        assert {one.outcome for one in report.comparisons} == {"agrees"}
        growth = report.comparison(GROWTH)
        assert growth.measured == report.growth.rate
        expected = theory.explosion_rate("relu", 64).value
        assert growth.predicted.value == pytest.approx(expected, rel=5e-3)

    def test_every_operation_is_predicted_and_every_layer_measured(self, report):
        assert not any(site.reason for site in report.sites if site.module)
        names = [f"norm{i}" for i in range(1, DEPTH + 1)]
        assert [layer.layer for layer in report.growth.layers] == names
        assert [one.layer for one in report.predictions] == names
        assert all(one.reason is None for one in report.predictions)
        assert len(report.conditioning) == DEPTH + 1

    def test_predictions_hold_layer_by_layer(self, report):
        for layer, one in zip(report.growth.layers, report.predictions, strict=True):
            off = math.log(one.gradient.value / layer.gradient.value)
            assert abs(off) < 3 * math.hypot(
                one.gradient.relative_error, 2 * layer.gradient.relative_error
            )

    def test_growth_is_the_normalisers(self, report):
        first = report.attribution[0]
        assert (first.kind, first.operations) == ("normalisers", DEPTH)
        assert first.each == pytest.approx(1.5, rel=0.05)

    def test_remedies_are_measured_on_the_model_and_verified(self, report):
        assert report.remedies
        for remedy in report.remedies:
            assert remedy.verified
            assert remedy.measured_rate.value == pytest.approx(
                remedy.predicted_rate.value, rel=0.05
            )
            assert remedy.predicted_rate.value < report.comparisons[0].predicted.value
        chances = [remedy.predicted_probability for remedy in report.remedies]
        assert chances == sorted(chances, reverse=True)

    def test_a_verified_remedy_is_trained_as_a_variant_of_its_own(self, trained):
        assert trained.remedies[0].verified
        change = trained.remedies[0].change
        assert trained.smoothness.steps == 4
        names = [UNCHANGED, WITHOUT, f"with {change.removeprefix('start ')}"]
        assert [arm.name for arm in trained.smoothness.arms] == names
        assert all(arm.reason is None for arm in trained.smoothness.arms)

    def test_findings_are_ranked_and_name_the_remedy(self, report):
        ranks = [SEVERITIES.index(finding.severity) for finding in report.findings]
        assert ranks == sorted(ranks)
        assert report.findings[0].title == report.verdict.sentence
        assert report.findings[0].severity == "critical"
        assert "measured on your model" in report.findings[0].remedy

    def test_the_record_says_what_was_done(self, report):
        assert (report.schema, report.target, report.data) == (
            SCHEMA_VERSION,
            f"{DEPTH} × {WIDTH}",
            "digits",
        )
        assert (report.batch_size, report.seeds, report.batches) == (64, 4, 2)
        assert (report.depth, report.device, report.interrupted) == (DEPTH, "cpu", False)
        model = mlp(DEPTH, WIDTH)
        assert report.parameters == sum(p.numel() for p in model.parameters())

    def test_it_survives_being_stored(self, report, trained):
        for one in (report, trained):
            assert to_plain(from_plain(Checkup, to_plain(one))) == to_plain(one)

    @pytest.mark.usefixtures("no_depth")
    def test_it_is_reproducible_and_leaves_the_random_state_alone(self):
        before = torch.get_rng_state()
        build = partial(mlp, depth=3, width=16)
        first = checkup(build, DIGITS, seeds=2, batches=1)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(1)
        second = checkup(build, DIGITS, seeds=2, batches=1)
        assert to_plain(first.growth) == to_plain(second.growth)
        assert to_plain(first.sites) == to_plain(second.sites)
        third = checkup(build, DIGITS, seeds=2, batches=1, seed=1)
        assert third.growth.rate != first.growth.rate


class Residual(nn.Module):
    """BN-ReLU blocks beside skip connections."""

    def __init__(self, zero=False):
        super().__init__()
        self.stem = nn.Sequential(nn.Flatten(), nn.Linear(64, 32))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32),
                          nn.BatchNorm1d(32))
            for _ in range(4)
        )  # fmt: skip
        if zero:
            for block in self.blocks:
                nn.init.zeros_(block[4].weight)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = torch.relu(x + block(x))
        return self.head(x)


class Transformer(nn.Module):
    def __init__(self, norm_first=False):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x.reshape(len(x), 8, 8))).mean(1))


def group_normalised():
    layers = []
    for channels, stride in ((1, 2), (8, 1), (8, 1), (8, 1)):
        convolution = nn.Conv2d(channels, 8, 3, stride, padding=1)
        layers += [convolution, nn.GroupNorm(2, 8), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10))


def tanh(depth=20, gain=1.0):
    layers = [nn.Flatten()]
    for _ in range(depth):
        linear = nn.Linear(64, 64, bias=False)
        nn.init.normal_(linear.weight, std=gain / 8)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


class Unknown(nn.Module):
    def forward(self, x):
        return x.cummax(1).values


def with_unknown():
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), Unknown()),
        *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()),
        *(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)),
    )


# Models of every kind, with what their layers are.
KINDS = {
    "no norm": (partial(mlp, norm="none"), "Linear"),
    "tanh": (partial(tanh, depth=8), "Linear"),
    "group norm": (group_normalised, "GroupNorm"),
    "transformer": (Transformer, "LayerNorm"),
    "pre-norm transformer": (partial(Transformer, norm_first=True), "LayerNorm"),
    "residual": (Residual, "BatchNorm1d"),
}


class TestAnyModel:
    @pytest.mark.usefixtures("no_depth")
    @pytest.mark.parametrize(("build", "kind"), KINDS.values(), ids=KINDS)
    def test_every_operation_is_predicted_and_compared(self, build, kind):
        report = checkup(build, fixed_batches(), seeds=2, batches=1)
        assert {layer.kind for layer in report.growth.layers} == {kind}
        assert not [site for site in report.sites if site.module and site.reason]
        assert report.growth.rate is not None
        assert report.comparisons
        off = [abs(one.z) for one in report.comparisons]
        assert max(off) < 4  # in standard errors, which two initialisations do not widen

    def test_a_model_that_cannot_be_traced_is_measured(self, monkeypatch):
        def failing(*args):
            raise RuntimeError("no trace of this")

        monkeypatch.setattr("equipoise.diagnosis.examination.traced", failing)
        report = checkup(mlp, fixed_batches(), seeds=2, batches=1)
        (finding,) = (f for f in report.findings if f.title.startswith("Not predicted"))
        assert "no trace of this" in finding.detail
        assert report.growth.rate is not None
        assert (report.sites, report.comparisons, report.remedies) == ((), (), ())

    @pytest.mark.usefixtures("no_depth")
    def test_theory_that_takes_too_long_is_cut_and_the_model_judged(self, monkeypatch):
        class Gated(nn.Module):
            def __init__(self):
                super().__init__()
                self.steps, self.head = nn.GRU(8, 16, batch_first=True), nn.Linear(16, 4)

            def forward(self, x):
                return self.head(self.steps(x)[0][:, -1])

        # Every look at the clock takes a millisecond: a slow machine stops no earlier.
        clock = SimpleNamespace(process_time=partial(next, itertools.count(0.0, 0.001)))
        monkeypatch.setattr("equipoise.theory.propagation.propagate.time", clock)
        monkeypatch.setattr(Plan, "theory_seconds", lambda *_: 0.05)
        batch = torch.randn(32, 40, 8), torch.arange(32) % 4
        report = checkup(Gated, batch, seeds=2, batches=1)
        (finding,) = (f for f in report.findings if f.title.startswith("Theory predicts"))
        assert "no time left for it" in finding.detail
        assert finding.remedy == "`budget=60` lets theory go further."
        assert report.verdict.trainability.source == "measured"

    @pytest.mark.usefixtures("no_depth")
    def test_maps_get_the_time_that_a_verdict_needs(self, monkeypatch):
        monkeypatch.setattr(Plan, "theory_seconds", lambda *_: 0.001)
        convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1)]
        batch = torch.randn(8, 1, 12, 12), torch.randn(8, 1, 12, 12)
        report = checkup(nn.Sequential(*convolutions), batch)
        assert report.verdict.trainability is not None
        assert not [one for one in report.findings if one.title.startswith("Not judged")]

    def test_derivatives_by_the_inputs_may_be_part_of_the_loss(self):
        """They are taken where nothing is recorded, such as for condition numbers."""

        def residual(model, x):
            x = x.clone().requires_grad_(True)
            u = model(x)
            (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            return (slope - u).square().mean()

        model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        report = checkup(model.append(nn.Linear(32, 1)), torch.rand(16, 1), loss_fn=residual)
        assert [layer.skipped for layer in report.conditioning] == [None] * 3

    def test_views_that_are_joined_are_samples(self):
        def contrast(model, batch):
            z = model(torch.cat(batch))
            return (z[: len(batch[0])] - z[len(batch[0]) :]).square().mean()

        model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32))
        views = (torch.randn(16, 6), torch.randn(16, 6))
        report = checkup(model, views, loss_fn=contrast)
        assert [s.is_predicted for s in report.sites if s.operation == "addmm"] == [True, True]

    @pytest.mark.usefixtures("no_depth")
    def test_what_is_unknown_cuts_the_prediction_and_is_named(self):
        report = checkup(with_unknown, fixed_batches(), seeds=2, batches=1)
        inside = [site for site in report.sites if site.module]
        assert title_with(report, f"Theory predicts {len(inside) - 1} of {len(inside)} operations")
        (finding,) = (f for f in report.findings if f.title.startswith("Theory predicts"))
        assert "cummax (no rule for cummax)" in finding.detail

    @pytest.mark.usefixtures("no_depth")
    def test_branches_that_start_at_zero_are_no_alarm(self):
        """γ = 0 at the end of each branch is common practice [goyal2017]."""
        report = checkup(partial(Residual, zero=True), DIGITS, seeds=2, batches=1)
        assert all(finding.severity != "critical" for finding in report.findings)

    @pytest.mark.usefixtures("no_depth")
    @pytest.mark.parametrize(
        ("gain", "severity", "title"),
        [
            (0.3, "critical", "Gradients shrink towards the input"),
            (1.0, "good", "Gradients stay balanced over the depth"),
            (8.0, "critical", "Gradients grow towards the input"),
        ],
    )
    def test_plain_tanh_networks(self, gain, severity, title):
        build = partial(tanh, depth=20, gain=gain)
        report = checkup(build, fixed_batches(), seeds=2, batches=1)
        assert title in titles(report)
        chance = next(f for f in report.findings if f.title == report.verdict.sentence)
        assert chance.severity == severity
        assert bool(report.verdict.trainability.reason) == (severity == "critical")
        found = report.proposal  # β and γ, which are tried, it has none
        assert (found is None) == (severity == "good")
        if found is not None:
            assert found.predicted > 0.5
            assert chance.remedy.startswith(wording.capital(in_words(found.remedy)))
            assert from_plain(Checkup, to_plain(report)).proposal == found
            by_hand = build()
            model = apply(copy.deepcopy(by_hand), found.remedy).model
            exec("\n".join(found.code), {"model": by_hand})
            pairs = zip(by_hand.parameters(), model.parameters(), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)

    def test_blocks_of_a_residual_network_promise_no_depth(self):
        """Two equal blocks are not the depth, and no gradient grows by one factor per layer."""
        build = partial(models.resnet18, 10, 1, width=8)
        report = checkup(build, fixed_batches(8), seeds=2, batches=1)
        assert not [site for site in report.sites if site.module and site.reason]
        assert report.verdict.trainability.depth is None
        assert "blocks" not in report.verdict.details
        assert report.remedies == ()

    def test_a_model_without_layers_is_not_judged(self):
        report = checkup(
            lambda: nn.Sequential(nn.Flatten(), nn.PReLU(), nn.LayerNorm(64)), DIGITS, seeds=1
        )
        (finding,) = (f for f in report.findings if f.title.startswith("Not judged"))
        assert "no linear or convolutional layer" in finding.detail
        assert report.verdict.trainability is None

    @pytest.mark.usefixtures("no_depth")
    def test_evaluation_mode_is_respected(self):
        """With statistics as they start, batch norm changes nothing."""
        report = checkup(lambda: mlp().eval(), DIGITS, seeds=2, batches=1)
        norms = [share for share in report.attribution if share.kind == "normalisers"]
        assert all(abs(share.log_gain) < 0.05 for share in norms)


@pytest.mark.usefixtures("no_depth")
class TestReplicates:
    def test_fixed_weights_make_one_replicate(self):
        weights = mlp().state_dict()

        def build():
            model = mlp()
            model.load_state_dict(weights)
            return model

        report = checkup(build, DIGITS, seeds=3, batches=2)
        assert (report.seeds, report.growth.replicates) == (1, 1)
        assert "error of the fit alone" in report.growth.rate.method

    @pytest.mark.parametrize("count", ["seeds", "batches", "batch_size"])
    def test_none_is_refused(self, count):
        whole = "must be a whole number of at least 1"
        with pytest.raises(ValueError, match=f"{count} {whole}; got 0"):
            checkup(mlp, DIGITS, **{count: 0})
        with pytest.raises(ValueError, match=rf"{count} {whole}; got 2\.5"):
            checkup(mlp, DIGITS, **{count: 2.5})

    @pytest.mark.parametrize("flag", ["smoothness", "preconditioning", "hessian"])
    def test_a_word_for_a_yes_is_refused(self, flag):
        with pytest.raises(ValueError, match=f"^{flag} .*True or False; got 'no'"):
            checkup(mlp, DIGITS, **{flag: "no"})

    def test_a_factory_that_builds_another_model_each_time_is_refused(self):
        depth = itertools.count(2)
        with pytest.raises(ValueError, match="factory"):
            checkup(lambda: mlp(next(depth), 8), DIGITS, seeds=2, batches=1)

    def test_an_odd_loss_of_the_users(self):
        seen = []

        def loss(model, batch):
            seen.append(len(batch))
            return model(batch[0]).abs().mean()

        report = checkup(mlp, DIGITS, loss_fn=loss, seeds=2, batches=1)
        assert report.growth.rate is not None
        assert set(seen) == {2}

    def test_regression(self):
        x = torch.randn(80, 5, generator=torch.Generator().manual_seed(0))
        build = partial(models.mlp, 5, 1, depth=4, width=16)
        report = checkup(build, as_source((x, x[:, :1]), "own"), seeds=2, batches=1)
        assert report.data == "own"
        assert report.growth.rate is not None


STAGES = [
    "predicting",
    "measuring gradients",
    "measuring conditioning",
    "measuring preconditioning",
    "trying remedies",
]


@pytest.mark.usefixtures("no_depth")  # which is no stage of its own
class TestInterruption:
    @pytest.mark.parametrize(
        ("stage", "half_way"),
        [*((stage, True) for stage in STAGES), *((stage, False) for stage in STAGES[:2])],
    )
    def test_what_was_finished_is_kept(self, stage, half_way):
        calls = itertools.count()

        def progress(name, done, total):
            if name == stage and next(calls) >= half_way:
                raise KeyboardInterrupt

        build = remediable if stage == STAGES[-1] else partial(mlp, depth=3, width=16)
        report = checkup(build, DIGITS, **SMALL, preconditioning=True, progress=progress)
        assert report.interrupted
        reached = STAGES.index(stage)
        assert bool(report.sites) == (reached > 0 or half_way)
        assert (report.growth is not None) == (reached > 1)
        assert bool(report.comparisons) == (reached > 1)
        assert bool(report.conditioning) == (reached > 2)
        assert bool(report.preconditioning) == (reached > 3)
        assert report.remedies == ()
        assert to_plain(from_plain(Checkup, to_plain(report))) == to_plain(report)

    def test_one_during_a_training_leaves_the_measurement_at_initialisation(self):
        def interrupt(stage, done, total):
            if stage == "measuring smoothness":
                raise KeyboardInterrupt

        options = {"seeds": 2, "batches": 1, "smoothness": SmoothnessOptions()}
        report = checkup(mlp, DIGITS, **options, progress=interrupt)
        assert report.interrupted
        assert report.smoothness.steps == 0

    @pytest.mark.parametrize("stage", ["predicting", "measuring gradients", "trying remedies"])
    def test_a_failure_keeps_what_was_finished(self, stage):
        """As Ctrl-C does, and the cause is what was raised."""
        failure = OSError("disk on fire")

        def progress(name, done, total):
            if name == stage:
                raise failure

        build = remediable if stage == STAGES[-1] else partial(mlp, depth=3, width=16)
        with pytest.raises(ValueError, match=f"^while {stage}: .*OSError: disk on fire") as error:
            checkup(build, DIGITS, **SMALL, preconditioning=True, progress=progress)
        causes, cause = [], error.value.__cause__
        while cause is not None:
            causes.append(cause)
            cause = cause.__cause__
        assert failure in causes
        report = error.value.finished
        assert report.interrupted
        assert (report.growth is not None) == (STAGES.index(stage) > 1)
        assert to_plain(from_plain(Checkup, to_plain(report))) == to_plain(report)

    @pytest.mark.parametrize(
        ("failure", "words"),
        [
            (SystemExit(3), "exits with 3. Leave out"),
            (GeneratorExit("gone"), "GeneratorExit: gone"),
        ],
    )
    def test_so_does_what_is_no_exception(self, failure, words):
        def progress(name, done, total):
            if name == "measuring conditioning":
                raise failure

        with pytest.raises(ValueError, match=f"^while measuring conditioning: .*{words}") as error:
            checkup(remediable, DIGITS, **SMALL, progress=progress)
        assert error.value.__cause__ is failure
        assert error.value.finished.growth is not None

    def test_every_stage_reports_its_progress_to_the_end(self):
        seen = {}

        def progress(name, done, total):
            seen[name] = done, total

        report = checkup(
            remediable, DIGITS, **SMALL, preconditioning=True, smoothness=True, progress=progress
        )
        assert list(seen) == STAGES
        assert all(done == total for done, total in seen.values())
        assert {remedy.parameter for remedy in report.remedies} == {"bias"}
        assert report.smoothness.steps == 0  # only the initialisation, unless asked for more
        assert to_plain(from_plain(Checkup, to_plain(report))) == to_plain(report)


@pytest.mark.usefixtures("no_depth")
def test_batch_norm_of_two_rows_is_judged_and_not_refused():
    """The last maps of a ResNet-18 are 1 × 1: at a batch of 2 it trains, badly."""
    found = checkup(
        lambda: models.resnet18(classes=10, in_channels=1, width=4),
        "digits",
        batch_size=2,
        seeds=1,
        batches=1,
    )
    few = [finding.severity for finding in found.findings if "2 rows" in finding.title]
    assert few == ["critical", "warning"]
    assert found.verdict.probability < 0.5


@pytest.mark.usefixtures("no_depth")
def test_tokens_have_rows_enough_for_condition_numbers():
    """65,536 rows were taken for a GPT, too many for every layer."""

    def build():
        return nn.Sequential(nn.Embedding(96, 16), nn.Linear(16, 16), nn.Linear(16, 96))

    found = checkup(build, "text:64", batch_size=32, seeds=1, batches=1, preconditioning=True)
    assert [layer.rows for layer in found.preconditioning] == [32 * 64] * 2
    assert all(layer.inputs >= 1 for layer in found.preconditioning)


@pytest.mark.usefixtures("no_depth")
@pytest.mark.parametrize("behind", [None, "steps", "waves"])
def test_only_what_is_given_the_data_is_told_to_standardise_them(behind):
    """A head behind an LSTM is the first layer whose inputs are measured, and not the first.

    Neither are the data to blame for what functions make of them, as of distances in SchNet.
    """

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = nn.LSTM(4, 4, batch_first=True)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            outputs = self.steps(x)[0] if behind == "steps" else x.sin() if behind else x
            return self.head(outputs.double().float() + torch.tensor([0.0, 0.0, 0.0, 1e3]))[:, -1]

    x = torch.randn(64, 3, 4, generator=torch.Generator().manual_seed(0))
    report = checkup(Net, (x, torch.arange(64) % 2), seeds=1, batches=1)
    (found,) = (one for one in report.findings if "ill-conditioned" in one.title)
    assert found.severity == ("note" if behind else "warning")
    assert ("Standardise the data" in found.remedy) is (behind is None)


class Boltzmann(nn.Module):
    """A restricted Boltzmann machine, whose loss calls methods, as its layers are no modules."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.01 * torch.randn(12, 6))
        self.visible, self.hidden = nn.Parameter(torch.zeros(12)), nn.Parameter(torch.zeros(6))

    def energy(self, x):
        return -(x @ self.visible) - nn.functional.softplus(x @ self.weight + self.hidden).sum(1)

    def drawn(self, x):
        h = torch.bernoulli(torch.sigmoid(x @ self.weight + self.hidden))
        return torch.bernoulli(torch.sigmoid(h @ self.weight.T + self.visible))


def contrast(model, x):
    return model.energy(x).mean() - model.energy(model.drawn(x).detach()).mean()


@pytest.mark.parametrize("asked", [{}, {"preconditioning": True}, {"hessian": True}])
def test_what_looks_at_layers_is_not_offered_where_none_ran(asked):
    x = (torch.rand(24, 12) < 0.5).float()
    report = checkup(Boltzmann(), x, loss_fn=contrast, seeds=2, batches=1, **asked)
    assert [one.option for one in report.left_out] == ["smoothness=True"]
    (note,) = (f for f in report.findings if f.title == "Gradients of layers were not measured")
    assert ("preconditioning" in note.detail) is bool(asked)


@pytest.mark.parametrize("model", [Boltzmann, Boltzmann()])
def test_a_loss_that_calls_methods_alone_ends_no_checkup(model):
    x = (torch.rand(24, 12) < 0.5).float()
    report = checkup(model, x, loss_fn=contrast, seeds=2, batches=1)
    assert not report.interrupted
    assert report.verdict.sentence == "Whether it will train is unknown"
    (note,) = (f for f in report.findings if f.title == "Gradients of layers were not measured")
    assert note.severity == "note"
    assert "the loss call its methods" in note.detail
    assert not any("not measured" in f.title for f in report.findings if f is not note)


@pytest.mark.usefixtures("no_depth")
class TestOptimizer:
    """The user's own, whose steps are tried."""

    @pytest.mark.parametrize(
        ("rate", "severity", "sentence"),
        [
            (100.0, "critical", "Not ready to train: the learning rate 100 of SGD is too large"),
            (0.1, "good", "Will train"),
        ],
    )
    def test_a_rate_that_is_too_large_is_the_verdict(self, rate, severity, sentence):
        optimizer = partial(torch.optim.SGD, lr=rate)
        report = checkup(mlp, DIGITS, optimizer=optimizer, seeds=1, batches=1, batch_size=32)
        assert report.verdict.sentence.startswith(sentence)
        assert report.optimizer.rate == rate
        (about,) = (one for one in report.findings if "of SGD at" in one.detail)
        assert about.severity == severity
        assert to_plain(from_plain(Checkup, to_plain(report))) == to_plain(report)

    def test_remedies_are_trained_with_it(self):
        options = FixOptions("starts", steps=4, arms=1, seeds=1, rates=(0.001, 0.01))
        report = checkup(mlp, DIGITS, optimizer=torch.optim.AdamW, fix=options, **SMALL)
        assert report.fix.optimizer == "adamw"

    def test_a_broken_model_is_not_stepped(self):
        def build():
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), RootOfZero())

        report = checkup(build, DIGITS, optimizer=torch.optim.Adam, **SMALL)
        assert report.verdict.sentence.startswith("Will not train")
        assert report.optimizer is None

    def test_a_wrong_one_is_refused_before_anything_is_measured(self):
        with pytest.raises(ValueError, match="optimizer is a float"):
            checkup(mlp, DIGITS, optimizer=0.1)


class RootOfZero(nn.Module):
    """Its derivative is not finite."""

    def forward(self, x):
        return (0 * x).sqrt()
