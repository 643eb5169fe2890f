"""Backbones."""

from mecam.models.resnet import ResNet, resnet8, resnet18, resnet50, resnet101, resnet152

__all__ = ["ResNet", "resnet8", "resnet18", "resnet50", "resnet101", "resnet152"]
