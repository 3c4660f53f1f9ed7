"""Whatever form model, batch and loss have, the loss is the one that the model is trained with."""

from collections import OrderedDict, UserDict
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from equipoise.diagnosis.inputs.adapt import find_loss, warm_up
from equipoise.training.losses import UnsuitableBatchError

N, C = 8, 5
X = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(N, 3, 4, 4, generator=torch.Generator().manual_seed(1))
TOKENS = torch.arange(N * 7).reshape(N, 7) % 11
CLASSES = torch.arange(N) % C
BITS = torch.arange(N) % 2
PIXELS = torch.arange(N * 16).reshape(N, 4, 4) % C


class Two(nn.Module):
    """Two inputs."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, C), nn.Linear(6, C)

    def forward(self, left, right):
        return self.left(left) + self.right(right)


class Pointwise(Two):
    """Its inputs have the names of coordinates, and one that targets often have."""

    def forward(self, x, y):
        return super().forward(x, y)


class Language(nn.Module):
    """Logits and, if it is given targets, a loss."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 6), nn.Linear(6, 11)

    def forward(self, idx, targets=None):
        logits = self.head(self.embed(idx))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 4, 1)

    def forward(self, images, targets=None):
        boxes = torch.stack([self.body(image[None]).mean() for image in images])
        wanted = torch.stack([t["boxes"].mean() for t in targets])
        return {"loss_box": (boxes - wanted).square().mean(), "loss_class": boxes.abs().mean()}


class Output(OrderedDict):
    """Hugging Face's outputs are dictionaries with attributes."""

    def __getattr__(self, name):
        return self[name]


class Classifier(nn.Module):
    def __init__(self, labels="labels"):
        super().__init__()
        self.body = nn.Linear(6, C)

    def forward(self, pixel_values=None, labels=None, **kwargs):
        logits = self.body(pixel_values)
        if labels is None:
            return Output(logits=logits)
        return Output(loss=F.cross_entropy(logits, labels), logits=logits)


class TinyCausalLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Language()

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits, _ = self.inner(input_ids)
        shifted = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return Output(loss=shifted, logits=logits)


@dataclass
class Segmented:
    out: torch.Tensor
    aux: torch.Tensor


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, C, 1)

    def forward(self, x):
        return Segmented(self.body(x), self.body(x).mean())


