import pytest
import torch
from torch import nn

from mecam.analysis.directions import plane, random_directions
from mecam.analysis.objective import dot, norm


def network(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 1), nn.Linear(1, 5)
    ).to(dtype)


def draws(model: nn.Module, count: int = 2, seed: int = 0) -> list[list[torch.Tensor]]:
    return random_directions(list(model.parameters()), count, torch.Generator().manual_seed(seed))  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_every_filter_of_a_direction_is_as_long_as_the_filter_and_at_right_angles_to_the_other(dtype):
    model = network(dtype=dtype)
    first, second = draws(model)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for weight, one, other in zip(model.parameters(), first, second, strict=True):
        assert one.dtype == other.dtype == dtype
        if weight.dim() == 1:
            assert not one.any()
            assert not other.any()
            continue
        for row in range(len(weight)):
            size = weight[row].norm().item()
            assert one[row].norm().item() == pytest.approx(size, rel=tolerance)
            if weight[row].numel() == 1:
                assert not other[row].any()
            else:
                assert other[row].norm().item() == pytest.approx(size, rel=tolerance)
                assert abs((one[row] * other[row]).sum().item()) <= tolerance * size**2
    assert abs(dot(first, second)) <= tolerance * norm(first) * norm(second)


def test_networks_compared_get_the_same_draws_scaled_by_their_own_filters():
    small, large = network(), network()
    factors = {}
    with torch.no_grad():
        for name, weight in large.named_parameters():
            factors[name] = 1.0 + torch.arange(len(weight), dtype=weight.dtype).reshape(-1, *[1] * (weight.dim() - 1))
            weight *= factors[name]
    for here, there in zip(draws(small), draws(large), strict=True):
        for (name, _), one, other in zip(small.named_parameters(), here, there, strict=True):
            torch.testing.assert_close(one * factors[name], other)


def test_a_seed_gives_the_directions_it_gave_and_another_gives_others():
    model = network()
    again, other = draws(model), draws(model, seed=1)
    assert all(torch.equal(a, b) for x, y in zip(draws(model), again, strict=True) for a, b in zip(x, y, strict=True))
    assert not torch.equal(again[0][0], other[0][0])


def test_a_single_direction_is_as_long_as_the_weights_it_moves():
    model = network()
    (only,) = draws(model, count=1)
    assert norm(only) == pytest.approx(norm([w.detach() for w in model.parameters() if w.dim() > 1]))
    with pytest.raises(ValueError, match="count=3"):
        draws(model, count=3)


def test_an_empty_filter_stays_where_it_is():
    model = network()
    with torch.no_grad():
        model[0].weight[1] = 0
    for direction in draws(model):
        assert not direction[0][1].any()


def test_the_plane_goes_through_the_three_networks_with_their_statistics():
    networks = [network(seed) for seed in range(3)]
    with torch.no_grad():
        for number, model in enumerate(networks):
            model[1].running_mean += number**2
    through = plane(*networks)
    trained = [name for name, _ in networks[0].named_parameters()]
    x, y = ([axis[name] for name in trained] for axis in through.axes)
    assert norm(x) == pytest.approx(1)
    assert norm(y) == pytest.approx(1)
    assert dot(x, y) == pytest.approx(0, abs=1e-12)
    origin = networks[0].state_dict()
    for model, (across, up) in zip(networks, through.points, strict=True):
        for name in (*trained, "1.running_mean"):
            moved = origin[name] + across * through.axes[0][name] + up * through.axes[1][name]
            torch.testing.assert_close(moved, model.state_dict()[name])
    assert set(through.axes[0]) == {*trained, "1.running_mean", "1.running_var"}


def test_the_grid_of_a_plane_reaches_a_fifth_beyond_the_points():
    through = plane(network(0), network(1), network(2))
    x, y = through.grid(5)
    (_, _), (width, _), (shadow, height) = through.points
    low, high = min(0, shadow), max(width, shadow)
    assert (x[0], x[-1]) == (pytest.approx(low - 0.2 * (high - low)), pytest.approx(high + 0.2 * (high - low)))
    assert (y[0], y[-1]) == (pytest.approx(-0.2 * height), pytest.approx(1.2 * height))
    assert len(x) == len(y) == 5


def test_there_is_no_plane_through_fewer_than_three_networks():
    one, other = network(0), network(1)
    with pytest.raises(ValueError, match="same weights"):
        plane(one, network(0), other)
    with pytest.raises(ValueError, match="on one line"):
        plane(one, other, network(1))
    with pytest.raises(ValueError, match="different shapes"):
        plane(one, other, nn.Linear(2, 2))
