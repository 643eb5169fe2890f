"""Load the model of a run and predict images with it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mecam import methods
from mecam.data.augment import evaluate_transform
from mecam.data.decode import MAX_PIXELS, Room
from mecam.data.domains import DataError
from mecam.data.store import available_cores, fit
from mecam.methods import Setting
from mecam.models.network import Network
from mecam.models.registry import TIMM
from mecam.models.registry import create as create_network
from mecam.preprocessing import Preprocessing
from mecam.runs import RunError, find_run
from mecam.serving.confidence import Confidence, Together
from mecam.serving.pictures import Picture, as_sequence, name_of, pixels_of, room_for
from mecam.serving.weights import read_weights

# images per forward pass; on a CPU 8 images of 224 pixels fit into the cache
BATCH, BATCH_ON_CPU = 64, 8
SHOWN = 8  # classes in a repr
MOST_DOMAINS = 1000


@dataclass(frozen=True, repr=False)
class Prediction:
    """The predicted class of an image, or the reason why it cannot be read."""

    image: Picture
    label: str | None
    probability: float | None
    error: str | None = None
    novelty: float | None = None  # above 1: further from the training images than 95 % of held-out ones
    unknown: bool | None = None  # whether the probability is too low for the wanted precision
    probabilities: Mapping[str, float] = field(default_factory=dict, hash=False)  # by class

    def __repr__(self) -> str:
        outcome = self.error if self.probability is None else f"{self.label}, {100 * self.probability:.1f} %"
        return f"<Prediction of {name_of(self.image)}: {outcome}>"


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """The model of a run."""

    network: nn.Module
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    backbone: str
    alone: bool = False  # predict one image at a time, since predictions depend on batch mates
    confidence: Confidence | None = None  # of a model of mecam fit
    stopped: str | None = None  # for a run that has not finished: where it is, and of which step the weights are

    def __repr__(self) -> str:
        shown = ", ".join(self.classes[:SHOWN]) + (", ..." if len(self.classes) > SHOWN else "")
        stopped = f"; {self.stopped}" if self.stopped else ""
        network = f"{self.backbone} at {self.preprocessing.size} px on {self.device}"
        return f"<TrainedModel: {network}, {len(self.classes)} classes ({shown}){stopped}>"

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def predictions(
        self,
        images: Picture | Sequence[Picture],
        *,
        batch: int | None = None,
        max_pixels: int = MAX_PIXELS,
        unknown_below: float | None = None,
        together: Together | None = None,
    ) -> Iterator[Prediction]:
        """Yield one prediction per image, in order. Threads decode the next batch meanwhile.

        Args:
            images: files, their bytes, Pillow images, arrays (height, width, 3) or tensors (3, height, width), the
                last two with values of uint8 or from 0 to 1; or a batch of them as one array or tensor.
            batch: images per forward pass.
            max_pixels: files of more pixels are not decoded.
            unknown_below: mark predictions with a probability below this as unknown, such as `threshold(0.95)`.
            together: gets the images, for the novelty of all of them: `Together(model.confidence)`.
        """
        images = as_sequence(images)
        if self.alone:
            batch = 1
        elif batch is None:
            batch = BATCH_ON_CPU if self.device.type == "cpu" else BATCH
        read_one = partial(self._read, room=Room(), max_pixels=max_pixels)
        with ThreadPoolExecutor(available_cores()) as threads:
            ahead = [threads.submit(read_one, image) for image in images[:batch]]
            for start in range(0, len(images), batch):
                read = [future.result() for future in ahead]
                ahead = [threads.submit(read_one, image) for image in images[start + batch : start + 2 * batch]]
                group = images[start : start + batch]
                pixels = {place: one for place, one in enumerate(read) if not isinstance(one, DataError)}
                names = [name_of(group[place]) for place in pixels]
                outputs = self._outputs([*pixels.values()], names, together) if pixels else iter(())
                for image, one in zip(group, read, strict=True):
                    if isinstance(one, DataError):
                        yield Prediction(image, None, None, str(one))
                    else:
                        yield self._prediction(image, *next(outputs), unknown_below)

    def probabilities(self, pictures: Sequence[NDArray[np.uint8]]) -> Tensor:
        """Return (n, classes) on the CPU for pictures (height, width, 3) of any size."""
        return self._forward(pictures, [f"picture {number}" for number in range(len(pictures))])[0]

    def threshold(self, precision: float) -> float:
        """Return the probability from which this share of the predictions was right in domains left out of training.

        The model must be of mecam fit.
        """
        if self.confidence is None:
            raise RunError(
                "a threshold for a precision is chosen on domains left out of training, and this model has none on "
                "record; train it with mecam fit"
            )
        return self.confidence.threshold(precision)

    def _outputs(
        self, pictures: Sequence[NDArray[np.uint8]], names: Sequence[str], together: Together | None
    ) -> Iterator[tuple[Tensor, float | None]]:
        """Yield the probabilities and the novelty of each picture."""
        probabilities, features = self._forward(pictures, names)
        if self.confidence is None or features is None:
            return zip(probabilities, repeat(None))
        projected, predicted = self.confidence.space.project(features), probabilities.argmax(1)
        if together is not None:
            together.add(projected, predicted)
        return zip(probabilities, self.confidence.novelty(projected, predicted).tolist(), strict=True)

    @torch.inference_mode()
    def _forward(self, pictures: Sequence[NDArray[np.uint8]], names: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """Return (n, classes) and, where they are judged, features, on the CPU.

        An output that is not finite is an error that names the picture.
        """
        resized = torch.from_numpy(np.stack([self._resize(picture) for picture in pictures]))
        batch = resized.permute(0, 3, 1, 2).contiguous().to(self.device)
        pixels = evaluate_transform(batch, self.preprocessing)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        features = None if self.confidence is None else cast("Network", self.network).pooled(pixels)
        logits: Tensor = self.network(pixels) if features is None else cast("Network", self.network).head(features)
        finite = logits.isfinite().all(1).cpu()
        if not finite.all():
            first = names[int(finite.int().argmin())]
            raise RunError(
                f"the network's output for {first} is not finite (NaN or infinity), so there is no prediction: its "
                "training diverged. Train again with a smaller learning rate"
            )
        return logits.softmax(1).cpu(), None if features is None else features.cpu()

    def _read(self, image: Picture, *, room: Room, max_pixels: int) -> NDArray[np.uint8] | DataError:
        """Decode and resize an image: a batch of full-size photographs would fill gigabytes."""
        try:
            with room_for(image, room):
                return self._resize(pixels_of(image, max_pixels=max_pixels))
        except DataError as error:
            return error

    def _resize(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        own = self.preprocessing
        return fit(pixels, (own.size, own.size), own.interpolation, own.resize)

    def _prediction(
        self, image: Picture, probabilities: Tensor, novelty: float | None, unknown_below: float | None
    ) -> Prediction:
        by_class = dict(zip(self.classes, probabilities.tolist(), strict=True))
        label = self.classes[int(probabilities.argmax())]
        unknown = None if unknown_below is None else by_class[label] < unknown_below
        return Prediction(image, label, by_class[label], novelty=novelty, unknown=unknown, probabilities=by_class)


def load_model(path: os.PathLike[str] | str, *, device: torch.device | str = "cpu") -> TrainedModel:
    """Load the model of a run: the selected weights, or the best so far if it has not finished (see `stopped`)."""
    folder = find_run(path)
    weights = read_weights(folder)
    file = folder.model_file if weights.stopped is None else folder.checkpoint_folder
    try:
        preprocessing = _checked(weights.facts)
        needed, there = _size(weights.facts), sum(tensor.numel() for tensor in weights.tensors.values())
        if needed not in (None, there):
            raise ValueError(f"the network has {needed:,} numbers, and the file {there:,}")
        network, alone = _network(weights.facts)
        network.load_state_dict(weights.tensors)
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise RunError(f"{file} does not describe a network that fits its weights: {error}") from error
    return TrainedModel(
        network.to(device).eval(),
        tuple(weights.facts["classes"]),
        preprocessing,
        weights.facts["backbone"],
        alone=alone,
        confidence=Confidence.read(folder),
        stopped=weights.stopped,
    )


def _checked(facts: Any) -> Preprocessing:
    """Return the preprocessing in the facts of a model. Raise an error for facts that no training writes."""
    classes, domains = facts["classes"], facts["domains"]
    if not isinstance(classes, list) or not classes or not all(isinstance(name, str) for name in classes):
        raise ValueError("its classes are not a list of names")
    if isinstance(domains, bool) or not isinstance(domains, int) or not 0 < domains <= MOST_DOMAINS:
        raise ValueError(f"domains={domains!r} must be from 1 to {MOST_DOMAINS}")
    return Preprocessing.from_dict(facts)


def _size(facts: Mapping[str, Any]) -> int | None:
    """Return how many numbers the network has, without taking memory; None if its constructor reads values."""
    try:
        with torch.device("meta"):
            network, _ = _network(facts)
    except RuntimeError as error:
        if "meta" not in str(error):
            raise
        return None
    numbers: int = sum(tensor.numel() for tensor in network.state_dict().values())
    return numbers


def _network(facts: Mapping[str, Any]) -> tuple[nn.Module, bool]:
    """Return a network with random weights, and whether its predictions depend on batch mates."""
    classes = len(facts["classes"])
    moved = facts["method"] in methods.METHODS.examples and facts["method"] not in methods.METHODS
    # a method that became an example has the plain network
    method = methods.create("erm") if moved else methods.create(facts["method"], **facts["method_settings"])
    plain = create_network(
        f"{TIMM}{facts['architecture']}" if "architecture" in facts else facts["backbone"],
        classes=classes,
        pretrained=False,  # all weights are in the file
        image_size=facts["image_size"],
        settings=facts.get("architecture_settings"),
    )
    network: nn.Module = method.build(plain, Setting(classes, facts["domains"], steps=1, lr=0.0))
    return network, method.mates