class Graphs(nn.Module):
    """Takes a graph whole, or its parts by name."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, C)

    def forward(self, x, edge_index):
        return self.body(x.index_add(0, edge_index[1], x[edge_index[0]]))


def chain(*sizes):
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))


void = PIXELS.clone()
void[0, 0, 0] = 255
EDGES = torch.tensor([[0, 1], [2, 3]])
DETECTED = ([torch.ones(3, 4, 4), torch.ones(3, 5, 6)], [{"boxes": torch.ones(1, 4)}] * 2)

# model, batch, words of the assumption, and the loss by hand
CASES = {
    "classes": (
        chain(6, C), (X, CLASSES), "cross-entropy of 5 classes between model(batch[0]) and",
        lambda m: F.cross_entropy(m(X), CLASSES),
    ),
    "classes in a column": (
        chain(6, C), (X, CLASSES[:, None]), "cross-entropy of 5 classes",
        lambda m: F.cross_entropy(m(X), CLASSES),
    ),
    "regression": (
        chain(6, 1), (X, X[:, 0]), "squared error", lambda m: F.mse_loss(m(X), X[:, :1]),
    ),
    "bits": (
        chain(6, 1), (X, BITS), "binary cross-entropy of logits",
        lambda m: F.binary_cross_entropy_with_logits(m(X)[:, 0], BITS.float()),
    ),
    "bits as floats": (
        chain(6, 1), (X, BITS.float()), "binary cross-entropy of logits",
        lambda m: F.binary_cross_entropy_with_logits(m(X)[:, 0], BITS.float()),
    ),
    "bits as floats of outputs without an axis": (
        nn.Sequential(chain(6, 1), nn.Flatten(0)), (X, BITS.float()),
        "binary cross-entropy of logits",
        lambda m: F.binary_cross_entropy_with_logits(m(X), BITS.float()),
    ),
    "a mask as floats": (
        nn.Conv2d(3, 1, 1), (IMAGES, (PIXELS > 1).float()), "binary cross-entropy of logits",
        lambda m: F.binary_cross_entropy_with_logits(m(IMAGES)[:, 0], (PIXELS > 1).float()),
    ),
    "counts": (
        chain(6, 1), (X, CLASSES), "squared error",
        lambda m: F.mse_loss(m(X)[:, 0], CLASSES.float()),
    ),
    "bits after a sigmoid": (
        nn.Sequential(chain(6, 1), nn.Sigmoid()), (X, BITS.float()[:, None]),
        "binary cross-entropy of probabilities",
        lambda m: F.binary_cross_entropy(m(X)[:, 0], BITS.float()),
    ),
    "one-hot labels": (
        chain(6, C), (X, F.one_hot(CLASSES, C).float()), "with probabilities",
        lambda m: F.cross_entropy(m(X), CLASSES),
    ),
    "one-hot labels as whole numbers": (
        chain(6, C), (X, F.one_hot(CLASSES, C)), "with probabilities",
        lambda m: F.cross_entropy(m(X), CLASSES),
    ),
    "several labels of a sample": (
        chain(6, C), (X, (X[:, :C] > 0).long()), "binary cross-entropy of logits",
        lambda m: F.binary_cross_entropy_with_logits(m(X), (X[:, :C] > 0).float()),
    ),
    "segmentation with void": (
        nn.Conv2d(3, C, 1), (IMAGES, void[:, None]), "255 ignored",
        lambda m: F.cross_entropy(m(IMAGES), void, ignore_index=255),
    ),
    "segmentation with a second head": (
        Segmenter(), (IMAGES, PIXELS), "of the output's out",
        lambda m: F.cross_entropy(m(IMAGES).out, PIXELS),
    ),
    "tokens": (
        nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11)), (TOKENS, TOKENS),
        "11 tokens at every position",
        lambda m: F.cross_entropy(m(TOKENS).flatten(0, 1), TOKENS.flatten()),
    ),
    "logits and loss": (
        Language(), (TOKENS, TOKENS), "the model's own loss", lambda m: m(TOKENS, TOKENS)[1],
    ),
    "detection": (
        Detector(), DETECTED, "the sum of the model's losses loss_box, loss_class",
        lambda m: sum(m(*DETECTED).values()),
    ),
    "two inputs": (
        Two(), ((X, X), CLASSES), "model(batch[0][0], batch[0][1])",
        lambda m: F.cross_entropy(m(X, X), CLASSES),
    ),
    "two inputs side by side": (
        Two(), (X, X, CLASSES), "model(batch[0], batch[1])",
        lambda m: F.cross_entropy(m(X, X), CLASSES),
    ),
    "two inputs called x and y": (
        Pointwise(), (X, X + 1, CLASSES), "model(batch[0], batch[1])",
        lambda m: F.cross_entropy(m(X, X + 1), CLASSES),
    ),
    "two named inputs": (
        Two(), {"left": X, "right": X, "label": CLASSES}, "left=batch['left']",
        lambda m: F.cross_entropy(m(X, X), CLASSES),
    ),
    "named images": (
        chain(6, C), {"image": X, "label": CLASSES, "path": ["a"] * N}, "model(batch['image'])",
        lambda m: F.cross_entropy(m(X), CLASSES),
    ),
    "a tokenizer's dictionary": (
        Classifier(), UserDict(pixel_values=X, labels=CLASSES), "the model's own loss",
        lambda m: F.cross_entropy(m.body(X), CLASSES),
    ),
    "a collator's label": (
        Classifier(), {"pixel_values": X, "label": CLASSES}, "labels=batch['label']",
        lambda m: F.cross_entropy(m.body(X), CLASSES),
    ),
    "a language model without labels": (
        TinyCausalLM(), {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)},
        "the model's own loss", lambda m: m(TOKENS, labels=TOKENS).loss,
    ),
    "an autoencoder": (
        chain(6, 2, 6), X, "its input (no targets)", lambda m: F.mse_loss(m(X), X),
    ),
    "a graph": (
        Graphs(), {"x": X, "edge_index": EDGES, "y": CLASSES}, "edge_index=batch['edge_index']",
        lambda m: F.cross_entropy(m(X, EDGES), CLASSES),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("model", "batch", "words", "by_hand"), CASES.values(), ids=CASES)
def test_the_loss_is_found(model, batch, words, by_hand):
    found = find_loss(model, batch)
    assert words in found.words[0]
    torch.testing.assert_close(found.loss(model, batch), by_hand(model))


GIVEN = {
    "a function of model and batch": lambda model, batch: model(batch[0]).square().mean(),
    "a function of output and target": lambda output, target: output.square().mean(),
    "a dictionary of losses": lambda m, b: {"loss": m(b[0]).square().mean(), "seen": 3},
}


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
def test_a_given_loss_is_taken(given):
    model = chain(6, C)
    loss = find_loss(model, (X, CLASSES), given).loss
    torch.testing.assert_close(loss(model, (X, CLASSES)), model(X).square().mean())


@pytest.mark.parametrize("given", [nn.CrossEntropyLoss(), F.cross_entropy, "cross-entropy"])
def test_a_criterion_is_taken(given):
    model = chain(6, C)
    loss = find_loss(model, (X, CLASSES), given).loss
    torch.testing.assert_close(loss(model, (X, CLASSES)), F.cross_entropy(model(X), CLASSES))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 3, 1)

    def forward(self, x, t):
        return {"sample": self.body(x) * t[:, None, None, None].sign()}


def test_a_denoiser_is_trained_to_tell_the_noise():
    """At random times: a model that returns 0 has the variance of the noise as its loss."""
    model = Denoiser()
    nn.init.zeros_(model.body.weight)
    nn.init.zeros_(model.body.bias)
    images = IMAGES.repeat(50, 1, 1, 1)
    found = find_loss(model, images)
    assert "predicted noise" in found.words[0]
    assert found.loss(model, images).item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("target", [IMAGES, (IMAGES * 9).long(), (IMAGES > 0).long()])
@pytest.mark.parametrize("given", [None, "mse"])
def test_targets_in_another_layout_are_refused(target, given):
    batch = (IMAGES, target.movedim(1, -1))
    with pytest.raises(UnsuitableBatchError, match="order of the axes differs, permute the targ"):
        find_loss(nn.Conv2d(3, 3, 1), batch, given)


def test_images_rebuilt_in_a_row_are_compared_with_the_images():
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 48))
    found = find_loss(model, IMAGES)
    assert "squared error between model(batch) and its input (no targets)" in found.words[0]
    torch.testing.assert_close(
        found.loss(model, IMAGES), F.mse_loss(model(IMAGES), IMAGES.flatten(1))
    )


class TestWithoutTargets:
    def test_outputs_are_compared_with_noise_and_it_is_said(self):
        found = find_loss(chain(6, 3), X)
        assert found.words[0].startswith(
            "loss: squared error between the outputs and noise, for want of targets"
        )
        assert "loss_fn=" in found.words[0]

    def test_the_noise_is_the_same_in_every_pass(self):
        model = chain(6, 3)
        loss = find_loss(model, X).loss
        assert loss(model, X) == loss(model, X)

    def test_all_outputs_count_with_and_without_gradients(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 2)

            def forward(self, x):
                chosen = self.first(x).argmax(1)
                return chosen, self.first(x), self.second(x)

        model = Two()
        loss = find_loss(model, X).loss
        grads = torch.autograd.grad(loss(model, X), list(model.parameters()))
        assert all(bool(g.any()) for g in grads)
        with torch.no_grad():
            assert loss(model, X) == loss(model, X)


class TestNumbersBesideOutputs:
    """Such as a penalty: only what the model was given the targets for is the whole loss."""

    class Penalised(nn.Linear):
        def forward(self, x, y=None):
            logits = super().forward(x)
            penalty = self.weight.square().sum()
            return logits, penalty if y is None else F.cross_entropy(logits, y)

    def test_they_are_added_to_the_loss_of_the_outputs(self):
        model = self.Penalised(6, C)
        found = find_loss(model, {"x": X, "label": CLASSES})
        logits, penalty = model(X)
        expected = F.cross_entropy(logits, CLASSES) + penalty
        assert_close(found.loss(model, {"x": X, "label": CLASSES}), expected)
        assert "plus the number beside it" in found.words[0]

    def test_a_loss_that_saw_the_targets_is_whole(self):
        model = self.Penalised(6, C)
        found = find_loss(model, (X, CLASSES))
        assert_close(found.loss(model, (X, CLASSES)), F.cross_entropy(model(X)[0], CLASSES))

    def test_they_are_added_to_the_error_of_what_is_rebuilt(self):
        model = self.Penalised(6, 6)
        found = find_loss(model, X)
        rebuilt, penalty = model(X)
        assert_close(found.loss(model, X), F.mse_loss(rebuilt, X) + penalty)


def test_a_law_of_the_targets_is_trained_with_their_likelihood():
    class Law(nn.Linear):
        def forward(self, x):
            return torch.distributions.Normal(super().forward(x), 1.0)

    model, y = Law(6, 3), torch.randn(N, 3)
    found = find_loss(model, (X, y))
    assert_close(found.loss(model, (X, y)), -model(X).log_prob(y).mean())
    assert "negative log-likelihood of the Normal" in found.words[0]


class TestRefusals:
    def test_outputs_that_fit_no_loss(self):
        with pytest.raises(UnsuitableBatchError, match=r"shape \(8, 4\), the targets have shape"):
            find_loss(chain(6, 4), (X, torch.randn(N, 3)))

    def test_classes_beyond_the_outputs(self):
        with pytest.raises(UnsuitableBatchError, match="have class 4, but the model returned"):
            find_loss(chain(6, 3), (X, CLASSES))

    def test_classes_counted_from_below_zero(self):
        with pytest.raises(UnsuitableBatchError, match=r"have class -1.*ignore_index=-1"):
            find_loss(chain(6, C), (X, CLASSES - 1))

    def test_no_outputs_that_weights_change(self):
        class Detached(nn.Linear):
            def forward(self, x):
                return super().forward(x).detach()

        with pytest.raises(UnsuitableBatchError, match="no loss fits both"):
            find_loss(Detached(6, 3), X)

    def test_the_most_plausible_calls_error_is_raised(self):
        with pytest.raises(RuntimeError, match="8x6 and 7x2"):
            find_loss(chain(7, 2), (X, CLASSES))


def test_the_model_is_left_untouched():
    model = nn.Sequential(nn.Linear(6, C), nn.BatchNorm1d(C))
    find_loss(model, (X, CLASSES))
    assert model[1].num_batches_tracked == 0


def test_lazy_layers_get_shapes_from_any_batch():
    model = nn.Sequential(nn.LazyLinear(C))
    warm_up(model, {"image": X, "label": CLASSES})
    assert model[0].weight.shape == (C, 6)


class Pairing(nn.Module):
    """A loss only if a batch asks for it, as in contrastive models."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, C), nn.Linear(6, C)

    def forward(self, left, right, return_loss=False):
        scores = self.left(left) @ self.right(right).T
        loss = F.cross_entropy(scores, torch.arange(len(scores))) if return_loss else None
        return {"loss": loss, "scores": scores}


