"""Average gradients over the processes of a run while their backward still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from mecam import ranks
from mecam.methods import Method
from mecam.optim import SharpnessAware
from mecam.optim._domains import ByDomain
from mecam.recipe import Recipe

BUCKET = 25 << 20  # bytes that are exchanged at once, as in DDP

T = TypeVar("T")


class Sent(NamedTuple):
    """An exchange that runs."""

    gradients: list[Tensor]
    flat: Tensor
    work: Any


class Overlap:
    """Exchanges of gradients in buckets, each as soon as the backward has filled it.

    All processes send the buckets in the same order, that of the parameters from last to first.

    Args:
        parameters: what has gradients. Of parameters without one nothing is sent.
        size: bytes of a bucket.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], size: int = BUCKET) -> None:
        self._buckets = list(_buckets(reversed(parameters), size))
        self._bucket_of = {parameter: number for number, bucket in enumerate(self._buckets) for parameter in bucket}
        self._unfilled: list[int] | None = None  # by bucket, while a backward runs
        self._sent: list[Sent] = []
        for parameter in parameters:
            if parameter.requires_grad:  # others are sent after the backward, if they get a gradient later
                parameter.register_post_accumulate_grad_hook(self._filled)  # type: ignore[no-untyped-call]

    def average(self, one_pass: Callable[[], T]) -> T:
        """Run a pass with one backward, and replace the gradients by their means over the processes."""
        self._unfilled = [len(bucket) for bucket in self._buckets]
        self._sent = []
        try:
            result = one_pass()
        finally:
            self._unfilled = None
        while len(self._sent) < len(self._buckets):
            self._send()
        for gradients, flat, work in self._sent:
            work.wait()
            flat /= ranks.count()
            means = torch.split(flat, [each.numel() for each in gradients]) if gradients else ()
            for gradient, mean in zip(gradients, means, strict=True):
                gradient.copy_(mean.view_as(gradient))
        self._sent = []
        return result

    def _filled(self, parameter: Tensor) -> None:
        if self._unfilled is None:
            return
        self._unfilled[self._bucket_of[parameter]] -= 1  # type: ignore[index]
        while len(self._sent) < len(self._buckets) and self._unfilled[len(self._sent)] == 0:
            self._send()

    def _send(self) -> None:
        bucket = self._buckets[len(self._sent)]
        gradients = [parameter.grad.detach() for parameter in bucket if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients]) if gradients else bucket[0].new_zeros(1)
        work = dist.all_reduce(flat, async_op=True)
        self._sent.append(Sent(gradients, flat, work))


def overlap(
    recipe: Recipe,
    method: Method,
    optimizer: SharpnessAware,
    parameters: Sequence[nn.Parameter],
    device: torch.device,
) -> Overlap | None:
    """Return how the passes of a run overlap with their exchange; None where gradients are not of one backward.

    Methods that write gradients themselves, and passes by domain or in parts, exchange what they leave. So do runs on
    CPUs: the exchange needs the processors of the backward, and gloo's threads can abort the exit of the interpreter.
    """
    one_backward = type(method).gradient is Method.gradient and recipe.accumulate == 1
    several = ranks.count() > 1 and device.type == "cuda" and one_backward and not isinstance(optimizer, ByDomain)
    return Overlap(parameters) if several else None


def _buckets(parameters: Iterable[nn.Parameter], size: int) -> Iterable[list[nn.Parameter]]:
    """Return consecutive parameters of one dtype and device, up to this size."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        of_one_kind = bucket and (parameter.dtype, parameter.device) == (bucket[0].dtype, bucket[0].device)
        if bucket and not (of_one_kind and sum(each.nbytes for each in [*bucket, parameter]) <= size):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
