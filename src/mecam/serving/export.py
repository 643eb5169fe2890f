"""Export a trained model to ONNX or safetensors, with its preprocessing, and check it by running it."""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from mecam.runs import RunError, write_atomic
from mecam.serving.confidence import Confidence
from mecam.serving.model import TrainedModel
from mecam.storage.files import make_folder

PRECISIONS = (0.8, 0.9, 0.95, 0.99)  # whose thresholds are written
TOLERANCE = 1e-4  # relative difference between the logits of the export and of the model
INFER = "infer.py"
CHECKED_BATCHES = (2, 3, 1)  # images per batch; the exporter traces the first


class ExportError(RunError):
    """An export that failed, or whose outputs differ from the model's."""


def export(model: TrainedModel, out: Path, *, form: str = "onnx") -> Path:
    """Write the model as `out`/model.onnx or model.safetensors, and preprocessing.json beside it.

    Beside ONNX is also infer.py, a program that predicts with onnxruntime, NumPy and Pillow alone. The export is
    run first and must give the model's logits; otherwise nothing is written.
    """
    exporters = {"onnx": _onnx, "safetensors": _safetensors}
    if form not in exporters:
        raise ExportError(f"there is no format {form!r}; there are {' and '.join(exporters)}")
    network, size = model.network.cpu().eval(), model.preprocessing.size
    generator = torch.Generator().manual_seed(0)
    counts = (1,) if model.alone else CHECKED_BATCHES
    examples = [torch.randn(count, 3, size, size, generator=generator) for count in counts]
    content, run = exporters[form](network, examples[0])
    for images in examples:
        _compare(network, run, images, form)
    make_folder(out)
    write_atomic(out / "preprocessing.json", (json.dumps(_facts(model), indent=2) + "\n").encode())
    if form == "onnx":
        write_atomic(out / INFER, Path(__file__).with_name(INFER).read_bytes())
    file = out / f"model.{form}"
    write_atomic(file, content)
    return file


def _facts(model: TrainedModel) -> dict[str, Any]:
    size, batch = model.preprocessing.size, 1 if model.alone else "batch"
    facts = {
        "classes": list(model.classes),
        "backbone": model.backbone,
        "input": {"name": "images", "type": "float32", "shape": [batch, 3, size, size], "channels": "RGB"},
        "output": {"name": "logits", "type": "float32", "shape": [batch, len(model.classes)]},
        "preprocessing": model.preprocessing.describe(),
    }
    if model.confidence is not None:
        facts["unknown_below"] = _thresholds(model.confidence)
    return facts


def _thresholds(confidence: Confidence) -> dict[str, float]:
    """Return the probability below which predictions are unknown, by the precision of the others in a new domain."""
    thresholds = {}
    for precision in PRECISIONS:
        with suppress(RunError):  # it is not reached
            thresholds[str(precision)] = confidence.threshold(precision)
    return thresholds


def _compare(network: nn.Module, run: Callable[[Tensor], Tensor], images: Tensor, form: str) -> None:
    with torch.inference_mode():
        expected = network(images)
        deviation = ((run(images) - expected).abs().max() / expected.abs().max().clamp(min=1e-6)).item()
    if not deviation < TOLERANCE:
        raise ExportError(f"the logits of the {form} export differ from the model's by {deviation:g} (relative)")


def _safetensors(network: nn.Module, _: Tensor) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    content = save({name: tensor.contiguous() for name, tensor in network.state_dict().items()})
    again = copy.deepcopy(network)
    again.load_state_dict(load(content))
    return content, again


def _onnx(network: nn.Module, example: Tensor) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except Exception as error:  # a broken optional package can raise anything
        raise ExportError(f"ONNX export needs more packages ({error}): pip install 'mecam[export]'") from error
    with _silence():
        program = torch.onnx.export(
            network,
            (example,),
            dynamo=True,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch")}} if len(example) > 1 else None,
            verbose=False,
        )
    if program is None:
        raise ExportError("torch.onnx.export returned no program for this network")
    content: bytes = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


@contextmanager
def _silence() -> Iterator[None]:
    """Hide the exporter's warnings about its internals and absent packages."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
