"""Real commands, killed and failed, end in the same bytes. Many more of it: make torture."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from mecam.benchmark.render import table
from mecam.data.open import open_data
from mecam.data.pack import pack
from mecam.recipe import Recipe
from mecam.training import train
from tests.reliability.histories import WRITING, Blow, Whole, files_of, suffer
from tests.serving.runs import DOMAINS, write_images

SETTING = {"backbone": "resnet8", "batch": 4, "image_size": 16, "evaluate_every": 2, "steps": 6, "lr": 0.001}
WORDS = [word for name, value in SETTING.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A small folder, in a cache of its own, so that a run is mostly its start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MECAM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield write_images(tmp_path_factory.mktemp("images") / "set")


def undisturbed(images: Path, out: Path, targets: Sequence[str], **values: object) -> Whole:
    """What the command should leave: the same runs in this process, which has torch at hand."""
    for target in targets:
        recipe = Recipe(**{"data": str(images), "target": target, **SETTING, **values})
        train(recipe, out, device="cpu", data=open_data(images))
    return Whole(files_of(out), table(out, form="json")[0], seconds=1.0)


@pytest.mark.attack("Kills, full disks, power cuts")
def test_training(images: Path, tmp_path: Path) -> None:
    whole = undisturbed(images, tmp_path / "whole", DOMAINS[:1], optimizer="mecam", averaging="swad")
    blows = [
        Blow("SIGKILL", match="checkpoint/manifest.json", calls=("replace",), at=2),
        Blow("ENOSPC", match="checkpoint", calls=WRITING, at=6),
        Blow("SIGKILL", match="done.json", calls=("replace",)),
    ]
    words = ("train", "--data", str(images), "--target", DOMAINS[0], "--optimizer", "mecam", "--averaging", "swad")
    tally = suffer((*words, "--quiet", *WORDS), tmp_path / "struck", blows, whole)
    assert (tally.lost, tally.doubled, tally.wrong) == ([], [], [])
    assert sum(tally.landed.values()) == len(blows), tally


@pytest.mark.attack("Kills, full disks, power cuts")
def test_benchmark(images: Path, tmp_path: Path) -> None:
    """A worker that dies while it decodes is replaced."""
    store = pack(images, tmp_path / "store", mode="encoded").path
    whole = undisturbed(store, tmp_path / "whole", DOMAINS[:2])
    blows = [Blow("SIGKILL", calls=("decode",), at=60)]
    words = ("bench", "--data", str(store), "--target", ",".join(DOMAINS[:2]), "--seeds", "0", "--workers", "1")
    tally = suffer((*words, *WORDS), tmp_path / "struck", blows, whole)
    assert (tally.lost, tally.doubled, tally.wrong) == ([], [], [])
    assert tally.landed["SIGKILL in decoding"] == 1, tally
