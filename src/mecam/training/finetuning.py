"""Fine-tune a part of the weights, at learning rates by layer, in less memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from mecam import methods
from mecam.methods import Batch, Method
from mecam.models.layers import depths, has_layers
from mecam.models.lora import adapt
from mecam.models.network import Network
from mecam.models.recompute import checkpoint_blocks
from mecam.optim._domains import ByDomain
from mecam.optim.registry import find as find_optimizer
from mecam.recipe import Recipe, RecipeError


@dataclass(frozen=True)
class Group:
    """Parameters of one learning rate and one weight decay."""

    parameters: list[nn.Parameter]
    of: int = 0  # group of the method, which has a factor on lr for every step
    factor: float = 1.0  # on lr, by layer
    decays: bool = True

    @property
    def settings(self) -> dict[str, Any]:
        """Return the group as an optimizer takes it."""
        return {"params": self.parameters} | ({} if self.decays else {"weight_decay": 0.0})


def check(recipe: Recipe) -> None:
    """Refuse choices that do not fit together."""
    if recipe.compile == "always" and recipe.checkpointing:
        raise RecipeError("compile=always and checkpointing=true both decide what is recomputed; give one of them")
    if recipe.accumulate == 1:
        return
    method = methods.METHODS.find(recipe.method)
    if not method.declares("accumulates"):
        fitting = ", ".join(name for name, each in methods.METHODS.items() if each.declares("accumulates"))
        raise RecipeError(
            f"accumulate={recipe.accumulate}: the gradient of {recipe.method} is not a mean over images, so that of a "
            f"batch is not the mean of its parts'; choose one of {fitting}, or checkpointing=true to save memory"
        )
    if recipe.batch % recipe.accumulate:
        raise RecipeError(
            f"batch={recipe.batch} images per domain cannot be split evenly into accumulate={recipe.accumulate} parts"
        )
    sharpness_aware = find_optimizer(recipe.optimizer).sharpness_aware
    if sharpness_aware is not None and issubclass(sharpness_aware, ByDomain):
        raise RecipeError(
            f"accumulate={recipe.accumulate}: {recipe.optimizer} compares the losses of the domains on a whole batch; "
            "choose another optimizer, or checkpointing=true to save memory"
        )
    if "adahessian" in (recipe.optimizer, recipe.base if sharpness_aware else None):
        raise RecipeError(
            f"accumulate={recipe.accumulate}: adahessian needs the graph of the whole batch's gradient; choose another "
            "optimizer or base"
        )


def prepare(network: Network, recipe: Recipe) -> None:
    """Freeze the weights that are not trained, and checkpoint the blocks."""
    if recipe.trainable == "lora":
        adapt(network, recipe.lora_rank)
    elif recipe.trainable in ("last", "norms"):
        chosen = _last(network.featurizer) if recipe.trainable == "last" else _norms(network.featurizer)
        network.featurizer.requires_grad_(False)
        for parameter in chosen:
            parameter.requires_grad_(True)
    if recipe.checkpointing:
        checkpoint_blocks(network.featurizer)


def groups(recipe: Recipe, method: Method, trained: nn.Module) -> list[Group]:
    """Return the parameters that are trained: the method's groups, divided by learning rate and weight decay."""
    factors = {} if recipe.layer_decay == 1 else _factors(trained, recipe.layer_decay)
    divided = []
    for number, parameters in enumerate(method.groups(trained)):
        parts: defaultdict[tuple[float, bool], list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            if parameter.requires_grad:
                decays = recipe.decay_norms or parameter.ndim > 1
                parts[factors.get(parameter, 1.0), decays].append(parameter)
        divided += [Group(members, number, factor, decays) for (factor, decays), members in parts.items()]
    return divided


def accumulated(method: Method, network: nn.Module, batch: Batch, state: Any, parts: int) -> tuple[Tensor, Any]:
    """Fill the gradients of the whole batch by a pass on each of its parts; return its loss."""
    losses = []
    for part in batch.split(parts):
        loss, state = method.gradient(network, part, None, state)
        losses.append(loss)
    gradients = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    torch._foreach_div_(gradients, parts)
    return torch.stack(losses).mean(), state


def _factors(trained: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """Return the factor on the learning rate of each parameter of a backbone: decay to the power of its depth."""
    inside, factors = list[str](), dict[nn.Parameter, float]()
    for name, module in trained.named_modules():
        if has_layers(module) and not name.startswith(tuple(inside)):
            inside.append(f"{name}.")
            below = depths(module)
            factors |= {parameter: decay ** below[own] for own, parameter in module.named_parameters()}
    if not factors:
        depths(cast("Network", trained).featurizer)
    return factors


def _last(featurizer: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the last stage of a CNN, or the last block of a transformer."""
    below = depths(featurizer, stages=True)
    return [parameter for name, parameter in featurizer.named_parameters() if below[name] <= 1]


def _norms(featurizer: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the normalization layers."""
    norms = [module for module in featurizer.modules() if "norm" in type(module).__name__.lower()]
    parameters = [parameter for module in norms for parameter in module.parameters(recurse=False)]
    if not parameters:
        raise RecipeError(
            "trainable=norms: this backbone has no normalization layers with parameters; choose last or all"
        )
    return parameters
