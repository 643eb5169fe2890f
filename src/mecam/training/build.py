"""Build the parts of a run from its recipe, and refuse what cannot work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mecam import averaging, methods, ranks, virtual
from mecam.data.augment import Augmentation
from mecam.data.domains import DomainSet
from mecam.data.open import SHAPES
from mecam.data.randaugment import RandAugment
from mecam.data.sampling import DomainSampler, balanced_weights
from mecam.data.splits import seed_hash
from mecam.methods import Method
from mecam.models.network import RANDOM, Network
from mecam.models.registry import create as create_network
from mecam.models.registry import find as find_backbone
from mecam.models.weights import weights_digest
from mecam.optim import SharpnessAware
from mecam.optim import create as create_optimizer
from mecam.optim._domains import ByDomain
from mecam.optim.plain import Plain
from mecam.optim.registry import find as find_optimizer
from mecam.preprocessing import Preprocessing
from mecam.recipe import Recipe, RecipeError
from mecam.splits import Part, Split
from mecam.training import finetuning, rates
from mecam.training.feed import Feed
from mecam.training.unused import check_used, has_meta_pass

# kernels that update all parameters at once, skip a step by a flag on the device, and can be captured
ON_GPU: dict[str, dict[str, Any]] = {
    "adam": {"fused": True, "capturable": True},
    "adamw": {"fused": True, "capturable": True},
    "sgd": {"fused": True},
}
AUGMENTATIONS: dict[str, Callable[[Preprocessing], Augmentation]] = {
    "protocol": Augmentation,
    "flips": partial(Augmentation, vertical=0.5),
    "randaugment": RandAugment,
    "none": partial(Augmentation, crop=False, flip=0.0, colors=False),
}


def check_parts(recipe: Recipe) -> None:
    """Refuse unknown names and settings, with near matches. Needs no data."""
    parameter = torch.zeros(1, requires_grad=True)
    settings = {"lr": recipe.lr, "weight_decay": recipe.weight_decay, **recipe.optimizer_settings}
    try:
        methods.create(recipe.method, **recipe.method_settings)
        averaging.create(recipe.averaging, **recipe.averaging_settings)
        find_backbone(recipe.backbone)
        if recipe.virtual != "none":
            virtual.create(recipe.virtual, **own_settings(recipe))
        create_optimizer(recipe.optimizer, [parameter], base=recipe.base, **settings)
    # a setting that is not known, or of another type, which torch does not always check
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise RecipeError(f"a setting does not fit: {error}; mecam list --verbose shows them all") from error
    rates.check(recipe)
    if issubclass(find_optimizer(recipe.optimizer).sharpness_aware or Plain, ByDomain):
        _check_by_domain(recipe)
    if base_of(recipe) == "schedulefree":
        _check_schedule_free(recipe)
    if recipe.class_weights != "none":
        _check_class_weights(recipe)
    if recipe.trainable == "head":
        _check_head(recipe)
    finetuning.check(recipe)


def _check_schedule_free(recipe: Recipe) -> None:
    """Refuse averaging and schedules, which schedulefree replaces."""
    for name, used in (("averaging", "none"), ("lr_schedule", "constant")):
        if getattr(recipe, name) != used:
            raise RecipeError(
                f"{name}={getattr(recipe, name)} does not fit schedulefree, which averages the weights in place of a "
                f"schedule and is evaluated at its average; give {name}={used}, or another optimizer or base"
            )


def _check_class_weights(recipe: Recipe) -> None:
    """Refuse class weights that a method does not use, or that sampling already replaces."""
    if not methods.METHODS.find(recipe.method).weighted:
        raise RecipeError(
            f"class_weights={recipe.class_weights}: {recipe.method} does not weigh classes; choose another method, or "
            "balanced=true. A method of your own weighs them by batch.cross_entropy, and declares weighted = True"
        )
    if recipe.balanced:
        raise RecipeError(
            f"balanced=true samples classes evenly and class_weights={recipe.class_weights} weighs them; "
            "give one of them"
        )


def _check_by_domain(recipe: Recipe) -> None:
    """Refuse methods and tracking that do not fit an optimizer that needs the loss of each domain."""
    fitting = [name for name, method in methods.METHODS.items() if method.declares("by_domain")]
    if recipe.method not in fitting:
        raise RecipeError(
            f"optimizer={recipe.optimizer} needs a loss for each domain, and the loss of method={recipe.method} is not "
            f"a mean over domains; choose one of {', '.join(fitting)}, or another optimizer such as sam. A method of "
            "your own whose loss is one declares by_domain = True"
        )
    if recipe.track:
        raise RecipeError(
            f"track={recipe.track} needs passes on the mean loss, and {recipe.optimizer} takes others; choose another "
            "optimizer such as sam"
        )


def starts_at_random(recipe: Recipe) -> bool:
    """Return whether the backbone starts from random weights."""
    pretrained = find_backbone(recipe.backbone).pretrained if recipe.pretrained is None else recipe.pretrained
    return recipe.weights is None and not pretrained


def check_start(recipe: Recipe) -> None:
    """Refuse a new run with unused entries, or with random weights by default.

    A large backbone does not start from random weights on the user's data unless the recipe asks for it.
    """
    check_used(recipe)
    if not find_backbone(recipe.backbone).from_file or recipe.pretrained is not None or recipe.data == SHAPES:
        return
    if starts_at_random(recipe):
        raise RecipeError(
            f"{recipe.backbone} would start from random weights: mecam has no pretrained ones for it. Give a "
            "checkpoint by --weights FILE, choose another backbone such as lite0, or train from scratch by "
            "--no-pretrained"
        )


def _check_head(recipe: Recipe) -> None:
    """Refuse methods, augmentations and virtual domains that do not act on features of a frozen backbone."""
    if not methods.METHODS.find(recipe.method).on_features:
        fitting = ", ".join(name for name in methods.METHODS if methods.METHODS.find(name).on_features)
        raise RecipeError(
            f"method={recipe.method} acts on images or changes the features, and trainable=head trains on features "
            f"that are frozen; choose one of {fitting}, or trainable=all"
        )
    if recipe.augment != "none":
        raise RecipeError(
            f"augment={recipe.augment} changes images, and trainable=head trains on features; leave augment out"
        )
    if has_meta_pass(recipe.optimizer) and recipe.virtual != "none":
        raise RecipeError(
            f"virtual={recipe.virtual} acts inside the backbone, and trainable=head trains on its features; "
            "give virtual=none"
        )


def own_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of the virtual domain itself, without the layers it is attached to."""
    return {name: value for name, value in recipe.virtual_settings.items() if name != "layers"}


