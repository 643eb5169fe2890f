"""Table 3 from end to end on folders that are called as the five data sets: 13 optimizers, a target and a seed each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mecam.cli import app
from mecam.data.known import KNOWN
from tests.data.folders import save

TABLE3 = Path(__file__).parents[2] / "recipes" / "table3.toml"
TINY = ["steps=1", "evaluate_every=1", "batch=2", "image_size=16", "backbone=resnet8"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder for $MECAM_DATA: the right domains, two classes of three tiny images each."""
    root, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for known in KNOWN.values():
        for domain in known.domains:
            for name in ("one", "two"):
                (root / known.name / domain / name).mkdir(parents=True)
                for number in range(3):
                    file = root / known.name / domain / name / f"{number}.png"
                    save(file, random.integers(0, 256, (16, 16, 3), dtype=np.uint8))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MECAM_DATA", str(root))
        patch.setenv("MECAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield root


def mecam(*words: str | Path) -> Any:
    found = CliRunner().invoke(app, [str(word) for word in words])
    assert found.exit_code == 0, found.output
    return found


@pytest.mark.usefixtures("in_process")
def test_table_3_on_all_five_data_sets(root: Path, tmp_path: Path) -> None:
    words = ["--seeds", "0", "--out", tmp_path, "--device", "cpu"]
    words += [word for value in TINY for word in ("--set", value)]
    for name, known in KNOWN.items():
        data = root / name if name == "VLCS" else name  # by path, or by name in $MECAM_DATA
        mecam("bench", TABLE3, "--data", str(data), "--target", known.domains[-1], *words)
    assert len(list(tmp_path.glob("*/done.json"))) == 13 * 5
    text = mecam("table", tmp_path, "--compare", "paper").stdout
    for cell in ("MeCAM (comparison_Opt, paper)", "SAGM (comparison_Opt, reproduced)", "YOGI (PACS2, inherited)"):
        assert f"paper: {cell}" in text
    [legend] = [line for line in text.splitlines() if "†: differs from the published setting" in line]
    shared = ("batch 2, not 32", "evaluate_every 1, not 100", "backbone resnet8, not resnet50")
    for words_of_all in (*shared, "image_size 16, not 224", "no ImageNet weights", "batch norm not frozen"):
        assert f"{words_of_all};" in legend or f"{words_of_all}." in legend
    assert "steps 1, not 15000 (DomainNet)" in legend
    for same in ("lr ", "rho ", "alpha ", "weight_decay ", "dropout "):
        assert same not in legend, "these are the paper's"
    labels = [line.split("  ")[0] for line in text.splitlines()]
    assert sum(label == "mecam †" for label in labels) == 6, "five data sets and all of them"
