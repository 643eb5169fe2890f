"""A folder in which the examples of the documentation can be typed: small data, small networks, one step."""

import glob
import math
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from mecam.benchmark.worker import work
from mecam.cli import app
from mecam.data.known import KNOWN
from mecam.data.shapes import shapes
from mecam.progress import Progress
from mecam.recipe import Recipe
from mecam.training.speed import Cost
from tests.docs.pages import ROOT

# sizes alone: what an example says of parts and settings stays as it is
TRAINING = "--steps 1 --set image_size=32 --set batch=4 --set evaluate_every=1 --device cpu"
SMALL = {
    "train": f"{TRAINING} --quiet",
    "bench": f"{TRAINING} --set pretrained=false",
    "fit": "--backbone lite0small --minutes 0.01 --device cpu --quiet",
    "curvature": "--images 8",
    "soup": "--device cpu",
    "spectrum": "--images 8 --draws 2",
    "landscape": "--images 8 --steps 3",
}
SIZES = {r"--(warmup|track) \d+": r"--\1 1", r" 20\b": " 2", r"(mecam fit \S+) --minutes \d+": r"\1"}
# examples that leave what the others read
PRODUCERS = {
    "model": "mecam train --data root --optimizer mecam --out model",
    "results": "mecam bench --data root --optimizer adam,mecam --out results",
    "runs": "mecam bench --target sketch --optimizer adam,sam,mecam --seeds 0,1,2 --steps 300 --out runs",
    "tracked": "mecam train --optimizer mecam --target sketch --track 10 --out tracked",
    "table3": "mecam bench recipes/table3.toml --out table3",
    "packed": "mecam data pack root --out packed",
    "records.json": "mecam bench --optimizer adam,mecam --measure curvature,eigenvalue,landscape "
    "--records records.json --out results",
}
WORDS = {"ROOT": "root", "STORE": "packed", "RUNS": "runs"}  # placeholders; RUN and OTHER are two runs of results


class Sandbox:
    """Every line runs once, in a folder of its own, in which lie the data and what the producers left."""

    def __init__(self, home: Path) -> None:
        self.home, self.count = home, 0
        self.results: dict[str, tuple[Result, Path]] = {}
        self.inputs = {"recipes": ROOT / "recipes", "photo.jpg": home / "root/sketch/circle/0.png"}
        for name, domains in {"root": ("clinic", "hospital", "sketch"), "images": KNOWN["OfficeHome"].domains}.items():
            self.inputs[name] = write_pictures(home / name, domains)
        for name, known in KNOWN.items():
            write_pictures(home / "benchmarks" / name, known.domains)
        self.inputs |= {"benchmarks": home / "benchmarks", "PACS": home / "benchmarks" / "PACS"}
        self.inputs["folder-of-photos"] = home / "root" / "sketch" / "circle"
        self.inputs["new-place"] = home / "root" / "sketch"
        self.inputs["photos.csv"] = home / "photos.csv"
        self.inputs["photos.csv"].write_text(f"path,label\n{self.inputs['photo.jpg']},circle\n", encoding="utf-8")
        for name, line in PRODUCERS.items():
            result, folder = self.run(line)
            assert result.exit_code == 0, f"{line}: {result.output}"
            self.inputs[name] = folder / name

    def run(self, line: str) -> tuple[Result, Path]:
        """What came of a line, and the folder that it ran in."""
        line = shrunk(line)
        if line not in self.results:
            self.count += 1
            folder = self.home / str(self.count)
            folder.mkdir()
            out = re.search(r"--out (\S+)", line)
            for name, place in self.inputs.items():
                if name != (out[1] if out else "runs" if " train" in line else None):
                    shutil.copyfile(place, folder / name) if place.is_file() else (folder / name).symlink_to(place)
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                self.results[line] = CliRunner().invoke(app, self.words(line)), folder
        return self.results[line]

    def words(self, line: str) -> list[str]:
        """The words after `mecam`, as a shell would give them, with sizes that take no time."""
        words = shlex.split(shrunk(line))
        words = words[words.index("mecam.cli") + 1 :] if words[0] == "torchrun" else words[1:]
        words = [found for word in words for found in self._expanded(word)]
        small = SMALL.get(words[0], "").split()
        words += small[2:] if words[0] == "train" and "--minutes" in words else small  # --minutes sets the steps
        return (
            [*words, "--backbone", "resnet8"] if words[0] in ("train", "bench") and "--backbone" not in words else words
        )

    def _expanded(self, word: str) -> Sequence[str]:
        for place, placeholder in enumerate(("RUN", "OTHER")):
            if word.removeprefix("results/") == placeholder:
                return [sorted(self.inputs["results"].glob("*/"))[place].as_posix()]
        return sorted(glob.glob(word)) if "*" in word else [WORDS.get(word, word)]


def shrunk(line: str) -> str:
    """A line with the sizes of SIZES; those that differ in a time budget alone are one."""
    for pattern, small in SIZES.items():
        line = re.sub(pattern, small, line)
    return line


@contextmanager
def small_world(home: Path) -> Iterator[None]:
    """The embedded set with a few images, data and cache in `home`, and runs of a benchmark in this process."""

    def run(engine: Any, recipes: Sequence[Recipe], out: Path, progress: Progress) -> None:
        kinds: dict[tuple[str, ...], Recipe] = {}
        for recipe in recipes:
            kinds.setdefault(
                (recipe.method, recipe.optimizer, recipe.averaging, str(recipe.optimizer_settings)), recipe
            )
        for recipe in list(kinds.values())[:6]:  # one target and one seed of each
            work(recipe, out, "cpu", progress, after=engine.after)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MECAM_CACHE", str(home / "cache"))
        patch.setenv("MECAM_DATA", str(home / "benchmarks"))
        patch.setattr("mecam.data.open.shapes.shapes", partial(shapes, per_class=4))
        patch.setattr("mecam.benchmark.estimate.LONG", 0.0)  # seconds: one step is timed
        patch.setattr("mecam.analysis.measure.STEPS", 3)  # of a spectral density
        for products in ("SKETCH", "DRAWS"):  # of a trace
            patch.setattr(f"mecam.analysis.measures.{products}", 2)
        patch.setattr("mecam.fitting.run.export", lambda *_: None)  # takes most of the time of a fit
        patch.setattr("mecam.training.sizing.cost_of", lambda *_: Cost(step=240.0))  # few steps fit into any minutes
        patch.setattr("mecam.benchmark.local.LocalEngine.run", run)
        patch.setattr("mecam.benchmark.ray_engine.RayEngine.run", run)
        yield


def write_pictures(root: Path, domains: Sequence[str], each: int = 5) -> Path:
    """Two classes of the embedded set as files, under these names of domains."""
    from PIL import Image

    data = shapes(per_class=each * math.ceil(len(domains) / 4))
    for number, domain in enumerate(domains):
        for label, name in enumerate(data.classes[:2]):
            own = np.flatnonzero(data.labels(number % 4) == label)[number // 4 * each :][:each]  # no picture twice
            for place, index in enumerate(own.tolist()):
                file = root / domain / name / f"{place}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(data.images(number % 4, [index])[0].permute(1, 2, 0).numpy()).save(file)
    return root
