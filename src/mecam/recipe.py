"""A recipe describes one run completely; the run id is a digest of its content.

    recipe = data × backbone × method × optimizer × averaging

A recipe has no paths of its own outputs and no devices in it: the same recipe is the same run wherever it runs.
"""

# ruff: noqa: RUF009  (`entry` is dataclasses.field)
from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, InitVar, asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from mecam.defaults import FISH_OUTER, SHAPES, with_defaults
from mecam.near import hint, plain
from mecam.preprocessing import MOST, Resize
from mecam.profiles import RecipeError as RecipeError
from mecam.run_ids import TODAY, renamed, run_id

Selection = Literal["validation", "last", "oracle"]
Schedule = Literal["constant", "cosine", "linear", "inverse_sqrt"]
Trainable = Literal["all", "head", "last", "norms", "lora"]
Augment = Literal["protocol", "flips", "randaugment", "none"]
Compile = Literal["auto", "always", "never"]
Settings = dict[str, Any]

# entries that others take their defaults from, in this order
DECIDING = (
    *("data", "method", "trainable", "optimizer", "base", "backbone", "weights", "pretrained"),
    *("method_settings", "optimizer_settings"),
)
READING = ("skip_unreadable", "layout", "domain_from", "allow_missing_classes")  # arguments of `open_data`, too
# entries by the plain names that they have elsewhere
ELSEWHERE = {"learningrate": "lr", "batchsize": "batch", "iterations": "steps", "model": "backbone", "dataset": "data"}
TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", dict: "a table"}


def entry(
    default: Any, help: str, *, least: float | None = None, most: float = math.inf, below: float | None = None
) -> Any:
    """Declare an entry of the recipe; `help` is also the help of its command-line option."""
    factory = {"default_factory": dict} if default == {} else {"default": default}
    return field(**factory, metadata={"help": help, "least": least, "most": most, "below": below})


