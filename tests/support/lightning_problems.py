"""A Lightning module around the networks of the tests of BNP, and quiet trainers.

Importing this skips the test module that does where Lightning is not installed.
"""

from __future__ import annotations

import pytest
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from support.bnp_problems import OPTIMIZERS, mlp

pl = pytest.importorskip("lightning.pytorch", reason="pip install equipoise[lightning]")

QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
    "logger": False,
    "max_epochs": 1,
}


class Regression(pl.LightningModule):
    """``net`` trained on mean squared errors by the optimizer of a name."""

    def __init__(self, optimizer="adam", net=None):
        super().__init__()
        self.net = mlp() if net is None else net
        self.optimizer = optimizer

    def training_step(self, batch, index):
        return mse_loss(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return OPTIMIZERS[self.optimizer](self.net.parameters())


class Validated(Regression):
    """With a validation that would show in the statistics."""

    def validation_step(self, batch, index):
        self.net.train()  # as a careless user does
        self.net(batch[0] * 1e3)


class ByHand(Regression):
    """Two halves trained by two optimizers."""

    automatic_optimization = False

    def training_step(self, batch, index):
        both = self.optimizers()
        for optimizer in both:
            optimizer.zero_grad()
        self.manual_backward(super().training_step(batch, index))
        for optimizer in both:
            optimizer.step()

    def configure_optimizers(self):
        return [OPTIMIZERS["adam"](half.parameters()) for half in halves(self.net)]


def halves(net):
    """Three linear layers as the first two and the last."""
    return net[:3], net[3:]


def loader(batches):
    """Batches as they are, in their order."""
    return DataLoader(batches, batch_size=None)


def trainer(*callbacks, **options):
    return pl.Trainer(callbacks=list(callbacks), **QUIET | options)


def fit(model, batches, *callbacks, **options):
    """Train, and return the inner network."""
    trainer(*callbacks, **options).fit(model, loader(batches))
    return model.net
