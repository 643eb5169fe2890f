"""The example in the documentation of how to add a method runs, and is what it says."""

import re
from pathlib import Path
from typing import Any

import torch

from tests.optim.flat import batch, closure_for, flatten, gradient, network

X, Y = batch()


def test_the_example_of_an_own_method() -> None:
    text = (Path(__file__).parents[2] / "docs" / "adding" / "optimizer.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)[1]  # type: ignore[index]
    names: dict[str, Any] = {}
    exec(code, names)  # our own documentation
    model = network()
    optimizer = names["Lookback"](model.parameters(), torch.optim.SGD, rho=0.3, lr=0.1)
    theta = flatten(list(model.parameters()))
    optimizer.step(closure_for(optimizer, model, X, Y))
    g = gradient(theta, X, Y)
    expected = 0.5 * g + 0.5 * gradient(theta - 0.3 * g / (g.norm() + 1e-12), X, Y)
    torch.testing.assert_close(flatten([p.grad for p in model.parameters()]), expected, rtol=0, atol=1e-12)
