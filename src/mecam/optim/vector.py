"""Arithmetic on parameter-sized vectors, so that an optimizer can be written as its formula.

A `Vector` is a linear combination that stays symbolic until numbers are needed: `2 * g - h` holds two lists of tensors
and two coefficients, and costs no memory. Numbers are made block by block (one block per parameter group, device and
dtype) with foreach kernels. A parameter without a gradient is a hole (None) and counts as zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from mecam.optim._rounding import MISSING_BITS, add_rounding_randomly
from mecam.optim._shards import Meshes, is_distributed, local, meshes, sum_over

EPSILON = 1e-12  # in n(v) = v / (||v|| + 1e-12), so that a zero gradient gives a zero perturbation
CHUNK_BYTES = 1 << 25  # a temporary `v * device scalar` is made 32 MiB at a time: no parameter-sized buffer
FLOAT16_MAX = torch.finfo(torch.float16).max

Scalar = float | Tensor
Block = list[Tensor | None]
Tensors = list[Block]


def _by_group(operation: Callable[[Any, Any], Any]) -> Callable[[PerGroup, Coefficient], PerGroup]:
    def apply(self: PerGroup, other: Coefficient) -> PerGroup:
        if isinstance(other, Vector):
            return NotImplemented
        others = other.values if isinstance(other, PerGroup) else (other,) * len(self.values)
        return PerGroup(operation(a, b) for a, b in zip(self.values, others, strict=True))

    return apply


class PerGroup:
    """One value per parameter group; arithmetic goes group by group."""

    __slots__ = ("values",)

    def __init__(self, values: Iterable[Scalar]) -> None:
        self.values = tuple(values)

    __add__ = __radd__ = _by_group(lambda a, b: a + b)
    __sub__ = _by_group(lambda a, b: a - b)
    __rsub__ = _by_group(lambda a, b: b - a)
    __mul__ = __rmul__ = _by_group(lambda a, b: a * b)
    __truediv__ = _by_group(lambda a, b: a / b)
    __rtruediv__ = _by_group(lambda a, b: b / a)

    def __neg__(self) -> PerGroup:
        return -1 * self


Coefficient = float | Tensor | PerGroup


@dataclass(frozen=True)
class BlockKind:
    """The group, device, dtype and sharding of a block."""

    group: int
    device: torch.device
    dtype: torch.dtype
    distributed: bool
    meshes: Meshes


class Space:
    """The trainable parameters of an optimizer, in blocks of one group, device, dtype and sharding."""

    def __init__(self, param_groups: Sequence[dict[str, Any]]) -> None:
        self.made_from = _fingerprint(param_groups)
        blocks: dict[BlockKind, list[Tensor]] = {}
        for index, group in enumerate(param_groups):
            for p in group["params"]:
                if p.requires_grad:
                    kind = BlockKind(index, p.device, p.dtype, is_distributed(p), meshes(p))
                    blocks.setdefault(kind, []).append(p)
        self.kinds = list(blocks)
        self.blocks = list(blocks.values())
        self.parameters = [parameter for block in self.blocks for parameter in block]
        self.ids = frozenset(map(id, self.parameters))
        self.chunks = [list(_chunks(block)) for block in self.blocks]
        # whether a number can be read without waiting for a device or for other ranks
        self.at_hand = all(kind.device.type == "cpu" and not kind.distributed for kind in self.kinds)

    def fits(self, param_groups: Sequence[dict[str, Any]]) -> bool:
        """Return whether these groups still make up this space."""
        return self.made_from == _fingerprint(param_groups)

    def vector(self, part: Callable[[Tensor], Tensor | None]) -> Vector:
        """Return the vector whose part at each parameter is `part(parameter)`."""
        parts = ([part(p) for p in block] for block in self.blocks)
        local_parts = (
            [local(t) for t in block] if kind.distributed else block
            for kind, block in zip(self.kinds, parts, strict=True)
        )
        return Vector(self, [(1.0, list(local_parts))])

    def weights(self) -> Vector:
        """Return the weights themselves, not a copy. Read them before they move."""
        return self.vector(lambda parameter: parameter)


def _fingerprint(param_groups: Sequence[dict[str, Any]]) -> list[Any]:
    return [[(id(p), p.requires_grad, p.dtype, p.device) for p in group["params"]] for group in param_groups]


class Vector:
    """A sum of coefficient * tensors over a `Space`, evaluated only when asked."""

    __slots__ = ("space", "terms")

    def __init__(self, space: Space, terms: list[tuple[Coefficient, Tensors]]) -> None:
        self.space = space
        self.terms = terms

    def __add__(self, other: Vector) -> Vector:
        terms = list(self.terms)
        for coefficient, tensors in other.terms:
            same = next((i for i, term in enumerate(terms) if term[1] is tensors), None)
            if same is None:
                terms.append((coefficient, tensors))
            else:
                terms[same] = (terms[same][0] + coefficient, tensors)
        return Vector(self.space, terms)

    def __mul__(self, factor: Coefficient) -> Vector:
        return Vector(self.space, [(factor * coefficient, tensors) for coefficient, tensors in self.terms])

    __rmul__ = __mul__

    def __neg__(self) -> Vector:
        return -1.0 * self

    def __pos__(self) -> Vector:
        return self

    def __sub__(self, other: Vector) -> Vector:
        return self + -other

    def tensors(self) -> Tensors:
        """Return the values: its own tensors if it is a single list of them, otherwise new tensors."""
        if self._is_plain():
            return self.terms[0][1]
        return [_sum(terms) for terms in self._by_block()]

    def copy(self) -> Vector:
        """Return a copy in new memory."""
        return Vector(self.space, [(1.0, [_sum(terms) for terms in self._by_block()])])

    def collapse(self, into: Vector) -> Vector:
        """Evaluate the vector in the memory of `into`, a single list of tensors that may be one of its terms."""
        target = into.terms[0][1]
        if self._is_plain() or not any(tensors is target for _, tensors in self.terms):
            return Vector(self.space, [(1.0, self.tensors())])
        order = sorted(self.terms, key=lambda term: term[1] is not target)
        made = Vector(self.space, order)._by_block()
        return Vector(self.space, [(1.0, [_sum(terms, in_place=True) for terms in made])])

    def add_to_weights(self, seed: int | None = None) -> None:
        """theta <- theta + self, in place. With a seed, half-precision weights are rounded at random."""
        space = self.space
        blocks = zip(space.weights().tensors(), self._by_block(), space.chunks, space.kinds, strict=True)
        for number, (block, terms, parts, kind) in enumerate(blocks):
            weights = cast("list[Tensor]", block)
            generator = None
            if seed is not None and kind.dtype in MISSING_BITS:
                generator = torch.Generator(kind.device).manual_seed(seed * len(space.blocks) + number)
            elif len(terms) == 1 and _moves_at_once(weights, *terms[0]):
                continue
            for part in parts:
                pieces = [(coefficient, block[part]) for coefficient, block in terms]
                # several terms are added up first: theta is rounded once
                scale, offsets = pieces[0] if len(pieces) == 1 else (1.0, _sum(pieces))
                moved = [(w, o) for w, o in zip(weights[part], offsets, strict=True) if o is not None]
                if generator is None:
                    _add_scaled([w for w, _ in moved], [o for _, o in moved], scale)
                elif moved:
                    add_rounding_randomly([w for w, _ in moved], [o for _, o in moved], scale, generator)

    def select(self, keep: Sequence[bool]) -> Vector:
        """Return the vector with tensors set to zero where `keep`, one flag per parameter, is False."""
        flags = iter(keep)
        chosen = [[next(flags) for _ in block] for block in self.space.blocks]
        terms = [(c, _pairwise(lambda t, k: t if k else None, tensors, chosen)) for c, tensors in self.terms]
        return Vector(self.space, terms)

    def within(self, other: Vector) -> Vector:
        """Return the vector with None where `other` has None."""
        parts = _pairwise(lambda s, t: None if t is None else s, self.tensors(), other.tensors())
        return Vector(self.space, [(1.0, parts)])

    def items(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield each parameter with its part of the vector."""
        for parameters, block in zip(self.space.blocks, self.tensors(), strict=True):
            yield from zip(parameters, block, strict=True)

    def _is_plain(self) -> bool:
        return len(self.terms) == 1 and _is_one(self.terms[0][0])

    def _by_block(self) -> Iterator[list[tuple[Scalar, Block]]]:
        for index, kind in enumerate(self.space.kinds):
            yield [(_on_block(coefficient, kind), tensors[index]) for coefficient, tensors in self.terms]


