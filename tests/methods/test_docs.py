"""The method that the documentation writes is what it says."""

import re
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from mecam.methods import Batch
from mecam.models.network import Network


def test_the_example_of_an_own_method(network: Network, batch: Batch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "adding" / "method.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)[1]  # type: ignore[index]
    names: dict[str, Any] = {}
    exec(code, names)  # our own documentation
    loss, state = names["Variance"]().loss(network, batch, None, "kept")
    logits = network(batch.images)
    each = [F.cross_entropy(logits[d * 6 : d * 6 + 6], batch.labels[d * 6 : d * 6 + 6]) for d in range(3)]
    mean = sum(each) / 3
    torch.testing.assert_close(loss, mean + 10 * sum((value - mean) ** 2 for value in each) / 3)
    assert state == "kept"
