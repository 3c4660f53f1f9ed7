"""BNP as a callback of the Hugging Face Trainer: one pass over 900 digits.

Needs ``pip install equipoise[huggingface]``. The same training, at batches of
six, is run with and without the callback, each at its best rate of AdamW, the trainer's default.
"""

from tempfile import TemporaryDirectory

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from equipoise.integrations.huggingface import BNPCallback

RATES = (1e-2, 3e-2, 1e-1)

pixels, labels = (torch.tensor(array[:900]) for array in load_digits(return_X_y=True))
pixels = pixels.float() / 16
digits = [{"pixels": x, "labels": y} for x, y in zip(pixels, labels, strict=True)]


class Classifier(nn.Module):
    """Two layers, which know nothing of BNP."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the trainer wants: the loss, by name."""
        return {"loss": cross_entropy(self.layers(pixels), labels)}


def train(rate: float, *callbacks: TrainerCallback) -> float:
    """Loss over the digits after one pass."""
    set_seed(0)
    model = Classifier()
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            learning_rate=rate,
            per_device_train_batch_size=6,
            num_train_epochs=1,
            max_grad_norm=0,  # it would clip before BNP; BNPCallback(max_norm=...) clips after
            save_strategy="no",
            report_to="none",
            use_cpu=True,
        )
        Trainer(model, arguments, train_dataset=digits, callbacks=list(callbacks)).train()
    with torch.no_grad():
        return float(model(pixels, labels)["loss"])


if __name__ == "__main__":
    plain = min(train(rate) for rate in RATES)
    bnp = min(train(rate, BNPCallback()) for rate in RATES)
    print(f"plain {plain:.3f}, BNP {bnp:.3f}")
    assert bnp < plain
