"""Parts are found, listed and registered by name, whatever their kind."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import mecam
from mecam import averaging, methods, models, optim, virtual
from mecam.averaging import NoAveraging
from mecam.benchmark.settings import REGISTRIES, registry
from mecam.hyperparameters import Hyperparameter
from mecam.listing import lines
from mecam.methods.erm import ERM
from mecam.models import Backbone, BackboneEntry, Preprocessing
from mecam.recipe import Recipe
from mecam.registry import Registry
from mecam.virtual._features import FeatureDomain


class Half:
    """Half of a number.

    More about it.
    """

    name = "half"
    hyperparameters: ClassVar = {"of": Hyperparameter("the number", high=1), "by": Hyperparameter("a divisor")}

    def __init__(self, of: float = 0.5, by: float | None = None) -> None:
        self.of, self.by = of, by


def test_a_class_describes_itself() -> None:
    parts = Registry("part", (Half,))
    assert list(parts) == ["half"]
    assert parts.find("half") is Half
    assert parts.summary("half") == "Half of a number."
    assert parts.defaults("half") == {"of": 0.5, "by": None}
    assert parts.create("half", of=0.2, by=None).of == 0.2


def test_settings_are_checked() -> None:
    parts = Registry("part", (Half,))
    with pytest.raises(ValueError, match=r"half has no setting 'off'; did you mean of\? It has of, by"):
        parts.create("half", off=1)
    with pytest.raises(ValueError, match="half: of=2 is not allowed"):
        parts.create("half", of=2)
    with pytest.raises(TypeError, match="half: of=None is a NoneType"):
        parts.create("half", of=None)


@pytest.mark.parametrize(
    ("part", "name", "near"),
    [
        ("method", "em", "method 'em'; did you mean erm"),
        ("optimizer", "adma", "optimizer 'adma'; did you mean adam"),
        ("averaging", "swa", "averaging 'swa'; did you mean swad"),
        ("virtual", "mixstile", "virtual domain 'mixstile'; did you mean mixstyle"),
        ("backbone", "resnet51", "backbone 'resnet51'; did you mean .*resnet50 or .*timm/<name>"),
    ],
)
def test_an_unknown_name_is_an_error_with_near_matches(part: str, name: str, near: str) -> None:
    with pytest.raises(ValueError, match=f"there is no {near}.*register your own first, in Python: mecam"):
        registry(part).find(name)
    with pytest.raises(ValueError, match=f"known are {next(iter(registry(part)))}, "):
        registry(part).find("zzzzzz")


@pytest.mark.parametrize("part", REGISTRIES)
def test_the_names_of_the_package_are_taken(part: str) -> None:
    first = next(iter(registry(part).values()))
    with pytest.raises(ValueError, match=f"mecam has a .* {first.name!r} already; choose another name"):
        registry(part).register(first)


def test_a_part_needs_a_name_that_a_command_line_can_carry() -> None:
    class Unnamed(methods.Method):
        pass

    class Odd(methods.Method):
        name = "a, b"

    for method in (Unnamed, Odd):
        with pytest.raises(ValueError, match=r"name=.* is not allowed; a registered method needs a name"):
            methods.register(method)


class Twice(optim.SharpnessAware):
    """The gradient at two places."""

    passes = 2
    hyperparameters: ClassVar = {"rho": Hyperparameter("how far", default=0.1)}

    def gradient(self, grad_at: Any) -> Any:
        (rho,) = self.values("rho")
        g = grad_at()
        return 0.5 * g + 0.5 * grad_at(rho * g)


class Tilted(ERM):
    """ERM under another name."""

    name = "tilted"


class Bare(NoAveraging):
    """No averaging, under another name."""

    name = "bare"


class Louder(FeatureDomain):
    """Features times two."""

    name = "louder"

    def __init__(self, p: float = 1.0, *, generator: torch.Generator | None = None) -> None:
        super().__init__(p=p, generator=generator)

    def _mix(self, x: Tensor, draw: Any) -> Tensor:  # noqa: ARG002
        return 2 * x


def tiny(pretrained: bool) -> Backbone:  # noqa: ARG001
    stage = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU())
    featurizer = nn.Sequential(stage, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Backbone(featurizer, num_features=4, stages=("0",), classifier=(), preprocessing=Preprocessing(16))


@pytest.mark.usefixtures("own_parts")
def test_registered_parts_are_listed_and_train(tmp_path: Path) -> None:
    optim.register(Twice)
    methods.register(Tilted)
    averaging.register(Bare)
    virtual.register(Louder)
    models.register(BackboneEntry("tiny", "One convolution.", "none", False, tiny))
    methods.register(Tilted)  # a cell of a notebook runs twice
    listed = lines(verbose=True)
    for line in ("tilted: ERM under another name.", "twice: The gradient at two places. Passes: 2.",
                 "bare: No averaging, under another name.", "louder: Features times two.", "tiny: One convolution.",
                 "    rho = 0.1: how far; a number in [0, inf)", "    weights: none"):  # fmt: skip
        assert f"  {line}" in listed
    parts = {"method": "tilted", "optimizer": "twice", "averaging": "bare", "backbone": "tiny"}
    run = mecam.train(Recipe(**{**parts, "target": "art", "steps": 1, "image_size": None}), tmp_path)
    assert run.is_done()
    run = mecam.train(Recipe(optimizer="mecam", virtual="louder", target="art", steps=1), tmp_path)
    assert run.is_done()
