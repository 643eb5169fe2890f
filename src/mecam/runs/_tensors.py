"""Tensors as the bytes of one safetensors file, equal tensors as equal bytes, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

METADATA = "mecam"  # one key only: the library writes several in random order


def pack(tensors: Mapping[str, Tensor], metadata: Any = None) -> bytes:
    """A safetensors file in memory; tensors that share memory are stored each in full.

    The bytes depend on the values alone: `metadata`, anything JSON can hold, is written with sorted keys.
    """
    text = json.dumps(metadata, sort_keys=True, allow_nan=False)
    return save(_apart(tensors), metadata={METADATA: text})


def unpack(data: bytes) -> tuple[dict[str, Tensor], Any]:
    """The tensors, on the CPU, and the metadata; whatever is wrong with the bytes is a ValueError."""
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return tensors, json.loads(header["__metadata__"][METADATA])
    except Exception as error:  # the library has errors of its own, for a header that lies also KeyError and others
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Plain tensors on the CPU, none of them on memory of another."""
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
    return apart


__all__ = ["pack", "unpack"]
