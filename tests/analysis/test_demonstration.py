from pathlib import Path

import numpy as np
import pytest
import torch

from mecam.analysis import demonstration as figure

X = np.linspace(-2, 3, 101)


def test_sams_loss_prefers_the_sharp_minimum_and_the_curvature_the_flat_one():
    found = figure.demonstration()
    assert (found.sam_prefers, found.curvature_prefers) == ("sharp", "flat")
    assert found.sharp.loss < found.flat.loss
    assert found.sharp.sam_loss < found.flat.sam_loss
    assert found.sharp.curvature > 10 * found.flat.curvature


def test_they_are_minima():
    for at in (figure.demonstration().sharp, figure.demonstration().flat):
        around = figure.loss(at.x + np.array([-1e-3, 0.0, 1e-3]))
        assert around[1] == at.loss < min(around[0], around[2])
        assert at.sam_loss == pytest.approx(figure.loss(at.x + np.linspace(-figure.RHO, figure.RHO, 10_001)).max())


def test_a_radius_as_wide_as_the_wells_turns_sam_over():
    assert figure.demonstration(0.6).sam_prefers == "flat"


def test_slope_and_curvature_are_the_derivatives():
    def f(x: torch.Tensor) -> torch.Tensor:
        wells = [(-1.0, 0.9, 0.25), (1.2, 0.5, 0.8)]
        return 1 + 0.01 * x**2 - sum(depth * torch.exp(-((x - c) ** 2) / (2 * width**2)) for c, depth, width in wells)

    x = torch.from_numpy(X).requires_grad_()
    value = f(x)
    (slope,) = torch.autograd.grad(value.sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    np.testing.assert_allclose(figure.loss(X), value.detach().numpy())
    np.testing.assert_allclose(figure.slope(X), slope.detach().numpy(), atol=1e-12)
    np.testing.assert_allclose(figure.curvature(X), (bend.abs() / (slope**2 + 1)).detach().numpy(), atol=1e-12)


def test_the_plot_is_written(tmp_path: Path):
    assert figure.plot(tmp_path / "figure2.svg").stat().st_size > 1000
    with pytest.raises(ValueError, match="rho=0"):
        figure.plot(tmp_path / "a.png", 0)
