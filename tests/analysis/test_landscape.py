import json
import math
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from mecam.analysis import plot_landscape
from mecam.analysis.directions import plane, random_directions
from mecam.analysis.landscape import Landscape, landscape, read
from mecam.analysis.objective import Objective
from mecam.models.resnet import resnet8
from mecam.progress import Event
from mecam.report.measured import read_surface
from mecam.runs import RunError

GRID = (-1.0, -0.25, 0.0, 0.5)


def small(seed: int = 0, dtype: torch.dtype = torch.float64) -> Objective:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 3)).to(dtype)
    inputs, targets = torch.randn(10, 3, dtype=dtype), torch.randint(0, 3, (10,))
    return Objective(model, cross_entropy, list(zip(inputs.split(4), targets.split(4), strict=True)))


def draws(objective: Objective) -> list[list[torch.Tensor]]:
    return random_directions(objective.parameters, 2, torch.Generator().manual_seed(0))


def test_every_point_is_the_objective_there():
    objective = small()
    first, second = draws(objective)
    grid = landscape(objective, [first, second], GRID, GRID[1:])
    expected = [
        [objective.value([x * a + y * b for a, b in zip(first, second, strict=True)]) for x in GRID] for y in GRID[1:]
    ]
    np.testing.assert_allclose(grid.loss, expected, rtol=1e-12)
    assert grid.holes == 0


def test_a_convolutional_network_in_float32_to_its_precision():
    torch.manual_seed(0)
    model = resnet8(classes=3)
    inputs = torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last)
    objective = Objective(model, cross_entropy, [(inputs, torch.arange(8) % 3)])
    first, second = draws(objective)
    grid = landscape(objective, [first, second], (0.0, 0.5), (0.0, 0.5))
    both = [0.5 * (a + b) for a, b in zip(first, second, strict=True)]
    assert grid.loss[0, 0] == pytest.approx(objective.value(), rel=1e-5)
    assert grid.loss[1, 1] == pytest.approx(objective.value(both), rel=1e-5)


def test_the_model_is_as_it_was_and_not_in_training_while_studied():
    objective = small()
    objective.model.train()
    before = {name: value.clone() for name, value in objective.model.state_dict().items()}
    twice = [landscape(objective, draws(objective), GRID, GRID).loss for _ in range(2)]
    np.testing.assert_array_equal(*twice)  # neither dropout nor batch statistics
    assert all(module.training for module in objective.model.modules())
    assert all(torch.equal(value, before[name]) for name, value in objective.model.state_dict().items())


def test_points_that_are_not_finite_are_holes(tmp_path: Path):
    model = nn.Linear(1, 1, bias=False).double()
    objective = Objective(model, lambda out, _: out.log().mean(), [(torch.ones(2, 1).double(), torch.zeros(2))])
    with torch.no_grad():
        model.weight.fill_(1)
    one = [torch.ones(1, 1).double()]
    grid = landscape(objective, [one, one], (-2.0, -1.0, 0.0), (0.0, 1.0), file=tmp_path / "a.npz")
    # log(1 + x + y): NaN below 0, -infinity at 0
    expected = [[math.nan, math.nan, 0.0], [math.nan, 0.0, math.log(2)]]
    np.testing.assert_allclose(grid.loss, expected, atol=1e-15)
    assert grid.holes == read(tmp_path / "a.npz").holes == 3
    assert grid.to_dict()["loss"][0][:2] == [None, None]


def test_the_page_reads_what_is_written(tmp_path: Path):
    objective = small()
    setting = {"split": "train", "directions": "random, seed 0"}
    grid = landscape(objective, draws(objective), GRID, GRID[:2], setting=setting)
    (tmp_path / "landscape.json").write_text(json.dumps(grid.to_dict()))
    surface = read_surface(tmp_path, 7)
    assert surface is not None
    assert [surface[name] for name in ("run", "split", "directions")] == [7, "train", "random, seed 0"]
    assert (surface["x"], surface["y"]) == (list(GRID), list(GRID[:2]))
    np.testing.assert_allclose(np.array(surface["loss"], dtype=float), grid.loss, rtol=1e-3)


