"""A data set that lies on the GPU as it was stored, so that nothing is loaded while training and evaluating."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mecam.data.domains import DomainSet

SHARE = 0.4  # of the device's free memory that images may take


class Resident:
    """The images (uint8), labels and aspects of every domain on a device."""

    def __init__(self, data: DomainSet, device: torch.device) -> None:
        domains = range(len(data.domains))
        self.labels = [torch.from_numpy(np.array(data.labels(d))).to(device) for d in domains]
        self.aspects = [torch.from_numpy(np.array(data.aspects(d))).to(device) for d in domains]
        self.images = [data.images(d, np.arange(len(data.labels(d)))).to(device) for d in domains]

    def take(self, domain: int, indices: Tensor) -> Tensor:
        """These images of a domain."""
        return self.images[domain].index_select(0, indices)


_latest: dict[tuple[str, torch.device], Resident] = {}  # one at most


def resident(data: DomainSet, device: torch.device) -> Resident | None:
    """The data on the device, if that is a GPU with room for it; runs of one process share the latest data set."""
    if device.type != "cuda":
        return None
    key = data.fingerprint, device
    if key not in _latest:
        _latest.clear()
        if _fits(data, device):
            _latest[key] = Resident(data, device)
    return _latest.get(key)


def _fits(data: DomainSet, device: torch.device) -> bool:
    height, width = data.size
    needed = 3 * height * width * sum(len(data.labels(d)) for d in range(len(data.domains)))
    return needed < SHARE * torch.cuda.mem_get_info(device)[0]
