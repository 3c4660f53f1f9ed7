"""Networks that a user might bring: a ResNet-18, a small U-Net, and deep chains."""

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions and a skip."""

    def __init__(self, fan_in, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(fan_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.skip = nn.Identity()
        if stride != 1 or fan_in != width:
            self.skip = nn.Sequential(
                nn.Conv2d(fan_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.skip(x))


class ResNet18(nn.Module):
    """The usual one, of one input channel."""

    def __init__(self, num_classes=10, width=64):
        super().__init__()
        layers, fan_in = [nn.Conv2d(1, width, 7, 2, 3, bias=False)], width
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        for stage in range(4):
            wide = width * 2**stage
            layers += [Block(fan_in, wide, 1 if stage == 0 else 2), Block(wide, wide, 1)]
            fan_in = wide
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(fan_in, num_classes)

    def forward(self, x):
        return self.head(self.body(x))


def pair(fan_in, width):
    """Two normalised convolutions."""
    layers = []
    for channels in (fan_in, width):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Three levels, two classes at every pixel."""

    def __init__(self, width=8):
        super().__init__()
        w = width
        self.down = nn.ModuleList([pair(3, w), pair(w, 2 * w), pair(2 * w, 4 * w)])
        self.lift = nn.ModuleList(
            [nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), nn.ConvTranspose2d(2 * w, w, 2, 2)]
        )
        self.up = nn.ModuleList([pair(4 * w, 2 * w), pair(2 * w, w)])
        self.head = nn.Conv2d(w, 2, 1)

    def forward(self, x):
        a = self.down[0](x)
        b = self.down[1](nn.functional.max_pool2d(a, 2))
        c = self.down[2](nn.functional.max_pool2d(b, 2))
        b = self.up[0](torch.cat([self.lift[0](c), b], 1))
        return self.head(self.up[1](torch.cat([self.lift[1](b), a], 1)))


def chain(depth=50, norm=False, bad=None, width=64):
    """A deep chain; one layer may be drawn thirty times too large."""
    layers = [nn.Flatten(), nn.Linear(64, width)]
    for _ in range(depth):
        layers += [nn.BatchNorm1d(width)] if norm else []
        layers += [nn.ReLU(), nn.Linear(width, width)]
        nn.init.kaiming_normal_(layers[-1].weight)
        nn.init.zeros_(layers[-1].bias)
    if bad is not None:
        with torch.no_grad():
            [x for x in layers if isinstance(x, nn.Linear)][bad].weight.mul_(30.0)
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(width, 10))


class Answer:
    """What models of language return."""

    def __init__(self, loss, logits):
        self.loss, self.logits = loss, logits


class Reader(nn.Module):
    """Takes a dictionary, and makes its own loss."""

    def __init__(self, words=50, width=32, classes=3):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.block(self.embedding(input_ids)).mean(1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return Answer(loss, logits)