@dataclass(frozen=True, repr=False)
class Recipe:
    """One run. Entries that are not given follow from `profile`, if it is given, and from the data set.

    The recipe holds the profile's values, and not its name: equal settings are the same run. If all entries are given,
    as `dataclasses.replace` does, nothing is added to them.

    Bad values and unknown names raise RecipeError. The defaults below are the embedded data set's; they are the
    baseline of run ids and must not change.
    """

    data: str = entry(
        "shapes", "shapes, a folder root/<domain>/<class>/<image>, a CSV file, or a data set of mecam data list."
    )
    target: str | None = entry(None, "Domain to leave out. Default: train on all domains.")
    sources: str | None = entry(None, "Comma-separated domains to train on. Default: all but the target.")
    method: str = entry("erm", "Training objective: mecam list methods.")
    optimizer: str = entry("adam", "Optimizer: mecam list optimizers.")
    base: str = entry("adam", "Base optimizer of a sharpness-aware optimizer.")
    averaging: str = entry("none", "Weight averaging: mecam list averagings.")
    virtual: str = entry("mixstyle", "Virtual domain of MeCAM: mecam list virtual, or none.")
    backbone: str = entry(SHAPES["backbone"], "Network: mecam list backbones.")
    profile: InitVar[str | None] = entry(None, "Default settings: mecam list profiles.")
    weights: str | None = entry(None, "Checkpoint to initialize the backbone from.")
    pretrained: bool | None = entry(None, "Start from the backbone's pretrained weights. Default: if it has some.")
    steps: int = entry(SHAPES["steps"], "Training steps.", least=0)
    seed: int = entry(0, "Random seed of splits, weights and batches.", least=0)
    batch: int = entry(32, "Images per source domain and step.", least=1)
    lr: float = entry(SHAPES["lr"], "Learning rate.", least=0)
    lr_schedule: Schedule = entry("constant", "Learning rate schedule after the warm-up.")
    warmup: int = entry(0, "Steps over which the learning rate rises linearly.", least=0)
    rho_schedule: Schedule = entry("constant", "Schedule of a sharpness-aware optimizer's rho.")
    rho_warmup: int = entry(0, "Steps over which rho rises linearly.", least=0)
    layer_decay: float = entry(
        1.0, "Factor on the learning rate from each block of the backbone to the one below it.", least=0, most=1
    )
    weight_decay: float = entry(0.0, "Weight decay.", least=0)
    decay_norms: bool = entry(True, "Apply weight decay to norms and biases, too.")
    dropout: float = entry(0.0, "Dropout before the classifier.", least=0, below=1)
    image_size: int | None = entry(
        SHAPES["image_size"], "Pixels per side. Default: the backbone's own.", least=8, most=MOST
    )
    evaluate_every: int = entry(SHAPES["evaluate_every"], "Steps between evaluations.", least=1)
    patience: int = entry(0, "Stop after N evaluations without better source validation; 0 for never.", least=0)
    holdout: float = entry(0.2, "Share of each domain that is held out for validation.", least=0, below=1)
    selection: Selection = entry("validation", "How to select the weights; oracle uses the target.")
    balanced: bool = entry(False, "Sample classes evenly.")
    class_weights: Literal["none", "balanced"] = entry(
        "none", "Weights of the classes in the classification loss; balanced: as if classes were equally frequent."
    )
    augment: Augment = entry(
        "protocol",
        "Augmentation of training images. protocol: crops, horizontal flips and colors; flips: also vertical flips; "
        "randaugment: RandAugment in place of colors.",
    )
    resize: Resize = entry(
        "squash", "How to resize images that are not square, in evaluation, in prediction and with augment=none."
    )
    skip_unreadable: bool = entry(False, "Skip unreadable images and report them.")
    layout: str | None = entry(None, "Folders from the root down, such as class/domain. Default: domain/class.")
    domain_from: str | None = entry(None, "Domain of an image: a regular expression on its path, or exif:Model.")
    allow_missing_classes: bool = entry(False, "Allow domains that lack classes of other domains.")
    trainable: Trainable = entry(
        "all",
        "Weights to train. head: on cached features of the frozen backbone; last: the last stage or block and the "
        "head; norms: normalization layers and the head; lora: adapters of the linear layers and the head.",
    )
    lora_rank: int = entry(8, "Rank of the adapters of trainable=lora.", least=1)
    checkpointing: bool = entry(False, "Recompute the backbone's activations in the backward pass, to save memory.")
    accumulate: int = entry(1, "Parts of a batch with a forward and backward pass each, to save memory.", least=1)
    freeze_bn: bool | None = entry(None, "Freeze batch norm. Default: for pretrained backbones.")
    precision: Literal["auto", "fp32", "bf16"] = entry("auto", "Floating-point format of the backbone.")
    compile: Compile = entry("auto", "Use torch.compile; auto: on a GPU, where it was measured to pay.")
    deterministic: bool = entry(False, "Make runs on a GPU reproducible bit for bit.")
    capture: bool = entry(True, "On a GPU, capture steps as CUDA graphs where method and optimizer allow it.")
    nonfinite: Literal["raise", "skip"] = entry("raise", "What to do at a gradient that is not finite.")
    track: int = entry(0, "Steps between curvature records in tracking.jsonl; 0 for none.", least=0)
    track_measures: bool = entry(False, "Measure f(θ−δ) with one more pass also if track < 10.")
    method_settings: Settings = entry({}, "Hyperparameters of the method.")
    optimizer_settings: Settings = entry({}, "Hyperparameters of the optimizer.")
    averaging_settings: Settings = entry({}, "Hyperparameters of the averaging.")
    virtual_settings: Settings = entry({}, "Hyperparameters of the virtual domain.")

    if not TYPE_CHECKING:  # type checkers see the signature that dataclass makes

        def __init__(self, *, profile: str | None = None, **values: Any) -> None:
            values = renamed(values)
            for name, value in {"profile": profile, **values}.items():
                _check(name, value)
            if profile is not None or len(values) < len(fields(self)):
                values = _with_defaults(values, profile)
            self.__dict__.update(values)
            for name in ("warmup", "rho_warmup"):
                if values[name] > self.steps:
                    raise RecipeError(f"{name}={values[name]} is not allowed; it must be at most steps={self.steps}")
            if self.target is not None and self.target in names_in(self.sources):
                raise RecipeError(f"target={self.target} is one of sources={self.sources}; leave it out of one of them")
            if self.selection == "oracle" and self.target is None:
                raise RecipeError("selection=oracle looks at the target; give a target, or selection=validation")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        """Load a stored recipe as it is. Entries that it lacks were added later and take the baseline's values."""
        values = renamed(values)
        unknown = sorted(set(values) - set(baseline()))
        if unknown:
            raise RecipeError(f"the recipe has entries of another version of mecam ({', '.join(unknown)})")
        return cls(**{**baseline(), **values})

    def __repr__(self) -> str:
        return f"Recipe({', '.join(f'{name}={value!r}' for name, value in departures(self).items())})"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def reading(self) -> dict[str, Any]:
        """Return the arguments of `open_data` beside the data."""
        return {name: getattr(self, name) for name in READING}

    @property
    def run_id(self) -> str:
        """Return a readable name with a digest of all entries that depart from the baseline.

        An entry that a later version adds does not rename the runs that do without it.
        """
        return run_id(self.to_dict(), baseline())


