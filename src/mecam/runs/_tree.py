"""Encode a nested state as JSON beside named tensors, exactly.

null, booleans, strings, arrays, 64-bit integers and finite floats are JSON's own (Python writes as many digits as it
takes to read the same float). Every object is one of

    {"dict": [[key, value], ...]}  {"tuple": [...]}  {"bytes": base64}  {"int": hexadecimal}  {"float": hexadecimal}
    {"tensor": name}  {"pairs": name of a real tensor, last axis (real, imaginary)}  {"array": one of these two}
    {"strided": [name, strides]}, for channels last and the like: fused optimizers and sums depend on the strides
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

EXPECTED = (
    "a state holds tensors, numpy arrays, int, float, str, bytes, bool, None, and lists, tuples and dicts of them "
    "(with keys of type str or int)"
)
AS_PAIRS = (torch.complex128, torch.complex32)  # safetensors has no name for them


def encode(value: Any, tensors: dict[str, Tensor], where: str = "state") -> Any:
    """Return the value as JSON. Its tensors go to `tensors`, each named by the expression that locates it."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if value.bit_length() < 64 else {"int": hex(value)}  # Python reads at most 4300 decimal digits
    if kind is float:
        return value if math.isfinite(value) else {"float": struct.pack(">d", value).hex()}  # NaNs differ in their bits
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Tensor):
        return _tensor(value, tensors, where)
    if isinstance(value, np.ndarray):
        return {"array": _tensor(_from_numpy(value, where), tensors, where)}
    if isinstance(value, dict):  # an OrderedDict, as from Module.state_dict, is restored as a dict
        return {"dict": [[_key(k, where), encode(v, tensors, f"{where}[{k!r}]")] for k, v in value.items()]}
    if kind in (list, tuple):
        items = [encode(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if kind is list else {"tuple": items}
    raise TypeError(f"{where} is a {kind.__module__}.{kind.__qualname__}; {EXPECTED}")


def decode(node: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the value that `encode` was given."""
    if isinstance(node, list):
        return [decode(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    ((tag, content),) = node.items()
    return DECODERS[tag](content, tensors)


DECODERS: dict[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "dict": lambda pairs, tensors: {decode(k, tensors): decode(v, tensors) for k, v in pairs},
    "tuple": lambda items, tensors: tuple(decode(item, tensors) for item in items),
    "bytes": lambda text, _: base64.b64decode(text, validate=True),
    "int": lambda text, _: int(text, 16),
    "float": lambda text, _: struct.unpack(">d", bytes.fromhex(text))[0],
    "tensor": lambda name, tensors: tensors[name],
    "strided": lambda content, tensors: _with_strides(tensors[content[0]], content[1]),
    "pairs": lambda name, tensors: torch.view_as_complex(tensors[name]),
    "array": lambda node, tensors: decode(node, tensors).numpy(),
}


def _tensor(tensor: Tensor, tensors: dict[str, Tensor], where: str) -> dict[str, Any]:
    if tensor.dtype in AS_PAIRS:
        tensors[where] = torch.view_as_real(tensor.detach().resolve_conj())
        return {"pairs": where}
    tensors[where] = tensor
    if tensor.layout != torch.strided:
        return {"tensor": where}
    dense = tensor.stride() == torch.empty_like(tensor, device="meta").stride()  # which keeps those of dense ones
    contiguous = tensor.stride() == torch.empty(tensor.shape, device="meta").stride()
    return {"strided": [where, list(tensor.stride())]} if dense and not contiguous else {"tensor": where}


def _with_strides(tensor: Tensor, strides: Sequence[int]) -> Tensor:
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)


def _from_numpy(array: np.ndarray[Any, Any], where: str) -> Tensor:
    try:
        return torch.from_numpy(np.array(array, order="C"))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where} is a numpy array of {array.dtype}, which no tensor holds; {EXPECTED}") from error


def _key(key: Any, where: str) -> Any:
    if type(key) not in (str, int):
        raise TypeError(f"{where} has the key {key!r} of type {type(key).__name__}; {EXPECTED}")
    return encode(key, {})
