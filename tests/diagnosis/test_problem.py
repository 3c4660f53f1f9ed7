"""Model, data and loss fit together, or the error says what does not."""

import math
import sys
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from equipoise import models
from equipoise.data.user import as_source
from equipoise.diagnosis.factories import draws_new_weights
from equipoise.diagnosis.problem import Problem, name_of
from support.diagnosis_examples import DIGITS


def mlp(depth=2, width=16):
    return models.mlp(64, 10, depth=depth, width=width)


def returns_nan():
    model = mlp(2, 8)
    nn.init.constant_(model.head.bias, math.nan)
    return model


def empty():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of nothing to initialise
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 0), nn.Linear(0, 10))


class Changed(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(x)


def script():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch.jit is old
        return torch.jit.trace(mlp(), torch.randn(8, 64), check_trace=False)


class Unhashable(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)

    def __eq__(self, other):
        return self is other


def inside_itself():
    model = mlp()
    model.head.parent = model
    return model


def raises():
    raise RuntimeError("no such checkpoint")


OTHER = mlp()  # a trainer's own

REFUSALS = {
    "factory raises": (raises, {}, "the model factory raised RuntimeError: no such checkpoint"),
    "factory with arguments": (Changed, {}, r"called without arguments: give the model itself"),
    "factory exits": (sys.exit, {}, "the model factory raised SystemExit"),
    "not a module": (lambda: 3, {}, "the model factory returned int, not a torch.nn.Module"),
    "a class": (lambda: nn.Linear, {}, "the model factory returned type, not"),
    "NaN": (returns_nan, {}, "the loss is nan on a batch of digits with inputs of shape"),
    "wrong shape": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(7, 10)),
        {},
        r"inputs of shape \[64, 1, 8, 8\]: mat1 .* takes 7 features and is given 64: change it,",
    ),
    "images in the place of rows": (
        lambda: nn.Linear(64, 10),
        {},
        r"takes the 1×8×8 = 64 numbers of a sample .*: begin the model with nn\.Flatten\(\)\.",
    ),
    "images in the place of tokens": (
        lambda: nn.Embedding(10, 4),
        {},
        "An embedding takes whole numbers, such as the tokens of the data 'text:64'",
    ),
    "images in the place of lines": (
        lambda: nn.Linear(48, 10),
        {},
        "A layer takes 48 features and is given 8: change it",
    ),
    "too few outputs": (
        partial(models.mlp, 64, 3, depth=2, width=8),
        {},
        "have class 9, but the model returned only 3 logits",
    ),
    "batch of one": (mlp, {"batch_size": 1}, "batch size 1 is too small for a model with"),
    "no loss": (mlp, {"loss_fn": 3}, "the loss is 3, which cannot be called. Give a function"),
    "unknown loss": (mlp, {"loss_fn": "crossentropy"}, "unknown loss.*mean 'cross-entropy'"),
    "a device that is none": (mlp, {"device": 3.5}, "PyTorch knows no device 3.5"),
    "a seed that is none": (mlp, {"seed": "one"}, "seed must be a whole number .*; got 'one'"),
    "a seed that is too large": (mlp, {"seed": 2**63}, "seed must be a whole number from 0 to"),
    "a sparse loss": (
        mlp,
        {"loss_fn": lambda m, b: m(b[0]).sum().to_sparse()},
        "^the loss must be a floating-point tensor with one number, got one that is sparse",
    ),
    "integers as outputs": (
        lambda: nn.Sequential(mlp(), Changed(torch.Tensor.long)),
        {},
        "the model returned outputs of torch.int64, which have no gradients",
    ),
    "sparse outputs": (
        lambda: nn.Sequential(mlp(), Changed(torch.Tensor.to_sparse)),
        {},
        "the outputs are sparse .take .to_dense",
    ),
    "complex outputs": (
        lambda: nn.Sequential(mlp(), Changed(lambda y: y + 0j)),
        {},
        "the outputs are complex .take .real",
    ),
    "a script": (
        script,
        {},
        "^the model is a TopLevelTracedModule of torch.jit",
    ),
    "modules without a hash": (Unhashable, {}, "needs __hash__ too"),
    "a module inside itself": (inside_itself, {}, "one is inside itself"),
    "a buffer without numbers": (
        lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, device="meta", affine=False)),
        {},
        "buffer '1.running_mean' is on the meta device",
    ),
    "weights of inference": (
        torch.inference_mode()(mlp),
        {},
        "parameter 'linear1.weight' was made under torch.inference_mode",
    ),
    "unknown device": (mlp, {"device": "gpu"}, "PyTorch knows no device 'gpu'. Name one such as"),
    "a batch beyond the data": (mlp, {"batch_size": 5000}, "fewer than one batch of 5000"),
    "loss without a value": (mlp, {"loss_fn": lambda m, b: m(b[0])}, "one number, got"),
    "complex loss": (
        mlp,
        {"loss_fn": lambda m, b: m(b[0]).sum() + 0j},
        "one number, got one that is complex",
    ),
    "loss without a number": (
        mlp,
        {"loss_fn": lambda m, b: m(b[0]).sum().to("meta")},
        "got one that is on the meta device",
    ),
    "model without numbers": (lambda: mlp().to("meta"), {}, "is on the meta device and holds no"),
    "layer of size zero": (empty, {}, r"layer '1' has a weight of shape \[0, 64\]"),
    "loss of another model": (
        mlp,
        {"loss_fn": lambda m, b: nn.functional.cross_entropy(OTHER(b[0]), b[1])},
        "the loss calls another model than the one that it is given",
    ),
    "loss that raises": (
        mlp,
        {"loss_fn": lambda m, b: {}["missing"]},
        # No other data would help.
        r"failed on a batch of digits with inputs .*: KeyError: 'missing'\.$",
    ),
}


