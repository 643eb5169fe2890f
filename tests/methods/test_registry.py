"""Methods of one's own by name."""

import pytest

from mecam.methods import METHODS, Method, create, register
from mecam.methods.erm import ERM


@pytest.fixture(autouse=True)
def _own_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mecam.methods.registry.METHODS", dict(METHODS))


def test_a_registered_method_is_made_by_its_name() -> None:
    @register
    class Mine(ERM):
        name = "mine"

    assert isinstance(create("mine"), Mine)
    assert register(Mine) is Mine  # a cell of a notebook runs twice


def test_of_an_unknown_method_it_is_said_that_ones_own_are_registered_first() -> None:
    said = r"no method 'variance'; did you mean .*\?.*of your own must be registered first, in Python"
    with pytest.raises(ValueError, match=said):
        create("variance")


def test_a_name_that_is_taken_is_refused() -> None:
    class Mine(ERM):
        name = "coral"

    with pytest.raises(ValueError, match="there is a method 'coral' already, CORAL; give Mine another name"):
        register(Mine)


def test_a_method_without_a_name_is_refused() -> None:
    class Mine(Method):
        pass

    with pytest.raises(ValueError, match="Mine has no name to be known by; give the class one"):
        register(Mine)
