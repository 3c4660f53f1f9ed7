"""BNP as a callback of Lightning: one pass over 900 handwritten digits.

Needs ``pip install equipoise[lightning]``. The same training, at batches of six,
is run with and without the callback, each at its best rate.
"""

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from equipoise.integrations.lightning import BNPCallback

RATES = (0.1, 0.3, 1.0)

pixels, labels = (torch.tensor(array[:900]) for array in load_digits(return_X_y=True))
digits = TensorDataset(pixels.float() / 16, labels)


class Classifier(pl.LightningModule):
    """Two layers, which know nothing of BNP."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.layers = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """Loss of a batch."""
        return cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=self.rate)


def train(rate: float, *callbacks: pl.Callback) -> float:
    """Loss over the digits after one pass."""
    pl.seed_everything(0, verbose=False)
    model = Classifier(rate)
    trainer = pl.Trainer(
        accelerator="cpu", barebones=True, max_epochs=1, callbacks=list(callbacks)
    )
    trainer.fit(model, DataLoader(digits, batch_size=6, shuffle=True))
    with torch.no_grad():
        return float(model.training_step(list(digits.tensors), 0))


if __name__ == "__main__":
    plain = min(train(rate) for rate in RATES)
    bnp = min(train(rate, BNPCallback()) for rate in RATES)
    print(f"plain {plain:.3f}, BNP {bnp:.3f}")
    assert bnp < plain
