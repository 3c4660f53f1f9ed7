"""A model in the form of the Hugging Face Trainer, and quiet trainers.

Importing this skips the test module that does where transformers is not installed.
"""

from __future__ import annotations

import pytest
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import SequentialSampler

from support.bnp_problems import OPTIMIZERS, mlp

MISSING = "pip install equipoise[huggingface]"
transformers = pytest.importorskip("transformers", reason=MISSING)
accelerate = pytest.importorskip("accelerate", reason=MISSING)

QUIET = {
    "disable_tqdm": True,
    "logging_strategy": "no",
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 32,
    "report_to": "none",
    "save_strategy": "no",
    "use_cpu": True,
}


class InOrder(transformers.Trainer):
    """Samples as they come; older versions have no option for that."""

    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


class Regression(nn.Module):
    """``net`` with a mean squared error."""

    def __init__(self, net=None):
        super().__init__()
        self.net = mlp() if net is None else net

    def forward(self, x, labels):
        outputs = self.net(x)
        return {"loss": mse_loss(outputs, labels), "logits": outputs}


def rows(batches):
    """The samples of batches, in their order."""
    return [
        {"x": one, "labels": label} for x, y in batches for one, label in zip(x, y, strict=True)
    ]


def trainer(model, samples, folder, *callbacks, optimizer, evaluation=None, **options):
    """A trainer on samples; with its own optimizer for None."""
    return InOrder(
        model,
        transformers.TrainingArguments(output_dir=str(folder), **QUIET | options),
        train_dataset=samples,
        eval_dataset=evaluation,
        optimizers=(optimizer, None),
        callbacks=list(callbacks),
    )


def fit(model, samples, folder, *callbacks, resume=None, **options):
    """Train on samples."""
    trainer(model, samples, folder, *callbacks, **options).train(resume_from_checkpoint=resume)


def train(model, batches, folder, *callbacks, optimizer="adam", **options):
    """Train by the optimizer of a name, and return the inner network."""
    chosen = OPTIMIZERS[optimizer](model.parameters())
    fit(model, rows(batches), folder, *callbacks, optimizer=chosen, **options)
    return model.net
