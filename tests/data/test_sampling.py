import numpy as np
import pytest
import torch
from torch import Tensor

from mecam.data.domains import DataError
from mecam.data.sampling import DomainSampler

LABELS = [np.array([0] * 90 + [1] * 10), np.array([2] * 5 + [0] * 15)]
PARTS = [np.arange(5, 100), np.arange(18)]  # 85 of class 0 and 10 of class 1; 5 of class 2 and 13 of class 0


def sampler(*, batch: int = 32, seed: int = 0, balanced: bool = False) -> DomainSampler:
    return DomainSampler(LABELS, PARTS, batch, torch.Generator().manual_seed(seed), balanced)


def counts(drawn: Tensor, size: int) -> np.ndarray:
    return np.bincount(drawn.numpy(), minlength=size)


@pytest.mark.parametrize("balanced", [False, True])
def test_one_batch_a_domain_from_its_training_part_alone(balanced: bool) -> None:
    batches = sampler(batch=4000, balanced=balanced).next()
    assert [(len(batch), batch.dtype) for batch in batches] == [(4000, torch.int64)] * 2
    for batch, part in zip(batches, PARTS, strict=True):
        assert set(batch.tolist()) == set(part)  # 4000 draws: all of at most 95, and nothing else


def test_every_image_is_as_likely() -> None:
    drawn = counts(sampler(batch=95_000).next()[0], 100)
    assert (drawn[:5] == 0).all()
    expected = 1000.0
    chi_squared = ((drawn[5:] - expected) ** 2 / expected).sum()
    assert 45 < chi_squared < 155  # 94 degrees of freedom: mean 94, standard deviation 13.7


def test_balanced_draws_classes_alike_and_images_of_a_class_alike() -> None:
    draws = 100_000
    for batch, labels, part in zip(sampler(batch=draws, balanced=True).next(), LABELS, PARTS, strict=True):
        drawn = counts(batch, len(labels))
        present = np.unique(labels[part])
        for label in present:
            members = [index for index in part if labels[index] == label]
            share = draws / len(present) / len(members)
            assert drawn[members].sum() == pytest.approx(draws / len(present), rel=0.03)
            assert drawn[members] == pytest.approx(np.full(len(members), share), rel=0.25)


def test_unbalanced_keeps_the_domains_own_class_shares() -> None:
    drawn = sampler(batch=95_000).next()[0]
    assert (LABELS[0][drawn.numpy()] == 1).mean() == pytest.approx(10 / 95, rel=0.05)


@pytest.mark.parametrize("balanced", [False, True])
def test_resumes_bit_for_bit(balanced: bool) -> None:
    first = sampler(balanced=balanced)
    for _ in range(3):
        first.next()
    state = first.state_dict()
    ahead = [first.next() for _ in range(3)]
    second = sampler(seed=99, balanced=balanced)
    second.load_state_dict(state)
    for expected in ahead:
        assert all(map(torch.equal, second.next(), expected))


def test_the_seed_decides() -> None:
    assert all(map(torch.equal, sampler(seed=3).next(), sampler(seed=3).next()))
    assert not torch.equal(sampler(seed=3).next()[0], sampler(seed=4).next()[0])


def test_global_randomness_is_left_alone() -> None:
    state = torch.get_rng_state()
    sampler(balanced=True).next()
    assert torch.equal(torch.get_rng_state(), state)


def test_a_later_change_of_the_callers_array_does_not_matter() -> None:
    part = np.arange(4)
    drawn = DomainSampler([np.zeros(4, int)], [part], 50, torch.Generator().manual_seed(0))
    part[:] = 0
    assert set(drawn.next()[0].tolist()) == {0, 1, 2, 3}


def test_an_empty_training_part_is_refused() -> None:
    with pytest.raises(DataError, match=r"training part of source domain 1 .* is empty"):
        DomainSampler(LABELS, [PARTS[0], np.array([], dtype=int)], 32, torch.Generator())
