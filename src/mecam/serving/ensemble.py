"""Predict with several models together: an ensemble of averages (EoA: Arpit et al., 2022) if each is an average."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mecam.runs import RunError
from mecam.serving.model import TrainedModel, load_model


class Ensemble(nn.Module):
    """The mean of the outputs of several networks."""

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, images: Tensor) -> Tensor:
        return torch.stack([network(images) for network in self.networks]).mean(0)


def load_ensemble(paths: Iterable[os.PathLike[str] | str], *, device: torch.device | str = "cpu") -> TrainedModel:
    """Load the models of several runs as one, whose outputs are the mean of theirs; one run is its own model.

    The models must have the same classes and the same preprocessing.
    """
    paths = list(paths)
    models = [load_model(path, device=device) for path in paths]
    first, *others = models
    if not others:
        return first
    for path, other in zip(paths[1:], others, strict=True):
        for what in ("classes", "preprocessing"):
            if getattr(other, what) != getattr(first, what):
                raise RunError(
                    f"{path} has other {what} than {paths[0]}: {getattr(other, what)}, not {getattr(first, what)}; an "
                    "ensemble takes models that share them"
                )
    return TrainedModel(
        Ensemble(model.network for model in models).eval(),
        first.classes,
        first.preprocessing,
        " + ".join(model.backbone for model in models),
        alone=any(model.alone for model in models),
        stopped="; ".join(model.stopped for model in models if model.stopped) or None,
    )
