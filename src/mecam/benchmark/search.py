"""Hyperparameter searches: the paper's grid, and DomainBed's random draws."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mecam import methods, profiles
from mecam.data.splits import seed_hash
from mecam.defaults import PROTOCOL
from mecam.hyperparameters import Choice, Hyperparameter, LogUniform, Search, Uniform
from mecam.optim.registry import find as find_optimizer
from mecam.recipe import Recipe, is_variant

LR, RHO, WEIGHT = (1e-6, 1e-5, 3e-5), (0.01, 0.05, 0.1, 0.2), (0.05, 0.1, 0.15, 0.2)
GLOBAL: Mapping[str, Search] = {  # DomainBed's, for images of 224 pixels
    "lr": LogUniform(-5, -3.5),  # around Adam's on pretrained networks; for others in proportion to their default
    "weight_decay": LogUniform(-6, -2),
    "batch": LogUniform(3, 5.5, base=2),
    "dropout": Choice((0.0, 0.1, 0.5)),
}
DOMAINNET_BATCH = LogUniform(3, 5, base=2)
# DomainBed's names, which seed the draws: of entries of the recipe, and of a method's settings
STREAMS = {"batch": "batch_size", "dropout": "resnet_dropout"}
ADVERSARIAL_STREAMS = {"lr": "lr_g", "weight_decay": "weight_decay_g"}  # DANN's and CDANN's network
_DANN = {
    "lam": "lambda", "gp": "grad_penalty", "k": "d_steps_per_g_step",
    "width": "mlp_width", "depth": "mlp_depth", "dropout": "mlp_dropout",
}  # fmt: skip
# rates drawn around the default of this optimizer; None: the recipe's
RATES = {"lr_d": "adam", "linear_lr": None, "late_lr": None}
METHOD_STREAMS: Mapping[str, Mapping[str, str]] = {
    "mmd": {"gamma": "mmd_gamma"},
    "coral": {"gamma": "mmd_gamma"},
    "groupdro": {"eta": "groupdro_eta"},
    "irm": {"lam": "irm_lambda", "anneal": "irm_penalty_anneal_iters"},
    "vrex": {"lam": "vrex_lambda", "anneal": "vrex_penalty_anneal_iters"},
    "fishr": {"lam": "lambda", "anneal": "penalty_anneal_iters"},
    "dann": _DANN,
    "cdann": _DANN,
    "mtl": {"ema": "mtl_ema"},
    "mixup": {"alpha": "mixup_alpha"},
    "mldg": {"beta": "mldg_beta", "meta_test": "n_meta_test"},
    "sagnet": {"w": "sag_w_adv"},
    "sd": {"lam": "sd_reg"},
    "iga": {"lam": "penalty"},
    "trm": {"lam": "cos_lambda", "anneal": "iters", "eta": "groupdro_eta"},
    "iberm": {"lam": "ib_lambda", "anneal": "ib_penalty_anneal_iters"},
    "ibirm": {
        "lam": "irm_lambda",
        "anneal": "irm_penalty_anneal_iters",
        "ib_lam": "ib_lambda",
        "ib_anneal": "ib_penalty_anneal_iters",
    },
    "cad": {"lam": "lmbda"},
    "condcad": {"lam": "lmbda"},
    "transfer": {"lam": "t_lambda", "k": "d_steps_per_g", "ascent_lr": "lr_d"},
    "causirlmmd": {"gamma": "mmd_gamma"},
    "causirlcoral": {"gamma": "mmd_gamma"},
    "eqrm": {"quantile": "eqrm_quantile", "anneal": "eqrm_burnin_iters", "late_lr": "eqrm_lr"},
    "rdm": {
        "lam": "rdm_lambda",
        "anneal": "rdm_penalty_anneal_iters",
        "variance": "variance_weight",
        "late_lr": "rdm_lr",
    },
    "urm": {
        "lam": "urm_adv_lambda",
        "hidden": "urm_discriminator_hidden_layers",
        "lr_d": "urm_discriminator_lr",
    },
    "rsc": {"feature_drop": "rsc_f_drop_factor", "batch_drop": "rsc_b_drop_factor"},
}


def paper_grid(*, ordered: bool = False) -> list[dict[str, Any]]:
    """Return MeCAM's 192 points, lr x rho x alpha x beta; the 120 with beta <= alpha if `ordered`."""
    return [
        {"lr": lr, "optimizer_settings": {"rho": rho, "alpha": alpha, "beta": beta}}
        for lr, rho, alpha, beta in itertools.product(LR, RHO, WEIGHT, WEIGHT)
        if beta <= alpha or not ordered
    ]


