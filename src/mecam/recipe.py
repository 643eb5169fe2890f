"""A recipe describes one run completely; the run id is a digest of its content.

    recipe = data × backbone × method × optimizer × averaging

A recipe has no paths of its own outputs and no devices in it: the same recipe is the same run wherever it runs.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args

from mecam import profiles
from mecam.image_sizes import IMAGE_SIZES
from mecam.near import hint

Selection = Literal["validation", "last", "oracle"]
Schedule = Literal["constant", "cosine", "linear", "inverse_sqrt"]
Settings = dict[str, Any]

# what follows from the data set where the recipe is silent; all but the embedded one are trained as the protocol says,
# on images of the backbone's own size. Embedded images have 32 pixels; enlarging them adds nothing
SHAPES: dict[str, Any] = {"backbone": "resnet8", "steps": 300, "evaluate_every": 50, "lr": 3e-3, "image_size": 32}
PROTOCOL: dict[str, Any] = {"backbone": "lite0", "steps": 5000, "evaluate_every": 100, "lr": 5e-5, "image_size": None}
# on the embedded set networks start from scratch; with the published weights of these penalties, meant for pretrained
# ones, nothing is learned there (300 steps: IRM stays below 30 % source validation, Fishr falls below 25 %)
FROM_SCRATCH = {"irm": {"lam": 1.0}, "fishr": {"lam": 100.0}}
BATCHES = {"arm": 8}  # images per domain, where a method's authors take others than 32
OPTIMIZERS = {"fish": "sgd"}  # where a method is defined with another one than Adam
META_LR = 0.5  # Fish's lr
FISH_OUTER = {"momentum": 0.0, "weight_decay": 0.0}  # its outer step


class RecipeError(ValueError):
    """A recipe that cannot be run: what is wrong, what was expected, what to do."""


@dataclass(frozen=True)
class Recipe:
    """One run. `settings` of method, optimizer and averaging are their hyperparameters, by name."""

    data: str = "shapes"
    target: str | None = None  # None: every domain is a source
    method: str = "erm"
    optimizer: str = "adam"
    base: str = "adam"  # below a sharpness-aware optimizer
    averaging: str = "none"
    virtual: str = "mixstyle"  # MeCAM's virtual domain; "none" for none
    backbone: str = SHAPES["backbone"]
    steps: int = SHAPES["steps"]
    seed: int = 0
    batch: int = 32  # images a source domain and step
    lr: float = SHAPES["lr"]
    lr_schedule: Schedule = "constant"  # of lr after the warm-up; see mecam.training.rates
    warmup: int = 0  # steps over which lr rises linearly
    rho_schedule: Schedule = "constant"  # of a sharpness-aware optimizer's rho
    rho_warmup: int = 0
    weight_decay: float = 0.0
    dropout: float = 0.0
    image_size: int | None = SHAPES["image_size"]  # None: the backbone's own, known once it is built (timm)
    evaluate_every: int = SHAPES["evaluate_every"]
    holdout: float = 0.2
    selection: Selection = "validation"
    balanced: bool = False  # sample classes evenly
    augment: bool = True
    freeze_bn: bool | None = None  # None: frozen for pretrained backbones
    weights: str | None = None  # a checkpoint for the backbone
    pretrained: bool | None = None  # None: where pretrained weights come with the backbone
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool = False
    deterministic: bool = False  # on a GPU, the same bits in every repetition, at some cost in speed
    record: bool = True  # on a GPU, steps as CUDA graphs where method and optimizer allow it
    nonfinite: Literal["raise", "skip"] = "raise"
    track: int = 0  # steps from one record of curvature to the next, in tracking.jsonl; 0: none
    track_measures: bool = False  # measure f(θ−δ) with one more pass also if track < 10; from 10 on it always is
    method_settings: Settings = field(default_factory=dict)
    optimizer_settings: Settings = field(default_factory=dict)
    averaging_settings: Settings = field(default_factory=dict)
    virtual_settings: Settings = field(default_factory=dict)

    def __post_init__(self) -> None:
        at_least = {
            "steps": 0,
            "batch": 1,
            "image_size": 8,
            "evaluate_every": 1,
            "seed": 0,
            "track": 0,
            "lr": 0,
            "warmup": 0,
            "rho_warmup": 0,
            "weight_decay": 0,
        }
        for name, low in at_least.items():
            value = getattr(self, name)
            if value is None and name == "image_size":
                continue
            if not (value >= low and math.isfinite(value)):
                raise RecipeError(f"{name}={value!r} is not allowed; it must be at least {low}, and finite")
        for name in ("dropout", "holdout"):
            if not 0 <= getattr(self, name) < 1:
                raise RecipeError(f"{name}={getattr(self, name)!r} is not allowed; it must be in [0, 1)")
        for name in ("warmup", "rho_warmup"):
            if getattr(self, name) > self.steps:
                raise RecipeError(f"{name}={getattr(self, name)} is not allowed; it must be at most steps={self.steps}")
        if self.selection == "oracle" and self.target is None:
            raise RecipeError("selection=oracle looks at the target, and there is none; give a target, or validation")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def run_id(self) -> str:
        """A name that says what it is, and a digest of all that departs from the defaults.

        Of these alone, so that an entry that a later version adds does not rename the runs that do without it.
        """
        plain = Recipe().__dict__
        content = json.dumps({k: v for k, v in self.to_dict().items() if v != plain[k]}, sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:10]
        data = re.sub(r"[^A-Za-z0-9_]+", "-", Path(self.data).name)
        parts = (data, self.target or "all", self.method, self.optimizer, self.averaging, f"seed{self.seed}", digest)
        return "-".join(re.sub(r"[^A-Za-z0-9_-]+", "-", part) for part in parts)


def make(values: Mapping[str, Any]) -> Recipe:
    """Make a recipe from some of its values; the others follow from `profile`, if it is given, and from the data set.

    The recipe holds the profile's values, and not its name: equal settings are the same run.
    """
    known = {f.name for f in fields(Recipe)}
    for name in values:
        if name not in known | {"profile"}:
            raise RecipeError(f"a recipe has no entry {name!r}; {hint(name, sorted(known | {'profile'}))}")
    profile = values.get("profile")
    if not isinstance(profile, (str, NoneType)):
        raise RecipeError(f"profile={profile!r} is a {type(profile).__name__}; it must be {_spoken((str,))}")
    values = {name: value for name, value in values.items() if name != "profile"}
    for name, value in values.items():
        _check_type(name, value)
    values = {**values, "data": spelled(values.get("data", Recipe.data))}
    defaults = SHAPES if values["data"] == Recipe.data else PROTOCOL
    method = values.get("method", Recipe.method)
    if method in OPTIMIZERS:
        values.setdefault("optimizer", OPTIMIZERS[method])
    if method == "fish" and values["optimizer"] == "sgd":
        under_adam = defaults if profile is None else _from_profile(profile, {**values, "optimizer": "adam"})
        values |= _fish(values, under_adam["lr"])
    named: Settings = {} if profile is None else _from_profile(profile, values)
    if profile is None and defaults is SHAPES and method in FROM_SCRATCH:
        named["method_settings"] = FROM_SCRATCH[method]
    chosen = {**defaults, "batch": BATCHES.get(method, 32), **named, **values}
    chosen |= {key: {**named[key], **values.get(key, {})} for key, value in named.items() if isinstance(value, dict)}
    backbone = chosen["backbone"]
    if chosen["image_size"] is None:
        chosen["image_size"] = IMAGE_SIZES.get(backbone)
    if backbone.startswith(("timm/", "hf-hub:")) and chosen.get("weights") is None and chosen.get("pretrained") is None:
        chosen["pretrained"] = True  # the default, as a part of the run's name
    recipe = Recipe(**chosen)
    return recipe if "lr" in {**named, **values} else replace(recipe, lr=defaults["lr"] * lr_ratio(recipe))


def _from_profile(profile: str, values: Mapping[str, Any]) -> Settings:
    try:
        return profiles.defaults(profile, values)
    except ValueError as error:
        raise RecipeError(str(error)) from None


def is_variant(recipe: Recipe) -> bool:
    """Return whether the optimizer changes the method: Fish is defined with plain SGD as its outer step."""
    if recipe.method != "fish":
        return False
    outer = {"weight_decay": recipe.weight_decay, **recipe.optimizer_settings}
    plain = all(outer.get(name) == value for name, value in FISH_OUTER.items())
    return recipe.optimizer != "sgd" or not plain or "inner_lr" not in recipe.method_settings


def _fish(values: Mapping[str, Any], adam_lr: float) -> dict[str, Any]:
    """Return the entries that make fish under SGD the published Fish, unless they are given."""
    settings = {"inner_lr": adam_lr, **values.get("method_settings", {})}
    lr = values.get("lr", settings.get("meta_lr", META_LR))
    _check_type("lr", lr)
    outer = {**FISH_OUTER, **values.get("optimizer_settings", {})}  # a recipe's weight_decay is the inner Adam's
    return {"lr": lr, "method_settings": settings, "optimizer_settings": outer}


def spelled(data: str) -> str:
    """The one spelling of a path that is a part of a run's name: clean/ and ./clean are clean.

    A local folder that shares a data set's name keeps its `./` prefix.
    A path that would lead elsewhere if shortened, such as link/../clean, stays as it is.
    """
    short = os.path.normpath(data) if data else data
    if short == data or _place(short) != _place(data):
        return data
    return os.path.join(os.curdir, short) if os.sep not in short and is_known(short) else short


def is_known(word: str) -> bool:
    """Whether this is the name of a data set, and not of some folder alone."""
    from mecam.data import known

    return word == Recipe.data or known.is_known(word)


def _place(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))


def lr_ratio(recipe: Recipe) -> float:
    """The learning rate that suits the optimizer at the base, in units of Adam's."""
    return profiles.LR_RATIOS.get(recipe.optimizer, profiles.LR_RATIOS.get(recipe.base, 1.0))


