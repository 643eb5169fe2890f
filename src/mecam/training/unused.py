"""Find entries of a recipe that nothing in the run uses: runs that differ in them alone are equal."""

from __future__ import annotations

import inspect

from mecam.optim.registry import OPTIMIZERS
from mecam.optim.registry import find as find_optimizer
from mecam.recipe import Recipe, RecipeError


def check_used(recipe: Recipe) -> None:
    """Refuse an entry that the run does not use. virtual=none is true of every optimizer without a virtual domain."""
    for name, reason in unused(recipe).items():
        if (name, recipe.virtual) != ("virtual", "none"):
            raise RecipeError(reason)


def unused(recipe: Recipe) -> dict[str, str]:
    """Return the entries that depart from their defaults and have no effect, each with an error message."""
    name, reasons = recipe.optimizer, {}
    if "lr" in recipe.optimizer_settings:
        reasons["optimizer_settings"] = (
            f"optimizer_settings.lr={recipe.optimizer_settings['lr']} is not used: every step sets the learning rate "
            "from the recipe's; give lr (--lr)"
        )
    if recipe.base != Recipe.base and find_optimizer(name).sharpness_aware is None:
        reasons["base"] = (
            f"base={recipe.base} is not used: {name} is not sharpness-aware and has no base; give "
            f"optimizer={recipe.base}, or an optimizer that has a base, such as sam"
        )
    if not has_meta_pass(name):
        fitting = ", ".join(filter(has_meta_pass, OPTIMIZERS))
        why = f"is not used: {name} has no pass on a virtual domain; give one of the optimizers that have: {fitting}"
        if recipe.virtual != Recipe.virtual:
            reasons["virtual"] = f"virtual={recipe.virtual} {why}"
        for setting in recipe.virtual_settings:
            reasons["virtual_settings"] = f"virtual_settings.{setting} {why}"
    elif recipe.virtual == "none" and recipe.virtual_settings:
        reasons["virtual_settings"] = (
            f"virtual_settings.{next(iter(recipe.virtual_settings))} is not used: virtual=none"
        )
    if recipe.track_measures and not recipe.track:
        reasons["track_measures"] = "track_measures=true is not used: nothing is tracked; give track=10 (--track)"
    trainable = f"trainable={recipe.trainable}"
    if recipe.trainable != "lora" and recipe.lora_rank != Recipe.lora_rank:
        reasons["lora_rank"] = f"lora_rank={recipe.lora_rank} is not used: {trainable}; give trainable=lora"
    if not recipe.decay_norms and not (recipe.weight_decay or recipe.optimizer_settings.get("weight_decay")):
        reasons["decay_norms"] = "decay_norms=false is not used: there is no weight decay; give weight_decay"
    given = {"layer_decay": recipe.layer_decay != 1, "checkpointing": recipe.checkpointing}
    for entry in (entry for entry, is_given in given.items() if is_given and recipe.trainable == "head"):
        value = str(getattr(recipe, entry)).lower()
        reasons[entry] = f"{entry}={value} is not used: {trainable} trains on features that are computed once"
    return reasons


def has_meta_pass(optimizer: str) -> bool:
    """Return whether the optimizer of this name takes a pass on a virtual domain."""
    method = find_optimizer(optimizer).sharpness_aware
    return method is not None and "virtual_domain" in inspect.signature(method).parameters
