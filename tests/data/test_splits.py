import numpy as np
import pytest

from mecam.data.splits import seed_hash, split
from mecam.splits import Part


@pytest.mark.parametrize(
    ("args", "expected"),
    [((0, 0), 894182419), ((0, 1), 1514274641), ((1, 0), 785910682), ((2, 3), 1709828778)],
)
def test_seed_hash_is_the_protocols(args: tuple[int, int], expected: int) -> None:
    assert seed_hash(*args) == expected


def test_order_is_the_protocols() -> None:
    parts = split(10, trial=0, domain=0)
    assert parts[Part.HELD_OUT].tolist() == [2, 3]
    assert parts[Part.TRAINING].tolist() == [8, 1, 4, 5, 0, 9, 6, 7]


@pytest.mark.parametrize(("size", "held_out"), [(0, 0), (4, 0), (5, 1), (9, 1), (1670, 334), (3929, 785)])
def test_a_fifth_rounded_down_is_held_out_and_every_image_is_in_one_part(size: int, held_out: int) -> None:
    parts = split(size, trial=1, domain=2)
    assert len(parts[Part.HELD_OUT]) == held_out
    assert sorted([*parts[Part.HELD_OUT], *parts[Part.TRAINING]]) == list(range(size))


def test_holdout_moves_the_border_and_keeps_the_order() -> None:
    fifth, half = split(10, trial=0, domain=0), split(10, trial=0, domain=0, holdout=0.5)
    assert half[Part.HELD_OUT].tolist() == [2, 3, 8, 1, 4]
    assert [*half[Part.HELD_OUT], *half[Part.TRAINING]] == [*fifth[Part.HELD_OUT], *fifth[Part.TRAINING]]
    assert len(split(10, trial=0, domain=0, holdout=0)[Part.HELD_OUT]) == 0


def test_trial_and_domain_give_other_splits() -> None:
    orders = {tuple(split(50, trial=trial, domain=domain)[Part.TRAINING]) for trial in range(3) for domain in range(4)}
    assert len(orders) == 12


def test_numpy_integers_give_the_split_of_plain_ones() -> None:
    """str((np.int64(0),)) is not "(0,)"."""
    assert split(10, trial=np.int64(0), domain=np.int64(0))[Part.HELD_OUT].tolist() == [2, 3]  # type: ignore[arg-type]


def test_global_randomness_is_left_alone() -> None:
    np.random.seed(0)
    before = np.random.random()
    np.random.seed(0)
    split(10, trial=0, domain=0)
    assert np.random.random() == before