def known_virtual_settings(name: str) -> list[str]:
    """Return the names of the settings that a recipe with this virtual domain can have."""
    if name == "none":
        return []
    return [*virtual.DOMAINS.defaults(name), *(() if name == "fourier" else ("layers",))]


def virtual_layers(recipe: Recipe, stages: Sequence[str]) -> Sequence[str]:
    """Return the stages of the network that the virtual domain acts on: all, or those of `layers = "1,2"`."""
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


def base_of(recipe: Recipe) -> str:
    """Return the optimizer that updates the weights: the base of a sharpness-aware one, or the optimizer itself."""
    return recipe.optimizer if find_optimizer(recipe.optimizer).sharpness_aware is None else recipe.base


def check(recipe: Recipe, method: Method, sources: int, held_out: int) -> None:
    """Refuse a recipe that would fail later. `held_out` is the number of validation images of the sources."""
    check_parts(recipe)
    entry = find_optimizer(recipe.optimizer)
    base = base_of(recipe)
    each, rest = divmod(recipe.batch, ranks.count())
    if sources < method.sources:
        raise RecipeError(f"{method.name} needs at least {method.sources} source domains, got {sources}")
    if sources < 2 and issubclass(entry.sharpness_aware or Plain, ByDomain):
        raise RecipeError(f"{recipe.optimizer} needs at least 2 source domains, got {sources}")
    if rest:
        raise RecipeError(
            f"batch={recipe.batch} images per domain cannot be split evenly over {ranks.count()} processes"
        )
    if each < method.images:
        raise RecipeError(f"{method.name} needs at least {method.images} images per domain and process, got {each}")
    if not held_out and (recipe.selection == "validation" or recipe.averaging == "swad" or recipe.patience):
        raise RecipeError(
            f"holdout={recipe.holdout} leaves no source image to validate on; a domain needs 1 / holdout images. Add "
            "images, raise holdout, or give selection=last without swad and patience"
        )
    if recipe.track and entry.passes == 1:
        raise RecipeError(
            f"track={recipe.track} requires an optimizer with several passes per step, such as sam; "
            f"{recipe.optimizer} takes one"
        )
    if has_meta_pass(recipe.optimizer) and recipe.virtual != "none":
        _check_blocks(recipe, method, sources)
    if base == "adahessian" and method.surgery:
        raise RecipeError(
            f"adahessian needs the graph of the gradient, and {method.name} writes gradients itself; "
            "choose another optimizer or base"
        )
    if base == "adahessian" and (recipe.compile == "always" or ranks.count() > 1):
        raise RecipeError("adahessian needs the graph of the gradient, which compile and torchrun do not keep")


def _check_blocks(recipe: Recipe, method: Method, sources: int) -> None:
    """Require one equal block per domain, since partners come from other blocks."""
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


def batch_size_error(recipe: Recipe, image_size: int, error: ValueError) -> ValueError:
    """Return torch's error for batch norm with one value per channel in terms of the recipe; others as they are."""
    if "more than 1 value per channel" not in str(error):
        return error
    return RecipeError(
        f"batch={recipe.batch} images of image_size={image_size} leave batch normalization a single number to "
        "normalize; take more or larger images, or freeze_bn=true"
    )