def with_grid(recipes: Sequence[Recipe], points: Sequence[Mapping[str, Any]]) -> list[Recipe]:
    """Return every recipe at every point of the grid."""
    combinations = []
    for recipe, point in itertools.product(recipes, points):
        settings = {**recipe.optimizer_settings, **point.get("optimizer_settings", {})}
        combinations.append(Recipe.from_dict({**recipe.to_dict(), **point, "optimizer_settings": settings}))
    return combinations


def with_draws(recipes: Sequence[Recipe], draws: int) -> list[Recipe]:
    """Return every recipe with `draws` sets of hyperparameters; the first is its own, the others are random.

    Each hyperparameter has a stream of its own, RandomState(seed_hash(seed_hash(draw, trial), name)), so that a draw
    does not depend on what else is searched. The name is DomainBed's where it has one.
    """
    return [_drawn(recipe, draw) for recipe in recipes for draw in range(draws)]


def _drawn(recipe: Recipe, draw: int) -> Recipe:
    if draw == 0:
        return recipe
    values = recipe.to_dict() | _of_recipe(recipe, draw)
    method, optimizer = methods.registry.find(recipe.method), find_optimizer(recipe.optimizer)
    of_method = _settings(method.hyperparameters, METHOD_STREAMS.get(recipe.method, {}), recipe, draw)
    own = {name: declared for name, declared in optimizer.hyperparameters.items() if name not in GLOBAL}
    of_optimizer = _settings(own, {}, recipe, draw)
    for name in RATES.keys() & of_method.keys():
        of_method[name] *= _default_lr(recipe, RATES[name]) / PROTOCOL["lr"]
    if recipe.method == "fish" and not is_variant(recipe):  # DomainBed's lr is the inner Adam's, ours the outer step's
        of_method["inner_lr"] = values["lr"] * _default_lr(recipe, "adam") / _default_lr(recipe)
        values["lr"], of_optimizer = of_method.pop("meta_lr"), {}
    values["method_settings"] = {**values["method_settings"], **of_method}
    values["optimizer_settings"] = {**values["optimizer_settings"], **of_optimizer}
    return Recipe.from_dict(values)


def _of_recipe(recipe: Recipe, draw: int) -> dict[str, Any]:
    """Draw learning rate, weight decay, batch and dropout."""
    streams = {**STREAMS, **(ADVERSARIAL_STREAMS if recipe.method in ("dann", "cdann") else {})}
    searches = {**GLOBAL, "batch": DOMAINNET_BATCH} if profiles.data_set(recipe.data) == profiles.LONG else GLOBAL
    values: dict[str, Any] = {
        name: _sample(search, recipe, draw, streams.get(name, name)) for name, search in searches.items()
    }
    values["lr"] *= _default_lr(recipe) / PROTOCOL["lr"]
    values["batch"] = recipe.batch if recipe.method == "arm" else int(values["batch"])  # ARM's batch is its support
    return values


def _settings(
    declared: Mapping[str, Hyperparameter], streams: Mapping[str, str], recipe: Recipe, draw: int
) -> dict[str, Any]:
    """Draw a method's or an optimizer's own hyperparameters."""
    values: dict[str, Any] = {}
    for name, hyperparameter in declared.items():
        if hyperparameter.search is not None:
            value = _sample(hyperparameter.search, recipe, draw, streams.get(name, name))
            values[name] = int(value) if hyperparameter.integer else value
    return values


def _default_lr(recipe: Recipe, optimizer: str | None = None) -> float:
    """Return the default learning rate on this data, for this optimizer or the recipe's."""
    if optimizer is None:
        return Recipe(data=recipe.data, optimizer=recipe.optimizer, base=recipe.base).lr
    return Recipe(data=recipe.data, optimizer=optimizer).lr


def _sample(search: Search, recipe: Recipe, draw: int, name: str) -> float:
    random = np.random.RandomState(seed_hash(seed_hash(draw, recipe.seed), name))
    match search:
        case Choice(among):
            return float(random.choice(np.array(among)))
        case Uniform(low, high):
            return float(random.uniform(low, high))
        case LogUniform(low, high, base):
            return float(base ** random.uniform(low, high))
