import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mecam.virtual import MixStyle
from mecam.virtual._draws import Draw
from mecam.virtual.mixstyle import mix_style
from tests.virtual.domains import switched_on

EPS = 1e-6


def draw(seed: int) -> Draw:
    return Draw.like(torch.zeros(1, dtype=torch.float64), seed)


def moments(values: list[float]) -> tuple[float, float]:
    return statistics.fmean(values), math.sqrt(statistics.variance(values) + EPS)


def mix_by_loops(x: Tensor, lam: Tensor, partner: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        j, weight = int(partner[i]), float(lam[i])
        for c in range(x.shape[1]):
            (mu, sig), (mu_j, sig_j) = moments(x[i, c].tolist()), moments(x[j, c].tolist())
            for k, value in enumerate(x[i, c].tolist()):
                out[i, c, k] = (value - mu) / sig * (weight * sig + (1 - weight) * sig_j)
                out[i, c, k] += weight * mu + (1 - weight) * mu_j
    return out


def test_formula_equals_a_loop_over_samples_and_channels() -> None:
    x = torch.randn(5, 3, 7, dtype=torch.float64) * 4 + 2
    lam = torch.rand(5, dtype=torch.float64)
    partner = torch.tensor([2, 0, 4, 3, 1])
    torch.testing.assert_close(mix_style(x, lam, partner), mix_by_loops(x, lam, partner), rtol=1e-12, atol=1e-12)


def test_weight_one_keeps_the_sample_and_weight_zero_takes_the_partners_style() -> None:
    x = torch.randn(4, 2, 50, dtype=torch.float64) * torch.arange(1, 5)[:, None, None]
    partner = torch.tensor([1, 2, 3, 0])
    torch.testing.assert_close(mix_style(x, torch.ones(4), partner), x, rtol=1e-12, atol=1e-12)
    taken = mix_style(x, torch.zeros(4), partner)
    torch.testing.assert_close(taken.mean(-1), x[partner].mean(-1))
    torch.testing.assert_close(taken.std(-1), x[partner].std(-1), rtol=1e-5, atol=0)


def test_gradient_treats_styles_as_constants() -> None:
    x = torch.randn(3, 2, 5, dtype=torch.float64, requires_grad=True)
    lam, partner = torch.rand(3, dtype=torch.float64), torch.tensor([1, 2, 0])
    upstream = torch.randn_like(x)
    (gradient,) = torch.autograd.grad(mix_style(x, lam, partner), x, upstream)
    sig = (x.detach().var(-1, keepdim=True) + EPS).sqrt()
    mixed = lam[:, None, None] * sig + (1 - lam[:, None, None]) * sig[partner]
    torch.testing.assert_close(gradient, upstream * mixed / sig, rtol=1e-12, atol=1e-12)


def test_every_sample_gets_one_weight_and_one_partner_for_all_channels() -> None:
    x = torch.randn(6, 8, 5, 5, dtype=torch.float64) * torch.rand(6, 8, 1, 1) + torch.randn(6, 8, 1, 1)
    mu, new_mu = x.mean((2, 3)), switched_on(MixStyle(alpha=1.0), x).mean((2, 3))
    for i in range(6):
        residuals = []
        for j in range(6):
            step = mu[j] - mu[i]
            share = (new_mu[i] - mu[i]) @ step / (step @ step) if i != j else torch.zeros(())
            residuals.append(float((mu[i] + share * step - new_mu[i]).norm()))
        assert min(residuals) < 1e-10, "no partner explains the new means of all channels with one weight"


@given(domains=st.integers(2, 6), size=st.integers(1, 5), seed=st.integers(0, 2**32))
@settings(max_examples=200, deadline=None)
def test_cross_domain_partners_are_a_permutation_into_another_block(domains: int, size: int, seed: int) -> None:
    partner = draw(seed).partner(domains * size, domains)
    assert sorted(partner.tolist()) == list(range(domains * size))
    own_block = torch.arange(domains * size) // size
    shifts = (partner // size - own_block) % domains
    assert (shifts != 0).all()
    assert (shifts == shifts[0]).all()


def test_cross_domain_reaches_every_other_block_and_every_sample_in_it() -> None:
    reached = {int(draw(seed).partner(8, 4)[0]) for seed in range(200)}
    assert reached == {2, 3, 4, 5, 6, 7}


def test_random_partners_are_permutations_that_reach_everybody() -> None:
    partners = [draw(seed).partner(4, None) for seed in range(100)]
    assert all(sorted(partner.tolist()) == [0, 1, 2, 3] for partner in partners)
    assert {int(partner[0]) for partner in partners} == {0, 1, 2, 3}


def test_cross_domain_takes_styles_from_the_other_block_only() -> None:
    x = torch.randn(6, 2, 40) + torch.tensor([0.0, 0, 0, 100, 100, 100])[:, None, None]
    style = MixStyle(alpha=1.0, domains=2)
    mean = switched_on(style, x[..., None]).mean((1, 2, 3))
    assert ((mean > 1) & (mean < 99)).all()


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 1.0])
def test_mixing_weights_are_beta_distributed_and_always_finite(alpha: float) -> None:
    lam = draw(3).beta(alpha, 100_000)
    assert ((lam >= 0) & (lam <= 1)).all()
    if alpha > 0.01:  # below, both gamma variates underflow
        assert abs(float(lam.mean()) - 0.5) < 0.01
        assert abs(float(lam.var()) - 1 / (4 * (2 * alpha + 1))) < 0.005


