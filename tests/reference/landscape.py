"""Literal transcriptions: a copy of the model for every point, a whole pass for every layer."""

from __future__ import annotations

import copy
import random

import numpy as np
import torch


def pass_over(model, loss_fn, batch):
    """Loss and gradients by name, on a copy; the noise is what the caller's generators give."""
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.grad = None
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        loss = loss_fn(twin, batch)
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    loss.backward()
    gradients = {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in twin.named_parameters()
        if p.requires_grad
    }
    return float(loss.detach()), gradients


def vector(gradients):
    """All gradients as one long vector in float64."""
    return torch.cat([g.reshape(-1).double() for g in gradients.values()])


def landscape(model, loss_fn, batch, steps, direction=None):
    """Loss, ‖∇L(θ_η) − g‖, cosine and ‖∇L(θ_η) − g‖/‖ηd‖ for θ_η = θ − ηd."""
    _, g = pass_over(model, loss_fn, batch)
    d = g if direction is None else dict(zip(g, direction, strict=True))
    rows = []
    for eta in steps:
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for name, parameter in twin.named_parameters():
                if parameter.requires_grad:
                    parameter -= eta * d[name]
        loss, here = pass_over(twin, loss_fn, batch)
        change = (vector(here) - vector(g)).norm()
        cosine = vector(here) @ vector(g) / (vector(here).norm() * vector(g).norm())
        beta = change / (eta * vector(d)).norm()
        rows.append((loss, float(change), float(cosine), float(beta)))
    return rows


def gradient_step(model, loss_fn, batch, rate):
    """A copy of the model one step of gradient descent further."""
    _, g = pass_over(model, loss_fn, batch)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if parameter.requires_grad:
                parameter -= rate * g[name]
    return twin


def covariate_shift(model, loss_fn, batch, layers, moved):
    """Definition 2.1, with a copy of the model and a whole pass for every layer.

    Args:
        model: W^(t).
        loss_fn: The loss.
        batch: x^(t), y^(t).
        layers: Names of the parameters of each layer, in the order of application.
        moved: W^(t+1), a model of the same structure.

    Returns:
        ‖G_i − G_i'‖ and cos(G_i, G_i') for every layer.
    """
    _, g = pass_over(model, loss_fn, batch)
    there = dict(moved.named_parameters())
    rows = []
    for i, names in enumerate(layers):
        twin = copy.deepcopy(model)
        with torch.no_grad():
            here = dict(twin.named_parameters())
            for earlier in layers[:i]:
                for name in earlier:
                    here[name].copy_(there[name])
        _, shifted = pass_over(twin, loss_fn, batch)
        G = vector({name: g[name] for name in names})
        G_shifted = vector({name: shifted[name] for name in names})
        l2 = (G - G_shifted).norm()
        cosine = G @ G_shifted / (G.norm() * G_shifted.norm())
        rows.append((float(l2), float(cosine)))
    return rows
