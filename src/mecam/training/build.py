"""From the words of a recipe to the parts of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from mecam import averaging, methods, ranks, virtual
from mecam.data.augment import Augmentation
from mecam.data.domains import DomainSet
from mecam.data.sampling import DomainSampler
from mecam.data.splits import Split, seed_hash
from mecam.methods import Method
from mecam.models.network import Network
from mecam.models.registry import create as create_network
from mecam.models.registry import find as find_backbone
from mecam.optim import SharpnessAware
from mecam.optim import create as create_optimizer
from mecam.optim._meta import Meta
from mecam.optim.registry import find as find_optimizer
from mecam.recipe import Recipe, RecipeError
from mecam.training import rates
from mecam.training.feed import Feed

# kernels that update all parameters at once, skip a step by a word from the device, and can be recorded
ON_GPU: dict[str, dict[str, Any]] = {
    "adam": {"fused": True, "capturable": True},
    "adamw": {"fused": True, "capturable": True},
    "sgd": {"fused": True},
}
NO_AUGMENTATION: dict[str, Any] = {
    "area": (1.0, 1.0),
    "aspect": (1e-3, 1e3),
    **dict.fromkeys(("flip", "brightness", "contrast", "saturation", "hue", "grayscale"), 0.0),
}


def check_parts(recipe: Recipe) -> None:
    """Refuse unknown names and settings, with near matches; no data is needed for that."""
    parameter = torch.zeros(1, requires_grad=True)
    settings = {"lr": recipe.lr, "weight_decay": recipe.weight_decay, **recipe.optimizer_settings}
    try:
        methods.create(recipe.method, **recipe.method_settings)
        averaging.create(recipe.averaging, **recipe.averaging_settings)
        find_backbone(recipe.backbone)
        if recipe.virtual != "none":
            virtual.create(recipe.virtual, **own_settings(recipe))
        create_optimizer(recipe.optimizer, [parameter], base=recipe.base, **settings)
    except TypeError as error:  # a setting that is not known, or of another type
        raise RecipeError(f"a setting does not fit: {error}; mecam list --verbose shows them all") from error
    rates.check(recipe)


def own_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings of the virtual domain itself, without the layers it is attached to."""
    return {name: value for name, value in recipe.virtual_settings.items() if name != "layers"}


def known_virtual_settings(name: str) -> list[str]:
    """The settings of the virtual domain of this name in a recipe; "none" has none."""
    if name == "none":
        return []
    return [*virtual.registry.known_settings(name), *(() if name == "fourier" else ("layers",))]


def virtual_layers(recipe: Recipe, stages: Sequence[str]) -> Sequence[str]:
    """Those of the network's stages that the virtual domain acts on: all, or the ones that layers = "1,2" counts."""
    named = recipe.virtual_settings.get("layers")
    if named is None:
        return stages
    if recipe.virtual == "fourier":
        raise RecipeError("virtual_settings.layers: fourier acts on pixels, not on layers; leave that setting out")
    by_number = {str(number): stage for number, stage in enumerate(stages, 1)}
    numbers = [number.strip() for number in str(named).split(",")]
    if not set(numbers) <= set(by_number) or len(set(numbers)) < len(numbers):
        raise RecipeError(
            f"virtual_settings.layers={named!r} is not allowed; the backbone has {len(stages)} of them: "
            'give their numbers, such as "1" or "1,2"'
        )
    return [by_number[number] for number in numbers]


def below_of(recipe: Recipe) -> str:
    """The optimizer that updates the weights: the base of a sharpness-aware one."""
    return recipe.optimizer if find_optimizer(recipe.optimizer).sharpness_aware is None else recipe.base


def check(recipe: Recipe, method: Method, sources: int, held_out: int) -> None:
    """Refuse at the door what could only fail later. `held_out`: images of the sources that are not trained on."""
    check_parts(recipe)
    entry = find_optimizer(recipe.optimizer)
    below = below_of(recipe)
    each = recipe.batch // ranks.count()
    if sources < method.sources:
        raise RecipeError(f"{method.name} needs at least {method.sources} source domains, got {sources}")
    if recipe.batch % ranks.count():
        raise RecipeError(
            f"batch={recipe.batch} images per domain cannot be split evenly over {ranks.count()} processes"
        )
    if each < method.images:
        raise RecipeError(f"{method.name} needs at least {method.images} images per domain and process, got {each}")
    if not held_out and (recipe.selection == "validation" or recipe.averaging == "swad"):
        raise RecipeError(
            f"holdout={recipe.holdout} leaves no source image to validate on; take more, or selection=last without swad"
        )
    if recipe.track and entry.sharpness_aware is None:
        raise RecipeError(
            f"track={recipe.track} requires a sharpness-aware optimizer; {recipe.optimizer} takes one pass per step"
        )
    if _has_meta_pass(recipe) and recipe.virtual != "none":
        _check_blocks(recipe, method, sources)
    if below == "adahessian" and method.surgery:
        raise RecipeError(
            f"adahessian needs the graph of the gradient, and {method.name} writes gradients itself; "
            "choose another optimizer or base"
        )
    if below == "adahessian" and (recipe.compile or ranks.count() > 1):
        raise RecipeError("adahessian needs the graph of the gradient, which compile and torchrun do not keep")


def _check_blocks(recipe: Recipe, method: Method, sources: int) -> None:
    """Partners from another domain are found by counting: the meta pass must be on that many equal blocks."""
    blocks = recipe.virtual_settings.get("domains")
    if blocks is not None and method.virtual_domain is not None:
        raise RecipeError(
            f"virtual_settings.domains={blocks}: the meta pass of {method.name} is not on all source domains, one "
            "block each; leave that setting out"
        )
    if blocks not in (None, sources):
        raise RecipeError(
            f"virtual_settings.domains={blocks!r}, and a batch has {sources} source domains; give that number, or "
            "leave it out for partners from any domain"
        )


