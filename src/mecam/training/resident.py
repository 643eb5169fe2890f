"""Keep a data set on the GPU as it was stored, so that training and evaluation load nothing."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mecam.data.domains import DomainSet

SHARE = 0.4  # largest share of the device's free memory for images


class Resident:
    """The images (uint8), labels and aspects of every domain on a device."""

    def __init__(self, data: DomainSet, device: torch.device) -> None:
        domains = range(len(data.domains))
        self.labels = [torch.from_numpy(np.array(data.labels(d))).to(device) for d in domains]
        self.aspects = [torch.from_numpy(np.array(data.aspects(d))).to(device) for d in domains]
        self.images = [data.images(d, np.arange(len(data.labels(d)))).to(device) for d in domains]

    def take(self, domain: int, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return these images of a domain, and their aspects."""
        return self.images[domain].index_select(0, indices), self.aspects[domain].index_select(0, indices)


_latest: dict[tuple[str, tuple[int, int], torch.device], Resident] = {}  # one at most


def resident(data: DomainSet, device: torch.device) -> Resident | None:
    """Return the data on the device, if that is a GPU with room; runs of one process share the latest data set."""
    if device.type != "cuda":
        return None
    key = data.fingerprint, data.size, device
    if key not in _latest:
        _latest.clear()
        counts = [len(data.labels(domain)) for domain in range(len(data.domains))]
        needed = sum(counts) * next(data.images(domain, [0]).nbytes for domain, count in enumerate(counts) if count)
        if needed < SHARE * torch.cuda.mem_get_info(device)[0]:
            _latest[key] = Resident(data, device)
    return _latest.get(key)
