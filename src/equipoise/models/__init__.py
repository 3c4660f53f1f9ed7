"""The networks that the papers train, each with a choice of normaliser."""

from equipoise.models.bilinear_cnn import bilinear_cnn
from equipoise.models.cnn5 import cnn5
from equipoise.models.deep_linear import deep_linear
from equipoise.models.initialisation import glorot_uniform_, he_normal_
from equipoise.models.mlp import mlp
from equipoise.models.norms import NORMS, Norm, make_norm
from equipoise.models.resnet import BasicBlock, ResNet, resnet18
from equipoise.models.resnet_cifar import (
    CifarResNet,
    PadShortcut,
    PreactivationBlock,
    resnet_cifar,
)
from equipoise.models.transformer import RowTransformer, transformer_classifier
from equipoise.models.vgg import vgg

__all__ = [
    # networks
    "mlp",
    "cnn5",
    "bilinear_cnn",
    "deep_linear",
    "resnet18",
    "resnet_cifar",
    "vgg",
    "transformer_classifier",
    # their parts
    "ResNet",
    "BasicBlock",
    "CifarResNet",
    "PreactivationBlock",
    "PadShortcut",
    "RowTransformer",
    # normalisers and initialisation
    "NORMS",
    "Norm",
    "make_norm",
    "glorot_uniform_",
    "he_normal_",
]
