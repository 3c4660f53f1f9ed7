"""Eigenvalues of random networks and neurons, against theory and against their definition."""

import numpy as np
import pytest
import torch

from equipoise.theory import (
    Setting,
    backward_spectrum,
    cross_batch,
    simulate_networks,
    simulate_spectra,
)
from equipoise.theory.simulation.spectra import _traces, sample_spectra


class TestSimulatedSpectra:
    def test_networks_approach_theory(self):
        run = simulate_spectra("relu", 8, width=1000, depth=8, networks=16)
        exact = backward_spectrum("relu", 8)
        for column, part in enumerate("GLM"):
            samples = run.backward[:, column]
            error = samples.std(ddof=1) / 4 + 3 / 1000  # and the bias of finite width
            assert abs(samples.mean() - getattr(exact, part).value) < 4 * error
        assert abs(run.cross_batch.mean() - cross_batch("relu", 8).forward.value) < 0.01

    def test_the_traces_are_the_definition(self):
        """⟨Δ, Jᵀ Δ J⟩ summed over an orthonormal basis of each subspace, through autograd."""
        B = 5
        problem = Setting("tanh", B, eps=0.1, gamma=1.3, beta=0.2)
        generator = torch.Generator().manual_seed(3)
        h = torch.randn(1, B, generator=generator, dtype=torch.float64)
        h -= h.mean()

        def layer(z):
            centred = z - z.mean()
            return torch.tanh(1.3 * centred / (centred.square().mean() + 0.1).sqrt() + 0.2)

        J = torch.autograd.functional.jacobian(layer, h[0])
        G = torch.eye(B, dtype=torch.float64) - 1 / B
        bases = {"G": [G / (B - 1) ** 0.5], "L": [], "M": []}
        zero_sum = torch.linalg.svd(G)[0][:, : B - 1].T
        bases["L"] = [G @ torch.diag(u) @ G / (1 - 2 / B) ** 0.5 for u in zero_sum]
        every = torch.stack([*bases["G"], *bases["L"]]).reshape(B, -1)
        symmetric = []
        for i in range(B):
            for j in range(i + 1):
                E = torch.zeros(B, B, dtype=torch.float64)
                E[i, j] = E[j, i] = 1
                symmetric.append((G @ E @ G).reshape(-1))
        rest = torch.stack(symmetric)
        rest = rest - rest @ every.T @ every
        rows = torch.linalg.svd(rest, full_matrices=False)
        bases["M"] = [v.reshape(B, B) for s, v in zip(rows.S, rows.Vh, strict=True) if s > 1e-9]
        assert len(bases["M"]) == B * (B - 3) // 2
        kappa = 0.7
        found = _traces(problem, h, kappa)[0]
        y = layer(h[0])
        for column, part in enumerate("GLM"):
            backward = sum((D * (J.T @ D @ J)).sum() for D in bases[part]) / len(bases[part])
            forward = sum(y @ D @ J @ D @ h[0] for D in bases[part]) / len(bases[part]) / kappa
            assert float(found[column]) == pytest.approx(float(backward), rel=1e-10)
            assert float(found[3 + column]) == pytest.approx(float(forward), rel=1e-9, abs=1e-12)

    def test_nothing_to_sample_above_the_critical_eps(self):
        with pytest.raises(ValueError, match="nothing to sample"):
            sample_spectra("tanh", 8, eps=1.5)
        with pytest.raises(
            ValueError, match="samples must be a whole number of at least 2; got 1"
        ):
            sample_spectra("tanh", 8, samples=1)

    def test_gradients_of_networks_grow_at_g(self):
        run = simulate_networks("silu", 8, width=400, depth=14, networks=12)
        slopes = -np.diff(run.log_gradients[:, 2:], axis=1).mean(1)
        error = slopes.std(ddof=1) / 12**0.5 + 2 / 400
        assert abs(slopes.mean() - np.log(backward_spectrum("silu", 8).G.value)) < 4 * error
