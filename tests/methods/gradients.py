"""Comparison of a method's loss with a formula."""

import torch
from torch import Tensor, nn


def assert_same_gradient(module: nn.Module, loss: Tensor, expected: Tensor, *, rtol: float = 1e-10) -> None:
    """Compare the losses and their gradients in all parameters of the module."""
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    gradients = [torch.autograd.grad(value, list(module.parameters())) for value in (loss, expected)]
    torch.testing.assert_close(*gradients, rtol=rtol, atol=1e-12)
