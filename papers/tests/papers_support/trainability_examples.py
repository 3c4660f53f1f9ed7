"""Small networks of the benchmark of trainings, and outcomes written by hand."""

from __future__ import annotations

import dataclasses

from equipoise_papers.trainability.looks import Known, Look
from equipoise_papers.trainability.space import FAMILIES, Network
from equipoise_papers.trainability.training import PARTS, Curve, Trained, Training

NAMES = ("explosion", "samples")


def network(layers="dense", topology="plain", **changes):
    """A healthy network of two blocks."""
    plain = Network(
        layers=layers,
        topology=topology,
        norm="layer",
        activation="relu",
        depth=2,
        width=16,
        batch_size=16,
        gain=1.0,
        data="text" if layers == "attention" else "digits",
        seed=3,
    )
    return dataclasses.replace(plain, **changes)


EVERY_FAMILY = {
    f"{layers}, {topology}": network(layers, topology) for layers, topology in FAMILIES
}


def trained(loss, chance=2.0):
    """A network whose only training reaches a loss, from the chance loss."""
    return Trained((Curve(0.1, (chance, *[loss] * (PARTS - 1))),), chance)


def known(**risks):
    """Quantities that theory and measurement agree on."""
    found = {**dict.fromkeys(NAMES, 0.0), **risks}
    return Known(found, found, {"snip": 1.0})


def records(of, own, reference=1.0, chance=2.0):
    """What the benchmark has computed of one network, trained by one optimiser."""
    return {
        Training(of, "sgd", 100): trained(own, chance),
        Training(of.reference, "sgd", 100): trained(reference, chance),
        Look(of): known(),
    }
