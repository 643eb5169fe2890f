"""Run folders as training leaves them, without the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mecam.recipe import Recipe
from mecam.runs import RunFolder

CLASSES = ["<b>bold</b>", "quote \" and ' it", "</script><script>window.hacked = true</script>"]
ENVIRONMENT = {"mecam": "0.1.0", "device": "</script><script>window.hacked = true</script>"}


def splits(domains: list[str], accuracy: float, **more: float) -> dict[str, Any]:
    return {
        f"{name} {part}": {"images": 10, "loss": 2 - accuracy, "accuracy": accuracy, **more}
        for name in domains
        for part in ("in", "out")
    }


def write_run(
    out: Path,
    accuracy: float | None,
    *,
    domains: list[str],
    evaluations: int = 3,
    predicted: list[tuple[int, int, float]] | None = None,
    fingerprint: str = "0" * 32,
    balanced: float | None = None,
    classes: list[str] = CLASSES,
    **values: Any,
) -> RunFolder:
    """A run that reached `accuracy`, or is not finished; `predicted` lists label, predicted class and confidence."""
    recipe = Recipe(**values)
    folder = RunFolder(out / recipe.run_id)
    folder.begin(recipe.to_dict(), ENVIRONMENT, run_id=recipe.run_id)
    for number in range(evaluations):
        share = (accuracy or 0.5) * (number + 1) / evaluations
        folder.append({"step": 10 * number, "splits": splits(domains, share)})
    if accuracy is not None:
        folder.write_model({"weight": torch.zeros(1)}, {"classes": classes})
        if predicted:
            columns = list(zip(*predicted, strict=True))
            folder.write_predictions(
                {
                    "domain": torch.zeros(len(predicted), dtype=torch.int64),
                    "index": torch.arange(len(predicted)),
                    "label": torch.tensor(columns[0]),
                    "predicted": torch.tensor(columns[1]),
                    "confidence": torch.tensor(columns[2]),
                }
            )
        more = {} if balanced is None else {"balanced_accuracy": balanced}
        result = {"selected_step": 20, "target_accuracy": accuracy, "splits": splits(domains, accuracy, **more)}
        folder.finish({**result, "data": fingerprint})
    return folder
