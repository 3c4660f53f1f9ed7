"""Small versions of well-known architectures, to try predictions of signal propagation on.

Every model keeps the order of operations, the places of its norms and the initialisation of its
publication, or PyTorch's default where none is published, but has few blocks. Bodies are at
least 64 wide wherever the architecture's idea allows, so that finite width hides little.
Dropout stands where the publication has it in classifiers, BERT and TCN; stochastic depth is left
out everywhere.
"""

from __future__ import annotations

from architectures._architecture import Architecture
from architectures.convolutional import CONVOLUTIONAL, FULL_DENSENET121
from architectures.dense_prediction import DENSE_PREDICTION
from architectures.others import OTHERS
from architectures.residual_networks import FULL_RESNET50, RESIDUAL_NETWORKS
from architectures.temporal import TEMPORAL
from architectures.transformers import TRANSFORMERS, TWELVE_LAYERS

ARCHITECTURES: tuple[Architecture, ...] = (
    *RESIDUAL_NETWORKS,
    *CONVOLUTIONAL,
    *TEMPORAL,
    *DENSE_PREDICTION,
    *TRANSFORMERS,
    *OTHERS,
)

# Of their full depth, to be timed.
DEEP: tuple[Architecture, ...] = (FULL_RESNET50, TWELVE_LAYERS, FULL_DENSENET121)

__all__ = ["Architecture", "ARCHITECTURES", "DEEP"]
