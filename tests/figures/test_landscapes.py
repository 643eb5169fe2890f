"""Figure 4: which of the saved grids are drawn side by side, and what to run where there are none."""

import json
from pathlib import Path

import numpy as np
import pytest

from mecam.benchmark import results
from mecam.figures import landscapes
from mecam.figures.points import Missing
from tests.benchmark.folders import write_run
from tests.report import runs


def drawn(out: Path) -> landscapes.Landscapes:
    return landscapes.values(out, results.read(out)[0])


def save(folder: Path, points: int = 3, split: str = "train", name: str = "a") -> None:
    """A grid as `mecam landscape` saves it."""
    axis = np.linspace(-1, 1, points)
    setting = json.dumps({"split": split, "directions": "random, filter-normalised, seed 0", "images": 8})
    grid = {"loss": np.add.outer(axis**2, axis**2), "done": np.ones((points, points), dtype=bool)}
    np.savez(folder / f"landscape-{name}.npz", x=axis, y=axis, setting=np.array(setting), **grid)


def test_grids_over_the_same_images_and_directions_stand_side_by_side(tmp_path: Path) -> None:
    for optimizer in ("mecam", "adam", "sam"):
        save(write_run(tmp_path, 0.5, optimizer=optimizer))
    alone = write_run(tmp_path, 0.5, optimizer="gsam", target="sketch")
    save(alone, points=9)
    (alone / "landscape-b.npz").write_bytes(b"damaged")
    figure = drawn(tmp_path)
    assert list(figure.grids) == ["ERM", "SAM", "MeCAM"]
    assert (figure.data, figure.target, figure.split) == ("shapes", "art", "train")


def test_of_two_settings_the_finer_grid_is_drawn_and_a_folder_below_is_searched(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "landscapes", 0.5)
    save(folder, points=3)
    save(folder, points=11, name="b")
    assert drawn(tmp_path).grids["ERM"].loss.shape == (11, 11)


def test_a_line_or_a_grid_without_a_finite_loss_is_no_landscape(tmp_path: Path) -> None:
    folder = write_run(tmp_path, 0.5)
    axis, setting = np.linspace(-1, 1, 3), np.array("{}")
    for name, rows in (("line", 1), ("holes", 3)):
        loss = np.full((rows, 3), np.nan if name == "holes" else 1.0)
        saved = {"x": axis, "y": axis[:rows], "loss": loss, "done": np.isnan(loss), "setting": setting}
        np.savez(folder / f"landscape-{name}.npz", **saved)
    with pytest.raises(Missing):
        drawn(tmp_path)


def test_without_grids_the_command_names_the_runs_of_one_target_and_seed(tmp_path: Path) -> None:
    domains = ["art", "photo"]
    paths = [
        runs.write_run(tmp_path, 0.5, domains=domains, target="art", optimizer=optimizer, steps=7).path
        for optimizer in ("adam", "sam", "mecam")
    ]
    runs.write_run(tmp_path, 0.5, domains=domains, target="art", optimizer="sam", steps=5)
    runs.write_run(tmp_path, 0.5, domains=domains, target="photo", optimizer="sam")
    with pytest.raises(Missing) as missing:
        drawn(tmp_path)
    words = missing.value.command_for(tmp_path).split()
    assert words == ["mecam", "landscape", *map(str, paths), "--out", f"{tmp_path}/landscape"]


def test_without_runs_the_command_trains_them(tmp_path: Path) -> None:
    with pytest.raises(Missing) as missing:
        drawn(tmp_path)
    assert missing.value.command == "mecam bench recipes/figure4.toml --out RESULTS"
