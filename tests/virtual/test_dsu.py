import math
import statistics

import pytest
import torch
from torch import Tensor, nn

from mecam.virtual import DSU
from mecam.virtual.dsu import perturb_style
from tests.virtual.domains import switched_on

EPS = 1e-6


def deviation(values: list[float]) -> float:
    return math.sqrt(statistics.variance(values) + EPS)


def perturb_by_loops(x: Tensor, noise_mu: Tensor, noise_sig: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for c in range(x.shape[1]):
        rows = [sample[c].tolist() for sample in x]
        mus, sigs = [statistics.fmean(row) for row in rows], [deviation(row) for row in rows]
        for i, row in enumerate(rows):
            new_mu = mus[i] + float(noise_mu[i, c]) * deviation(mus)
            new_sig = sigs[i] + float(noise_sig[i, c]) * deviation(sigs)
            out[i, c] = torch.tensor([(value - mus[i]) / sigs[i] * new_sig + new_mu for value in row], dtype=x.dtype)
    return out


def test_formula_equals_a_loop_over_samples_and_channels() -> None:
    x = torch.randn(5, 3, 7, dtype=torch.float64) * 3 + 1
    noise_mu, noise_sig = torch.randn(2, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(
        perturb_style(x, noise_mu, noise_sig), perturb_by_loops(x, noise_mu, noise_sig), rtol=1e-12, atol=1e-12
    )


def test_no_noise_is_no_change() -> None:
    x = torch.randn(4, 3, 9, dtype=torch.float64)
    silence = torch.zeros(4, 3, dtype=torch.float64)
    torch.testing.assert_close(perturb_style(x, silence, silence), x, rtol=1e-12, atol=1e-12)


def test_gradient_flows_through_every_statistic() -> None:
    x = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(2, 3, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda values: perturb_style(values, noise[0], noise[1]), (x,))


def test_new_means_scatter_by_the_spread_over_the_batch() -> None:
    x = torch.randn(8, 1, 6, 6, dtype=torch.float64) + torch.randn(8, 1, 1, 1) * 5
    mu = x.mean((2, 3))
    model = nn.Identity()
    domain = DSU().attach(model, model)
    shifts = []
    for _ in range(400):
        with domain.active():
            shifts.append((model(x).mean((2, 3)) - mu) / (mu.var(0) + EPS).sqrt())
    noise = torch.cat(shifts)
    assert abs(float(noise.mean())) < 0.06  # 3200 draws of N(0, 1)
    assert abs(float(noise.std()) - 1) < 0.05


def test_noise_differs_between_samples_and_channels() -> None:
    x = torch.randn(1, 1, 5, 5).expand(4, 3, 5, 5) + torch.zeros(4, 3, 5, 5)
    shifts = (switched_on(DSU(), x) - x).mean((2, 3))
    assert len(set(shifts.flatten().tolist())) == 12


def test_p_zero_changes_nothing_and_p_out_of_range_is_refused() -> None:
    x = torch.randn(4, 3, 4, 4)
    assert torch.equal(switched_on(DSU(p=0), x), x)
    with pytest.raises(ValueError, match="DSU: p=2 is not allowed"):
        DSU(p=2)
