"""Backbones, pretrained weights, and the network that is trained."""

from mecam.models.lite import EfficientNetLite, lite0, lite0small, lite1, lite2
from mecam.models.network import Backbone, Network, Normalization
from mecam.models.registry import BACKBONES, Entry, create, find
from mecam.models.resnet import ResNet, resnet8, resnet18, resnet50, resnet50v1, resnet101, resnet152
from mecam.models.weights import WeightsError, load_weights, read_weights

__all__ = [
    "BACKBONES",
    "Backbone",
    "EfficientNetLite",
    "Entry",
    "Network",
    "Normalization",
    "ResNet",
    "WeightsError",
    "create",
    "find",
    "lite0",
    "lite0small",
    "lite1",
    "lite2",
    "load_weights",
    "read_weights",
    "resnet8",
    "resnet18",
    "resnet50",
    "resnet50v1",
    "resnet101",
    "resnet152",
]