def baseline() -> dict[str, Any]:
    """Return the entries that run ids are relative to: the defaults of the embedded data set."""
    return {each.name: {} if each.default is MISSING else each.default for each in fields(Recipe)}


def departures(recipe: Recipe) -> dict[str, Any]:
    """Return the entries that a recipe needs, with which `Recipe(**departures(recipe))` is the same recipe.

    Defaults follow from other entries, such as the learning rate from the optimizer, so those are settled first.
    """
    values, needed = recipe.to_dict(), dict[str, Any]()
    while True:
        defaults = Recipe(**needed).to_dict()
        other = [name for name in values if values[name] != defaults[name] and name not in needed]
        first = next((name for name in DECIDING if name in other), None)
        if not other:
            return {name: needed[name] for name in values if name in needed}
        needed |= {name: values[name] for name in (other if first is None else [first])}


class Kind(NamedTuple):
    """The type and the allowed values of an entry."""

    type: type
    optional: bool  # whether None is allowed
    choices: tuple[str, ...]  # if not empty, the only values


@cache
def entry_kind(name: str) -> Kind:
    """Return what the entry of this name may be, from its annotation; refuse an unknown name."""
    annotations = _annotations()
    name = TODAY.get(name, name)
    if name not in annotations:
        near = hint(ELSEWHERE.get(plain(name), name), sorted(annotations))
        if not near.endswith("?"):
            near += f". A hyperparameter has its table's name before it, such as optimizer_settings.{name}"
        raise RecipeError(f"a recipe has no entry {name!r}; {near}")
    whole = getattr(annotations[name], "type", annotations[name])  # an InitVar's
    part, *none = get_args(whole) if isinstance(whole, UnionType) else (whole,)
    choices = get_args(part) if get_origin(part) is Literal else ()
    return Kind(str if choices else get_origin(part) or part, bool(none), choices)


@cache
def _annotations() -> dict[str, Any]:
    return get_type_hints(Recipe)


def names_in(words: str | None) -> list[str]:
    """Split at commas; a comma after a backslash is a part of its name."""
    return [] if words is None else [name.replace("\\,", ",").strip() for name in re.split(r"(?<!\\),", words)]


def option(name: str) -> str:
    """Return the command-line option of an entry."""
    return f"--{name.replace('_', '-')}"


def recipe_of(run: Path | str) -> Recipe:
    """Return the recipe of the run in this folder. A RunError names the file that cannot be read."""
    from mecam.runs import RunError, RunFolder

    folder = RunFolder(Path(run))
    values = folder.read_run().get("recipe")
    if not isinstance(values, dict):
        raise RunError(f"{folder.run_file} is damaged: it holds no recipe")
    try:
        return Recipe.from_dict(values)
    except RecipeError as error:
        raise RunError(f"{folder.run_file} cannot be used: {error}") from error