@pytest.mark.parametrize(("build", "keywords", "message"), REFUSALS.values(), ids=REFUSALS)
def test_bad_input_is_a_value_error_that_names_it(build, keywords, message):
    with pytest.raises(ValueError, match=message):
        Problem.prepare(build, DIGITS, **keywords)


class InList(nn.Module):
    """Layers that no module knows of, beside one that is not used."""

    def __init__(self):
        super().__init__()
        self.layers, self.unused = [mlp()], nn.Linear(1, 1)

    def forward(self, x):
        return self.layers[0](x)


class Through(nn.Module):
    """All layers behind a checkpoint, which hides their parameters from the loss's graph."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return checkpoint(self.inner, x.requires_grad_(), use_reentrant=True)


SCALE = nn.Parameter(torch.ones(()))


@pytest.mark.parametrize("build", [InList, Through])
def test_a_model_whose_parameters_a_loss_hides_is_no_other_model(build):
    def loss(model, batch):
        return nn.functional.cross_entropy(SCALE * model(batch[0]), batch[1])

    assert Problem.prepare(build, DIGITS, loss_fn=loss).held


def quietly(make, *arguments):
    """Without PyTorch's warnings of what is a prototype, or old."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*arguments)


BATCHES = {
    "on the meta device": (torch.ones(8, 64, device="meta"), "is on the meta device"),
    "nested": (quietly(torch.nested.nested_tensor, [torch.ones(64)] * 8), "is nested .take"),
    "integers": (torch.ones(8, 64, dtype=torch.int64), "whole numbers: give x.float"),
    "complex": (torch.ones(8, 64) + 0j, "is complex .take .real"),
    "quantised": (
        quietly(torch.quantize_per_tensor, torch.ones(8, 64), 1, 0, torch.qint8),
        "is quantised",
    ),
}


@pytest.mark.parametrize(("inputs", "message"), BATCHES.values(), ids=BATCHES)
def test_inputs_that_are_no_plain_numbers_are_named(inputs, message):
    with pytest.raises(ValueError, match=message):
        Problem.prepare(mlp, [(inputs, torch.zeros(8, dtype=torch.int64))])


