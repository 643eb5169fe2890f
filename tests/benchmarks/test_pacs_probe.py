"""A linear classifier on frozen features, with the protocol's splits."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mecam.data.splits import split
from mecam.models import resnet8

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import pacs_probe


def test_a_record_for_each_target_and_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, out = tmp_path / "tiny.safetensors", tmp_path / "probe.json"
    save_file(resnet8(classes=3).state_dict(), weights)
    options = ["--data", "shapes", "--backbone", "resnet8", "--image-size", "48", "--seeds", "0", "1"]
    options += ["--penalties", "0.1", "0.01", "--weights", str(weights), "--out", str(out), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["pacs_probe.py", *options])
    assert pacs_probe.main() == 0
    found = json.loads(out.read_text())
    assert (found["data"], found["backbone"], found["weights"]) == ("shapes", "resnet8", "tiny.safetensors")
    assert found["image_size"] == 48
    domains = ["art", "cartoon", "photo", "sketch"]
    assert [(cell["target"], cell["seed"]) for cell in found["cells"]] == [(d, s) for s in (0, 1) for d in domains]
    for cell in found["cells"]:
        assert cell["penalty"] in (0.1, 0.01)
        assert 1 / 7 < cell["validation"] <= 1
        assert 0 <= cell["target_accuracy"] <= 1


def test_the_target_plays_no_part_in_the_choice() -> None:
    """A feature that tells the classes in the sources, and the other way round in the target."""
    draw = torch.Generator().manual_seed(0)
    parts = []
    for sign in (1.0, 1.0, -1.0):
        labels = torch.randint(0, 2, (60,), generator=draw)
        parts.append((sign * (2.0 * labels - 1)[:, None], labels))
    splits = [split(60, trial=0, domain=domain) for domain in range(3)]
    assert pacs_probe.probe(parts, splits, 2, [1e-3, 1.0]) == {"penalty": 1.0, "validation": 1, "target_accuracy": 0}


def test_the_fit_is_at_the_minimum() -> None:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 5, generator=draw, dtype=torch.float64), torch.randint(0, 3, (40,), generator=draw)
    found = pacs_probe.fit(x, y, torch.zeros(6, 3, dtype=torch.float64), 0.1).requires_grad_()
    loss = torch.nn.functional.cross_entropy(x @ found[:-1] + found[-1], y) + 0.05 * found[:-1].square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    assert found.grad is not None
    np.testing.assert_allclose(found.grad, 0, atol=1e-5)
