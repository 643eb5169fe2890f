"""Run folders with results of our choice: what tables read, without the training."""

import json
from pathlib import Path
from typing import Any

from mecam.recipe import make


def write_run(out: Path, accuracy: float | None, *, validation: float = 0.5, images: str = "x", **values: Any) -> Path:
    """A finished run that reached these fractions, or an unfinished one; `images` is its data's fingerprint."""
    recipe = make({"target": "art", **values})
    folder = out / recipe.run_id
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"id": recipe.run_id, "recipe": recipe.to_dict(), "environment": {}}))
    if accuracy is not None:
        domains = ("art", "cartoon", "photo", "sketch")
        splits = {f"{domain} out": {"accuracy": validation} for domain in domains if domain != recipe.target}
        splits[f"{recipe.target} out"] = {"accuracy": 1 - accuracy}
        result = {"target_accuracy": accuracy, "splits": splits, "selected_step": 0, "data": images}
        (folder / "done.json").write_text(json.dumps({"result": result, "sha256": {}}))
    return folder