def test_p_is_the_share_of_calls_that_mix_and_the_others_stay_bit_for_bit() -> None:
    model, x = nn.Identity(), torch.randn(4, 3, 4, 4)
    style = MixStyle(p=0.3, alpha=1.0).attach(model, model)
    mixed = 0
    for _ in range(300):
        with style.active():
            out = model(x)
        mixed += not torch.equal(out, x)
    assert 60 < mixed < 120  # 90 expected, standard deviation 8


def test_p_is_drawn_for_each_layer_on_its_own() -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity())
    style = MixStyle(p=0.5, alpha=1.0).attach(model, ["0", "1"])
    x = torch.randn(4, 3, 4, 4)
    seen = set()
    for _ in range(60):
        with style.active():
            first = model[0](x)
            second = model[1](x)
        seen.add((torch.equal(first, x), torch.equal(second, x)))
    assert len(seen) == 4


def test_p_zero_changes_nothing() -> None:
    x = torch.randn(4, 3, 4, 4)
    assert torch.equal(switched_on(MixStyle(p=0), x), x)


def test_double_precision_stays_double() -> None:
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64)
    torch.manual_seed(1)
    double = switched_on(MixStyle(alpha=1.0), x)
    torch.manual_seed(1)
    single = switched_on(MixStyle(alpha=1.0), x.float())
    assert double.dtype == torch.float64
    torch.testing.assert_close(double.float(), single)
    assert not torch.equal(double, single.double())


def test_channels_last_maps_keep_their_memory_format() -> None:
    x = torch.randn(4, 3, 5, 6).to(memory_format=torch.channels_last)
    torch.manual_seed(1)
    out = switched_on(MixStyle(alpha=1.0), x)
    torch.manual_seed(1)
    torch.testing.assert_close(out, switched_on(MixStyle(alpha=1.0), x.contiguous()))
    assert out.is_contiguous(memory_format=torch.channels_last)


def test_a_batch_that_is_not_equal_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 7 is not 3 equal blocks"):
        switched_on(MixStyle(domains=3), torch.randn(7, 3, 4, 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"p": 1.5}, r"MixStyle: p=1.5 is not allowed; it must be a number in \[0, 1\]"),
        ({"p": float("nan")}, "MixStyle: p=nan is not allowed"),
        ({"alpha": 0.0}, r"MixStyle: alpha=0.0 is not allowed; it must be a number in \(0, inf\)"),
        ({"domains": 1}, r"MixStyle: domains=1 is not allowed; it must be a whole number in \[2, inf\)"),
    ],
)
def test_values_out_of_range_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixStyle(**arguments)  # type: ignore[arg-type]


def test_channels_last_stays_channels_last_and_gives_the_same() -> None:
    conv = nn.Conv2d(3, 4, 3).double()
    style = MixStyle().attach(conv, conv)
    images = torch.randn(6, 3, 8, 8, dtype=torch.float64)
    outputs = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        with style.active():
            outputs.append(conv(images.contiguous(memory_format=layout)))
    assert outputs[1].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(outputs[0], outputs[1], rtol=0, atol=1e-12)
