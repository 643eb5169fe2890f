"""`mecam train` around the training itself; the command as users run it is in tests/test_cli.py."""

from pathlib import Path

import pytest

from mecam.recipe import RecipeError, make
from mecam.training.command import refuse_other_runs


def test_a_folder_keeps_one_run(tmp_path: Path) -> None:
    recipe = make({})
    refuse_other_runs(recipe, tmp_path / "new")
    (tmp_path / recipe.run_id).mkdir()
    (tmp_path / recipe.run_id / "run.json").write_text("{}")
    refuse_other_runs(recipe, tmp_path)
    with pytest.raises(RecipeError, match=f"already holds another run, {recipe.run_id}; give another --out"):
        refuse_other_runs(make({"seed": 1}), tmp_path)
