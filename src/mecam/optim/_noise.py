"""Save and replay random state: torch's on every device in use, Python's and NumPy's."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class RandomState:
    """A copy of all random states."""

    cpu: Tensor
    devices: dict[torch.device, Tensor]
    python: Any
    numpy: Any

    @staticmethod
    def now(devices: Iterable[torch.device]) -> RandomState:
        accelerators = {device for device in devices if device.type != "cpu"}
        numpy = sys.modules.get("numpy")
        return RandomState(
            cpu=torch.get_rng_state(),
            devices={device: torch.get_device_module(device).get_rng_state(device) for device in accelerators},
            python=random.getstate(),
            numpy=None if numpy is None else numpy.random.get_state(),
        )

    def set(self) -> None:
        torch.set_rng_state(self.cpu)
        for device, state in self.devices.items():
            torch.get_device_module(device).set_rng_state(state, device)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Draw from this state inside the context; restore the outer state after it."""
        outside = RandomState.now(self.devices)
        self.set()
        try:
            yield
        finally:
            outside.set()
