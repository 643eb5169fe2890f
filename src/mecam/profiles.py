"""Settings by name: `paper` and `domainbed`, as defaults for the entries of a recipe.

A profile's values follow from data, method, optimizer, base and averaging, never from the machine. They come from
published/hyperparameters.csv (the paper's supplement) and published/rivals.csv (the settings of other authors). This
module does not need torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mecam.near import hint, plain

PROFILES = {
    "paper": "the paper's settings for its five data sets; other optimizers take SAGM's learning rate, weight decay "
    "and dropout",
    "domainbed": "DomainBed's defaults, for any data",
}
LONG = "DomainNet"  # trained and evaluated over more steps
V1 = "timm/resnet50.tv_in1k"  # ResNet-50 with the ImageNet-1k V1 weights
RESNET50: dict[str, Any] = {"backbone": V1, "pretrained": True, "freeze_bn": True, "image_size": 224}
# learning rate in units of Adam's, by the optimizer at the base
LR_RATIOS = {"adam": 1.0, "adamw": 1.0, "adabelief": 1.0, "yogi": 3.0, "sgd": 20.0, "adahessian": 30.0, "muon": 1.0,
             "schedulefree": 2.0, "ademamix": 1.0, "soap": 1.0, "lion": 0.2}  # fmt: skip
# the defaults of the optimizers in the published tables, for tables, which do not import torch
OPTIMIZER_SETTINGS: dict[str, dict[str, float]] = {
    "sgd": {"momentum": 0.9},
    "sam": {"rho": 0.05},
    "gam": {"rho": 0.02, "rho_norm": 0.2, "alpha": 0.6, "beta": 0.5, "gamma": 0.03},
    "sagm": {"rho": 0.05, "alpha": 1e-3},
    "fad": {"rho": 0.05, "alpha": 0.5, "beta": 0.5},
    "crsam": {"rho": 0.1, "gamma": 0.1, "beta": 0.1},
    "fsam": {"rho": 0.05, "sigma": 1.0, "lam": 0.9},
    "mecam": {"rho": 0.1, "alpha": 0.1, "beta": 0.1},
}
MECAM = ("mecam", "thinmecam")  # share rho, alpha and beta
SGD_LR = 1e-3


class RecipeError(ValueError):
    """A recipe that cannot be run: what is wrong, what was expected, what to do."""


def defaults(profile: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe entries that a profile gives for these values, `data` among them.

    Weights, frozen batch norm and image size belong to the profile's backbone and are left out for another one.
    """
    if profile not in PROFILES:
        raise RecipeError(f"there is no profile {profile!r}; {hint(str(profile), PROFILES)}")
    backbone = dict(RESNET50) if values.get("backbone") in (None, V1) else {}
    if values.get("weights") is not None:
        backbone.pop("pretrained", None)
    return {**backbone, **(_paper(values) if profile == "paper" else _domainbed(values))}


def data_set(data: str) -> str | None:
    """Return the benchmark that this name, or the folder at this path, is called after; None for other data."""
    return {plain(name): name for name in hyperparameters()}.get(plain(Path(data).name))


@cache
def hyperparameters() -> dict[str, dict[str, Any]]:
    """Read MeCAM's settings by data set, from the paper's supplement."""
    return {str(row.pop("dataset")): row for row in published_rows("hyperparameters.csv")}


@cache
def rivals() -> dict[tuple[str, str], dict[str, Any]]:
    """Read the settings that other authors give, by plain name and data set."""
    return {(plain(row.pop("name")), str(row.pop("dataset"))): row for row in published_rows("rivals.csv")}


def steps(data: str) -> int:
    """Return the training steps behind the published numbers."""
    return int(hyperparameters().get(data_set(data) or "", {}).get("steps", 5000))


def _paper(values: Mapping[str, Any]) -> dict[str, Any]:
    name = data_set(values["data"])
    if name is None:
        raise RecipeError(
            f"the paper has no settings for {values['data']}; it has them for {', '.join(hyperparameters())} (a folder "
            "is recognized by its name). Choose one of these data sets, or profile=domainbed"
        )
    method, optimizer = plain(values.get("method", "erm")), values.get("optimizer", "adam")
    own = rivals().get((method, name), {})
    chosen = hyperparameters()[name] if optimizer in MECAM else rivals()["sagm", name]
    settings = dict(OPTIMIZER_SETTINGS.get(optimizer, {}))
    if optimizer in (*MECAM, "sagm"):
        settings |= {key: chosen[key] for key in ("rho", "alpha", "beta") if key in chosen}
    below = _below(values)
    if below == "sgd":
        settings |= OPTIMIZER_SETTINGS["sgd"]
    if optimizer == "adam":  # what a method's authors searched under Adam
        chosen = {**chosen, **own}
    swad = rivals().get((values.get("averaging", "none"), name), {})
    entries = {
        "lr": SGD_LR if below == "sgd" else _scaled(chosen["lr"], below),
        "weight_decay": chosen["weight_decay"],
        "dropout": chosen["dropout"],
        "steps": steps(name),
        "evaluate_every": swad.get("evaluate_every", 100),
        "optimizer_settings": settings,
        "method_settings": {"ld": own["ld"]} if "ld" in own else {},
        "averaging_settings": {"tolerance": swad["tolerance"]} if "tolerance" in swad else {},
    }
    return {key: value for key, value in entries.items() if value != {}}


def _domainbed(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "lr": _scaled(5e-5, _below(values)),
        "weight_decay": 0.0,
        "dropout": 0.0,
        "steps": steps(values["data"]),
        "evaluate_every": 1000 if data_set(values["data"]) == LONG else 300,
    }


def _below(values: Mapping[str, Any]) -> str:
    """Return the optimizer that updates the weights: the base of a sharpness-aware one."""
    optimizer = str(values.get("optimizer", "adam"))
    return optimizer if optimizer in LR_RATIOS else str(values.get("base", "adam"))


def lr_ratio(values: Mapping[str, Any]) -> float:
    """Return the learning rate that suits the optimizer that updates the weights, in units of Adam's."""
    return LR_RATIOS.get(_below(values), 1.0)


def _scaled(lr: float, below: str) -> float:
    """Return the rate of the optimizer `below` where Adam takes `lr`, without the last digits of the product."""
    return float(f"{lr * LR_RATIOS.get(below, 1.0):.12g}")


def published_rows(file: str) -> list[dict[str, Any]]:
    """Read the rows of a published table; empty cells are left out, numbers are numbers."""
    import csv
    from importlib.resources import files

    with (files("mecam") / "published" / file).open(encoding="utf-8") as text:
        return [{key: _value(cell) for key, cell in row.items() if cell} for row in csv.DictReader(text)]


def _value(cell: str) -> Any:
    try:
        return int(cell) if cell.isdigit() else float(cell)
    except ValueError:
        return cell
