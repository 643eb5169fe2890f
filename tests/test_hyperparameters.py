"""Ranges of hyperparameters are checked, and named in errors."""

import pytest
import torch

from mecam.hyperparameters import Choice, Configurable, Hyperparameter, LogUniform, Uniform

SHARE = Hyperparameter("a share", high=1, open_low=True)
COUNT = Hyperparameter("a count", low=1, integer=True)


@pytest.mark.parametrize("value", [0.5, 1, 1e-9, torch.tensor(0.5)])
def test_allowed(value: object) -> None:
    SHARE.check("SAM", "beta", value)


@pytest.mark.parametrize("value", [0, -1, 1.1, float("nan"), float("inf"), torch.tensor(2.0)])
def test_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"SAM: beta=.* is not allowed; it must be a number in \(0, 1\]"):
        SHARE.check("SAM", "beta", value)


@pytest.mark.parametrize("value", ["0.5", None, True, [0.5]])
def test_of_the_wrong_kind(value: object) -> None:
    with pytest.raises(TypeError, match=r"it must be a number in \(0, 1\]"):
        SHARE.check("SAM", "beta", value)


def test_whole_numbers() -> None:
    COUNT.check("LookSAM", "k", 3)
    with pytest.raises(ValueError, match=r"k=2.5 is not allowed; it must be a whole number in \[1, inf\)"):
        COUNT.check("LookSAM", "k", 2.5)


def test_search_spaces_say_what_they_are() -> None:
    assert str(Choice((0.01, 0.1))) == "{0.01, 0.1}"
    assert str(Uniform(0, 0.5)) == "U(0, 0.5)"
    assert str(LogUniform(-5, -3.5)) == "10^U(-5, -3.5)"


class Declares(Configurable):
    share = Hyperparameter("a share", 0.5, high=1)
    count = Hyperparameter("a count", 2, low=1, integer=True)


def test_a_class_takes_what_it_declares() -> None:
    one = Declares(count=3.0)
    assert (one.share, one.count, type(one.count)) == (0.5, 3, int)
    with pytest.raises(ValueError, match=r"Declares: share=2 is not allowed"):
        Declares(share=2)
    with pytest.raises(TypeError, match=r"Declares has no hyperparameter chare"):
        Declares(chare=1)


def test_a_constructor_may_fix_what_its_base_declares() -> None:
    class Own(Declares):
        hyperparameters = {"radius": Hyperparameter("a radius")}

        def __init__(self, *, radius: float = 0.1) -> None:
            super().__init__(share=0.25)
            self.radius = radius

    assert list(Own.hyperparameters) == ["radius"]
    one = Own(radius=0.2)
    assert (one.share, one.count, one.radius) == (0.25, 2, 0.2)


def test_other_bases_are_constructed_too() -> None:
    class Trained(Declares, torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

    assert len(list(Trained().parameters())) == 2


def test_a_default_is_changed_by_a_declaration() -> None:
    with pytest.raises(TypeError, match=r"Milder.share is a hyperparameter of its base.*Hyperparameter\(\.\.\., 0.1\)"):
        type("Milder", (Declares,), {"share": 0.1})
