"""Load weights into a network, from safetensors or from files that torch.load reads without running code."""

from __future__ import annotations

import json
import os
import pickle  # for its error alone # nosec B403
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from mecam.models.network import Network
from mecam.storage.checksums import digest_blocks

StateDict = dict[str, Tensor]
ZIP = b"PK\x03\x04"  # the first bytes of a file of torch.save, since torch 1.6
SHOWN = 3  # keys named in an error
FOLDER = "MECAM_WEIGHTS"


class WeightsError(ValueError):
    """A file that is not a checkpoint of this network."""


def load_weights(network: Network, path: Path | str, *, name: str, classifier: tuple[str, ...]) -> str:
    """Load a checkpoint of the backbone `name` into the network and return a note on what was loaded.

    The file must hold every tensor of the featurizer in its shape and nothing else but the classifier, under the names
    `classifier`. The classifier becomes the head if the shapes agree; otherwise it is left out. A whole network (the
    model.safetensors of a run) loads in the same way. An error leaves the network unchanged.
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
    """Return the tensors of a .safetensors, .pth or .pt file by name, without running code from the file."""
    path = Path(path)
    if path.suffix not in (".safetensors", ".pth", ".pt"):
        raise WeightsError(f"{path} should be a .safetensors, .pth or .pt file, got {path.suffix or 'no ending'!r}")
    if not path.is_file():
        bare = f"; give its path, or its folder in ${FOLDER}" if path.name == str(path) else ""
        raise WeightsError(f"there is no file {path}{bare}")
    try:
        if path.suffix == ".safetensors":
            content: object = load_file(path)
        else:
            _refuse_bomb(path)
            content = torch.load(path, map_location="cpu", weights_only=True)
    except WeightsError:
        raise
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{path} is damaged, or holds more than tensors, which could run code; if you trust it, "
            "save the state dict alone: torch.save(model.state_dict(), ...)"
        ) from error
    except Exception as error:  # safetensors, zipfile and torch raise different errors for damaged files
        raise WeightsError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
    return _state_dict(content, path)


def _refuse_bomb(path: Path) -> None:
    """Refuse a .pth or .pt file whose content takes more memory than the file."""
    with path.open("rb") as file:
        if file.read(len(ZIP)) == ZIP:
            with zipfile.ZipFile(file) as archive:
                entries = archive.infolist()
                size = sum(entry.file_size for entry in entries)
                if size > path.stat().st_size or any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                    raise WeightsError(
                        f"{path} is refused: it has {path.stat().st_size:,} bytes and unpacks to {size:,}; torch.save "
                        "compresses nothing. If you trust the file, load it with torch.load and save its state dict "
                        "again"
                    )
                pickles = b"".join(archive.read(entry) for entry in entries if entry.filename.endswith(".pkl"))
        else:
            file.seek(0)
            pickles = file.read()
    # weights_only allows this callable, which makes gigabytes out of a number
    if b"\nbytearray\n" in pickles:
        raise WeightsError(f"{path} is refused: it holds a bytearray, of any size; expected tensors by name")


def weights_digest(weights: Mapping[str, Tensor]) -> str:
    """Return a digest of the names, types, shapes and numbers of these tensors."""
    blocks: list[bytes] = []
    for name, tensor in weights.items():
        blocks.append(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        blocks.append(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest_blocks(blocks)


def find_weights(path: Path | str) -> Path:
    """Return the file at this path, or a bare file name in $MECAM_WEIGHTS.

    A recipe can thus name a checkpoint by its file name, and its runs have the same ids on every machine.
    """
    path = Path(path)
    folder = os.environ.get(FOLDER)
    if not folder or path.exists() or path.name != str(path):
        return path
    return Path(os.path.expanduser(folder)) / path


def stated_architecture(path: Path | str) -> str | None:
    """Return the architecture in the metadata of a .safetensors file, or None.

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


def _state_dict(content: object, path: Path) -> StateDict:
    """Unwrap the tensors from the containers and name prefixes of training scripts."""
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise WeightsError(f"{path} should hold a state dict, tensors by name; got {type(content).__name__}")
    parallel = all(key.startswith("module.") for key in content)  # DistributedDataParallel's
    return {key.removeprefix("module.") if parallel else key: tensor for key, tensor in content.items()}


def _split(state: StateDict, classifier: tuple[str, ...]) -> tuple[StateDict, StateDict]:
    """Split the tensors of featurizer and classifier; a single linear classifier is renamed to weight and bias."""
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
