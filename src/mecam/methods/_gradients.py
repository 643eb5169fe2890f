"""Gradients per domain, at the network's weights or at others, for methods that write gradients themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from mecam.methods.base import Batch, cross_entropy

ADAM_EPS = 1e-8
Named = dict[str, Tensor]  # by the names of the network's parameters or buffers


def trained(network: nn.Module) -> Named:
    """Return the weights that are trained."""
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def fill(network: nn.Module, gradients: Mapping[str, Tensor]) -> None:
    """Set the parameters' gradients, in the memory layout of the parameters, which fused optimizers require."""
    for name, parameter in network.named_parameters():
        gradient = gradients.get(name)
        if gradient is not None and gradient.stride() != parameter.stride():
            gradient = torch.empty_like(parameter, requires_grad=False).copy_(gradient)
        parameter.grad = gradient


def plain_pass(network: nn.Module, batch: Batch) -> Tensor:
    """Return f_B(θ) without a gradient. It is logged, and batch norm's running statistics follow this pass alone."""
    with torch.no_grad():
        return batch.cross_entropy(network(batch.images))


def spare_buffers(network: nn.Module) -> Named:
    """Return copies of the buffers, for passes that must not change them."""
    return {name: buffer.clone() for name, buffer in network.named_buffers()}


def gradient_of(loss: Tensor, weights: Mapping[str, Tensor], *, keep_graph: bool = False) -> Named:
    """Return the gradient of the loss by weight; zero for a weight that the loss does not depend on."""
    gradients = torch.autograd.grad(
        loss, list(weights.values()), retain_graph=keep_graph, allow_unused=True, materialize_grads=True
    )
    return dict(zip(weights, gradients, strict=True))


def gradient_at(
    network: nn.Module,
    weights: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    images: Tensor,
    labels: Tensor,
    class_weights: Tensor | None = None,
) -> Named:
    """Return ∇ CE on these images at these weights. Running statistics change in `buffers` alone."""
    here = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    loss = cross_entropy(functional_call(network, {**here, **buffers}, (images,)), labels, class_weights)
    return gradient_of(loss, here)


def after_first_adam_step(
    weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], *, lr: float, weight_decay: float
) -> Named:
    """Return θ − lr g / (|g| + ε), g with weight decay: the first step of Adam, whose moments are then g and g²."""
    after = {}
    for name, weight in weights.items():
        g = gradients[name] + weight_decay * weight.detach()
        after[name] = weight.detach() - lr * g / (g.abs() + ADAM_EPS)
    return after


def domain_gradients(network: nn.Module, batch: Batch) -> tuple[Tensor, list[Named]]:
    """Return f_B(θ) and the gradient ∇f_d(θ) of every domain.

    Where no layer mixes images, each domain has its own forward and backward, at the cost of one pass on the batch.
    Where batch norm uses batch statistics, one forward on the whole batch serves all domains, as in ERM, and each
    domain has a backward through it: these statistics are closer to those of prediction than a single domain's.
    """
    weights = trained(network)
    logits: Iterable[Tensor] = (network(images) for images, _ in batch.by_domain())
    together = any(isinstance(module, _BatchNorm) and module.training for module in network.modules())
    if together:
        logits = network(batch.images).chunk(batch.domains)
    losses, gradients = [], []
    for of_domain, labels in zip(logits, batch.labels.chunk(batch.domains), strict=True):
        loss = cross_entropy(of_domain, labels, batch.class_weights)
        gradients.append(gradient_of(loss, weights, keep_graph=together))
        losses.append(loss.detach())
    return torch.stack(losses).mean(), gradients


def stacked(gradients: Sequence[Named]) -> Iterable[tuple[str, Tensor]]:
    """Stack the gradients of all domains along a first axis, for every weight."""
    for name in gradients[0]:
        yield name, torch.stack([gradient[name] for gradient in gradients])