def test_a_second_call_resumes_and_finds_the_same(tmp_path: Path):
    objective = small()
    directions, file = draws(objective), tmp_path / "grid.npz"
    whole = landscape(objective, directions, GRID, GRID)
    seen = []

    def stop(event: Event) -> None:
        seen.append(event.done)
        if event.done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        landscape(objective, directions, GRID, GRID, file=file, progress=stop)
    assert read(file).holes == 16 - seen[-1]
    rest: list[Event] = []
    grid = landscape(objective, directions, GRID, GRID, file=file, progress=rest.append)
    assert rest[0] == Event("landscape", seen[-1], 16, "points")
    assert rest[-1].done == 16
    np.testing.assert_allclose(grid.loss, whole.loss, rtol=1e-12)
    np.testing.assert_array_equal(read(file).loss, grid.loss)
    assert read(file).setting == grid.setting
    finished: list[Event] = []
    landscape(objective, directions, GRID, GRID, file=file, progress=finished.append)
    assert finished == [rest[-1]]


def test_a_file_of_another_setting_is_refused(tmp_path: Path):
    objective, file = small(), tmp_path / "grid.npz"
    first, second = draws(objective)
    landscape(objective, [first, second], GRID, GRID, file=file, setting={"split": "train"})
    with pytest.raises(RunError, match="another grid"):
        landscape(objective, [first, second], GRID, GRID[1:], file=file, setting={"split": "train"})
    with pytest.raises(RunError, match="another split"):
        landscape(objective, [first, second], GRID, GRID, file=file, setting={"split": "validation"})
    with pytest.raises(RunError, match="another function"):
        landscape(objective, [second, first], GRID, GRID, file=file, setting={"split": "train"})
    with pytest.raises(RunError, match="another function"):
        landscape(small(1), [first, second], GRID, GRID, file=file, setting={"split": "train"})
    changed = Objective(objective.model, cross_entropy, [(x + 1, y) for x, y in objective.batches])
    with pytest.raises(RunError, match="another function"):
        landscape(changed, [first, second], GRID, GRID, file=file, setting={"split": "train"})


def test_a_file_that_is_something_else_is_named(tmp_path: Path):
    file = tmp_path / "grid.npz"
    file.write_bytes(b"PK nothing")
    with pytest.raises(RunError, match=r"grid\.npz is not a landscape"):
        read(file)
    np.savez(file, x=np.zeros(2))
    with pytest.raises(RunError, match=r"grid\.npz is not a landscape"):
        read(file)


def test_a_file_is_not_inflated(tmp_path: Path):
    """Neither a compressed array nor a header that declares more than the file holds."""
    file, huge = tmp_path / "grid.npz", tmp_path / "huge.npz"
    arrays = {"x": np.zeros(1), "y": np.zeros(1), "loss": np.zeros((1, 1)), "done": np.ones((1, 1), dtype=bool)}
    np.savez(file, **arrays, setting=np.array("{}"))
    assert read(file).loss.shape == (1, 1)
    np.savez_compressed(huge, **arrays, setting=np.array("{}"))
    with pytest.raises(RunError, match="x is compressed"):
        read(huge)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(huge, "w") as new:
        for entry in old.namelist():
            data = old.read(entry)
            if entry == "loss.npy":
                data = data.replace(b"(1, 1), }            ", b"(1000000000, 1000), }")
            new.writestr(entry, data)
    with pytest.raises(RunError, match=r"huge\.npz is not a landscape that can be read"):
        read(huge)


def test_bad_grids_are_refused():
    objective = small()
    first, second = draws(objective)
    with pytest.raises(ValueError, match="two directions"):
        landscape(objective, [first, second], GRID)
    with pytest.raises(ValueError, match="x must be"):
        landscape(objective, [first], [])
    with pytest.raises(ValueError, match="y must be"):
        landscape(objective, [first, second], GRID, (0.0, math.nan))
    with pytest.raises(ValueError, match=r"0\.weight"):
        landscape(objective, [[torch.zeros(1) for _ in first]], GRID)


