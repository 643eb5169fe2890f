"""docs/architecture.md names functions that exist, and its picture shows the imports of today."""

import importlib.util
import pkgutil
import re

import pytest

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALK = re.findall(r"^\| `(mecam\.[\w.]+)` \|", PAGE, flags=re.MULTILINE)


def test_the_walk_is_short() -> None:
    assert 15 <= len(WALK) <= 25


@pytest.mark.parametrize("name", WALK)
def test_every_step_of_the_walk_exists(name: str) -> None:
    assert callable(pkgutil.resolve_name(name))


def test_the_picture_is_drawn_from_the_code() -> None:
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs" / "pictures" / "rooms.py")
    assert spec is not None
    assert spec.loader is not None
    rooms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rooms)
    picture = (ROOT / "docs" / "pictures" / "rooms.svg").read_text(encoding="utf-8")
    assert picture == rooms.draw(), "run: python docs/pictures/rooms.py"
