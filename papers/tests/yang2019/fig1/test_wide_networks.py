"""Neurons drawn from their exact law give the statistics of networks with drawn weights."""

import numpy as np
import torch

from equipoise import theory
from equipoise_papers.yang2019.fig1.wide_networks import deep_covariances, entry_variances


class TestWideNetworks:
    """Neurons drawn from their exact law stand for weights that are never drawn."""

    BATCH, WIDTH, DEPTH, NETWORKS = 6, 40, 4, 600

    def drawn_from_their_law(self, width, seed):
        covariances = deep_covariances(
            theory.as_activation("alpha_relu(1.2)"),
            self.BATCH,
            width=width,
            depth=self.DEPTH,
            networks=self.NETWORKS,
            generator=torch.Generator().manual_seed(seed),
        )
        return torch.stack(entry_variances(covariances)).numpy()

    def with_weights(self):
        generator = torch.Generator().manual_seed(1)

        def normal(*shape):
            return torch.randn(self.NETWORKS, *shape, generator=generator, dtype=torch.float64)

        signal = normal(self.BATCH, self.WIDTH)
        for _ in range(self.DEPTH):
            h = signal @ normal(self.WIDTH, self.WIDTH) / self.WIDTH**0.5
            h = h - h.mean(1, keepdim=True)
            signal = (h / h.square().mean(1, keepdim=True).sqrt()).clamp(min=0) ** 1.2
        covariances = signal @ signal.mT / self.WIDTH
        return torch.stack(entry_variances(covariances)).numpy()

    @staticmethod
    def distances(a, b):
        error = np.sqrt((a.var(1, ddof=1) + b.var(1, ddof=1)) / a.shape[1])
        return np.abs(a.mean(1) - b.mean(1)) / error

    def test_same_statistics_as_with_weights(self):
        distances = self.distances(self.drawn_from_their_law(self.WIDTH, 0), self.with_weights())
        assert (distances < 4).all()

    def test_another_width_has_others(self):
        distances = self.distances(self.drawn_from_their_law(80, 0), self.with_weights())
        assert (distances > 10).all()
