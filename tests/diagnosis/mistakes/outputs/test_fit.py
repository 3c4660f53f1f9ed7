"""What a traced pass shows: outputs that do not fit the loss, and parts without a gradient."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from equipoise.diagnosis.checkup import checkup
from equipoise.diagnosis.mistakes.outputs.fit import of_fit
from equipoise.diagnosis.mistakes.training.layers import of_layers
from equipoise.diagnosis.mistakes.training.reach import MOST, of_reach
from equipoise.diagnosis.trainability.measure import assert_trainable
from support.traced_passes import traced_pass

X, Y = torch.randn(16, 6), torch.randint(0, 3, (16,))


class Net(nn.Module):
    """Two layers; between and after them, what a test puts there."""

    def __init__(self, between=lambda x: x, after=lambda x: x):
        super().__init__()
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 3)
        self.between, self.after = between, after

    def forward(self, x):
        return self.after(self.last(self.between(self.first(x).relu())))


def found(model, loss=F.cross_entropy, target=Y):
    traced = traced_pass(model, (X, target), lambda m, b: loss(m(b[0]), b[1]))
    return [*of_fit(traced), *of_layers(traced), *of_reach(traced)]


def test_a_sound_network_has_none():
    assert found(Net()) == []


def mixture(x):
    """Of two experts, each with a softmax of its own."""
    return 0.3 * x.softmax(1) + 0.7 * (2 * x).softmax(1)


def test_probabilities_that_are_mixed_are_no_logits():
    """Nothing was said of a mixture of experts that end in a softmax each."""
    (one,) = found(Net(after=mixture))
    assert (one.severity, one.title) == ("warning", "Probabilities before cross-entropy")
    assert "cannot come below 0.551" in one.detail
    assert found(Net(after=lambda x: mixture(x).log())) == []
    assert found(Net(after=lambda x: mixture(x).log()), F.nll_loss) == []


def test_codes_of_classes_may_be_logits():
    """They go past layers that start at zero, as where classes are to be changed."""
    codes = F.one_hot(Y, 3).float()
    model = Net(after=lambda x: 0 * x + codes)
    assert found(model) == []


@pytest.mark.parametrize(
    ("after", "loss", "target", "title"),
    [
        (nn.Softmax(1), F.cross_entropy, Y, "Softmax before cross-entropy"),
        (lambda x: x.softmax(1).view(16, 3), F.cross_entropy, Y, "Softmax before cross-entropy"),
        (
            torch.sigmoid,
            F.binary_cross_entropy_with_logits,
            torch.rand(16, 3),
            "Sigmoid before binary cross-entropy of logits",
        ),
    ],
)
def test_an_output_that_is_normalised_twice(after, loss, target, title):
    (one,) = found(Net(after=after), loss, target)
    assert (one.severity, one.title) == ("warning", title)


@pytest.mark.parametrize(
    ("after", "loss"),
    [
        (nn.LogSoftmax(1), F.nll_loss),
        (nn.LogSoftmax(1), F.cross_entropy),  # does nothing twice
        (nn.Softmax(1), lambda p, y: F.nll_loss(p.log(), y)),
        (lambda x: 5 * x.softmax(1), F.cross_entropy),  # no longer probabilities
    ],
)
def test_an_output_that_is_normalised_once(after, loss):
    assert found(Net(after=after), loss) == []


@pytest.mark.parametrize(
    ("after", "loss", "target", "title", "least"),
    [
        (torch.sigmoid, F.cross_entropy, Y, "Sigmoid before cross-entropy", 0.551),
        (torch.tanh, F.cross_entropy, Y, "Tanh before cross-entropy", 0.240),
        (
            torch.tanh,
            F.binary_cross_entropy_with_logits,
            torch.rand(16, 3),
            "Tanh before binary cross-entropy of logits",
            0.313,
        ),
    ],
)
def test_logits_that_an_activation_bounds(after, loss, target, title, least):
    """The least loss is that of the best logits within the bounds."""
    (one,) = found(Net(after=after), loss, target)
    assert (one.severity, one.title) == ("warning", title)
    low = 0.0 if after is torch.sigmoid else -1.0
    if loss is F.cross_entropy:
        best = F.cross_entropy(torch.tensor([[1.0, low, low]]), torch.tensor([0]))
    else:
        best = loss(torch.tensor(1.0), torch.tensor(1.0))
    assert float(best) == pytest.approx(least, abs=1e-3)
    assert f"cannot come below {least:.3f}".rstrip("0") in one.detail


@pytest.mark.parametrize(
    ("loss", "target", "words"),
    [
        (F.binary_cross_entropy_with_logits, torch.ones(16, 3), "binary cross-entropy of logits"),
        (F.cross_entropy, Y, "cross-entropy"),
    ],
)
def test_logits_that_are_never_negative(loss, target, words):
    (one,) = found(Net(after=torch.relu), loss, target)
    assert one.title == f"ReLU before {words}"


@pytest.mark.parametrize(
    "after", [lambda x: x, nn.Softmax(1), torch.sigmoid, lambda x: x.relu().view(16, 3)]
)
def test_likelihoods_of_what_is_no_logarithm(after):
    (one,) = found(Net(after=after), F.nll_loss)
    assert one.title == "NLL of what is no logarithm of a probability"


@pytest.mark.parametrize(
    "after",
    [
        lambda x: x.softmax(1).clamp(1e-7, 1.0),
        lambda x: x.exp() / x.exp().sum(1, keepdim=True),
    ],
)
def test_probabilities_are_told_by_their_sums(after):
    (one,) = found(Net(after=after), F.nll_loss)
    assert one.title == "NLL of what is no logarithm of a probability"
    assert found(Net(after=lambda x: after(x).log()), F.nll_loss) == []


@pytest.mark.parametrize("after", [lambda x: x + 0.5, lambda x: 2 * x, nn.SiLU()])
def test_numbers_above_zero_are_no_logarithms(after):
    """Whatever they are made by, as the sum with a bias behind a product of three axes."""
    (one,) = found(Net(after=after), F.nll_loss)
    assert one.title == "NLL of what is no logarithm of a probability"
    assert found(Net(after=lambda x: after(x).log_softmax(1) + 0.0), F.nll_loss) == []


def alignment(output, target):
    """Of two samples with eight steps each."""
    lengths = torch.tensor([8, 8]), torch.tensor([3, 3])
    return F.ctc_loss(output.view(8, 2, 3), target.view(2, 3), *lengths)


@pytest.mark.parametrize("after", [lambda x: x, nn.Softmax(1), torch.sigmoid])
def test_alignments_of_what_is_no_logarithm(after):
    target = torch.tensor([1, 2, 1, 2, 1, 2])
    (one,) = found(Net(after=after), alignment, target)
    assert one.title == "CTC loss of what is no logarithm of a probability"
    assert "log_softmax" in one.remedy
    assert found(Net(after=nn.LogSoftmax(1)), alignment, target) == []
    assert found(Net(after=lambda x: x.softmax(1).log()), alignment, target) == []


def test_a_bounded_gate_inside_of_a_model_is_none():
    """Clipped attention, or logits that are scaled after the activation."""
    assert found(Net(between=torch.tanh)) == []
    assert found(Net(after=lambda x: 10 * torch.tanh(x))) == []


def test_the_least_loss_is_that_of_the_loss():
    """Of the axis of the classes; with weights it is not said, and of an entropy nothing is."""

    def tokens(output, target):
        logits = torch.tanh(output).view(2, 8, 3)
        return F.nll_loss(logits.log_softmax(-1).view(-1, 3), target)

    (one,) = found(Net(), tokens)
    assert "cannot come below 0.24" in one.detail

    def weighted(output, target):
        weight = torch.full((3,), 0.1)
        return F.binary_cross_entropy_with_logits(output, target, pos_weight=weight)

    (one,) = found(Net(after=torch.tanh), weighted, torch.rand(16, 3))
    assert one.detail.endswith("between -1 and 1: it cannot come near zero.")

    def regularised(output, target):
        logs = torch.tanh(output).log_softmax(1)
        return F.cross_entropy(output, target) + (logs.exp() * logs).sum(1).mean()

    assert found(Net(), regularised) == []


class Radial(nn.Module):
    """Distances from as many centres as there are samples, which are meant."""

    def __init__(self, centres, *, bias=True):
        super().__init__()
        self.first, self.last = nn.Linear(6, 1), nn.Linear(16, 1, bias=bias)
        self.centres = centres

    def forward(self, x):
        return self.last((-((self.first(x) - self.centres) ** 2)).exp())


@pytest.mark.parametrize(
    "centres", [torch.randn(16), nn.Parameter(torch.randn(16), requires_grad=False)]
)
def test_rows_of_the_model_s_own_are_no_targets(centres):
    shown = found(Radial(centres), F.mse_loss, torch.randn(16, 1))
    assert not any("Every output" in one.title for one in shown)


def test_what_layers_come_after_is_no_loss():
    """Rows of the batch itself that a model compares its columns with, before its last layer."""

    class Inner(Radial):
        def forward(self, x):
            return self.last((-((self.first(x) - x[:, 0]) ** 2)).exp())

    for bias in (True, False):
        model = Inner(None, bias=bias)
        shown = of_fit(traced_pass(model, (X, X[:, 0].clone()), inner_loss))
        assert [one.title for one in shown] == []


def inner_loss(model, batch):
    return F.mse_loss(model(batch[0])[:, 0], batch[1])


def test_a_penalty_of_weights_hides_nothing():
    model = Net(after=torch.tanh)

    def penalised(output, target):
        return F.cross_entropy(output, target) + sum(p.square().sum() for p in model.parameters())

    (one,) = found(model, penalised)
    assert one.title == "Tanh before cross-entropy"


def column(x):
    return x[:, :1]


@pytest.mark.parametrize(
    "loss",
    [
        F.mse_loss,
        F.l1_loss,
        F.smooth_l1_loss,
        F.huber_loss,
        lambda output, target: (output - target).square().mean(),
        lambda output, target: (target - output).abs().mean(),
        lambda output, target: (1 - target * output).relu().mean(),
        lambda output, target: F.mse_loss(output, (target - target.mean()) / target.std()),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_column_of_outputs_against_a_row_of_targets(loss, turned):
    """PyTorch warns of some of its own losses alone, and makes every pair of all of them."""
    target = torch.randn(16)
    if turned:
        (one,) = found(Net(after=lambda x: x[:, 0]), loss, target[:, None])
    else:
        (one,) = found(Net(after=column), loss, target)
    assert one.title == "Every output is compared with every target"
    assert one.severity == "critical"
    shapes = ("[16]", "[16, 1]") if turned else ("[16, 1]", "[16]")
    assert "Outputs of shape {} meet targets of shape {}".format(*shapes) in one.detail
    # The twins: one shape, and pairs that are meant.
    assert found(Net(after=lambda x: x[:, 0]), loss, target) == []
    assert found(Net(after=column), loss, target[:, None]) == []
    assert found(Net(after=column), lambda o, t: (o - o[:, 0]).square().mean(), target) == []


def test_maps_of_one_channel_against_maps_without():
    maps, masks = torch.randn(8, 3, 5, 5), torch.randint(0, 2, (8, 5, 5)).float()

    def titles(target):
        loss = lambda m, b: (m(b[0]).sigmoid() - b[1]).square().mean()  # noqa: E731
        traced = traced_pass(nn.Conv2d(3, 1, 1), (maps, target), loss)
        return [(one.title, one.severity) for one in of_fit(traced)]

    assert titles(masks) == [("Every output is compared with every target", "critical")]
    assert titles(masks[:, None]) == []


def test_pairs_may_be_meant():
    """A distance between two samples of numbers compares each with each."""
    pairs = lambda output, target: (output[:, 0][:, None] - target).abs().mean()  # noqa: E731
    (one,) = found(Net(), pairs, torch.randn(16))
    assert one.severity == "warning"


@pytest.mark.parametrize(
    "loss", [F.mse_loss, F.smooth_l1_loss, lambda output, target: (output - target).abs().mean()]
)
@pytest.mark.parametrize(
    ("target", "far"),
    [
        (torch.randn(16, 3), False),
        (2 + 3 * torch.randn(16, 3), False),
        (50 + torch.randn(16, 3), True),
        (1e-3 * torch.randn(16, 3), True),
        (0.1 * torch.randn(16, 3), False),
        (300 * torch.randn(16, 3), True),
    ],
)
def test_targets_on_another_scale(loss, target, far):
    titles = [one.title for one in found(Net(), loss, target)]
    assert titles == ["Targets on another scale than the outputs"] * far


@pytest.mark.parametrize("is_trained", [True, False])
def test_codes_come_to_the_outputs(is_trained):
    """Of a codebook as VQ-VAEs draw it; where it is not trained, outputs have to come to it."""
    model = Net()
    model.codes = nn.Parameter(torch.empty(512, 3).uniform_(-1 / 512, 1 / 512))
    model.codes.requires_grad_(is_trained)

    def loss(output, target):
        codes = model.codes[torch.cdist(output, model.codes).argmin(1)]
        straight = output + (codes - output).detach()
        commitment = F.mse_loss(output, codes.detach())
        return F.mse_loss(straight, target) + commitment + F.mse_loss(codes, output.detach())

    titles = [one.title for one in found(model, loss, torch.randn(16, 3))]
    assert ("Targets on another scale than the outputs" in titles) is not is_trained


@pytest.mark.parametrize("sigma", [1.0, 0.001])
@pytest.mark.parametrize("is_weighed", [True, False])
def test_noise_on_another_scale(sigma, is_weighed):
    """Scores of little noise are large; times σ they are not."""

    def loss(output, _):
        noise = torch.randn(16, 3)
        error = sigma * output + noise if is_weighed else output + noise / sigma
        return (error**2).mean()

    titles = [one.title for one in found(Net(), loss, torch.randn(16, 3))]
    is_far = sigma < 1 and not is_weighed
    assert titles == ["Targets on another scale than the outputs"] * is_far


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, target: F.kl_div(output.log_softmax(1), target, reduction="batchmean"),
        lambda output, target: (0.01 * target - output.log_softmax(1) * target).sum(1).mean(),
        lambda output, target: (output - (target - 50)).sub(50).exp().mean(),
    ],
)
def test_differences_whose_size_is_not_taken_have_no_targets(loss):
    """Nothing draws outputs to what is subtracted where sums alone follow, or ratios are made."""
    smooth = torch.full((16, 3), 0.01).scatter(1, torch.randint(3, (16, 1)), 0.98)
    titles = [one.title for one in found(Net(), loss, smooth)]
    assert "Targets on another scale than the outputs" not in titles


@pytest.mark.parametrize(
    ("factor", "severity"), [(30.0, None), (1000.0, "warning"), (1e5, "critical")]
)
def test_outputs_that_are_far_larger_than_the_targets(factor, severity):
    model = Net()
    target = torch.randn(16, 3)
    with torch.no_grad():
        model.last.weight *= factor / model(X).std()
    told = [(one.title, one.severity) for one in found(model, F.mse_loss, target)]
    assert told == [("Outputs are far larger than the targets", severity)] * (severity is not None)
    assert found(model, F.mse_loss, factor * target) == []


def test_outputs_that_are_far_away_are_no_fault_of_the_targets():
    model = Net()
    with torch.no_grad():
        model.last.bias.fill_(5000.0)
    assert found(model, F.mse_loss, torch.randn(16, 3)) == []


def test_an_output_bias_at_the_targets_mean_is_the_remedy():
    model = Net()
    with torch.no_grad():
        model.last.bias.fill_(50.0)
    assert found(model, F.mse_loss, 50 + torch.randn(16, 3)) == []


def test_cosines_as_logits():
    class Cosine(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.layer, self.classes = nn.Linear(6, 8), nn.Parameter(torch.randn(5, 8))
            self.scale = scale

        def forward(self, x):
            cosines = F.normalize(self.layer(x)) @ F.normalize(self.classes).T
            return cosines if self.scale is None else self.scale * cosines

    (one,) = found(Cosine(None))
    assert one.title == "Cosines before cross-entropy"
    assert f"{math.log1p(4 * math.exp(-2)):.2f}" in one.detail  # of the classes, one at 1
    assert found(Cosine(16.0)) == []


@pytest.mark.parametrize(
    ("after", "right"), [(nn.Softmax(1), False), (torch.sigmoid, False), (nn.LogSoftmax(1), True)]
)
def test_a_kl_divergence_takes_logarithms(after, right):
    target = torch.rand(16, 3).softmax(1)
    shown = found(Net(after=after), nn.KLDivLoss(reduction="batchmean"), target)
    assert [one.title for one in shown] == (
        [] if right else ["KL divergence of what is no logarithm"]
    )


def test_what_is_said_of_an_assumed_loss():
    model, loss = Net(after=nn.Softmax(1)), lambda m, b: F.cross_entropy(m(b[0]), b[1])
    given, assumed = (
        of_fit(traced_pass(model, (X, Y), loss, assumed=value))[0] for value in (False, True)
    )
    told = "That loss is assumed: give yours as loss_fn= if it is another."
    assert assumed.detail == f"{given.detail} {told}"


def test_dropout_of_nearly_everything():
    (one,) = found(Net(between=nn.Dropout(0.9)))
    assert (one.severity, one.title) == ("warning", "Dropout with p = 0.9")
    assert one.remedy == "If p is what was to be kept, write 0.1."
    (one,) = found(Net(between=nn.Dropout(0.95)))
    assert (one.severity, one.title) == ("warning", "Dropout with p = 0.95")
    assert found(Net(between=nn.Dropout(0.5))) == []
    assert found(Net(between=nn.Dropout(0.9).eval())) == []


def test_a_large_part_without_a_gradient_is_a_warning_and_a_small_one_a_note():
    (large,) = found(Net(between=torch.Tensor.detach))
    assert large.severity == "warning"
    assert "68 % of the weights, in 2 parameters: first.weight, first.bias." in large.detail
    model = Net()
    model.unused = nn.Parameter(torch.zeros(2))
    (small,) = found(model)
    assert (small.severity, small.remedy) == ("note", None)
    model.unused.requires_grad_(False)
    assert found(model) == []


@pytest.mark.parametrize(
    ("cut", "operation"),
    [
        (lambda x: x.argmax(1, keepdim=True).expand(-1, 12).float(), "argmax in 'Net'"),
        (lambda x: (x > 0).float(), "gt in 'Net'"),
        (lambda x: x.detach() / 2, "detach in 'Net'"),
    ],
)
def test_where_gradients_end(cut, operation):
    (one,) = found(Net(between=cut))
    without = torch.no_grad()(lambda m, x: m.first(x).relu())
    model = nn.Module()
    model.first, model.last = nn.Linear(6, 12), nn.Linear(12, 3)
    model.forward = lambda x: model.last(without(model, x))
    (frozen,) = found(model)
    assert "Their gradients end at torch.no_grad() in 'first'" in frozen.detail
    assert one.title == MOST
    assert one.detail.endswith(f"Their gradients end at {operation}.")


class TestWithoutAnyGradient:
    @pytest.mark.parametrize("after", [torch.Tensor.detach, lambda x: torch.tensor(x.tolist())])
    @pytest.mark.parametrize("run", [checkup, assert_trainable])
    def test_a_detached_output_is_refused(self, run, after):
        with pytest.raises(ValueError, match="depends on no trainable parameter"):
            run(Net(after=after), (X, Y))

    @pytest.mark.parametrize("run", [checkup, assert_trainable])
    def test_a_frozen_model_is_refused(self, run):
        with pytest.raises(ValueError, match=r"Unfreeze some with requires_grad_\(True\)"):
            run(Net().requires_grad_(False), (X, Y))


@pytest.mark.parametrize("target", [Y, torch.rand(16, 3)])
def test_a_divergence_from_a_teacher_s_probabilities(target):
    teacher = nn.Linear(6, 3)

    def distilled(model, batch):
        wanted = teacher(batch[0]).softmax(1)
        return F.kl_div(model(batch[0]).log_softmax(1), wanted, reduction="batchmean")

    assert of_fit(traced_pass(Net(), (X, target), distilled)) == []


@pytest.mark.parametrize(
    ("after", "target", "reached"),
    [
        (torch.sigmoid, torch.rand(16, 3), True),
        (torch.sigmoid, 50 + torch.randn(16, 3), False),
        (torch.tanh, torch.randn(16, 3).clamp(-1, 1), True),
        (torch.tanh, 5 * torch.randn(16, 3), False),
        (torch.relu, torch.randn(16, 3), False),
        (torch.relu, torch.rand(16, 3), True),
        (lambda x: x, 2 * torch.randn(16, 3), True),
    ],
)
def test_targets_that_an_activation_cannot_give(after, target, reached):
    titles = [one.title for one in found(Net(after=after), F.mse_loss, target)]
    assert titles == ([] if reached else ["Targets that the outputs cannot reach"])
