import pytest
import torch
from torch import Tensor

from mecam.virtual import EFDMix
from mecam.virtual.efdmix import mix_distribution
from tests.virtual.domains import switched_on


def ranks(values: list[float]) -> list[int]:
    """The position each rank sits at, first come first where values tie."""
    return sorted(range(len(values)), key=lambda k: values[k])


def mix_by_loops(x: Tensor, lam: Tensor, partner: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        for c in range(x.shape[1]):
            values = sorted(x[int(partner[i]), c].tolist())
            for rank, k in enumerate(ranks(x[i, c].tolist())):
                own = float(x[i, c, k])
                out[i, c, k] = own + (1 - float(lam[i])) * (values[rank] - own)
    return out


@pytest.mark.parametrize("ties", [False, True])
def test_formula_equals_a_loop_over_samples_and_channels(ties: bool) -> None:
    x = torch.randn(5, 3, 9, dtype=torch.float64)
    x = x.relu() if ties else x
    lam, partner = torch.rand(5, dtype=torch.float64), torch.tensor([2, 0, 4, 3, 1])
    torch.testing.assert_close(mix_distribution(x, lam, partner), mix_by_loops(x, lam, partner), rtol=1e-14, atol=1e-14)


def test_weight_zero_has_the_partners_values_in_the_samples_own_order() -> None:
    x = torch.randn(4, 3, 20, dtype=torch.float64) * torch.arange(1, 5)[:, None, None]
    partner = torch.tensor([1, 2, 3, 0])
    out = mix_distribution(x, torch.zeros(4, dtype=torch.float64), partner)
    torch.testing.assert_close(out.sort(-1).values, x[partner].sort(-1).values, rtol=1e-13, atol=1e-13)
    assert torch.equal(out.argsort(-1), x.argsort(-1))


def test_weight_one_keeps_the_sample() -> None:
    x = torch.randn(4, 3, 20)
    assert torch.equal(mix_distribution(x, torch.ones(4), torch.tensor([1, 2, 3, 0])), x)


def test_gradient_reaches_the_sample_in_full_and_the_partner_through_its_values() -> None:
    x = torch.randn(3, 2, 6, dtype=torch.float64, requires_grad=True)
    lam, partner = torch.rand(3, dtype=torch.float64), torch.tensor([1, 2, 0])
    upstream = torch.randn_like(x)
    (gradient,) = torch.autograd.grad(mix_distribution(x, lam, partner), x, upstream)
    expected = upstream.clone()
    for i in range(3):
        j = int(partner[i])
        for c in range(2):
            for mine, theirs in zip(ranks(x[i, c].tolist()), ranks(x[j, c].tolist()), strict=True):
                expected[j, c, theirs] += (1 - lam[i]) * upstream[i, c, mine]
    torch.testing.assert_close(gradient, expected, rtol=1e-13, atol=1e-13)


def test_attached_it_mixes_and_keeps_the_order_of_every_channel() -> None:
    x = torch.randn(6, 3, 4, 4, dtype=torch.float64)
    out = switched_on(EFDMix(alpha=1.0), x)
    assert not torch.equal(out, x)
    assert torch.equal(out.flatten(2).argsort(-1), x.flatten(2).argsort(-1))


def test_cross_domain_takes_values_from_the_other_block_only() -> None:
    x = torch.rand(6, 2, 3, 3) + torch.tensor([0.0, 0, 0, 100, 100, 100])[:, None, None, None]
    out = switched_on(EFDMix(alpha=1.0, domains=2), x)
    assert ((out > 1.01) & (out < 99.99)).all()


def test_one_sample_stays_as_it_is_and_one_position_is_mixed() -> None:
    one = torch.randn(1, 3, 4, 4)
    assert torch.equal(switched_on(EFDMix(), one), one)
    pooled = torch.tensor([0.0, 1.0])[:, None, None, None]
    out = switched_on(EFDMix(alpha=1.0, domains=2), pooled).flatten()
    assert ((out > 0) & (out < 1)).all()


def test_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="alpha=0 is not allowed"):
        EFDMix(alpha=0)
    with pytest.raises(ValueError, match="domains=0 is not allowed"):
        EFDMix(domains=0)
    with pytest.raises(ValueError, match=r"p=-0.1 is not allowed"):
        EFDMix(p=-0.1)
