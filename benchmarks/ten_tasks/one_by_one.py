"""Task 6: batches of one sample with BNP, stopped and resumed bit for bit."""

import torch
from torch import nn

import equipoise as eq
from data import x, y
from nets import chain


def build():
    torch.manual_seed(0)
    model = chain(6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    return model, optimizer, eq.BNP(model).attach(optimizer)


def train(model, optimizer, samples):
    for i in samples:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        optimizer.step()


order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).tolist()
whole = build()
train(*whole[:2], order[:600])
torch.save([part.state_dict() for part in whole], "stopped.pt")
train(*whole[:2], order[600:700])
again = build()
for part, state in zip(again, torch.load("stopped.pt"), strict=True):
    part.load_state_dict(state)
train(*again[:2], order[600:700])
expected, found = (part[0].state_dict() for part in (whole, again))
same = all(torch.equal(value, found[name]) for name, value in expected.items())
right = (whole[0](x).argmax(1) == y).double().mean()
print(f"{right:.0%} right after 700 samples; resumed bit for bit: {same}")
