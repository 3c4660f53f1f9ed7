"""Residual stacks are found where theory can follow them, and nowhere else."""

import functools
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise import checkup, theory
from equipoise.diagnosis.prediction.blocks import find_blocks
from equipoise.diagnosis.prediction.normalisations import batch_covariance
from equipoise.diagnosis.prediction.predict import predict
from equipoise.diagnosis.prediction.residuals import find_stack, predict_stack
from equipoise.instrument.recording.operations import record_operations
from support.diagnosis_examples import fixed_batches


def run(model, x):
    return model(x)


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def branch(stages=1, leading=False, norm=nn.BatchNorm1d, activation=nn.Tanh, width=8, end=()):
    """W φ(BN(⋯)), its weights of variance 1/width; nothing but what theory contains."""
    layers = [nn.Linear(width, width, bias=False)] if leading else []
    for _ in range(stages):
        layers += [norm(width), activation(), nn.Linear(width, width, bias=False)]
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=width**-0.5)
    return nn.Sequential(*layers, *end)


def add(x, f):
    return x + f(x)


class Stream(nn.Module):
    """Branches beside a stream, one after another."""

    def __init__(self, branches, step=add, *, stem=None, tail=(), inputs=6, width=8):
        super().__init__()
        self.stem = stem or nn.Linear(inputs, width)
        self.branches = nn.ModuleList(branches)
        self.step = step
        self.tail = nn.Sequential(*tail)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        for inner in self.branches:
            x = self.step(x, inner)
        return self.head(self.tail(x))


def stream(step=add, blocks=3, tail=(), stem=None, **keywords):
    """All branches alike."""
    return Stream([branch(**keywords) for _ in range(blocks)], step, tail=tail, stem=stem)


def stack_of(model, x):
    operations = record_operations(model, x, run)
    return find_stack(operations, find_blocks(operations))


def in_place(x, f):
    x += f(x)
    return x


def normalised():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8))


TAIL = (nn.BatchNorm1d(8), nn.Tanh())

# What the stack is: first normaliser, blocks, stages, leading, whether a norm ends it.
FOUND = {
    "one stage": (stream(), (0, 3, 1, False, False)),
    "two stages": (stream(stages=2), (0, 3, 2, False, False)),
    "two blocks": (stream(blocks=2), (0, 2, 1, False, False)),
    "leading linear": (stream(leading=True), (0, 3, 1, True, False)),
    "leading linear, two stages": (stream(stages=2, leading=True), (0, 3, 2, True, False)),
    "final norm": (stream(tail=TAIL), (0, 3, 1, False, True)),
    "leading linear, final norm": (stream(leading=True, tail=TAIL), (0, 3, 1, True, True)),
    "stem norm": (stream(stem=normalised()), (1, 3, 1, False, False)),
    "stem norm, two stages": (stream(stem=normalised(), stages=2), (1, 3, 2, False, False)),
    "stem norm, leading linear, final norm": (
        stream(stem=normalised(), leading=True, tail=TAIL),
        (1, 3, 1, True, True),
    ),
    "no stem": (stream(stem=nn.Linear(6, 8).requires_grad_(False)), (0, 3, 1, False, False)),
    "in place": (stream(in_place), (0, 3, 1, False, False)),
    "in place, final norm": (stream(in_place, tail=TAIL), (0, 3, 1, False, True)),
    "in place by method": (stream(lambda x, f: x.add_(f(x))), (0, 3, 1, False, False)),
    "functional": (stream(lambda x, f: torch.add(x, f(x))), (0, 3, 1, False, False)),
    "functional, scaled by one": (
        stream(lambda x, f: torch.add(x, f(x), alpha=1)),
        (0, 3, 1, False, False),
    ),
    "branch first": (stream(lambda x, f: f(x) + x), (0, 3, 1, False, False)),
    "leading linear, branch first": (
        stream(lambda x, f: f(x) + x, leading=True),
        (0, 3, 1, True, False),
    ),
    "subtracted": (stream(lambda x, f: x - f(x)), (0, 3, 1, False, False)),
    "reshaped": (stream(lambda x, f: x + f(x.flatten(1)).view(16, 8)), (0, 3, 1, False, False)),
    "dropout of nothing": (stream(end=[nn.Identity()]), (0, 3, 1, False, False)),
}


@pytest.mark.parametrize(("model", "expected"), FOUND.values(), ids=FOUND)
def test_stacks_are_found_however_they_are_written(model, expected):
    stack = stack_of(model, normal(16, 6))
    found = (stack.first, stack.blocks, stack.stages, stack.leading, stack.has_tail)
    assert found == expected
    assert stack.last == stack.first + stack.blocks * stack.stages


