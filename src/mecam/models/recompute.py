"""Recompute the activations of a backbone's blocks in the backward pass (Chen et al., 2016), to save memory.

`set_grad_checkpointing` of timm is not used: in its CNNs it runs blocks past their stages, whose hooks are where a
virtual domain acts.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from mecam.models.layers import blocks_of


def checkpoint_blocks(featurizer: nn.Module) -> None:
    """Let every block keep its input alone, and compute the rest again in the backward pass.

    Gradients keep their bits: a block is recomputed with the weights and random numbers that it had, and its
    batch-norm statistics change once. Copies of the featurizer do the same.
    """
    for block in blocks_of(featurizer):
        block.forward = partial(_forward, block)


def _forward(block: nn.Module, *inputs: Any, **named: Any) -> Any:
    run = partial(type(block).forward, block, **named)
    if not torch.is_grad_enabled():
        return run(*inputs)
    then = _AsThen(block)
    return checkpoint(run, *inputs, use_reentrant=False, context_fn=lambda: (nullcontext(), then))


class _AsThen:
    """A context in which a block has the weights of a forward pass, which `functional_call` may have lent to it."""

    def __init__(self, block: nn.Module) -> None:
        self.then = [(module, dict(module._parameters), dict(module._buffers)) for module in block.modules()]

    def __enter__(self) -> None:
        self.now = [(module, dict(module._parameters), dict(module._buffers)) for module, _, _ in self.then]
        for module, parameters, buffers in self.then:
            module._parameters.update(parameters)
            if module.training and isinstance(module, _BatchNorm):  # which would update them again
                buffers = {name: None if own is None else own.clone() for name, own in buffers.items()}
            module._buffers.update(buffers)

    def __exit__(self, *_: object) -> None:
        for module, parameters, buffers in self.now:
            module._parameters.update(parameters)
            module._buffers.update(buffers)