class TestAccepted:
    @pytest.mark.parametrize("keys", [("x", "y"), (0, 1)])
    def test_dictionaries_with_any_keys(self, keys):
        batch = dict(zip(keys, (torch.randn(8, 64), torch.arange(8)), strict=True))
        assert Problem.prepare(mlp, [batch]).assumptions[-1].startswith("loss: cross-entropy")

    def test_a_number_beside_each_batch(self):
        def weighted(model, batch):
            return batch[1] * model(batch[0]).square().mean()

        batches = [(torch.randn(8, 64), 0.5), (torch.randn(8, 64), 1.0)]
        assert len(Problem.prepare(mlp, batches, loss_fn=weighted, batches=2).held) == 2

    def test_seeds_of_numpy(self):
        drawn = [Problem.prepare(mlp, DIGITS, seed=seed).first[0] for seed in (3, np.int64(3))]
        assert torch.equal(*drawn)

    def test_rows_of_sparse_tensors(self):
        data = torch.eye(64).to_sparse(), torch.arange(64) % 10
        problem = Problem.prepare(nn.Linear(64, 10), data, batch_size=16)
        assert problem.first[0].layout is torch.sparse_coo
        assert problem.first[0].shape == (16, 64)

    def test_feature_maps_may_come_two_at_a_time(self):
        """B = N·H·W = 128."""
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
            nn.Linear(256, 10),
        )  # fmt: skip
        assert len(Problem.prepare(model, DIGITS, batch_size=2).first[0]) == 2

    def test_lazy_layers_are_shaped_by_the_first_batch(self):
        def build():
            return nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(10))

        problem = Problem.prepare(build, DIGITS)
        assert next(p.shape for p in problem.fresh(1).parameters()) == (8, 64)

    def test_a_loaders_shorter_last_batch_is_left_out(self):
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(torch.randn(65, 64), torch.randint(10, (65,))), 64
        )
        problem = Problem.prepare(mlp, as_source(loader, "loader"), batches=2)
        assert [len(x) for x, _ in problem.held] == [64]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (mlp, "mlp"),
        (partial(partial(mlp, 3), width=8), "mlp"),
        (partial(nn.Linear, 64, 10), "Linear"),
        (lambda: mlp(), "model"),
        (mlp(), "Sequential"),
    ],
)
def test_a_model_has_the_name_of_what_makes_it(model, name):
    assert name_of(model) == name


def test_a_module_is_copied():
    model = mlp(2, 8)
    problem = Problem.prepare(model, DIGITS)
    copy = problem.fresh(1)
    assert copy is not model
    assert not draws_new_weights(copy, problem.fresh(2))


def test_a_factory_must_build_the_same_layers_each_time():
    assert draws_new_weights(mlp(2, 8), mlp(2, 8))
    with pytest.raises(ValueError, match="the model factory returned another architecture"):
        draws_new_weights(mlp(2, 8), mlp(3, 8))


def test_what_a_factory_prints_is_printed_once(capsys):
    """As its number of parameters; an error of a later call is told all the same."""
    calls = []

    def loud():
        calls.append(1)
        print(f"call {len(calls)}")
        if len(calls) > 2:
            raise AssertionError("called again")
        return mlp()

    problem = Problem.prepare(loud, "digits", seed=0)
    problem.fresh(1)
    with pytest.raises(ValueError, match="called again"):
        problem.fresh(2)
    assert capsys.readouterr().out == "call 1\n"


def test_a_pair_of_tensors_smaller_than_a_batch_is_one_batch():
    x, y = torch.randn(8, 64), torch.arange(8)
    problem = Problem.prepare(mlp, (x, y), batch_size=64)
    assert torch.equal(problem.first[1].sort().values, y)


def test_but_data_with_a_name_are_not_made_smaller():
    with pytest.raises(ValueError, match="fewer than one batch of 5000"):
        Problem.prepare(mlp, "digits", batch_size=5000)


class Halving(nn.Module):
    """Scales its images in place."""

    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return self.net(x.mul_(0.5))


def marking_padding(model, batch):
    """A loss that writes to some batches only."""
    images, labels = batch
    labels[labels == 3] = -100
    return nn.functional.cross_entropy(model(images), labels)


