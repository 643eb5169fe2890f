"""Base optimizers with names, states and layouts of their own."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mecam.optim import SAM, LookSAM, MeCAM, RhoSchedule, SharpnessAware, create, linear
from tests.optim.flat import batch, closure_for, flatten, network
from tests.optim.test_passes import METHODS

X, Y = batch()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> Tensor:
    for _ in range(steps):
        optimizer.step(closure_for(optimizer, model, X, Y))
    return flatten(list(model.parameters()))


class Renamed(torch.optim.SGD):
    """SGD that has every hyperparameter, counter and note of a method as its own as well."""

    def __init__(self, params: Any, lr: float, names: tuple[str, ...]) -> None:
        super().__init__(params, lr=lr)
        self.defaults.update(dict.fromkeys(names, "the base's own"))
        for group in self.param_groups:
            group.update(dict.fromkeys(names, "the base's own"))


class TestClashes:
    @pytest.mark.parametrize("method", METHODS)
    def test_a_function_keeps_both_apart(self, method: type[SharpnessAware]) -> None:
        names = (*method.hyperparameters, *method.counters, *method.notes)
        extra = {LookSAM: {"k": 2}}.get(method, {})
        a, b = network(), network()
        one = method(a.parameters(), torch.optim.SGD, lr=0.1, **extra)
        two = method(b.parameters(), lambda p: Renamed(p, 0.1, names), **extra)
        assert torch.equal(train(a, one, 3), train(b, two, 3))
        for group in two.param_groups:
            assert all(group[name] == "the base's own" for name in names)
            assert all(group[f"sharpness_{name}"] == one.param_groups[0][name] for name in method.hyperparameters)
        c = copy.deepcopy(b)
        resumed = method(c.parameters(), lambda p: Renamed(p, 0.1, names), **extra)
        resumed.load_state_dict(two.state_dict())
        assert torch.equal(train(c, resumed, 2), train(b, two, 2))

    @pytest.mark.parametrize(
        ("base", "name"), [(torch.optim.Adadelta, "rho"), (torch.optim.RMSprop, "alpha"), (torch.optim.ASGD, "alpha")]
    )
    def test_the_way_that_the_refusal_shows(self, base: Any, name: str) -> None:
        with pytest.raises(ValueError, match=rf"MeCAM\(params, lambda p: {base.__name__}\(p, {name}=\.\.\.\), {name}="):
            MeCAM(network().parameters(), base, lr=0.01)
        model = network()
        optimizer = MeCAM(model.parameters(), lambda p: base(p, lr=0.01, **{name: 0.75}), **{name: 0.2})
        assert optimizer.param_groups[0][name] == 0.75
        assert optimizer.param_groups[0][f"sharpness_{name}"] == 0.2
        losses = [optimizer.step(closure_for(optimizer, model, X, Y)).item() for _ in range(15)]
        assert losses[-1] < losses[0]

    def test_groups_and_schedules_use_the_longer_name(self) -> None:
        model = network()
        groups = [{"params": model[0].parameters(), "sharpness_rho": 0.4}, {"params": model[2].parameters()}]
        optimizer = SAM(groups, lambda p: torch.optim.Adadelta(p, rho=0.8), rho=0.2)
        RhoSchedule(optimizer, linear(4, final=0.5)).step()
        assert [group["sharpness_rho"] for group in optimizer.param_groups] == pytest.approx([0.35, 0.175])
        assert [group["rho"] for group in optimizer.param_groups] == [0.8, 0.8]


def madgrad(parameters: Any) -> Any:
    return pytest.importorskip("pytorch_optimizer").MADGRAD(parameters, lr=0.01)


def spam(parameters: Any) -> Any:
    return pytest.importorskip("pytorch_optimizer").SPAM(parameters, lr=0.01)


def lookahead(parameters: Any) -> Any:
    library = pytest.importorskip("pytorch_optimizer")
    return library.Lookahead(torch.optim.Adam(parameters, lr=0.01), k=2)


def schedule_free(parameters: Any) -> Any:
    library = pytest.importorskip("pytorch_optimizer")
    optimizer = library.ScheduleFreeWrapper(torch.optim.SGD(parameters, lr=0.01))
    optimizer.train()
    return optimizer


@pytest.mark.parametrize("method", ["mecam", "fsam"])
@pytest.mark.parametrize("base", [madgrad, spam, lookahead, schedule_free])
def test_a_checkpoint_of_an_unusual_base_resumes(method: str, base: Callable[[Any], Any]) -> None:
    def build(model: nn.Module) -> SharpnessAware:
        return create(method, model.parameters(), base=base)  # type: ignore[return-value]

    model = network()
    optimizer = build(model)
    train(model, optimizer, 3)
    twin = copy.deepcopy(model)
    resumed = build(twin)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.param_groups[0]["taken"] == 3
    torch.testing.assert_close(train(twin, resumed, 3), train(model, optimizer, 3), rtol=0, atol=1e-12)


def test_a_step_pre_hook_may_replace_the_closure() -> None:
    model = network()
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
    closure = closure_for(optimizer, model, X, Y)
    optimizer.register_step_pre_hook(lambda optimizer, _, kwargs: ((optimizer, closure), kwargs))
    assert optimizer.step(None) is not None


class TestMessages:
    @pytest.mark.parametrize("base", [torch.optim.SGD, lambda p: torch.optim.SGD(p, lr=0.1)])
    def test_a_typo_in_an_option_shows_what_is_near(self, base: Any) -> None:
        with pytest.raises(TypeError, match=r"has an option 'clip_nrom'; did you mean clip_norm"):
            SAM(network().parameters(), base, clip_nrom=1.0)

    def test_a_base_that_takes_any_keyword_does_not_swallow_a_typo(self) -> None:
        base = pytest.importorskip("pytorch_optimizer").Yogi
        with pytest.raises(TypeError, match="neither SAM nor Yogi has an option 'shared_nose'; did you mean shared_n"):
            SAM(network().parameters(), base, shared_nose=True)

    def test_a_function_that_hands_on_keywords_gets_them(self) -> None:
        """Also one that is near a hyperparameter of the method."""
        optimizer = MeCAM(network().parameters(), lambda p, **options: torch.optim.Adam(p, **options), betas=(0.8, 0.9))
        assert optimizer.param_groups[0]["betas"] == (0.8, 0.9)

    def test_a_group_that_is_no_dict(self) -> None:
        optimizer = SAM(network().parameters(), torch.optim.SGD, lr=0.1)
        with pytest.raises(TypeError, match=r'param_group is a list; .*add_param_group\(\{"params": parameters\}\)'):
            optimizer.add_param_group([nn.Parameter(torch.ones(1))])  # type: ignore[arg-type]

    def test_a_dict_of_losses_can_be_tracked(self) -> None:
        model = network()
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, track=True)
        closure = closure_for(optimizer, model, X, Y)
        loss = optimizer.step(lambda: {"loss": closure(), "note": "x"})["loss"]
        assert optimizer.last is not None
        assert optimizer.last.losses[0] == loss
        with pytest.raises(TypeError, match=r"returned a tuple; .* a dict with the loss under 'loss'"):
            optimizer.step(lambda: (closure(), 1))


class TestCreate:
    @pytest.mark.parametrize("base", [torch.optim.SGD, lambda p, lr: torch.optim.SGD(p, lr=lr)])
    def test_the_base_may_be_a_class_or_a_function(self, base: Any) -> None:
        a, b = network(), network()
        one = create("sam", a.parameters(), base=base, lr=0.1)
        two = SAM(b.parameters(), torch.optim.SGD, lr=0.1)
        assert torch.equal(train(a, one, 2), train(b, two, 2))

    def test_typos_are_refused_all_the_same(self) -> None:
        with pytest.raises(TypeError, match="did you mean momentum"):
            create("sam", network().parameters(), base=torch.optim.SGD, momentun=0.9)