def _pairwise(operation: Callable[[Any, Any], Tensor | None], a: Sequence[Any], b: Sequence[Any]) -> Tensors:
    return [[operation(s, t) for s, t in zip(x, y, strict=True)] for x, y in zip(a, b, strict=True)]


def clones(tensors: list[Tensor]) -> list[Tensor]:
    """Copy tensors bit for bit. Older versions of torch lack _foreach_clone; a product with 1 is as exact."""
    clone = getattr(torch, "_foreach_clone", None)
    return list(torch._foreach_mul(tensors, 1) if clone is None else clone(tensors))


def norm(v: Vector) -> Tensor:
    """||v||, one number over all groups and ranks."""
    return _total(v, lambda block: torch.stack(_norms(block)).square().sum()).sqrt()


def unit(v: Vector) -> Vector:
    """n(v) = v / (||v|| + 1e-12)"""
    if len(v.terms) > 1:  # taken before it is scaled up: of a small difference of large terms rounding would be left
        v = Vector(v.space, [(1.0, v.tensors())])
    return (1 / ((_read_norm(v) if v.space.at_hand else norm(v)) + EPSILON)) * v


def times(a: Vector, b: Vector) -> Vector:
    """Return the elementwise product."""
    product = _pairwise(lambda s, t: None if s is None or t is None else s * t, a.tensors(), b.tensors())
    return Vector(a.space, [(1.0, product)])


