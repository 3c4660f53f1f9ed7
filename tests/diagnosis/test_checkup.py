"""Predict, measure, compare, try remedies, conclude: on small models of every kind."""

import itertools
import math
from functools import partial

import pytest
import torch
from scipy import stats
from torch import nn

from equipoise import checkup, models, predict
from equipoise.data.user import as_source
from equipoise.diagnosis import SmoothnessOptions, remedies
from equipoise.diagnosis.record import SCHEMA_VERSION, Checkup
from equipoise.diagnosis.short_training import UNCHANGED
from equipoise.diagnosis.smoothness.variants import WITHOUT
from equipoise.records import from_plain, to_plain
from support.diagnosis_examples import DIGITS, fixed_batches

SEVERITIES = ["critical", "warning", "note", "good"]


def mlp(depth=6, width=64, **keywords):
    return models.mlp(64, 10, depth=depth, width=width, **keywords)


def titles(report):
    return [finding.title for finding in report.findings]


def title_with(report, text):
    return next((title for title in titles(report) if text in title), None)


class TestBatchNormalisedNetworks:
    @pytest.fixture(scope="class")
    @staticmethod
    def report():
        """Deep enough to warn and to try remedies."""
        build = partial(mlp, depth=24, width=256)
        training = SmoothnessOptions(rate=0.01, steps=4, measurements=2, points=2, seeds=1)
        return checkup(build, DIGITS, seeds=4, batches=2, target="24 × 256", smoothness=training)

    def test_theory_and_measurement_agree(self, report):
        growth, correlation = report.comparisons
        assert (abs(growth.z) <= 3, growth.outcome) == (True, "agrees")
        assert abs(correlation.z) <= 3  # to more than 10 %, so its outcome may be unclear
        assert growth.measured == report.growth.rate
        # Student's t widens a standard error from few initialisations.
        widening = stats.t(report.growth.replicates - 1).ppf(stats.norm.cdf(3)) / 3
        error = math.sqrt(
            (widening * growth.measured.error) ** 2
            + growth.finite_width**2
            + growth.predicted.error**2
        )
        assert growth.z == pytest.approx(
            (growth.measured.value - growth.predicted.value) / error, rel=1e-2
        )
        assert growth.finite_width < 0.03 * growth.predicted.value

    def test_blocks_are_those_of_a_prediction_alone(self, report):
        assert predict(partial(mlp, depth=24, width=256), DIGITS) == report.blocks

    def test_every_block_is_predicted_and_every_layer_measured(self, report):
        assert [block.layer for block in report.blocks] == [f"norm{i}" for i in range(1, 25)]
        assert [layer.layer for layer in report.growth.layers] == [b.layer for b in report.blocks]
        assert {block.activation for block in report.blocks} == {"relu"}
        assert all(block.rate.stable for block in report.blocks)
        assert len(report.conditioning) == 25

    def test_remedies_are_measured_on_the_model_and_verified(self, report):
        assert report.remedies
        for remedy in report.remedies:
            assert remedy.verified
            assert remedy.measured_rate.value == pytest.approx(
                remedy.predicted_rate.value, rel=0.05
            )
            assert remedy.predicted_rate.value < report.comparisons[0].predicted.value
        depths = [remedy.predicted_depth for remedy in report.remedies]
        assert depths == sorted(depths, reverse=True)

    def test_a_verified_remedy_is_trained_as_a_variant_of_its_own(self, report):
        change = report.remedies[0].change
        assert report.smoothness.steps == 4
        names = [UNCHANGED, WITHOUT, f"with {change.removeprefix('start ')}"]
        assert [arm.name for arm in report.smoothness.arms] == names
        assert all(arm.reason is None for arm in report.smoothness.arms)

    def test_findings_are_ranked_and_name_the_remedy(self, report):
        ranks = [SEVERITIES.index(finding.severity) for finding in report.findings]
        assert ranks == sorted(ranks)
        assert report.findings[0].title == "Gradients grow noticeably with depth"
        assert "measured on your model" in report.findings[0].remedy

    def test_the_record_says_what_was_done(self, report):
        assert (report.schema, report.target, report.data) == (
            SCHEMA_VERSION,
            "24 × 256",
            "digits",
        )
        assert (report.batch_size, report.seeds, report.batches) == (64, 4, 2)
        assert (report.depth, report.device, report.interrupted) == (24, "cpu", False)
        model = mlp(24, 256)
        assert report.parameters == sum(p.numel() for p in model.parameters())

    def test_it_survives_being_stored(self, report):
        assert from_plain(Checkup, to_plain(report)) == report

    def test_it_is_reproducible_and_leaves_the_random_state_alone(self):
        before = torch.get_rng_state()
        first = checkup(mlp, DIGITS, seeds=2, batches=1)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(1)
        second = checkup(mlp, DIGITS, seeds=2, batches=1)
        assert (first.growth, first.blocks) == (second.growth, second.blocks)
        third = checkup(mlp, DIGITS, seeds=2, batches=1, seed=1)
        assert third.growth.rate != first.growth.rate

    @pytest.mark.parametrize(("batch_size", "stable"), [(64, False), (16, True)])
    def test_unstable_gelu_is_flagged(self, batch_size, stable):
        build = partial(mlp, activation=nn.GELU)
        report = checkup(build, DIGITS, seeds=2, batches=1, batch_size=batch_size)
        assert {block.rate.stable for block in report.blocks} == {stable}
        assert ("Samples of a batch drift apart with depth" in titles(report)) is not stable


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


