"""The networks that the papers train."""

from equipoise.models.mlp import mlp
from equipoise.models.resnet import BasicBlock, ResNet, resnet18
from equipoise.models.transformer import RowTransformer, transformer_classifier

__all__ = [
    "BasicBlock",
    "ResNet",
    "RowTransformer",
    "mlp",
    "resnet18",
    "transformer_classifier",
]
