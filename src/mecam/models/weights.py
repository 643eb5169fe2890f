"""Weights from a file into a network: safetensors, or what torch.load reads without running code."""

from __future__ import annotations

import json
import os
import pickle  # for its error alone # nosec B403
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from mecam.models.network import Network

StateDict = dict[str, Tensor]
SHOWN = 3  # keys named in a refusal
FOLDER = "MECAM_WEIGHTS"


class WeightsError(ValueError):
    """A file that is not a checkpoint, or not one of this network."""


def load_weights(network: Network, path: Path | str, *, name: str, classifier: tuple[str, ...]) -> str:
    """Load a checkpoint of the backbone `name` into the network, and say in a note what was loaded.

    Every tensor of the featurizer must be there in its shape, and nothing else but the classifier, which checkpoints
    hold under the names `classifier`. It becomes the head if it has the head's shape; otherwise it is left out.
    A network saved whole (the model.safetensors of a run) loads in the same way. Nothing changes in case of refusal.
    """
    body, head = _split(read_weights(path), classifier)
    expected: StateDict = network.featurizer.state_dict()
    _refuse_misfits(body, expected, f"{path} is not a checkpoint of {name}")
    # checkpoints from before torch 0.4.1 have no num_batches_tracked, which only momentum=None would read
    network.featurizer.load_state_dict({**expected, **body})
    if _shapes(head) == _shapes(network.head.state_dict()):
        network.head.load_state_dict(head)
        return f"weights from {path}, with its classifier"
    if head:
        return f"weights from {path}; {_describe(head, name)} left out, the head of {network.head.out_features} is new"
    return f"weights from {path}, which has no classifier"


def read_weights(path: Path | str) -> StateDict:
    """The tensors of a .safetensors, .pth or .pt file by name; no code in the file is run."""
    path = Path(path)
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise WeightsError(f"{path} should be a .safetensors, .pth or .pt file, got {path.suffix or 'no ending'!r}")
    if not path.is_file():
        bare = f"; give its path, or its folder in ${FOLDER}" if path.name == str(path) else ""
        raise WeightsError(f"there is no file {path}{bare}")
    try:
        found = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path} is damaged, or holds more than tensors, and to read that could run code; where you trust it, "
            "save the state dict alone: torch.save(model.state_dict(), ...)"
        ) from error
    except Exception as error:  # safetensors, zipfile and torch each have their own for damaged files
        raise WeightsError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    return _state_dict(found, path)


def find_weights(path: Path | str) -> Path:
    """The file at this path; a bare file name that is not there is looked for in $MECAM_WEIGHTS.

    So a recipe can name a checkpoint by its file name, and its runs have the same ids on every machine.
    """
    path = Path(path)
    folder = os.environ.get(FOLDER)
    if not folder or path.exists() or path.name != str(path):
        return path
    return Path(folder).expanduser() / path


def stated_architecture(path: Path | str) -> str | None:
    """The architecture that the metadata of a .safetensors file names; None if it names none.

    The weights of a run name their backbone; other files may have an entry `architecture`.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        facts = json.loads(metadata.get("mecam", "{}"))
    except (OSError, SafetensorError, ValueError):  # `read_weights` reports it; .pth and .pt files have no metadata
        return None
    stated = metadata.get("architecture") or (facts.get("backbone") if isinstance(facts, dict) else None)
    return None if stated is None else str(stated)


def _state_dict(found: object, path: Path) -> StateDict:
    """The tensors, out of what training scripts put around them and before their names."""
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise WeightsError(f"{path} should hold a state dict, tensors by name; found {type(found).__name__}")
    parallel = all(key.startswith("module.") for key in found)  # DistributedDataParallel's
    return {key.removeprefix("module.") if parallel else key: tensor for key, tensor in found.items()}


def _split(state: StateDict, classifier: tuple[str, ...]) -> tuple[StateDict, StateDict]:
    """The featurizer's tensors, and the classifier's as a linear layer's weight and bias where it is one."""
    if any(key.startswith("featurizer.") for key in state):
        body = {key: tensor for key, tensor in state.items() if not key.startswith("head.")}
        head = {key.removeprefix("head."): tensor for key, tensor in state.items() if key not in body}
        return {key.removeprefix("featurizer."): tensor for key, tensor in body.items()}, head
    head = {key: tensor for key, tensor in state.items() if key.startswith(tuple(f"{name}." for name in classifier))}
    body = {key: tensor for key, tensor in state.items() if key not in head}
    if len(classifier) == 1:
        head = {key.removeprefix(f"{classifier[0]}."): tensor for key, tensor in head.items()}
    return body, head


def _refuse_misfits(body: StateDict, expected: StateDict, problem: str) -> None:
    missing = [key for key in expected if key not in body and not key.endswith(".num_batches_tracked")]
    unexpected = [key for key in body if key not in expected]
    reshaped = [
        f"{key} of shape {tuple(body[key].shape)} where {tuple(tensor.shape)} is expected"
        for key, tensor in expected.items()
        if key in body and body[key].shape != tensor.shape
    ]
    findings = {"missing": missing, "unexpected": unexpected, "of another shape": reshaped}
    if any(findings.values()):
        raise WeightsError(f"{problem}: {'; '.join(_count(keys, what) for what, keys in findings.items() if keys)}")


def _count(keys: list[str], what: str) -> str:
    return f"{len(keys)} {what} ({', '.join(keys[:SHOWN])}{', ...' if len(keys) > SHOWN else ''})"


def _shapes(state: StateDict) -> dict[str, torch.Size]:
    return {key: tensor.shape for key, tensor in state.items()}


def _describe(head: StateDict, name: str) -> str:
    weight = head.get("weight")
    return f"layers that {name} does not use were" if weight is None else f"its classifier of {len(weight)} classes was"


__all__ = ["WeightsError", "find_weights", "load_weights", "read_weights", "stated_architecture"]
