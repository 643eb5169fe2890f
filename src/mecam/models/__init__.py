"""Backbones, pretrained weights and the network."""

from mecam.models.frozen_bn import fold_frozen
from mecam.models.lite import EfficientNetLite, lite0, lite0small, lite1, lite2
from mecam.models.network import Backbone, Network
from mecam.models.registry import BACKBONES, BackboneEntry, create, find, register
from mecam.models.resnet import ResNet, resnet8, resnet18, resnet50, resnet50v1, resnet101, resnet152
from mecam.models.weights import WeightsError, load_weights, read_weights
from mecam.preprocessing import Preprocessing

__all__ = [
    "BACKBONES",
    "Backbone",
    "BackboneEntry",
    "EfficientNetLite",
    "Network",
    "Preprocessing",
    "ResNet",
    "WeightsError",
    "create",
    "find",
    "fold_frozen",
    "lite0",
    "lite0small",
    "lite1",
    "lite2",
    "load_weights",
    "read_weights",
    "register",
    "resnet8",
    "resnet18",
    "resnet50",
    "resnet50v1",
    "resnet101",
    "resnet152",
]
