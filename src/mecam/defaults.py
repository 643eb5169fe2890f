"""Defaults of a recipe: by data set, by method, and for a head on frozen features. This module does not need torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mecam import profiles
from mecam.preprocessing import IMAGE_SIZES

# by data set: the protocol's, on images of the backbone's own size, for all but the embedded one. Embedded
# images have 32 pixels; enlarging them adds nothing
SHAPES: dict[str, Any] = {"backbone": "resnet8", "steps": 300, "evaluate_every": 50, "lr": 3e-3, "image_size": 32}
PROTOCOL: dict[str, Any] = {"backbone": "lite0", "steps": 5000, "evaluate_every": 100, "lr": 5e-5, "image_size": None}
# a head on frozen features: there are no images to augment, and no layers for a virtual domain
HEAD: dict[str, Any] = {
    "steps": 500,
    "evaluate_every": 50,
    "lr": 1e-3,
    "lr_schedule": "cosine",
    "augment": "none",
    "virtual": "none",
}
# on the embedded set networks start from scratch, where the published weights of these penalties prevent learning
FROM_SCRATCH = {
    "irm": {"lam": 1.0},
    "fishr": {"lam": 100.0},
    "iga": {"lam": 1.0},
    "cad": {"lam": 0.001},
    "condcad": {"lam": 0.001},
    "iberm": {"lam": 1.0},
    "ibirm": {"lam": 1.0, "ib_lam": 1.0},
}
BATCHES = {"arm": 8, "rdm": 88}  # images per domain of methods whose authors do not use 32
AVERAGINGS = {"ermplusplus": ("ema", {"decay": 0.9999})}  # of methods that include an averaging
OPTIMIZERS = {"fish": "sgd"}  # methods that are not defined with Adam
META_LR = 0.5  # Fish's lr
FISH_OUTER = {"momentum": 0.0, "weight_decay": 0.0}  # Fish's outer step


def with_defaults(values: dict[str, Any], profile: str | None, baseline: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the values, `data` among them, by those of the profile, the data set, the method and the baseline."""
    embedded = values["data"] == baseline["data"]
    defaults = {**(SHAPES if embedded else PROTOCOL), **(HEAD if values.get("trainable") == "head" else {})}
    method = values.get("method", baseline["method"])
    if method in OPTIMIZERS:
        values.setdefault("optimizer", OPTIMIZERS[method])
    if method in AVERAGINGS and "averaging" not in values:
        values["averaging"], settings = AVERAGINGS[method]
        values.setdefault("averaging_settings", settings)
    if method == "fish" and values["optimizer"] == "sgd":
        under_adam = defaults if profile is None else profiles.defaults(profile, {**values, "optimizer": "adam"})
        values |= _fish(values, under_adam["lr"])
    named: dict[str, Any] = {} if profile is None else profiles.defaults(profile, values)
    if profile is None and embedded and method in FROM_SCRATCH:
        named["method_settings"] = FROM_SCRATCH[method]
    chosen = {**baseline, **defaults, "batch": BATCHES.get(method, 32), **named, **values}
    chosen |= {key: {**named[key], **values.get(key, {})} for key, value in named.items() if isinstance(value, dict)}
    backbone = chosen["backbone"]
    if chosen["image_size"] is None:
        chosen["image_size"] = IMAGE_SIZES.get(backbone)
    if backbone.startswith(("timm/", "hf-hub:")) and chosen["weights"] is None and chosen["pretrained"] is None:
        chosen["pretrained"] = True  # the default, as a part of the run's name
    if "lr" not in named and "lr" not in values:
        chosen["lr"] = defaults["lr"] * profiles.lr_ratio(chosen)
    return chosen


def _fish(values: Mapping[str, Any], adam_lr: float) -> dict[str, Any]:
    """Return the entries that make fish under SGD the published Fish, unless they are given."""
    settings = {"inner_lr": adam_lr, **values.get("method_settings", {})}
    lr = values.get("lr", settings.get("meta_lr", META_LR))
    outer = {**FISH_OUTER, **values.get("optimizer_settings", {})}  # a recipe's weight_decay is the inner Adam's
    return {"lr": lr, "method_settings": settings, "optimizer_settings": outer}
