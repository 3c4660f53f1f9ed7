"""The networks that the papers train, each with a choice of normaliser."""

from equipoise.models.bilinear_cnn import bilinear_cnn
from equipoise.models.cnn5 import cnn5
from equipoise.models.initialisation import glorot_uniform_, he_normal_
from equipoise.models.mlp import mlp
from equipoise.models.norms import Norm, make_norm
from equipoise.models.resnet import resnet18
from equipoise.models.resnet_cifar import resnet_cifar
from equipoise.models.transformer import transformer_classifier
from equipoise.models.vgg import vgg

__all__ = [
    # networks
    "mlp",
    "cnn5",
    "bilinear_cnn",
    "resnet18",
    "resnet_cifar",
    "vgg",
    "transformer_classifier",
    # normalisers and initialisation
    "Norm",
    "make_norm",
    "glorot_uniform_",
    "he_normal_",
]
