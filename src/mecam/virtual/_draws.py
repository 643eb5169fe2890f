"""Random numbers of virtual domains, in a stream of their own, separate from that of dropout."""

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor


def draw_seed(generator: torch.Generator | None) -> int:
    """Draw a seed from `generator`, or from torch's global CPU generator."""
    return int(torch.randint(2**63 - 1, (), device="cpu", generator=generator))


class Seeds:
    """The seeds of one activation, a new one for every layer call."""

    def __init__(self, seed: int) -> None:
        self._stream = torch.Generator("cpu").manual_seed(seed)
        self._calls: defaultdict[str, list[int]] = defaultdict(list)

    def take(self, layer: str) -> int | None:
        """Return the seed of this call of `layer`; None where activation checkpointing recomputes an inert call."""
        calls = self._calls[layer]
        if _inside_backward():
            # Backward visits calls in reverse, so the latest seed not yet replayed belongs to this recomputation.
            return calls.pop() if calls else None
        calls.append(draw_seed(self._stream))
        return calls[-1]


def _inside_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def needs_default_generator(x: Tensor) -> bool:
    """Return whether the call is compiled or captured, which would replay a private generator's numbers."""
    return torch.compiler.is_compiling() or (x.is_cuda and torch.cuda.is_current_stream_capturing())


@dataclass(frozen=True)
class Draw:
    """Draw the random numbers of one layer call, on `device` in `dtype`; without a generator, from torch's default."""

    device: torch.device
    dtype: torch.dtype
    generator: torch.Generator | None

    @classmethod
    def like(cls, x: Tensor, seed: int | None) -> "Draw":
        """Return the numbers for x; half precision is mixed in float32."""
        generator = None if seed is None else torch.Generator(_source(x.device)).manual_seed(seed)
        return cls(x.device, torch.promote_types(x.dtype, torch.float32), generator)

    def happens(self, p: float) -> Tensor:
        """Draw a boolean scalar, true with probability p, on the device and without a host sync."""
        return (self._uniform(()) < p).to(self.device)

    def uniform(self, count: int, high: float) -> Tensor:
        """Draw from U(0, high), once per sample."""
        return self._deliver(high * self._uniform((count,)))

    def normal(self, *size: int) -> Tensor:
        """Draw from N(0, 1)."""
        source = _source(self.device)
        return self._deliver(torch.randn(size, dtype=torch.float64, device=source, generator=self.generator))

    def beta(self, alpha: float, count: int) -> Tensor:
        """Draw from Beta(alpha, alpha), once per sample: the first coordinate of a Dirichlet(alpha, alpha)."""
        # torch.distributions takes no generator. In float32 Beta(.1, .1) underflows about once in 10^4 draws.
        concentration = torch.full((count, 2), alpha, dtype=torch.float64, device=_source(self.device))
        return self._deliver(torch._sample_dirichlet(concentration, generator=self.generator)[:, 0])

    def partner(self, count: int, domains: int | None) -> Tensor:
        """Draw each sample's partner: a random permutation, or one that maps every block to another block."""
        if domains is None:
            return self._uniform((count,)).argsort().to(self.device)
        size, rest = divmod(count, domains)
        if rest:
            raise ValueError(
                f"a batch of {count} is not {domains} equal blocks: cross-domain mixing needs the same number of "
                "samples from each domain, in order; use domains=None for a random partner"
            )
        source = _source(self.device)
        blocks = torch.arange(domains, device=source)
        shuffled = self._uniform((domains, size)).argsort(dim=1) + size * blocks[:, None]
        shift = torch.randint(1, domains, (1,), device=source, generator=self.generator)
        return shuffled[(blocks + shift) % domains].flatten().to(self.device)

    def _uniform(self, size: tuple[int, ...]) -> Tensor:
        return torch.rand(size, dtype=torch.float64, device=_source(self.device), generator=self.generator)

    def _deliver(self, numbers: Tensor) -> Tensor:
        # Cast first: not every device supports float64.
        return numbers.to(self.dtype).to(self.device)


def _source(device: torch.device) -> torch.device:
    """Return where to draw: on the device if it has float64 and gamma sampling, else on the CPU."""
    return device if device.type in ("cpu", "cuda") else torch.device("cpu")
