"""Vectors against the same arithmetic on one flat tensor."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mecam.optim.vector import PerGroup, Space, Vector, along, cosine, dot, is_finite, norm, ratio, times, unit

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
shapes = st.lists(st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple), min_size=1, max_size=4)
coefficients = st.floats(-3, 3, allow_nan=False).map(lambda c: round(c, 3))


def space_of(groups: list[list[tuple[int, ...]]], dtype: torch.dtype = torch.float64) -> Space:
    return Space([{"params": [nn.Parameter(torch.randn(s, dtype=dtype)) for s in shapes]} for shapes in groups])


def draw(space: Space) -> Vector:
    return space.vector(lambda p: torch.randn_like(p))


def flat(v: Vector) -> Tensor:
    parts = [torch.zeros_like(p) if t is None else t for p, t in v.items()]
    return torch.cat([t.detach().double().reshape(-1) for t in parts])


@settings(max_examples=60, deadline=None)
@given(shapes, st.sampled_from(DTYPES), coefficients, coefficients, st.integers(0, 2**31))
def test_arithmetic(shapes: list[tuple[int, ...]], dtype: torch.dtype, a: float, b: float, seed: int) -> None:
    torch.manual_seed(seed)
    space = space_of([shapes], dtype)
    u, v = draw(space), draw(space)
    x, y = flat(u), flat(v)
    close: dict[str, Any] = {"rtol": TOLERANCE[dtype], "atol": 10 * TOLERANCE[dtype]}
    torch.testing.assert_close(flat(a * u - v * b + u), (a + 1) * x - b * y, **close)
    torch.testing.assert_close(norm(u).double(), x.norm(), **close)
    torch.testing.assert_close(dot(u, v).double(), x @ y, rtol=TOLERANCE[dtype], atol=40 * TOLERANCE[dtype])
    torch.testing.assert_close(flat(unit(u)), x / (x.norm() + 1e-12), **close)
    torch.testing.assert_close(flat(times(u, v)), x * y, **close)
    before = flat(space.weights())
    with torch.no_grad():
        (torch.tensor(a, dtype=torch.float64) * u + b * v).add_to_weights()
    torch.testing.assert_close(flat(space.weights()), before + a * x + b * y, **close)


def test_one_norm_over_groups_devices_and_dtypes() -> None:
    space = Space(
        [
            {
                "params": [
                    nn.Parameter(torch.full((3,), 2.0)),
                    nn.Parameter(torch.full((2,), 3.0, dtype=torch.bfloat16)),
                ]
            },
            {"params": [nn.Parameter(torch.full((4,), 1.0, dtype=torch.float64))]},
        ]
    )
    assert len(space.kinds) == 3
    assert norm(space.weights()).item() == pytest.approx((3 * 4 + 2 * 9 + 4) ** 0.5, rel=1e-7)


def test_a_unit_vector_over_groups_dtypes_and_holes() -> None:
    shapes = [(3,), (2, 2), (4,)]
    kinds = zip(shapes, (torch.float32, torch.bfloat16, torch.float64), strict=True)
    space = Space([{"params": [nn.Parameter(torch.ones(shape, dtype=dtype))]} for shape, dtype in kinds])
    first, second, _ = space.parameters
    v = space.vector(lambda p: None if p is second else torch.full_like(p, 2.0 if p is first else -1.0))
    torch.testing.assert_close(flat(unit(v)), torch.tensor([2.0] * 3 + [0.0] * 4 + [-1.0] * 4).double() / 4)
    assert flat(unit(space.vector(torch.zeros_like))).abs().max() == 0
    assert flat(unit(space.vector(lambda _: None))).abs().max() == 0
    assert is_finite(v)


def test_half_precision_norms_are_added_up_in_float32() -> None:
    space = Space([{"params": [nn.Parameter(torch.full((70_000,), 1.0, dtype=torch.float16))]}])
    assert norm(space.weights()).item() == pytest.approx(70_000**0.5, rel=1e-4)
    assert dot(space.weights(), space.weights()).item() == pytest.approx(70_000, rel=1e-4)


def test_coefficients_per_group() -> None:
    space = space_of([[(2,), (3,)], [(4,)]])
    v = draw(space)
    scaled = PerGroup([2.0, torch.tensor(-1.0, dtype=torch.float64)]) * v
    torch.testing.assert_close(flat(scaled), flat(v) * torch.tensor([2.0] * 5 + [-1.0] * 4, dtype=torch.float64))


def test_arithmetic_of_coefficients() -> None:
    a, two = PerGroup([1.0, 3.0]), torch.tensor(2.0)
    assert (1 - a - PerGroup([0.5, 0.25])).values == (-0.5, -2.25)
    assert (1 / a + a).values == (2.0, 1 / 3 + 3)
    assert tuple(map(float, (two * a).values)) == (2.0, 6.0)
    assert tuple(map(float, (two / a - two).values)) == pytest.approx((0.0, 2 / 3 - 2))
    assert (-a).values == (-1.0, -3.0)


def test_holes_count_as_zero_and_stay_holes() -> None:
    space = space_of([[(2,), (3,), (4,)]])
    first, second, third = (p for p in space.parameters)
    u = space.vector(lambda p: None if p is second else torch.ones_like(p))
    v = space.vector(lambda p: torch.ones_like(p) if p is second else None)
    w = space.vector(lambda p: torch.ones_like(p) if p is first else None)
    assert flat(2 * u + 3 * v).tolist() == [2.0] * 2 + [3.0] * 3 + [2.0] * 4
    assert dot(u, v).item() == 0
    assert norm(u).item() == pytest.approx(6**0.5)
    parts = dict((u + w).items())
    assert parts[second] is None
    assert parts[first] is not None
    assert parts[third] is not None


def test_nothing_is_computed_before_it_is_needed() -> None:
    space = space_of([[(1000,)]])
    u, v = draw(space), draw(space)
    combination = u + 0.5 * v - u * 2
    assert [id(tensors) for _, tensors in combination.terms] == [id(u.terms[0][1]), id(v.terms[0][1])]
    assert [c for c, _ in combination.terms] == [-1.0, 0.5]


def test_collapse_uses_the_memory_it_is_given() -> None:
    space = space_of([[(5,), (2, 2)]])
    u, v = draw(space), draw(space)
    expected, x = flat(2 * u - v), flat(u)
    made = (2 * u - v).collapse(into=v)
    torch.testing.assert_close(flat(made), expected)
    assert [t.data_ptr() for _, t in made.items()] == [t.data_ptr() for _, t in v.items()]
    assert torch.equal(flat(u), x)


def test_along_and_cosine() -> None:
    torch.manual_seed(0)
    space = space_of([[(5,), (3,)], [(2,)]])
    u, v = draw(space), draw(space)
    x, y = flat(u), flat(v)
    torch.testing.assert_close(flat(along(u, v)), (x @ y) / (y @ y) * y)
    torch.testing.assert_close(cosine(u, v), x @ y / x.norm() / y.norm())
    zero = space.vector(torch.zeros_like)
    assert flat(along(u, zero)).abs().max() == 0
    assert cosine(u, zero) == 0


def test_ratio() -> None:
    assert ratio(torch.tensor(3.0), torch.tensor(0.0)) == 0
    assert ratio(torch.tensor(3.0), torch.tensor(2.0)) == 1.5


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_is_finite_finds_one_bad_entry(bad: float, where: int) -> None:
    space = space_of([[(3,), (2, 2)], [(4,)]])
    v = draw(space)
    assert is_finite(v)
    list(v.items())[where][1].view(-1)[-1] = bad  # type: ignore[union-attr]
    assert not is_finite(v)


def test_is_finite_is_not_fooled_by_large_numbers() -> None:
    space = space_of([[(3,)]], torch.float32)
    v = space.vector(lambda p: torch.full_like(p, 3e38))
    assert not norm(v).isfinite()
    assert is_finite(v)


def test_is_finite_answers_where_the_vector_is() -> None:
    v = draw(space_of([[(3,)]]))
    with torch.device("meta"):
        assert is_finite(v).device.type == "cpu"


def test_select_leaves_out_whole_tensors() -> None:
    space = space_of([[(2,), (3,)], [(4,)]])
    chosen = (2 * draw(space)).select([True, False, True])
    assert [part is None for _, part in chosen.items()] == [False, True, False]
