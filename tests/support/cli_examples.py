"""Files as a user would write them."""

NETS = '''
from types import SimpleNamespace

import torch
from torch import nn


def build(depth=2, width=16, activation="relu"):
    kinds = {"relu": nn.ReLU, "tanh": nn.Tanh}
    layers = [nn.Flatten()]
    inputs = 64
    for _ in range(depth):
        layers += [nn.Linear(inputs, width), nn.BatchNorm1d(width), kinds[activation]()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, 10))


def slow():
    """A check-up of many seeds takes many seconds."""
    return build(depth=6, width=32)


instance = build()
number = 3
trainer = SimpleNamespace(model=nn.Linear(64, 10))


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.net = build(width=width)

    def forward(self, x):
        return self.net(x)


def raises():
    raise RuntimeError("no such checkpoint")


def not_a_module():
    return [1, 2]


def returns_nan():
    model = build()
    nn.init.constant_(model[-1].bias, float("nan"))
    return model


def chatty():
    print("building")
    return build()


def absolute(model, batch):
    return model(batch[0]).abs().mean()
'''

BATCHES = """
import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
y = torch.arange(64) % 10

pairs = [(x[:16], y[:16]), (x[16:32], y[16:32])]
dataset = TensorDataset(x, y)
loader = DataLoader(dataset, batch_size=8)
regression = TensorDataset(x, torch.randn(64, 10))


def generator():
    yield x[:16], y[:16]
"""