NOT_FOUND = {
    "one block": stream(blocks=1),
    "no stream": stream(lambda x, f: f(x)),
    "post-activation": stream(lambda x, f: torch.relu(x + f(x))),
    "post-activation, final norm": stream(lambda x, f: torch.relu(x + f(x)), tail=TAIL),
    "post-activation, leading linear": stream(lambda x, f: torch.relu(x + f(x)), leading=True),
    "activation before the final norm": stream(tail=(nn.ReLU(), *TAIL)),
    "different activations": Stream([branch(activation=a) for a in (nn.Tanh, nn.ReLU)]),
    "different stages": Stream([branch(stages=stages) for stages in (1, 2, 1)]),
    "different ε": Stream([branch(norm=partial(nn.BatchNorm1d, eps=e)) for e in (1e-5, 0.1)]),
    "layer norm": stream(norm=nn.LayerNorm),
    "layer norm, leading linear": stream(norm=nn.LayerNorm, leading=True),
    "branch scaled": stream(lambda x, f: x + 0.5 * f(x)),
    "branch scaled by alpha": stream(lambda x, f: torch.add(x, f(x), alpha=0.5)),
    "branch scaled by alpha, in place": stream(lambda x, f: x.add_(f(x), alpha=0.5)),
    "stream scaled": stream(lambda x, f: 0.5 * x + f(x)),
    "both scaled": stream(lambda x, f: 0.5 * (x + f(x))),
    "added twice": stream(lambda x, f: (x + f(x)) + x),
    "gated": stream(lambda x, f: x * f(x)),
    "dropout in the branch": stream(end=[nn.Dropout(0.2)]),
    "dropout inside the branch": stream(
        activation=lambda: nn.Sequential(nn.Tanh(), nn.Dropout(0.2))
    ),
    "dropout on the stream": stream(lambda x, f: F.dropout(x + f(x), 0.2)),
    "norm at the branch's end": stream(end=[nn.BatchNorm1d(8)]),
    "activation at the branch's end": stream(end=[nn.ReLU()]),
    "evaluation": stream().eval(),
    "two norms at the end": stream(tail=(*TAIL, nn.Linear(8, 8), nn.BatchNorm1d(8))),
    "linear layer before the final norm": stream(tail=(nn.Linear(8, 8), *TAIL)),
}


@pytest.mark.parametrize("model", NOT_FOUND.values(), ids=NOT_FOUND)
def test_what_theory_does_not_follow_is_no_stack(model):
    assert stack_of(model, normal(16, 6)) is None


class Dense(nn.Module):
    """Branches are concatenated to the stream, as in DenseNets."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(6, 4), nn.Linear(12, 3)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in (4, 8))
        self.linears = nn.ModuleList(nn.Linear(width, 4) for width in (4, 8))

    def forward(self, x):
        x = self.stem(x)
        for norm, linear in zip(self.norms, self.linears, strict=True):
            x = torch.cat([x, linear(torch.tanh(norm(x)))], 1)
        return self.head(x)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1))
            for _ in range(3)
        )

    def forward(self, x):
        x = self.stem(x)
        for inner in self.branches:
            x = x + inner(x)
        return x


def test_concatenation_is_no_addition():
    assert stack_of(Dense(), normal(16, 6)) is None


def test_feature_maps_are_not_followed():
    assert stack_of(Convolutions(), normal(4, 2, 5, 5)) is None


@pytest.mark.parametrize(("rows", "follows"), [(3, False), (4, True), (1024, True), (1025, False)])
def test_batches_that_theory_follows(rows, follows):
    assert (stack_of(stream(), normal(rows, 6)) is not None) == follows


def test_the_weight_variance_is_the_mean_over_closing_layers():
    model = stream(blocks=2, leading=True)
    for number, inner in enumerate(model.branches, 1):
        nn.init.constant_(inner[0].weight, 7.0)  # leads, so it is part of the covariance
        nn.init.constant_(inner[3].weight, 0.5 * number)
    assert stack_of(model, normal(16, 6)).weight_variance == pytest.approx(8 * (0.25 + 1.0) / 2)


class TestPrediction:
    """Against the recursion, which theory's own tests compare with simulations."""

    @pytest.mark.parametrize(("stages", "leading"), [(1, False), (2, False), (1, True)])
    def test_of_independent_samples_it_is_the_recursion(self, stages, leading):
        model = stream(blocks=6, stages=stages, leading=leading, activation=nn.ReLU)
        x = normal(16, 6)
        operations = record_operations(model, x, run)
        found = find_blocks(operations)
        stack = find_stack(operations, found)
        blocks = [predict(one)[0] for one in found]
        # The covariance is that after a leading layer, whose own variance is divided out.
        leading_variance = blocks[0].weight_variance if leading else 1.0
        prediction = predict_stack(stack, found, blocks, leading_variance * np.eye(16))
        recursion = theory.residual_growth(
            "relu", 16, blocks=6, stages=stages, leading=leading, eps=1e-5,
            weight_variance=stack.weight_variance,
        )  # fmt: skip
        expected = np.log(recursion.normalisers.reshape(-1))
        profiles = prediction.log_profiles[:, :-1]
        differences = profiles - profiles[:, -1:] - (expected - expected[-1])
        error = differences.std(0, ddof=1) / len(differences) ** 0.5
        # 4096 neurons stand for infinitely many: in quadrature with a bias of that order.
        assert (np.abs(differences.mean(0)) < 4 * np.hypot(error, 1e-3)).all()

    def test_a_final_norm_has_no_rate_but_a_reason(self):
        model, x = stream(tail=TAIL), normal(16, 6)
        operations = record_operations(model, x, run)
        found = find_blocks(operations)
        stack = find_stack(operations, found)
        covariance = batch_covariance(model, x, run, found[0].norm)
        blocks = predict_stack(stack, found, [predict(one)[0] for one in found], covariance).blocks
        assert [block.rate is None for block in blocks] == [False, False, False, True]
        assert blocks[-1].reason == "it ends the residual stream: no further block follows"
        assert all(block.reason is None and block.max_depth is None for block in blocks[:-1])


