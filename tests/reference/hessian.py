"""The Hessian entry by entry, and what batch normalisation makes of a Hessian."""

from __future__ import annotations

import copy

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def explicit(model, loss_fn, batch, names=None):
    """Row i is the gradient of the i-th entry of the gradient.

    Args:
        model: A copy of it runs, once, from the present random state, which is put back.
        loss_fn: Returns a scalar.
        batch: What it takes.
        names: Parameters to keep, by default all trainable ones.
    """
    twin = copy.deepcopy(model)
    parameters = _chosen(twin, names)
    with torch.random.fork_rng(), sdpa_kernel(SDPBackend.MATH):
        loss = loss_fn(twin, batch)
    gradient = _flat_gradient(loss, parameters, create_graph=True)
    rows = [_flat_gradient(entry, parameters, retain_graph=True) for entry in gradient]
    return torch.stack(rows).detach()


def by_differences(model, loss_fn, batch, step=1e-4):
    """Fourth-order differences of gradients: no derivative is taken twice."""

    def gradient(index, shift):
        twin = copy.deepcopy(model)
        parameters = _chosen(twin, None)
        flat = torch.nn.utils.parameters_to_vector(parameters).detach()
        flat[index] += shift
        torch.nn.utils.vector_to_parameters(flat, parameters)
        with torch.random.fork_rng():
            return _flat_gradient(loss_fn(twin, batch), parameters)

    def row(index):
        near, far = (gradient(index, k * step) - gradient(index, -k * step) for k in (1, 2))
        return (8 * near - far) / (12 * step)

    size = sum(p.numel() for p in _chosen(model, None))
    return torch.stack([row(index) for index in range(size)])


def through_batch_norm(y, g, H, gamma, eps):
    r"""∇²_y of a loss of z = γ ŷ + β, from its gradient g and Hessian H with respect to z.

    γ²/σ² PHP - γ/(mσ²) [(Pg)ŷᵀ + ŷ(Pg)ᵀ + ⟨g, ŷ⟩P],  P = I - ŷŷᵀ/m - 11ᵀ/m.
    """
    m = len(y)
    sigma = (y.var(correction=0) + eps).sqrt()
    hat = (y - y.mean()) / sigma
    one = torch.ones_like(y)
    P = torch.eye(m).to(y) - torch.outer(hat, hat) / m - torch.outer(one, one) / m
    Pg = P @ g
    bracket = torch.outer(Pg, hat) + torch.outer(hat, Pg) + (g @ hat) * P
    return gamma**2 / sigma**2 * P @ H @ P - gamma / (m * sigma**2) * bracket


def _chosen(model, names):
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return list(named.values()) if names is None else [named[name] for name in names]


def _flat_gradient(value, parameters, **options):
    gradients = torch.autograd.grad(value, parameters, materialize_grads=True, **options)
    return torch.cat([g.reshape(-1) for g in gradients])
