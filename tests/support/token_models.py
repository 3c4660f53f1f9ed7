"""Sequences of tokens, models that are causal or are not, and their losses."""

import math

import torch
from torch import nn
from torch.nn import functional as F

TOKENS = torch.randint(0, 11, (16, 20), generator=torch.Generator().manual_seed(0))
PAIR = TOKENS[:, :-1], TOKENS[:, 1:]


class Attention(nn.Module):
    """One layer of attention, with or without a mistake."""

    def __init__(self, mask=torch.tril, axis=-1, fill=-math.inf, position=True):
        super().__init__()
        self.embed, self.place = nn.Embedding(11, 16), nn.Embedding(20, 16)
        self.project, self.last = nn.Linear(16, 48), nn.Linear(16, 11)
        self.mask, self.axis, self.fill = mask, axis, fill

    def forward(self, tokens):
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        q, k, v = self.project(x).chunk(3, -1)
        scores = q @ k.mT / 4
        seen = self.mask(torch.ones_like(scores[0])).bool()
        weights = scores.masked_fill(~seen, self.fill).softmax(self.axis)
        return self.last(x + weights @ v)


class Recurrent(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.embed, self.steps = nn.Embedding(11, 8), nn.GRU(8, 16, batch_first=True, **options)
        self.last = nn.LazyLinear(11)

    def forward(self, tokens):
        return self.last(self.steps(self.embed(tokens))[0])


def tokens_loss(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def shifted_loss(model, batch):
    return F.cross_entropy(model(batch)[:, :-1].mT, batch[:, 1:])


def named_loss(model, batch):
    return F.cross_entropy(model(batch["tokens"]).mT, batch["labels"])


class StepsFirst(nn.Module):
    """A model of sequences with samples first, given and giving steps first."""

    def __init__(self, model, rows=False):
        super().__init__()
        self.model, self.rows = model, rows

    def forward(self, tokens):
        outputs = self.model(tokens.t()).transpose(0, 1)
        return outputs.flatten(0, 1) if self.rows else outputs


def steps_first_loss(model, batch):
    return F.cross_entropy(model(batch[0]).reshape(-1, 11), batch[1].reshape(-1))
