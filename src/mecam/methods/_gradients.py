"""Gradients of single domains, at the network's weights or at others, for methods that write gradients themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from mecam.methods.base import Batch

ADAM_EPS = 1e-8
Named = dict[str, Tensor]  # by the names of the network's parameters or buffers


def trained(network: nn.Module) -> Named:
    """The weights that learn."""
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def fill(network: nn.Module, gradients: Mapping[str, Tensor]) -> None:
    """Make these the parameters' gradients, laid out in memory as the parameters are: fused optimizers ask for it."""
    for name, parameter in network.named_parameters():
        gradient = gradients.get(name)
        if gradient is not None and gradient.stride() != parameter.stride():
            gradient = torch.empty_like(parameter, requires_grad=False).copy_(gradient)
        parameter.grad = gradient


def plain_pass(network: nn.Module, batch: Batch) -> Tensor:
    """f_B(θ), without a gradient: what is logged, and the one pass of a step that batch norm's statistics follow."""
    with torch.no_grad():
        return F.cross_entropy(network(batch.images), batch.labels)


def spare_buffers(network: nn.Module) -> Named:
    """Copies of the buffers, for passes that shall leave no trace in them."""
    return {name: buffer.clone() for name, buffer in network.named_buffers()}


def gradient_at(
    network: nn.Module, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor], images: Tensor, labels: Tensor
) -> Named:
    """∇ CE on these images at these weights; of batch norm's statistics, only `buffers` change."""
    here = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    loss = F.cross_entropy(functional_call(network, {**here, **buffers}, (images,)), labels)
    return _named(here, loss)


def after_first_adam_step(
    weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], *, lr: float, weight_decay: float
) -> Named:
    """θ − lr g / (|g| + ε), g with weight decay: a fresh Adam's moments after one step are g and g²."""
    after = {}
    for name, weight in weights.items():
        g = gradients[name] + weight_decay * weight.detach()
        after[name] = weight.detach() - lr * g / (g.abs() + ADAM_EPS)
    return after


def domain_gradients(network: nn.Module, batch: Batch) -> tuple[Tensor, list[Named]]:
    """f_B(θ), and ∇f_d(θ) of every domain.

    Where no layer looks at more than one image, each domain has its own forward and backward, which together cost what
    the batch's would. Where batch norm takes its statistics from the batch, they are the whole batch's, as in ERM and
    nearer to those it predicts with than a single domain's: one forward, and a backward through it for every domain.
    """
    weights = trained(network)
    logits: Iterable[Tensor] = (network(images) for images, _ in batch.by_domain())
    together = any(isinstance(module, _BatchNorm) and module.training for module in network.modules())
    if together:
        logits = network(batch.images).chunk(batch.domains)
    losses, gradients = [], []
    for of_domain, labels in zip(logits, batch.labels.chunk(batch.domains), strict=True):
        loss = F.cross_entropy(of_domain, labels)
        gradients.append(_named(weights, loss, keep=together))
        losses.append(loss.detach())
    return torch.stack(losses).mean(), gradients


def stacked(gradients: Sequence[Named]) -> Iterable[tuple[str, Tensor]]:
    """For every weight, its gradients in all domains along a first axis."""
    for name in gradients[0]:
        yield name, torch.stack([gradient[name] for gradient in gradients])


def _named(weights: Mapping[str, Tensor], loss: Tensor, *, keep: bool = False) -> Named:
    """The gradient of the loss by the weights' names; of a weight that it does not depend on, zero."""
    found = torch.autograd.grad(
        loss, list(weights.values()), retain_graph=keep, allow_unused=True, materialize_grads=True
    )
    return dict(zip(weights, found, strict=True))
