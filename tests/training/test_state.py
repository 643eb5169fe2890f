"""The state of a run: what it resumes from."""

from pathlib import Path

import torch

from mecam.data.shapes import shapes
from mecam.recipe import Recipe
from mecam.runs import checkpoint
from mecam.training.machine import find_machine
from mecam.training.run import Run
from mecam.training.state import load_state_dict, state_dict
from mecam.training.step import train_step


def test_a_checkpoint_with_the_plain_state_of_its_optimizer_resumes(tmp_path: Path) -> None:
    """As runs with Adam wrote them before 0.1: torch's own state, and the count of skipped steps beside it."""
    recipe = Recipe(target="sketch", steps=8, batch=4, image_size=16)
    whole, resumed = (Run(recipe, find_machine("cpu"), shapes(per_class=4)) for _ in range(2))
    for step in range(3):
        train_step(whole, step)
    state = state_dict(whole, 2)
    plain = whole.optimizer.base_optimizer.state_dict()
    groups = [{k: v for k, v in group.items() if k not in ("taken", "skipped")} for group in plain["param_groups"]]
    checkpoint.save(tmp_path, state | {"optimizer": plain | {"param_groups": groups}, "skipped": 2})
    load_state_dict(resumed, checkpoint.load(tmp_path))
    assert resumed.optimizer.skipped == 2
    for step in range(3, 6):
        train_step(whole, step)
        train_step(resumed, step)
    torch.testing.assert_close(resumed.trained.state_dict(), whole.trained.state_dict(), rtol=0, atol=0)