def _has_meta_pass(recipe: Recipe) -> bool:
    method = find_optimizer(recipe.optimizer).sharpness_aware
    return method is not None and issubclass(method, Meta)


def too_few(recipe: Recipe, image_size: int, error: ValueError) -> ValueError:
    """The error itself, or in our words what torch says of batch norm that is given one number a channel."""
    if "more than 1 value per channel" not in str(error):
        return error
    return RecipeError(
        f"batch={recipe.batch} images of image_size={image_size} leave batch normalization a single number to "
        "normalize; take more or larger images, or freeze_bn=true"
    )


def build_network(recipe: Recipe, classes: int) -> Network:
    """The network, initialised from torch's generator, in training mode."""
    return create_network(
        recipe.backbone,
        classes=classes,
        dropout=recipe.dropout,
        weights=None if recipe.weights is None else Path(recipe.weights),
        pretrained=recipe.pretrained,
        freeze_bn=recipe.freeze_bn,
        image_size=recipe.image_size,
    ).train()


def build_feed(
    recipe: Recipe,
    data: DomainSet,
    sources: Sequence[int],
    splits: Mapping[int, Split],
    network: Network,
    device: torch.device,
) -> Feed:
    """The stream of training batches."""
    sampler = DomainSampler(
        [data.labels(d) for d in sources],
        [splits[d].training for d in sources],
        recipe.batch,
        torch.Generator().manual_seed(seed_hash(recipe.seed, "batches")),
        recipe.balanced,
    )
    normal = network.normalization
    look: dict[str, Any] = {"size": network.image_size, "mean": normal.mean, "std": normal.std}
    look["interpolation"] = network.interpolation
    if not recipe.augment:
        look |= NO_AUGMENTATION
    return Feed(
        data,
        sources,
        sampler,
        Augmentation(**look),
        device=device,
        seed=seed_hash(recipe.seed, "augmentation", ranks.rank()),
        record=recipe.record,
    )


def build_optimizer(
    recipe: Recipe, method: Method, network: Network, trained: nn.Module, device: torch.device
) -> torch.optim.Optimizer:
    """The main optimizer on the method's groups; a virtual domain attaches to the network's stages."""
    entry, below = find_optimizer(recipe.optimizer), below_of(recipe)
    settings: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
    if below in ("adam", "adamw"):
        settings |= method.optimizer_settings
    if device.type == "cuda":
        settings |= ON_GPU.get(below, {})
    settings |= recipe.optimizer_settings
    if entry.sharpness_aware is not None:
        # a GPU that had to tell after every step whether it was finite would wait for Python; Run asks it now and then
        nonfinite = "skip" if device.type == "cuda" else recipe.nonfinite
        settings |= {"model": trained, "nonfinite": nonfinite, "base": recipe.base}
    if _has_meta_pass(recipe):
        settings["virtual_domain"] = _virtual_domain(recipe, method, network)
    groups = [{"params": list(parameters)} for parameters in method.groups(trained)]
    return create_optimizer(recipe.optimizer, groups, **settings)


def what_to_record(
    recipe: Recipe, method: Method, optimizer: torch.optim.Optimizer, device: torch.device
) -> Literal["steps", "passes", "nothing"]:
    """What is the same work each time, with nothing decided on the host, and so can be a CUDA graph."""
    below = getattr(optimizer, "base_optimizer", optimizer)
    # declared by the class itself: what a subclass changes may not be recordable
    steady = bool(vars(type(method)).get("recordable", False)) and below_of(recipe) != "adahessian"
    # inside a graph a virtual domain draws from other streams: a resumed run would not repeat bit for bit
    if device.type == "cpu" or not recipe.record or recipe.deterministic or ranks.count() > 1 or not steady:
        return "nothing"
    if getattr(optimizer, "shared_noise", False):  # which sets the device's random state, as no graph can
        return "nothing"
    if type(below).__module__.startswith("torch.optim") and not getattr(optimizer, "decides_on_host", False):
        return "nothing" if recipe.track else "steps"
    return "passes" if getattr(optimizer, "virtual_domain", None) is None and not recipe.track else "nothing"


def needs_graph(optimizer: torch.optim.Optimizer, recipe: Recipe) -> bool:
    """Whether this pass's gradient must carry a graph (AdaHessian)."""
    return optimizer.needs_graph if isinstance(optimizer, SharpnessAware) else recipe.optimizer == "adahessian"


@dataclass(frozen=True)
class Both:
    """Two virtual domains as one."""

    first: Any
    second: Any

    @contextmanager
    def active(self) -> Iterator[None]:
        with self.first.active(), self.second.active():
            yield


def _virtual_domain(recipe: Recipe, method: Method, network: Network) -> Any:
    """The recipe's, the method's, or both; None where there is neither."""
    if recipe.virtual == "none":
        return method.virtual_domain
    chosen = _chosen_domain(recipe, network)
    return chosen if method.virtual_domain is None else Both(method.virtual_domain, chosen)


def _chosen_domain(recipe: Recipe, network: Network) -> virtual.VirtualDomain:
    settings = own_settings(recipe)
    layers = virtual_layers(recipe, network.stages)
    if recipe.virtual == "fourier":  # the one that acts on pixels
        normal = network.normalization
        domain = virtual.Fourier(**{"mean": normal.mean, "std": normal.std, **settings})
        return domain.attach(network.featurizer)
    return virtual.create(recipe.virtual, **settings).attach(network, layers)