def test_the_plane_through_three_networks_has_their_losses_at_their_points():
    objectives = [small(seed) for seed in range(3)]
    for number, objective in enumerate(objectives):  # statistics that differ, as those of trained networks do
        objective.model[1].running_mean.fill_(0.1 * number)  # type: ignore[index,operator,union-attr]
    through = plane(*(objective.model for objective in objectives))
    for objective, (x, y) in zip(objectives, through.points, strict=True):
        there = landscape(objectives[0], through.axes, [x], [y])
        expected = Objective(objective.model, cross_entropy, objectives[0].batches).value()
        assert there.loss.item() == pytest.approx(expected, rel=1e-10)


def test_beyond_the_three_networks_variances_stay_positive():
    objectives = [small(seed) for seed in range(3)]
    for number, objective in enumerate(objectives):  # on a straight line they would be below 0 beyond the first
        objective.model[1].running_var.fill_(1 + 9 * number)  # type: ignore[index,operator,union-attr]
    through = plane(*(objective.model for objective in objectives))
    x, y = through.grid(5, margin=0.5)
    assert landscape(objectives[0], through.axes, x, y).holes == 0


def test_a_line_is_one_row_and_a_frozen_part_stays():
    objective = small()
    objective.model[0].requires_grad_(False)  # type: ignore[index,operator]
    objective = Objective(objective.model, cross_entropy, objective.batches)
    direction = objective.gradient()
    grid = landscape(objective, [direction], GRID)
    np.testing.assert_allclose(grid.loss, [[objective.value(direction, x) for x in GRID]], rtol=1e-12)


def made(loss: list[list[float]]) -> Landscape:
    return Landscape((-1.0, 0.0, 1.0), (-1.0, 0.0, 1.0), np.array(loss))


def test_several_landscapes_share_one_colour_scale(tmp_path: Path):
    landscapes = {
        "ERM": made([[3.0, 2.0, 3.0], [2.0, 1.0, 2.0], [3.0, 2.0, math.nan]]),
        "MeCAM": made([[1.2, 1.1, 1.2], [1.1, 0.5, 1.1], [1.2, 1.1, 1.2]]),
    }
    figure = plot_landscape.contours(landscapes)
    limits = {
        (mappable.norm.vmin, mappable.norm.vmax)
        for axes in figure.axes
        for mappable in axes.collections
        if getattr(mappable, "filled", False)
    }
    assert limits == {(0.5, 3.0)}
    assert [axes.get_title() for axes in figure.axes[:2]] == ["ERM (1 not finite)", "MeCAM"]
    written = plot_landscape.plot({"ERM": landscapes["ERM"]}, tmp_path / "figure")
    assert [path.name for path in written] == [
        "figure-contour.png", "figure-contour.svg", "figure-surface.png", "figure-surface.svg"
    ]  # fmt: skip
    assert all(path.stat().st_size > 1000 for path in written)


def test_a_steep_a_flat_and_an_empty_landscape_can_be_plotted(tmp_path: Path):
    steep = {"steep": made([[1e4, 1.0, 1e4], [1.0, 1e-3, 1.0], [1.0, 2.0, 1.0]])}
    plot_landscape.contours(steep).savefig(tmp_path / "steep.png")
    plot_landscape.surfaces(steep).savefig(tmp_path / "steep.png")
    plot_landscape.contours({"flat": made([[1.0] * 3] * 3)}).savefig(tmp_path / "flat.png")
    with pytest.raises(ValueError, match="no loss is finite"):
        plot_landscape.plot({"empty": made([[math.nan] * 3] * 3)}, tmp_path / "empty")
    line = Landscape((0.0, 1.0), (0.0,), np.array([[1.0, 2.0]]))
    assert [path.name for path in plot_landscape.plot({"line": line}, tmp_path / "a")] == ["a-line.png", "a-line.svg"]
    with pytest.raises(ValueError, match="some of the landscapes are lines"):
        plot_landscape.plot({"line": line, "plane": made([[1.0] * 3] * 3)}, tmp_path / "b")


def test_a_quadratic_is_what_it_is():
    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()
    objective = Objective(model, mse_loss, [(torch.eye(2).double(), torch.zeros(2, 1).double())])
    axes = [[torch.tensor([[1.0, 0.0]]).double()], [torch.tensor([[0.0, 2.0]]).double()]]
    grid = landscape(objective, axes, GRID, GRID)
    np.testing.assert_allclose(grid.loss, [[(x**2 + 4 * y**2) / 2 for x in GRID] for y in GRID], atol=1e-14)