def build_network(recipe: Recipe, classes: int) -> Network:
    """Build the network in training mode, initialised from torch's generator."""
    network = create_network(
        recipe.backbone,
        classes=classes,
        dropout=recipe.dropout,
        weights=None if recipe.weights is None else Path(recipe.weights),
        pretrained=recipe.pretrained,
        freeze_bn=recipe.freeze_bn,
        image_size=recipe.image_size,
    )
    network.preprocessing = replace(network.preprocessing, resize=recipe.resize)
    return network.train()


def fingerprints(data: DomainSet, network: Network) -> dict[str, Any]:
    """Return digests of the data and of weights that were loaded: a run resumes on the same ones only."""
    counts = [len(data.labels(domain)) for domain in range(len(data.domains))]
    return {
        "images": dict(zip(data.domains, counts, strict=True)),
        "data": data.fingerprint,
        "weights": None if network.note == RANDOM else weights_digest(network.featurizer.state_dict()),
    }


def build_feed(
    recipe: Recipe,
    data: DomainSet,
    sources: Sequence[int],
    splits: Mapping[Split, NDArray[np.int64]],
    network: Network,
    device: torch.device,
) -> Feed:
    """Build the stream of training batches."""
    labels = [data.labels(d) for d in sources]
    parts = [splits[Split(data.domains[d], Part.TRAINING)] for d in sources]
    sampler = DomainSampler(
        labels,
        parts,
        recipe.batch,
        torch.Generator().manual_seed(seed_hash(recipe.seed, "batches")),
        recipe.balanced,
    )
    return Feed(
        data,
        sources,
        sampler,
        AUGMENTATIONS[recipe.augment](network.preprocessing) if recipe.trainable != "head" else None,
        device=device,
        seed=seed_hash(recipe.seed, "augmentation", ranks.rank()),
        capture=recipe.capture,
        class_weights=None if recipe.class_weights == "none" else balanced_weights(labels, parts, len(data.classes)),
    )


def build_optimizer(
    recipe: Recipe, method: Method, network: Network, trained: nn.Module, device: torch.device
) -> SharpnessAware:
    """Build the main optimizer on the method's groups, and attach a virtual domain to the network's stages."""
    entry, base = find_optimizer(recipe.optimizer), base_of(recipe)
    settings: dict[str, Any] = {"lr": recipe.lr, "weight_decay": recipe.weight_decay}
    if base in ("adam", "adamw"):
        settings |= method.optimizer_settings
    if device.type == "cuda":
        settings |= ON_GPU.get(base, {})
    settings |= recipe.optimizer_settings
    groups = [group.settings for group in finetuning.groups(recipe, method, trained)]
    # on a GPU, reading whether a step was finite would wait for it; that is read at evaluations
    checks: dict[str, Any] = {"model": trained, "nonfinite": "skip" if device.type == "cuda" else recipe.nonfinite}
    if entry.sharpness_aware is None:
        return Plain(groups, partial(create_optimizer, recipe.optimizer, **settings), **checks)
    if has_meta_pass(recipe.optimizer):
        settings["virtual_domain"] = _virtual_domain(recipe, method, network)
    return cast("SharpnessAware", create_optimizer(recipe.optimizer, groups, base=recipe.base, **settings, **checks))


def what_to_capture(
    recipe: Recipe, method: Method, optimizer: SharpnessAware, device: torch.device
) -> Literal["steps", "passes", "nothing"]:
    """Return the unit of work that becomes a CUDA graph: the same each time, with no decision on the host."""
    steady = method.declares("capturable") or method.declares("recordable")  # the name of 0.1
    # inside a graph a virtual domain draws from other streams: a resumed deterministic run would not repeat bit for bit
    wanted = device.type == "cuda" and recipe.capture and not recipe.deterministic and not recipe.track
    # recomputation restores random states, which a graph cannot; with the others the gain would be small
    wanted = wanted and not (recipe.checkpointing or recipe.accumulate > 1 or recipe.trainable == "lora")
    return optimizer.capturable if steady and wanted else "nothing"


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
    """Return the virtual domain of the recipe, of the method, or both; None where there is neither."""
    if recipe.virtual == "none":
        return method.virtual_domain
    settings, layers = own_settings(recipe), virtual_layers(recipe, network.stages)
    chosen: virtual.VirtualDomain
    if recipe.virtual == "fourier":  # the one that acts on pixels
        pixels = {"mean": network.preprocessing.mean, "std": network.preprocessing.std}
        chosen = virtual.Fourier(**{**pixels, **settings}).attach(network.featurizer)
    else:
        chosen = virtual.create(recipe.virtual, **settings).attach(network, layers)
    return chosen if method.virtual_domain is None else Both(method.virtual_domain, chosen)