def _check(name: str, value: Any) -> None:
    """Refuse a value of the wrong type or outside of its range."""
    kind, optional, choices = entry_kind(name)
    if value is None and optional:
        return
    allowed: tuple[type[Any], ...] = (int, float) if kind is float else (kind,)
    if not isinstance(value, allowed) or (isinstance(value, bool) and kind is not bool):
        raise RecipeError(f"{name}={value!r} is a {type(value).__name__}; it must be {TYPE_NAMES[kind]}")
    if choices and value not in choices:
        raise RecipeError(f"{name}={value!r} is not allowed; it must be one of {', '.join(choices)}")
    limits = Recipe.__dataclass_fields__[name].metadata
    least, most, below = limits["least"], limits["most"], limits["below"]
    if below is not None and not least <= value < below:
        raise RecipeError(f"{name}={value!r} is not allowed; it must be in [{least}, {below})")
    if least is not None and not least <= value <= sys.float_info.max:
        raise RecipeError(f"{name}={value!r} is not allowed; it must be at least {least}, and finite")
    if least is not None and value > most:
        raise RecipeError(f"{name}={value!r} is not allowed; it must be in [{least}, {most}]")


def _with_defaults(values: dict[str, Any], profile: str | None) -> dict[str, Any]:
    """Complete the values by those of the profile, the data set and the method."""
    values["data"] = spelled(values.get("data", Recipe.data))
    if (sources := values.get("sources")) is not None:  # in one order: they are a part of the run's name
        values["sources"] = ",".join(sorted({name.replace(",", "\\,") for name in names_in(sources)}))
    return with_defaults(values, profile, baseline())


def is_variant(recipe: Recipe) -> bool:
    """Return whether the optimizer changes the method: Fish is defined with plain SGD as its outer step."""
    if recipe.method != "fish":
        return False
    outer = {"weight_decay": recipe.weight_decay, **recipe.optimizer_settings}
    plain = all(outer.get(name) == value for name, value in FISH_OUTER.items())
    return recipe.optimizer != "sgd" or not plain or "inner_lr" not in recipe.method_settings


def spelled(data: str) -> str:
    """Return the one spelling of a path that is part of a run's name: clean/ and ./clean are clean.

    A local folder that shares a data set's name keeps its `./` prefix.
    A path that would lead elsewhere if shortened, such as link/../clean, stays as it is.
    """
    short = os.path.normpath(data) if data else data
    if short == data or len({os.path.realpath(os.path.expanduser(path)) for path in (short, data)}) > 1:
        return data
    return os.path.join(os.curdir, short) if os.sep not in short and is_known(short) else short


def is_known(word: str) -> bool:
    """Return whether this is the name of a data set, and not only of a folder."""
    from mecam.data import known

    return word == Recipe.data or known.is_known(word)


def read(path: Path, kind: str = "a recipe") -> dict[str, Any]:
    """Return the values in a TOML file."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"there is no {kind.split()[-1]} {path}") from None
    except IsADirectoryError:
        raise RecipeError(f"{path} is a folder and not {kind}; images are given with --data {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path} is not a TOML file: {error}") from error


def compose(source: Recipe | Path | str | None, entries: Mapping[str, Any], assignments: Sequence[str] = ()) -> Recipe:
    """Return the recipe, or the one in a TOML file, with these entries in place of its own; None is not given."""
    values = {} if source is None else departures(source) if isinstance(source, Recipe) else read(Path(source))
    values |= {name: value for name, value in entries.items() if value is not None}
    for assignment in assignments:
        assign(values, assignment)
    return Recipe(**values)


def assign(values: dict[str, Any], assignment: str) -> None:
    """Put `lr=3e-5` or `optimizer_settings.rho=0.1` into the values; anything but a TOML value is a string."""
    import tomllib

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