def test_a_batch_may_ask_for_the_loss():
    torch.manual_seed(0)
    model, batch = Pairing(), {"left": X, "right": X + 1, "return_loss": True}
    found = find_loss(model, batch)
    assert "the model's own loss" in found.words[0]
    assert found.loss(model, batch) == model(**batch)["loss"]
    without = find_loss(model, {"left": X, "right": X + 1})
    assert "for want of targets" in without.words[0]


@pytest.mark.parametrize("make", [SimpleNamespace, type("Answer", (SimpleNamespace,), {})])
def test_an_output_may_be_an_object_of_any_class(make):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x, labels=None):
            logits = self.head(x)
            loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
            return make(loss=loss, logits=logits)

    batch = {"x": torch.randn(8, 4), "labels": torch.randint(0, 3, (8,))}
    found = find_loss(Net(), batch, None)
    assert found.words[0].startswith("loss: the model's own loss")
    assert found.loss(Net(), batch).requires_grad


def test_a_model_may_look_up_its_inputs_itself():
    """It takes the whole batch, whose targets have a name."""

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, batch):
            return self.layer(batch["features"])

    batch = {"features": torch.ones(4, 3), "labels": torch.tensor([0, 1, 1, 0])}
    found = find_loss(Whole(), batch)
    assert found.words == (
        "loss: cross-entropy of 2 classes between model(batch) and batch['labels']",
    )


def test_a_criterion_that_gives_several_losses():
    """As those of detectors; they are added up, as those of a loss of (model, batch) are."""
    model, targets = chain(6, C), torch.randn(len(X), C)

    def losses(output, target):
        return {"box": F.mse_loss(output, target), "class": F.l1_loss(output, target)}

    loss = find_loss(model, (X, targets), losses).loss
    both = losses(model(X), targets)
    torch.testing.assert_close(loss(model, (X, targets)), both["box"] + both["class"])
    with torch.no_grad():
        assert_close(loss(model, (X, targets)), (both["box"] + both["class"]).detach())
