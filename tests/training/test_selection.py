"""Which step is kept."""

import pytest
import torch

from mecam.recipe import Selection
from mecam.training.selection import Best

OFFERS = [(0, 0.2, 0.9), (10, 0.8, 0.1), (20, 0.8, 0.4), (30, 0.5, 0.95)]  # step, validation, target


def choose(selection: Selection) -> Best:
    best, weights = Best(selection), {"w": torch.zeros(2)}
    for step, validation, oracle in OFFERS:
        weights["w"].fill_(step)  # training goes on in the same memory
        best.offer(step, validation, oracle, weights)
    return best


@pytest.mark.parametrize(("selection", "step"), [("validation", 10), ("last", 30), ("oracle", 30)])
def test_the_best_step_and_its_weights(selection: Selection, step: int) -> None:
    best = choose(selection)
    assert best.step == step
    assert best.weights["w"].tolist() == [step, step]


def test_the_target_is_looked_at_by_the_oracle_alone() -> None:
    for selection in ("validation", "last"):
        blind = Best(selection)
        for step, validation, _ in OFFERS:
            blind.offer(step, validation, None, {})
        assert blind.step == choose(selection).step


def test_patience_counts_evaluations_since_source_validation_improved() -> None:
    best = Best("last", patience=2)  # whatever selects the weights
    stopped = []
    for step, validation in enumerate((0.2, 0.1, 0.3, 0.3, 0.3)):
        best.offer(step, validation, None, {})
        stopped.append(best.stopped)
    assert stopped == [False, False, False, False, True]
    patient = Best("validation")
    for step in range(100):
        patient.offer(step, 0.5, None, {})
    assert not patient.stopped


def test_state_of_an_older_checkpoint_is_loaded() -> None:
    older = {"step": 10, "value": 0.8, "weights": {"w": torch.zeros(1)}, "stopped": False}
    best = Best("validation", patience=1)
    best.load_state_dict(older)
    best.offer(20, 0.7, None, {})
    assert (best.step, best.stopped) == (10, False)


def test_state_comes_back() -> None:
    best, again = choose("validation"), Best("validation")
    again.load_state_dict(best.state_dict())
    again.offer(40, 0.7, 1.0, {})
    assert again.step == 10
    assert again.weights["w"].tolist() == [10, 10]
    again.offer(50, 0.81, 0.0, {"w": torch.ones(2)})
    assert again.step == 50
