"""A trained run as a model that can be used: its network, its classes and what to do with an image before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mecam import methods
from mecam.data.augment import evaluate_transform
from mecam.data.decode import decode
from mecam.methods import Setting
from mecam.models.registry import create as create_network
from mecam.runs import RunError, RunFolder


@dataclass(frozen=True)
class Preprocessing:
    """From a picture to the network's input: resize, scale to [0, 1], normalise."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, pixels: Tensor) -> Tensor:
        """uint8 (n, 3, height, width) to float (n, 3, size, size)."""
        return evaluate_transform(pixels, self.size, mean=self.mean, std=self.std)

    def describe(self) -> dict[str, Any]:
        return {
            "input": f"float32 (batch, 3, {self.size}, {self.size}), RGB",
            "resize": f"to {self.size} x {self.size}, aspect ratio not kept, bilinear with antialiasing",
            "scale": "pixels / 255",
            "mean": list(self.mean),
            "std": list(self.std),
        }


@dataclass(frozen=True)
class TrainedModel:
    """What a finished run gives."""

    network: nn.Module
    classes: tuple[str, ...]
    preprocessing: Preprocessing

    @torch.inference_mode()
    def probabilities(self, image: Path | bytes, *, name: str | None = None) -> Tensor:
        """The probability of each class for one image."""
        pixels = decode(image, name=name or str(image))
        batch = torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1))).unsqueeze(0)
        device = next(self.network.parameters()).device
        logits: Tensor = self.network(self.preprocessing(batch.to(device)))
        return logits.softmax(1)[0].cpu()


def find_run(path: Path | str) -> RunFolder:
    """The run in this folder, or the only one below it."""
    path = Path(path)
    if RunFolder(path).exists():
        return RunFolder(path)
    runs = sorted(child.parent for child in path.glob("*/run.json")) if path.is_dir() else []
    if len(runs) == 1:
        return RunFolder(runs[0])
    if not runs:
        raise RunError(f"there is no run in {path}; give the folder that holds its run.json")
    raise RunError(f"{path} holds {len(runs)} runs; give one of them, such as {runs[0]}")


def load_model(path: Path | str, *, device: str = "cpu") -> TrainedModel:
    """The model of a finished run."""
    folder = find_run(path)
    if not folder.is_done():
        raise RunError(f"the run in {folder.path} is not finished; run its mecam train command again to go on with it")
    weights, facts = folder.read_model()
    classes = len(facts["classes"])
    method = methods.create(facts["method"], **facts["method_settings"])
    plain = create_network(facts["backbone"], classes=classes, pretrained=False)
    network = method.build(plain, Setting(classes, facts["domains"], steps=1, lr=0.0))
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise RunError(f"{folder.model_file} does not fit the network {facts['backbone']}: {error}") from error
    preprocessing = Preprocessing(facts["image_size"], tuple(facts["mean"]), tuple(facts["std"]))
    return TrainedModel(network.to(device).eval(), tuple(facts["classes"]), preprocessing)