def dot(a: Vector, b: Vector) -> Tensor:
    """<a, b>, one number over all groups and ranks."""
    return _total(times(a, b), lambda block: torch.stack([t.sum(dtype=_wide(block)) for t in block]).sum())


def cosine(a: Vector, b: Vector) -> Tensor:
    """<a, b> / (||a|| ||b||), 0 where one of them is zero."""
    return ratio(dot(a, b), norm(a) * norm(b))


def along(a: Vector, b: Vector) -> Vector:
    """Return the projection of `a` on `b`, (<a, b> / ||b||^2) b; zero if b is zero."""
    return ratio(dot(a, b), norm(b).square()) * b


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 where the denominator is 0."""
    return torch.where(denominator == 0, torch.zeros_like(numerator), numerator / denominator)


def is_finite(v: Vector) -> Tensor:
    """Return whether all entries are finite, as a device scalar on which all ranks agree."""
    # a CPU takes five times as long for the largest entries, which are asked for only where squares overflow
    if v.space.at_hand and _read_norm(v) < torch.inf:
        return torch.ones((), dtype=torch.bool, device="cpu")

    def broken(block: list[Tensor]) -> Tensor:
        if block[0].is_cuda and block[0].dtype != torch.bfloat16:  # in place, and a product with 1 changes nothing
            found, one = (make((), device=block[0].device) for make in (torch.zeros, torch.ones))
            torch._amp_foreach_non_finite_check_and_unscale_(block, found, one)
            return found
        largest = torch._foreach_norm([t for t in block if t.numel()] or [block[0].new_zeros(1)], torch.inf)
        return (~torch.stack(largest).isfinite()).sum().float()

    return _total(v, broken) == 0


def _total(v: Vector, reduce_block: Callable[[list[Tensor]], Tensor]) -> Tensor:
    """Sum a number per block over blocks and over the ranks that share them."""
    sums: dict[Meshes, Tensor] = {}
    for kind, block in zip(v.space.kinds, v.tensors(), strict=True):
        filled = [t for t in block if t is not None] or [torch.zeros(1, dtype=kind.dtype, device=kind.device)]
        part = reduce_block(filled)
        sums[kind.meshes] = sums[kind.meshes] + part.to(sums[kind.meshes].device) if kind.meshes in sums else part
    totals = [sum_over(part, split) for split, part in sums.items()]
    return sum((part.to(totals[0].device) for part in totals[1:]), totals[0])


def _read_norm(v: Vector) -> float:
    """Return ||v|| as a float. On a CPU this is faster than a kernel."""
    blocks = ([t for t in block if t is not None] for block in v.tensors())
    return math.hypot(*(length.item() for block in blocks if block for length in _norms(block)))


def _norms(block: list[Tensor]) -> tuple[Tensor, ...]:
    return torch._foreach_norm(block, 2, _wide(block))


def _wide(block: list[Tensor]) -> torch.dtype:
    """Return the dtype for sums over a block: float32 for half precisions."""
    return torch.promote_types(block[0].dtype, torch.float32)


def _is_one(coefficient: Coefficient) -> bool:
    return isinstance(coefficient, (int, float)) and coefficient == 1


def _on_block(coefficient: Coefficient, kind: BlockKind) -> Scalar:
    """Return the coefficient for this block's kernels. A CPU scalar is read, which needs no sync."""
    value = coefficient.values[kind.group] if isinstance(coefficient, PerGroup) else coefficient
    if isinstance(value, Tensor):
        value = value.item() if value.device.type == "cpu" else value.to(kind.device)
    if kind.dtype != torch.float16:
        return value
    # kernels take it in the block's dtype, where 1/(||v|| + 1e-12) may be infinite, and 0 * inf is NaN
    if isinstance(value, Tensor):
        return value.clamp(-FLOAT16_MAX, FLOAT16_MAX)
    return max(min(value, FLOAT16_MAX), -FLOAT16_MAX)  # in this order NaN stays NaN