WIDTH, BLOCKS = 128, 10


def residual(step=add, tail=(), blocks=BLOCKS, **keywords):
    keywords = {"width": WIDTH, "activation": nn.ReLU, **keywords}
    branches = [branch(**keywords) for _ in range(blocks)]
    stem = nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH))
    return Stream(branches, step, stem=stem, tail=tail, width=WIDTH)


def diagnose(build, seeds=2, batches=1):
    return checkup(build, fixed_batches(32, batches), seeds=seeds, batches=batches)


def ended(**keywords):
    """A final norm, as in pre-activation ResNets."""
    return residual(tail=(nn.BatchNorm1d(WIDTH), nn.ReLU()), **keywords)


def silent(at, **keywords):
    """Branches whose last scale or last layer starts at zero, a common practice."""
    model = residual(**keywords)
    for inner in model.branches:
        nn.init.zeros_(inner[at].weight)
    return model


NETWORKS = {
    "one stage": residual,
    "two stages": partial(residual, stages=2, blocks=6),
    "leading linear": partial(residual, leading=True),
    "final norm": ended,
}


@functools.cache
def report_on(name):
    """The check-up of one of these networks, done once."""
    return diagnose(NETWORKS[name], seeds=5, batches=2)


class TestCheckup:
    @pytest.mark.parametrize("name", NETWORKS)
    def test_theory_and_measurement_agree_where_a_plain_network_would_not(self, name):
        report = report_on(name)
        (growth,) = report.comparisons
        assert growth.quantity == "gradient growth per layer"
        assert growth.measured == report.growth.rate
        assert growth.outcome == "agrees"
        assert abs(growth.z) <= 3
        plain = theory.explosion_rate("relu", 32, eps=1e-5).value
        error = np.hypot(growth.measured.error, growth.finite_width)
        assert abs(plain - growth.measured.value) > 5 * error

    def test_the_record_says_that_it_is_derived_here(self):
        report = report_on("final norm")
        *inside, last = report.blocks
        caveat = "growth along a residual stream is derived by Equipoise, not by a paper"
        assert all(caveat in block.caveats for block in inside)
        assert all(block.rate is not None for block in inside)
        assert (last.rate, last.caveats) == (None, ())
        titles = [finding.title for finding in report.findings]
        assert f"Theory covers {BLOCKS} of {BLOCKS + 1} normalisers" in titles

    def test_growth_slows_down_along_the_stream(self):
        """A power of depth, not an exponential: the first block's rate is the largest."""
        report = report_on("one stage")
        rates = [block.rate.value for block in report.blocks]
        assert rates[0] > rates[3] > rates[-2] > 1

    @pytest.mark.parametrize(
        "build",
        [
            partial(residual, lambda x, f: x + 0.1 * f(x), leading=True),
            partial(residual, lambda x, f: torch.relu(x + f(x)), leading=True),
            partial(residual, leading=True, norm=nn.LayerNorm),
        ],
        ids=["scaled", "post-activation", "layer norm"],
    )
    def test_other_streams_are_not_compared_with_plain_networks(self, build):
        """Inside a branch each block has the plain rate; around it, gradients flow past."""
        report = diagnose(build)
        assert report.growth.rate is not None
        assert (report.comparisons, report.remedies) == ((), ())

    @pytest.mark.parametrize("at", [-3, -1], ids=["scale", "last layer"])
    @pytest.mark.parametrize("leading", [False, True])
    def test_branches_that_start_at_zero_are_measured_alone(self, at, leading):
        report = diagnose(partial(silent, at, leading=leading))
        assert len(report.growth.layers) == BLOCKS
        assert report.comparisons == ()

    def test_evaluation_mode_is_respected(self):
        report = diagnose(lambda: residual().eval())
        assert all(block.rate is None for block in report.blocks)
        assert report.comparisons == ()
