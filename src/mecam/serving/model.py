"""A finished run as a model: its network, its classes and its preprocessing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from mecam import methods
from mecam.data.augment import evaluate_transform
from mecam.data.decode import decode
from mecam.data.domains import DataError
from mecam.data.store import available_cores, fit
from mecam.image_sizes import Interpolation
from mecam.methods import Setting
from mecam.models.registry import TIMM
from mecam.models.registry import create as create_network
from mecam.runs import RunError, find_run

# images that go through the network at once; on one core 8 of 224 pixels take half the time of 64 (lite0: 34 against 19
# images a second), which leave its cache
BATCH, BATCH_ON_CPU = 64, 8


Picture = Path | str | Image.Image  # a file, or an image that Pillow has opened


@dataclass(frozen=True)
class Preprocessing:
    """From a picture to the network's input: resize, scale to [0, 1], normalise."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: Interpolation = "bilinear"

    def resize(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """(height, width, 3) to (size, size, 3)."""
        return fit(pixels, (self.size, self.size), self.interpolation)

    def normalize(self, pixels: Sequence[NDArray[np.uint8]], device: torch.device) -> Tensor:
        """Resized pictures to float (n, 3, size, size)."""
        batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).contiguous()
        return evaluate_transform(batch.to(device), self.size, mean=self.mean, std=self.std)

    def describe(self) -> dict[str, Any]:
        filter_ = self.interpolation.upper()
        return {
            "image_size": self.size,
            "interpolation": self.interpolation,
            "mean": list(self.mean),
            "std": list(self.std),
            "steps": [
                "turn the picture as its EXIF orientation says, put transparent parts on white, make it 8-bit RGB",
                f"resize to {self.size} x {self.size}, aspect ratio not kept, as Pillow's {filter_} does (antialiased)",
                "divide by 255, subtract the mean, divide by the standard deviation, channel by channel",
                "lay out as channels, rows, columns",
            ],
        }


@dataclass(frozen=True)
class Prediction:
    """The predicted class of an image, or the reason that it could not be read."""

    image: Picture
    label: str | None
    probability: float | None
    error: str | None = None
    probabilities: Mapping[str, float] = field(default_factory=dict, hash=False)  # of every class


@dataclass(frozen=True)
class TrainedModel:
    """The model of a finished run."""

    network: nn.Module
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    backbone: str
    alone: bool = False  # predictions depend on the other images of a batch, so images are predicted one by one

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def predictions(self, images: Picture | Sequence[Picture], *, batch: int | None = None) -> Iterator[Prediction]:
        """One prediction per image, in order; threads decode the next batch meanwhile."""
        if isinstance(images, (Path, str, Image.Image)):
            images = [images]
        if self.alone:
            batch = 1
        elif batch is None:
            batch = BATCH_ON_CPU if self.device.type == "cpu" else BATCH
        starts = range(0, len(images), batch)
        with ThreadPoolExecutor(available_cores()) as threads:
            ahead = [threads.submit(self._read, image) for image in images[:batch]]
            for start in starts:
                read = [future.result() for future in ahead]
                ahead = [threads.submit(self._read, image) for image in images[start + batch : start + 2 * batch]]
                pixels = [found for found in read if not isinstance(found, DataError)]
                found = iter(self.probabilities(pixels)) if pixels else iter(())
                for image, one in zip(images[start : start + batch], read, strict=True):
                    yield self._prediction(image, one if isinstance(one, DataError) else next(found))

    @torch.inference_mode()
    def probabilities(self, pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
        """(n, classes), on the CPU, for pictures of any size as (height, width, 3)."""
        resized = [self.preprocessing.resize(picture) for picture in pictures]
        pixels = self.preprocessing.normalize(resized, self.device)
        logits: Tensor = self.network(pixels.contiguous(memory_format=torch.channels_last))
        return logits.softmax(1).cpu()

    def _read(self, image: Picture) -> NDArray[np.uint8] | DataError:
        """Resized at once: a batch of photographs as they are would fill gigabytes."""
        try:
            if isinstance(image, Image.Image):
                return self.preprocessing.resize(decode(image, name="the image"))
            return self.preprocessing.resize(decode(Path(image), name=str(image)))
        except DataError as error:
            return error

    def _prediction(self, image: Picture, found: Tensor | DataError) -> Prediction:
        if isinstance(found, DataError):
            return Prediction(image, None, None, str(found))
        values = found.tolist()
        best = int(found.argmax())
        every = dict(zip(self.classes, values, strict=True))
        return Prediction(image, self.classes[best], values[best], probabilities=every)


def load_model(path: Path | str, *, device: torch.device | str = "cpu") -> TrainedModel:
    """The model of a finished run."""
    folder = find_run(path)
    if not folder.is_done():
        raise RunError(f"the run in {folder.path} is not finished; run its mecam train command again to resume it")
    weights, facts = folder.read_model()
    classes = len(facts["classes"])
    method = methods.create(facts["method"], **facts["method_settings"])
    plain = create_network(
        f"{TIMM}{facts['architecture']}" if "architecture" in facts else facts["backbone"],
        classes=classes,
        pretrained=False,  # nothing is downloaded: all weights are in the file
        image_size=facts["image_size"],
        settings=facts.get("architecture_settings"),
    )
    network = method.build(plain, Setting(classes, facts["domains"], steps=1, lr=0.0))
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise RunError(f"{folder.model_file} does not fit the network {facts['backbone']}: {error}") from error
    preprocessing = Preprocessing(
        facts["image_size"], tuple(facts["mean"]), tuple(facts["std"]), facts.get("interpolation", "bilinear")
    )
    return TrainedModel(
        network.to(device).eval(), tuple(facts["classes"]), preprocessing, facts["backbone"], alone=method.mates
    )
