"""BNP in a loop of one's own: one pass over handwritten digits, six at a time.

The same loop is run without BNP and, as the control that any claim about preconditioning needs,
without BNP on standardised pixels; each at its best rate.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from equipoise import BNP

RATES = (0.03, 0.1, 0.3)

pixels, labels = map(torch.tensor, load_digits(return_X_y=True))
pixels = pixels.float() / 16
standardised = (pixels - pixels.mean(0)) / (pixels.std(0) + 0.01)


def train(images: torch.Tensor, rate: float, *, precondition: bool) -> float:
    """Loss over all images after one pass."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    if precondition:
        BNP(model).attach(optimizer)  # the one new line
    for batch in torch.randperm(len(images)).split(6):
        optimizer.zero_grad()
        cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        return float(cross_entropy(model(images), labels))


if __name__ == "__main__":
    plain = min(train(pixels, rate, precondition=False) for rate in RATES)
    control = min(train(standardised, rate, precondition=False) for rate in RATES)
    bnp = min(train(pixels, rate, precondition=True) for rate in RATES)
    print(f"plain {plain:.3f}, standardised pixels {control:.3f}, BNP {bnp:.3f}")
    assert bnp < control < plain
