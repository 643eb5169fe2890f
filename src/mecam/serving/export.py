"""A trained model for other programs: ONNX or safetensors, with the preprocessing beside it, checked by running it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mecam.runs import write_atomic
from mecam.serving.model import TrainedModel

TOLERANCE = 1e-4  # between the exported model's logits and ours, relative to their size


class ExportError(RuntimeError):
    """An export that could not be made or does not do what the model does."""


def export(model: TrainedModel, out: Path, *, form: str = "onnx") -> Path:
    """Write the model as `out`/model.onnx or model.safetensors, and preprocessing.json beside it."""
    if form not in ("onnx", "safetensors"):
        raise ExportError(f"format {form!r} is not known; onnx and safetensors are")
    out.mkdir(parents=True, exist_ok=True)
    file = _onnx(model, out) if form == "onnx" else _safetensors(model, out)
    facts: dict[str, Any] = {"classes": list(model.classes), "output": "logits (batch, classes)"}
    facts["preprocessing"] = model.preprocessing.describe()
    write_atomic(out / "preprocessing.json", (json.dumps(facts, indent=2) + "\n").encode())
    return file


def _safetensors(model: TrainedModel, out: Path) -> Path:
    file = out / "model.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in model.network.state_dict().items()}, file)
    return file


def _onnx(model: TrainedModel, out: Path) -> Path:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter needs it and says so less clearly
    except Exception as error:  # a broken optional package can raise anything
        raise ExportError(f"ONNX export needs more packages ({error}): pip install 'mecam[export]'") from error
    size = model.preprocessing.size
    network = model.network.cpu().eval()
    example = torch.randn(2, 3, size, size)
    file = out / "model.onnx"
    program = torch.onnx.export(
        network,
        (example,),
        dynamo=True,
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
        verbose=False,
    )
    if program is None:
        raise ExportError("torch's exporter made nothing of this network")
    program.save(str(file), external_data=False)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for images in (example, torch.randn(3, 3, size, size)):
        with torch.inference_mode():
            expected = network(images)
        found = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
        deviation = ((found - expected).abs().max() / expected.abs().max().clamp(min=1e-6)).item()
        if not deviation < TOLERANCE:
            raise ExportError(f"{file} gives other logits than the model: relative deviation {deviation:g}")
    return file
