"""The examples run in this process, which shares its imports; tests/test_torchvision.py types two others by hand."""

import json
import runpy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mecam.methods import METHODS

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.usefixtures("own_parts")  # the examples register them
LINES = "accuracy on sketch, which was not trained on: "


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MECAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("mecam.methods.registry.METHODS", dict(METHODS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def main(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = runpy.run_path(str(EXAMPLES / name))["main"]
    return found


def test_plain_loop(capsys: pytest.CaptureFixture[str]) -> None:
    main("plain_loop.py")(2)
    heading, *rows = capsys.readouterr().out.splitlines()
    assert "unseen cast" in heading
    assert [row.split()[0] for row in rows] == ["adam", "sam", "mecam"]
    assert all(0 <= float(cell) <= 100 for row in rows for cell in row.split()[1:])


def test_accelerate(capsys: pytest.CaptureFixture[str]) -> None:
    from accelerate.state import AcceleratorState, GradientState

    try:
        accuracy = main("accelerate_loop.py")(2)
    finally:  # it keeps its state in singletons
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    assert f"{LINES}{100 * accuracy:.1f} %" in capsys.readouterr().out


def test_own_folder(capsys: pytest.CaptureFixture[str]) -> None:
    main("own_folder.py")(2)
    printed = capsys.readouterr().out.splitlines()
    assert sum(line.endswith(": 140 pictures") for line in printed) == 4
    assert any(line.startswith("trained without sketch; accuracy there: ") for line in printed)
    assert sum(line.startswith("sketch/") for line in printed) == 5


def test_custom_method() -> None:
    found = main("custom_method.py")(3)
    assert set(found) == {"erm", "tilt"}


def test_custom_virtual_domain() -> None:
    found = main("custom_virtual_domain.py")(3)
    assert set(found) == {"no virtual domain", "another light"}


def test_inner_step() -> None:
    losses = main("inner_step.py")(20)
    assert losses[-1] < losses[0]


def test_curvature_radius() -> None:
    assert main("curvature_radius.py")(20) > 0


def test_held_out_domain() -> None:
    assert set(main("held_out_domain.py")(3)) == {"erm", "heldout"}


def notebook(name: str) -> dict[str, Any]:
    """The names that a notebook defines, run from top to bottom."""
    import matplotlib as mpl

    mpl.use("Agg", force=True)
    found = json.loads((EXAMPLES / name).read_text(encoding="utf-8"))
    cells = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    drawn = sum("plt.show()" in "".join(cell["source"]) for cell in cells)
    assert drawn == sum("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"])
    return names


def test_flat_minima(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPS", "2")
    assert set(notebook("flat_minima.ipynb")["surfaces"]) == {"adam", "mecam"}


def test_toy_landscape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    names = notebook("toy_landscape.ipynb")
    ends = {name: names["sharpness"](path[-1]) for name, path in names["paths"].items()}
    assert ends["SGD"] > 8
    assert max(ends["SAM"], ends["MeCAM"]) < 2.5 < ends["MeCAM, alpha = beta = 0.1"] < ends["SGD"]
    assert abs(names["update"] @ names["across"]) < 0.01 < names["update"] @ names["along"]
    with (
        Image.open(tmp_path / "valley.gif") as drawn,
        Image.open(EXAMPLES.parent / "docs/pictures/valley.gif") as shown,
    ):
        assert drawn.n_frames == shown.n_frames == 26


def test_my_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKBONE", "lite0small")
    monkeypatch.setenv("MINUTES", "0.05")
    names = notebook("my_folder.ipynb")
    assert set(names["verdict"].by_domain) == {"art", "cartoon", "photo"}
    assert names["evaluation"].images == 70
    assert len(names["predictions"]) == 7
    assert 1 < max(names["accuracies"]) <= 100