def _sum(terms: list[tuple[Scalar, Block]], *, in_place: bool = False) -> Block:
    """sum of c * t; a hole where every term has one. In place: made in the first term's tensors."""
    out: Block = [None] * len(terms[0][1])
    for number, (coefficient, block) in enumerate(terms):
        old = [(o, t) for o, t in zip(out, block, strict=True) if o is not None and t is not None]
        _add_scaled([o for o, _ in old], [t for _, t in old], coefficient)
        if len(old) == len(block):
            continue
        new = [t for o, t in zip(out, block, strict=True) if o is None and t is not None]
        made = iter(_scaled(new, coefficient, in_place=in_place and number == 0))
        out = [next(made) if o is None and t is not None else o for o, t in zip(out, block, strict=True)]
    return out


def _scaled(tensors: list[Tensor], coefficient: Scalar, *, in_place: bool) -> list[Tensor]:
    if not tensors:
        return []
    if in_place:
        if not _is_one(coefficient):
            torch._foreach_mul_(tensors, coefficient)
        return tensors
    return clones(tensors) if _is_one(coefficient) else list(torch._foreach_mul(tensors, coefficient))


def _add_scaled(tensors: list[Tensor], others: list[Tensor], coefficient: Scalar) -> None:
    """tensors <- tensors + coefficient * others"""
    if not tensors:
        return
    if not isinstance(coefficient, Tensor):
        torch._foreach_add_(tensors, others, alpha=coefficient)
        return
    for part in _chunks(tensors):
        torch._foreach_add_(tensors[part], torch._foreach_mul(others[part], coefficient))


def _moves_at_once(weights: list[Tensor], scale: Scalar, offsets: Block) -> bool:
    """weights <- weights + scale * offsets by the kernel of fused SGD, which needs no temporaries, where it applies.

    On a GPU, for a scale on the device: the kernel reads it in float32.
    """
    moved = [(w, o) for w, o in zip(weights, offsets, strict=True) if o is not None]
    if not isinstance(scale, Tensor) or scale.dtype != torch.float32 or not scale.is_cuda or not moved:
        return False
    if not all(w.dtype == o.dtype != torch.float64 and w.stride() == o.stride() and _is_dense(w) for w, o in moved):
        return False
    torch._fused_sgd_(
        *([w for w, _ in moved], [o for _, o in moved], []),
        lr=scale,
        maximize=True,
        weight_decay=0.0,
        momentum=0.0,
        dampening=0.0,
        nesterov=False,
        is_first_step=False,
    )
    return True


def _is_dense(tensor: Tensor) -> bool:
    return tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)


def _chunks(tensors: Sequence[Tensor]) -> Iterator[slice]:
    """Yield slices of about CHUNK_BYTES each."""
    start, size = 0, 0
    for i, tensor in enumerate(tensors):
        size += tensor.numel() * tensor.element_size()
        if size >= CHUNK_BYTES or i == len(tensors) - 1:
            yield slice(start, i + 1)
            start, size = i + 1, 0