# Kind, and why its first normaliser has no prediction.
UNCOVERED = {
    "group norm": (group_normalised, "GroupNorm", "positions of feature maps"),
    "transformer": (Transformer, "LayerNorm", "it normalises the output of add"),
    "pre-norm transformer": (
        partial(Transformer, norm_first=True), "LayerNorm", "attention follows",
    ),
}  # fmt: skip


class TestWhereTheoryDoesNotApply:
    def test_models_without_normaliser_are_measured_and_say_so(self):
        report = checkup(partial(mlp, norm="none"), DIGITS, seeds=2, batches=1)
        assert "No normalisation: measured, not predicted" in titles(report)
        assert {layer.kind for layer in report.growth.layers} == {"Linear"}
        assert report.growth.rate is not None
        assert report.conditioning
        assert (report.blocks, report.comparisons, report.remedies) == ((), (), ())

    @pytest.mark.parametrize(("build", "kind", "reason"), UNCOVERED.values(), ids=UNCOVERED)
    def test_other_normalisers_are_measured_and_say_why(self, build, kind, reason):
        report = checkup(build, fixed_batches(), seeds=2, batches=1)
        assert title_with(report, "Theory covers 0 of 4 normalisers")
        assert title_with(report, "No normalisation") is None
        assert {layer.kind for layer in report.growth.layers} == {kind}
        assert all(block.rate is None for block in report.blocks)
        assert reason in report.blocks[0].reason
        assert report.growth.rate is not None
        assert report.conditioning
        assert (report.comparisons, report.remedies) == ((), ())

    def test_residual_models_say_which_blocks_are_covered(self):
        report = checkup(Residual, DIGITS, seeds=2, batches=1)
        assert title_with(report, "Theory covers 4 of 8 normalisers")
        reasons = {block.reason for block in report.blocks if block.rate is None}
        assert all("residual" in reason for reason in reasons)
        assert report.growth.rate is not None
        assert report.comparisons == ()

    def test_branches_that_start_at_zero_are_no_alarm(self):
        """γ = 0 at the end of each branch is common practice [goyal2017]."""
        report = checkup(partial(Residual, zero=True), DIGITS, seeds=2, batches=1)
        assert all(finding.severity != "critical" for finding in report.findings)

    def test_resnet18(self):
        build = partial(models.resnet18, 10, 1, width=4)
        report = checkup(build, DIGITS, seeds=2, batches=1, batch_size=8)
        assert title_with(report, "Theory covers 8 of 20")
        assert len(report.growth.layers) == 20

    @pytest.mark.parametrize(
        ("gain", "severity", "word"),
        [(0.4, "critical", "vanish"), (1.0, "good", "balanced"), (8.0, "critical", "explode")],
    )
    def test_plain_tanh_networks(self, gain, severity, word):
        report = checkup(partial(tanh, depth=40, gain=gain), fixed_batches(), seeds=2, batches=1)
        gradient = next(f for f in report.findings if f.title.startswith("Gradients"))
        assert gradient.severity == severity
        assert word in gradient.title

    def test_evaluation_mode_is_respected(self):
        report = checkup(lambda: mlp().eval(), DIGITS, seeds=2, batches=1)
        assert all("running statistics" in block.reason for block in report.blocks)


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
        with pytest.raises(ValueError, match=f"{count} must be at least 1, got 0"):
            checkup(mlp, DIGITS, **{count: 0})

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
    "simulating the theory's network",
    "measuring conditioning",
    "measuring preconditioning",
    "trying remedies",
]


class TestInterruption:
    @pytest.fixture(autouse=True)
    def given_remedy(self, monkeypatch):
        """The search for a remedy takes seconds, and no stage of it can be interrupted."""
        monkeypatch.setattr(
            remedies, "_mildest", lambda network, knob, depth: {"beta": 0.5}.get(knob)
        )

    def deep(self):
        return mlp(depth=24, width=16)

    @pytest.mark.parametrize("stage", STAGES)
    @pytest.mark.parametrize("half_way", [False, True])
    def test_what_was_finished_is_kept(self, stage, half_way):
        calls = itertools.count()

        def progress(name, done, total):
            if name == stage and next(calls) >= half_way:
                raise KeyboardInterrupt

        report = checkup(self.deep, DIGITS, seeds=2, batches=2, batch_size=16, progress=progress)
        assert report.interrupted
        reached = STAGES.index(stage)
        assert bool(report.blocks) == (reached > 0 or half_way)
        assert (report.growth is not None) == (reached > 1)
        assert bool(report.comparisons) == (reached > 2 or (reached == 2 and half_way))
        assert bool(report.conditioning) == (reached > 3)
        assert bool(report.preconditioning) == (reached > 4)
        assert report.remedies == ()
        assert from_plain(Checkup, to_plain(report)) == report

    def test_one_during_a_training_leaves_the_measurement_at_initialisation(self):
        def interrupt(stage, done, total):
            if stage == "measuring smoothness":
                raise KeyboardInterrupt

        options = {"seeds": 2, "batches": 1, "smoothness": SmoothnessOptions()}
        report = checkup(mlp, DIGITS, **options, progress=interrupt)
        assert report.interrupted
        assert report.smoothness.steps == 0

    def test_every_stage_reports_its_progress_to_the_end(self):
        seen = {}

        def progress(name, done, total):
            seen[name] = done, total

        report = checkup(self.deep, DIGITS, seeds=2, batches=2, batch_size=16, progress=progress)
        assert list(seen) == STAGES
        assert all(done == total for done, total in seen.values())
        assert [remedy.value for remedy in report.remedies] == [0.5]
        assert report.smoothness.steps == 0  # only the initialisation, unless asked for more
        assert from_plain(Checkup, to_plain(report)) == report