def read(path: Path) -> dict[str, Any]:
    """The values in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe {path}") from None
    except IsADirectoryError:
        raise RecipeError(f"{path} is a folder and not a recipe; images are given with --data {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not a TOML file: {error}") from error


def assign(values: dict[str, Any], assignment: str) -> None:
    """Put `lr=3e-5` or `optimizer_settings.rho=0.1` into the values; what is no TOML value is taken as text."""
    name, equals, text = assignment.partition("=")
    if not equals or not name:
        raise RecipeError(f"{assignment!r} is not of the form name=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *tables, last = name.strip().split(".")
    place = values
    for table in tables:
        place = place.setdefault(table, {})
        if not isinstance(place, dict):
            raise RecipeError(f"{assignment!r}: {table} is a value, not a table of values")
    place[last] = value


def _check_type(name: str, value: Any) -> None:
    expected = {f.name: f.type for f in fields(Recipe)}[name]
    kinds: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}
    named = str(expected).removesuffix(" | None")
    if value is None and str(expected).endswith("| None"):
        return
    words = named.startswith("Literal") or named in ("Selection", "Schedule")
    allowed = kinds.get(named, (str,) if words else (dict,))
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise RecipeError(f"{name}={value!r} is a {type(value).__name__}; it must be {_spoken(allowed)}")
    choices: dict[str, tuple[str, ...]] = {
        "selection": ("validation", "last", "oracle"),
        "precision": ("auto", "fp32", "bf16"),
    }
    choices["nonfinite"] = ("raise", "skip")
    choices["lr_schedule"] = choices["rho_schedule"] = get_args(Schedule)
    if name in choices and value not in choices[name]:
        raise RecipeError(f"{name}={value!r} is not allowed; it must be one of {', '.join(choices[name])}")


def _spoken(allowed: tuple[type, ...]) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", dict: "a table"}
    return names[allowed[-1]]
