"""The example in the documentation runs on a plain torch model, and measures what the functions say."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch


def test_the_example_on_any_torch_model(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "instruments.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(code, names)  # our own documentation
    result = capsys.readouterr().out
    assert "largest eigenvalue" in result
    f, grid = names["f"], names["grid"]
    assert names["measured"].loss == pytest.approx(f.value())
    assert grid.loss.shape == (6, 6)
    corner = [-(a + b) for a, b in zip(*names["axes"], strict=True)]
    assert grid.loss[0, 0] == pytest.approx(f.value(corner), rel=1e-5)