@pytest.mark.parametrize(("build", "loss"), [(Halving, None), (mlp, marking_padding)])
def test_batches_that_are_written_to_are_left_alone(build, loss):
    problem = Problem.prepare(build, DIGITS, loss_fn=loss, batches=2)
    model = problem.fresh(0)
    for batch in problem.held:
        before = [x.clone() for x in batch]
        first, second = (problem.loss_fn(model, batch) for _ in range(2))
        assert first == second
        assert all(map(torch.equal, batch, before))


def test_the_search_for_a_loss_and_lazy_layers_leave_the_batch_alone():
    """Ways to call a model are tried on the batch too."""

    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))

        def forward(self, x):
            return self.net(x.mul_(0.5))

    x, y = torch.randn(8, 4), torch.randint(0, 10, (8,))
    before = x.clone()
    problem = Problem.prepare(Lazy, [(x, y)])
    assert torch.equal(x, before)
    assert torch.equal(problem.first[0], before)


def compared(output, target):
    return nn.functional.cross_entropy(output, target)


@pytest.mark.parametrize(
    ("loss", "of_outputs"),
    [
        (lambda o, t: compared(o, t), True),
        (lambda recon, x: compared(recon, x), True),
        (lambda vae, b: compared(vae(b[0]), b[1]), False),
        (lambda vae, y: compared(vae(y[0]), y[1]), False),
        (lambda model, batch: compared(model(batch[0]), batch[1]), False),
        (compared, True),
    ],
)
def test_a_loss_whose_arguments_names_say_nothing_is_tried(loss, of_outputs):
    words = Problem.prepare(mlp, DIGITS, loss_fn=loss).assumptions
    assert any("(output, target)" in one for one in words) == of_outputs


def test_a_class_is_no_loss():
    with pytest.raises(ValueError, match=r"Give an instance, CrossEntropyLoss\(\)"):
        Problem.prepare(mlp, DIGITS, loss_fn=nn.CrossEntropyLoss)


def test_what_is_missing_in_a_batch_is_named():
    x, y = torch.randn(64, 4), torch.zeros(64)
    y[3] = math.nan
    with pytest.raises(ValueError, match=r"tensor 2 .* \[64\], holds 1 number that is inf"):
        Problem.prepare(lambda: nn.Linear(4, 1), (x, y))


def test_a_loss_is_given_what_the_loader_yields():
    """Also of a loader of one tensor, which yields lists of one."""
    loader = DataLoader(TensorDataset(torch.ones(8, 64)), 4)
    problem = Problem.prepare(mlp, loader, loss_fn=lambda m, batch: m(batch[0]).square().mean())
    assert [x.shape for x in problem.first] == [(4, 64)]
    without = Problem.prepare(lambda: nn.Linear(64, 64), loader)
    assert without.assumptions == (
        "loss: squared error between model(batch[0]) and its input (no targets)",
    )


def test_states_may_hold_more_than_tensors():
    class Described(nn.Linear):
        def get_extra_state(self):
            return {"made": "by a library that keeps its options there"}

        def set_extra_state(self, state):
            pass

    assert draws_new_weights(Described(2, 2), Described(2, 2))


class Standardising(nn.Module):
    """Sets its shift by a batch: by the first, as flows do, by every one, or by none."""

    def __init__(self, when):
        super().__init__()
        self.when, self.is_set = when, False
        self.shift = nn.Parameter(torch.full((2,), torch.nan if when == "first" else 0.0))
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        if self.when == "every" or (self.when == "first" and not self.is_set):
            self.shift.data = 0.9 * self.shift.data.nan_to_num() + x.detach().mean(0)
            self.is_set = True
        return self.layer(x + self.shift)


@pytest.mark.parametrize(
    ("when", "expected"), [("first", True), ("every", False), ("never", False)]
)
def test_a_model_that_initialises_itself_is_looked_at_after_its_first_pass(when, expected):
    batch = torch.randn(8, 2) + 3, torch.randn(8, 1)
    problem = Problem.prepare(lambda: Standardising(when), batch)
    assert problem.initialises_itself == expected
    assert any("first pass" in one for one in problem.assumptions) == expected
    model = problem.fresh(0)
    assert torch.equal(model.shift, batch[0].mean(0) if expected else torch.zeros(2))
