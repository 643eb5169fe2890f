"""Tensors as the bytes of a safetensors file. Equal tensors give equal bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # tables are made without torch, which takes a second to import
    from torch import Tensor

METADATA = "mecam"  # one key only: the library writes several in random order


def pack(tensors: Mapping[str, Tensor], metadata: Any = None) -> bytes:
    """Return a safetensors file in memory. Tensors that share memory are stored in full each.

    The bytes depend on the values alone: `metadata`, any JSON value, is written with sorted keys.
    """
    import torch
    from safetensors.torch import save

    apart: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_meta:
            raise TypeError(f"{name} is a {tensor.layout} tensor on {tensor.device}; it must be dense and have values")
        # lazy conjugates and negatives look like their originals to the library
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        address = plain.untyped_storage().data_ptr()
        apart[name] = plain.clone() if address in taken else plain
        taken.add(address)
    return save(apart, metadata={METADATA: json.dumps(metadata, sort_keys=True, allow_nan=False)})


def unpack(data: bytes) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors, on the CPU, and the metadata. Raise ValueError for damaged bytes."""
    from safetensors.torch import load

    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return tensors, json.loads(header["__metadata__"][METADATA])
    except Exception as error:  # the library has errors of its own; a wrong header also raises KeyError and others
        raise ValueError(f"{type(error).__name__}: {error}") from error
