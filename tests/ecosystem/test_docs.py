"""Code in the documentation that needs a framework of this environment runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from mecam.optim import SAM
from tests.docs.pages import PAGES, blocks, name
from tests.integrations.loops import SIZE, dataset, network

pytest.importorskip("fastai", reason="fastai is not installed; make ecosystem runs this")
MARKED = [page for page in PAGES if any(block.language == "py" for block in blocks(page))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", MARKED, ids=name)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastai.basics import DataLoader, DataLoaders

    monkeypatch.chdir(tmp_path)
    images, labels = dataset(torch.float32).tensors
    data = DataLoader(dataset(torch.float32), bs=SIZE, num_workers=0)
    names: dict[str, Any] = {
        "torch": torch,
        "SAM": SAM,
        "dls": DataLoaders(data, data, device="cpu"),
        "model": network(torch.float32),
        "images": images.numpy(),
        "labels": labels.numpy(),
        "loader": [(images, labels)],
        "loss_function": F.cross_entropy,
    }
    for number, block in enumerate(block for block in blocks(page) if block.language == "py"):
        exec(compile(block.code, f"{name(page)}, block {number}", "exec"), names)
