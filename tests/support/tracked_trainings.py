"""Trainings that a tracker must not change, and careless trackers that change them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise import BNP
from equipoise.layers import NoisyBatchNorm1d
from support.probe_models import batch, build, loss_fn

BATCHES = [batch(seed) for seed in range(6)]


@dataclass
class Training:
    """A user's training: its step on a batch, and the objects that have a state."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_fn: Callable[[nn.Module, Any], Tensor] = loss_fn
    step: Callable[[Training, Any], Tensor] | None = None
    keeps: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)

    def take(self, batch: Any) -> Tensor:
        """Train on one batch."""
        if self.step is not None:
            return self.step(self, batch)
        self.optimizer.zero_grad()
        loss = self.loss_fn(self.model, batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def state(self, losses: list[Tensor]) -> list[bytes]:
        """Everything that makes two trainings the same, as bytes."""
        tensors = [*losses, torch.get_rng_state()]
        for module in self.model.modules():
            tensors += [b for b in module._buffers.values() if b is not None]
            own = [v for v in vars(module).values() if isinstance(v, torch.Generator)]
            tensors += [generator.get_state() for generator in own]
        for parameter in self.model.parameters():
            tensors += [parameter, *([] if parameter.grad is None else [parameter.grad])]
        for keeper in (self.optimizer, *self.keeps):
            tensors += _tensors(keeper.state_dict())
        numpy_state = np.random.get_state()[1].tobytes()  # noqa: NPY002  # what users draw from
        return [*map(_bytes, tensors), numpy_state, repr(random.getstate()).encode()]


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, dict):
        return [t for item in value.values() for t in _tensors(item)]
    if isinstance(value, list | tuple):
        return [t for item in value for t in _tensors(item)]
    return [value if isinstance(value, Tensor) else torch.tensor(float(value or 0))] * (
        not isinstance(value, str)
    )


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def _adam(model: nn.Module, lr: float = 0.01) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)


def of_model(name: str) -> Training:
    model = build(name)
    return Training(model, _adam(model))


def plain_adam() -> Training:
    return of_model("plain")


def batch_norm_and_dropout() -> Training:
    return of_model("batch norm and dropout")


def momentum() -> Training:
    model = build("batch norm and dropout")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)
    return Training(model, optimizer)


def noisy(generator: torch.Generator | None = None) -> Training:
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(6, 6), NoisyBatchNorm1d(6, generator=generator), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(6, 1))
    return Training(model, _adam(model))


def noisy_from_its_own_generator() -> Training:
    return noisy(torch.Generator().manual_seed(5))


def autocast() -> Training:
    def in_half(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss_fn(model, batch)

    model = build("batch norm and dropout")
    return Training(model, _adam(model), in_half)


def autocast_and_scaler() -> Training:
    training = autocast()
    # A scale that overflows at first, so that some steps are skipped.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=2)

    def step(training, batch):
        training.optimizer.zero_grad()
        loss = training.loss_fn(training.model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(training.optimizer)
        nn.utils.clip_grad_norm_(training.model.parameters(), 0.5)
        scaler.step(training.optimizer)
        scaler.update()
        return loss.detach()

    training.step = step
    training.keeps.append(scaler)
    return training


def accumulation() -> Training:
    training = batch_norm_and_dropout()
    seen = []

    def step(training, batch):
        loss = training.loss_fn(training.model, batch) / 2
        loss.backward()
        seen.append(batch)
        if len(seen) % 2 == 0:
            training.optimizer.step()
            training.optimizer.zero_grad()
        return loss.detach()

    training.step = step
    return training


def closure() -> Training:
    model = build("plain")
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def step(training, batch):
        def evaluate():
            optimizer.zero_grad()
            loss = training.loss_fn(training.model, batch)
            loss.backward()
            return loss

        return optimizer.step(evaluate).detach()

    return Training(model, optimizer, step=step)


def preconditioned() -> Training:
    model = build("plain")
    optimizer = _adam(model)
    bnp = BNP(model).attach(optimizer)

    def step(training, batch):
        loss = training.loss_fn(training.model, batch)
        optimizer.zero_grad(set_to_none=False)  # with None, BNP would know which rows are stale
        loss.backward()
        optimizer.step()
        return loss.detach()

    return Training(model, optimizer, step=step, keeps=[bnp])


def scheduled() -> Training:
    training = batch_norm_and_dropout()
    scheduler = torch.optim.lr_scheduler.LinearLR(training.optimizer, 0.1, total_iters=4)
    training.keeps.append(scheduler)

    def step(training, batch):
        loss = Training(training.model, training.optimizer).take(batch)
        scheduler.step()
        return loss

    training.step = step
    return training


def a_pass(training: Training, batch: Any) -> None:
    """Ignores that layers keep statistics and draw numbers."""
    training.loss_fn(training.model, batch)


def a_gradient(training: Training, batch: Any) -> None:
    """Ignores that hooks watch the passes."""
    torch.autograd.grad(training.loss_fn(training.model, batch), training.model[0].weight)


def a_backward_pass(training: Training, batch: Any) -> None:
    """Ignores that gradients add up."""
    training.loss_fn(training.model, batch).backward()


def there_and_back(training: Training, batch: Any) -> None:
    """Ignores that floating-point sums are rounded."""
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.add_(0.1).sub_(0.1)


# Trainings by name, each with a careless tracker that changes it.
TRAININGS: dict[str, tuple[Callable[[], Training], Callable[[Training, Any], None]]] = {
    "Adam": (plain_adam, there_and_back),
    "batch norm and dropout": (batch_norm_and_dropout, a_pass),
    "momentum and weight decay": (momentum, there_and_back),
    "noisy batch norm": (noisy, a_pass),
    "noisy batch norm with its own generator": (noisy_from_its_own_generator, a_pass),
    "autocast": (autocast, a_pass),
    "autocast, scaler, clipping": (autocast_and_scaler, there_and_back),
    "accumulated gradients": (accumulation, a_backward_pass),
    "closures": (closure, there_and_back),
    "BNP": (preconditioned, a_gradient),
    "scheduler": (scheduled, there_and_back),
}


def run(
    make: Callable[[], Training], observe: Callable[[Training, Any], None] | None = None
) -> list[bytes]:
    """Train, and return the final state."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002  # the state that users draw from
    training = make()
    losses = []
    for item in BATCHES:
        if observe is not None:
            observe(training, item)
        losses.append(training.take(item))
    return training.state(losses)
