"""Domain-generalization methods: the gradient to take on a batch of several domains."""

from mecam.methods.base import Batch, Method, Setting
from mecam.methods.registry import METHODS, create, register

__all__ = ["METHODS", "Batch", "Method", "Setting", "create", "register"]
