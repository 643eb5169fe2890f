"""The shared step: groups, dtypes, frozen and unused parameters, bad gradients, clipping, schedulers, bases."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import FAD, FSAM, GAM, MSAM, SAM, WSAM, LookSAM, MeCAM, SharpnessAware
from tests.optim.flat import batch, closure_for, flatten, gradient, network
from tests.optim.test_passes import GENERIC, METHODS, assert_same_bits, bits

X, Y = batch()
pytestmark = pytest.mark.filterwarnings("ignore:.* parameters are torch:UserWarning")  # of half precision


class TestGroups:
    def test_each_group_has_its_own_rho_and_one_norm_serves_all(self) -> None:
        model = network()
        seen: list[Tensor] = []
        optimizer = SAM(
            [{"params": model[0].parameters(), "rho": 0.1}, {"params": model[2].parameters(), "rho": 0.4}],
            torch.optim.SGD,
            lr=0.1,
        )
        theta = flatten(list(model.parameters()))

        def closure() -> Tensor:
            seen.append(flatten(list(model.parameters())))
            return closure_for(optimizer, model, X, Y)()

        optimizer.step(closure)
        g = gradient(theta, X, Y)
        rho = torch.tensor([0.1] * 42 + [0.4] * 24, dtype=torch.float64)
        torch.testing.assert_close(seen[1], theta + rho * g / (g.norm() + 1e-12), rtol=0, atol=1e-12)

    def test_splitting_into_groups_changes_nothing(self) -> None:
        a, b = network(), network()
        one = MeCAM(a.parameters(), torch.optim.Adam, lr=0.1)
        two = MeCAM([{"params": [p]} for p in b.parameters()], torch.optim.Adam, lr=0.1)
        for _ in range(3):
            one.step(closure_for(one, a, X, Y))
            two.step(closure_for(two, b, X, Y))
        torch.testing.assert_close(flatten(list(a.parameters())), flatten(list(b.parameters())), rtol=0, atol=1e-12)

    def test_add_param_group(self) -> None:
        model = network()
        optimizer = MeCAM(model[0].parameters(), torch.optim.Adam, lr=0.1, rho=0.2)
        optimizer.step(closure_for(optimizer, model, X, Y))
        optimizer.add_param_group({"params": model[2].parameters(), "lr": 0.01})
        assert optimizer.param_groups[1]["rho"] == 0.2
        assert optimizer.param_groups[1]["taken"] == 1
        before = bits(model[2])
        model.zero_grad()
        optimizer.step(closure_for(optimizer, model, X, Y))
        assert not torch.equal(model[2].weight, before[0])
        with pytest.raises(ValueError, match="rho=-1"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "rho": -1.0})
        assert len(optimizer.param_groups) == 2, "what was refused has not joined"
        optimizer.step(closure_for(optimizer, model, X, Y))

    @pytest.mark.parametrize(
        ("method", "name"),
        [(LookSAM, "k")],
    )
    def test_what_decides_of_a_whole_step_is_one_for_all_groups(self, method: type[SharpnessAware], name: str) -> None:
        model = network()
        groups = [{"params": model[0].parameters(), name: 2}, {"params": model[2].parameters(), name: 7}]
        with pytest.raises(ValueError, match=f"{method.__name__}: {name} is 2 and 7 in different groups"):
            method(groups, torch.optim.SGD, lr=0.1)
        optimizer = method(model[0].parameters(), torch.optim.SGD, lr=0.1, **{name: 2})  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"{name} is 2 and 7 in different groups"):
            optimizer.add_param_group({"params": model[2].parameters(), name: 7})
        assert len(optimizer.param_groups) == 1
        other = method(model[0].parameters(), torch.optim.SGD, lr=0.1, **{name: 7})  # type: ignore[arg-type]
        optimizer.load_state_dict(other.state_dict())  # all groups at once may change
        assert optimizer.param_groups[0][name] == 7

    def test_weights_as_tensors_are_checked_as_well(self) -> None:
        with pytest.raises(ValueError, match=r"add up to 1.8; alpha \+ beta must be in \[0, 1\]"):
            MeCAM(network().parameters(), torch.optim.SGD, lr=0.1, alpha=torch.tensor(0.9), beta=torch.tensor(0.9))
        MeCAM(network().parameters(), torch.optim.SGD, lr=0.1, alpha=torch.tensor(0.7), beta=torch.tensor(0.3))

    def test_hyperparameters_may_be_tensors(self) -> None:
        a, b = network(), network()
        one = MeCAM(a.parameters(), torch.optim.SGD, lr=0.1, rho=0.3, alpha=0.3, beta=0.2)
        values = {"rho": 0.3, "alpha": 0.3, "beta": 0.2}
        two = MeCAM(
            b.parameters(),
            torch.optim.SGD,
            lr=0.1,
            **{k: torch.tensor(v, dtype=torch.float64) for k, v in values.items()},
        )
        for _ in range(3):
            one.step(closure_for(one, a, X, Y))
            two.step(closure_for(two, b, X, Y))
        torch.testing.assert_close(flatten(list(a.parameters())), flatten(list(b.parameters())), rtol=0, atol=1e-12)

    def test_a_dict_of_hyperparameters_is_refused(self) -> None:
        with pytest.raises(TypeError, match="takes hyperparameters as keywords"):
            SAM(network().parameters(), torch.optim.SGD, {"rho": 0.1}, lr=0.1)  # type: ignore[arg-type]

    def test_a_tensor_that_is_no_scalar_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"rho is a tensor of shape \(2,\); a 0-dim tensor is needed"):
            SAM(network().parameters(), torch.optim.SGD, lr=0.1, rho=torch.ones(2))


class TestParameters:
    @GENERIC
    @pytest.mark.parametrize("method", METHODS)
    def test_frozen_and_unused_parameters_are_left_alone(self, method: type[SharpnessAware]) -> None:
        model = network()
        model[0].bias.requires_grad_(False)
        unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = method([*model.parameters(), unused], torch.optim.Adam, lr=0.1, weight_decay=0.1)
        frozen = model[0].bias.detach().clone()
        for _ in range(2):
            optimizer.step(closure_for(optimizer, model, X, Y))
        assert torch.equal(model[0].bias, frozen)
        assert torch.equal(unused, torch.ones(3, dtype=torch.float64))
        assert unused.grad is None
        assert unused not in optimizer.state

    @pytest.mark.parametrize("method", METHODS)
    def test_a_parameter_used_in_some_steps_only(self, method: type[SharpnessAware]) -> None:
        """As a head of its own for each task: without a gradient it is not moved, for all that is kept of it."""
        model, head = network(), nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = method([*model.parameters(), head], torch.optim.SGD, lr=0.1, weight_decay=0.1)
        seen: list[Tensor] = []

        def closure(use: bool) -> Tensor:
            optimizer.zero_grad()
            seen.append(head.detach().clone())
            loss = F.cross_entropy(model(X) * head if use else model(X), Y)
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(lambda: closure(use=True))
            seen.clear()
            kept = {name: kept.clone() for name, kept in optimizer.own_state.get(head, {}).items()}
            optimizer.step(lambda: closure(use=False))
            # MSAM moves it ahead along its momentum, before it is known that it has no gradient
            assert method is MSAM or all(torch.equal(at, head) for at in seen)
            assert head.grad is None
            assert all(torch.equal(optimizer.own_state[head][name], old) for name, old in kept.items())

    @pytest.mark.parametrize("method", METHODS)
    def test_a_parameter_used_in_some_passes_only(self, method: type[SharpnessAware]) -> None:
        """As with stochastic depth: a gradient that a pass did not give counts as zero there."""
        model, extra = network(), nn.Parameter(torch.ones(3, dtype=torch.float64))
        optimizer = method([*model.parameters(), extra], torch.optim.SGD, lr=0.1)

        def closure() -> Tensor:
            optimizer.zero_grad()
            logits = model(X)
            loss = F.cross_entropy(logits if optimizer.first_pass else logits * extra, Y)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        assert extra.isfinite().all()
        if method.__name__ in ("SAM", "CRSAM", "MeCAM"):
            assert not torch.equal(extra, torch.ones(3, dtype=torch.float64))

    @pytest.mark.parametrize("method", METHODS)
    def test_several_dtypes(self, method: type[SharpnessAware]) -> None:
        model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3).bfloat16())
        optimizer = method(model.parameters(), torch.optim.SGD, lr=0.1)
        before = bits(model)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model[1](model[0](X.float()).bfloat16()).float(), Y)
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(20)]
        assert losses[-1] < losses[0]
        for parameter, old in zip(model.parameters(), before, strict=True):
            assert parameter.dtype == old.dtype
            assert not torch.equal(parameter, old)

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
    def test_a_zero_gradient_leaves_weights_untouched_and_finite(
        self, method: type[SharpnessAware], dtype: torch.dtype
    ) -> None:
        model = network(dtype=dtype)
        optimizer = method(model.parameters(), torch.optim.SGD, lr=0.1)
        before = bits(model)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = 0 * model(X.to(dtype)).sum()
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        for parameter, old in zip(model.parameters(), before, strict=True):
            assert torch.equal(parameter, old)

    @settings(max_examples=25, deadline=None)
    @given(
        st.sampled_from(METHODS),
        st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
        st.floats(0, 1),
        st.lists(st.integers(1, 5), min_size=1, max_size=3),
        st.integers(0, 2**31),
    )
    @example(GAM, torch.bfloat16, 0.0, [1, 1, 2], 0)  # two gradients that are equal, whose difference is normalised
    @example(FAD, torch.bfloat16, 0.0, [1, 1, 2], 0)
    def test_any_shape_dtype_and_radius(
        self, method: type[SharpnessAware], dtype: torch.dtype, rho: float, widths: list[int], seed: int
    ) -> None:
        """Weights end where the base optimizer brings them from theta with the gradient it was handed."""
        torch.manual_seed(seed)
        sizes = [5, *widths, 3]
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        model = nn.Sequential(*layers).to(dtype)
        coupled = {"decouple": False} if method.__name__ == "WSAM" else {}
        rho = max(rho, method.hyperparameters["rho"].low)
        optimizer = method(model.parameters(), torch.optim.SGD, lr=0.125, rho=rho, **coupled)
        before = bits(model)
        optimizer.step(closure_for(optimizer, model, X.to(dtype), Y))
        for parameter, old in zip(model.parameters(), before, strict=True):
            assert parameter.grad is not None
            assert torch.equal(parameter, old.add(parameter.grad, alpha=-0.125))


class TestNonfinite:
    def poisoned(self, optimizer: SharpnessAware, model: nn.Module, at: int, value: float) -> Any:
        calls = 0

        def closure() -> Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            (loss * value if calls == at else loss).backward()
            return loss

        return closure

    @GENERIC
    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("method", METHODS)
    def test_raise_is_the_default(self, method: type[SharpnessAware], value: float) -> None:
        for at in range(1, method.passes + 1):
            model = network()
            optimizer = method(model.parameters(), torch.optim.Adam, lr=0.1)
            before = bits(model)
            with pytest.raises(FloatingPointError, match=r"not finite \(losses of the passes: .*nonfinite='skip'"):
                optimizer.step(self.poisoned(optimizer, model, at, value))
            assert_same_bits(model, before)
            assert not optimizer.state
            assert not optimizer.own_state

    def test_the_error_is_the_same_where_the_closure_returns_more_than_the_loss(self) -> None:
        model = network()
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        closure = self.poisoned(optimizer, model, 1, float("nan"))
        with pytest.raises(FloatingPointError, match=r"losses of the passes: 1[.0-9]*, nan"):
            optimizer.step(lambda: {"loss": closure()})
        closure = self.poisoned(optimizer, model, 1, float("nan"))
        with pytest.raises(FloatingPointError, match=r"losses of the passes: a tuple, a tuple"):
            optimizer.step(lambda: (closure(), 1))

    @pytest.mark.parametrize("method", METHODS)
    def test_skip_leaves_everything_as_it_was(self, method: type[SharpnessAware]) -> None:
        for at in range(1, method.passes + 1):
            for warm in (0, 1):
                a, b = network(), network()
                one = method(a.parameters(), torch.optim.Adam, lr=0.1, nonfinite="skip")
                two = method(b.parameters(), torch.optim.Adam, lr=0.1)
                for _ in range(warm):
                    one.step(closure_for(one, a, X, Y))
                    two.step(closure_for(two, b, X, Y))
                if warm and method in (LookSAM,) and at > 1:
                    continue  # a step with one pass
                one.step(self.poisoned(one, a, at, float("nan")))
                assert one.skipped == 1
                for _ in range(3):
                    one.step(closure_for(one, a, X, Y))
                    two.step(closure_for(two, b, X, Y))
                assert torch.equal(flatten(list(a.parameters())), flatten(list(b.parameters())))
                assert one.skipped == 1

    def test_ignore_steps_on_it(self) -> None:
        model = network()
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, nonfinite="ignore")
        optimizer.step(self.poisoned(optimizer, model, 2, float("nan")))
        assert model[0].weight.isnan().all()

    def test_an_unknown_word_is_refused(self) -> None:
        with pytest.raises(ValueError, match="nonfinite='warn' is not allowed; it must be 'raise', 'skip' or 'ignore'"):
            SAM(network().parameters(), torch.optim.SGD, lr=0.1, nonfinite="warn")  # type: ignore[arg-type]


class TestClipping:
    @pytest.mark.parametrize("limit", [1e-3, 1e3])
    def test_the_combined_gradient_is_clipped_as_torch_does(self, limit: float) -> None:
        a, b = network(), network()
        one = MeCAM(a.parameters(), torch.optim.SGD, lr=0.1, clip_norm=limit)
        two = MeCAM(b.parameters(), torch.optim.SGD, lr=0.0)
        one.step(closure_for(one, a, X, Y))
        two.step(closure_for(two, b, X, Y))
        nn.utils.clip_grad_norm_(b.parameters(), limit)
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=0, atol=1e-14)

    def test_a_bad_limit_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"clip_norm=0 .* \(0, inf\)"):
            SAM(network().parameters(), torch.optim.SGD, lr=0.1, clip_norm=0)


class TestBases:
    def test_a_function_of_the_parameters(self) -> None:
        model = network()
        optimizer = SAM(model.parameters(), lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.5))
        optimizer.step(closure_for(optimizer, model, X, Y))
        assert isinstance(optimizer.base_optimizer, torch.optim.SGD)

    @pytest.mark.parametrize(
        ("base", "error", "words"),
        [
            (torch.optim.LBFGS, ValueError, "LBFGS cannot be the base optimizer: it runs the closure itself"),
            (torch.optim.SparseAdam, ValueError, "SparseAdam .* sparse gradients"),
            (SAM, ValueError, "SAM cannot be the base optimizer: it is sharpness-aware itself"),
            (lambda params: torch.optim.LBFGS(params), ValueError, "LBFGS cannot"),
            (lambda _: "adam", TypeError, "returned a str, not a torch.optim.Optimizer"),
            ("adam", TypeError, "base_optimizer is a str object; give the class"),
            (torch.optim.SGD([nn.Parameter(torch.ones(1))]), TypeError, "SGD object; give the class"),
        ],
    )
    def test_what_cannot_be_a_base_is_refused_with_the_reason(
        self, base: Any, error: type[Exception], words: str
    ) -> None:
        with pytest.raises(error, match=words):
            SAM(network().parameters(), base)

    def test_an_unknown_keyword_is_the_bases_error(self) -> None:
        with pytest.raises(TypeError, match="neither SAM nor SGD has an option 'rhoo'; did you mean rho"):
            SAM(network().parameters(), torch.optim.SGD, lr=0.1, rhoo=0.1)


class TestTracking:
    def test_last_holds_losses_norms_and_cosines(self) -> None:
        model = network()
        optimizer = MeCAM(model.parameters(), torch.optim.SGD, lr=0.1, rho=0.3, track=True)
        theta = flatten(list(model.parameters()))
        assert optimizer.last is None
        optimizer.step(closure_for(optimizer, model, X, Y))
        g = gradient(theta, X, Y)
        d = 0.3 * g / (g.norm() + 1e-12)
        gradients = [g, gradient(theta + d, X, Y), gradient(theta - d, X, Y)]
        last = optimizer.last
        assert last is not None
        torch.testing.assert_close(torch.stack(last.norms), torch.stack([v.norm() for v in gradients]))
        assert set(last.cosines) == {(0, 1), (0, 2), (1, 2)}
        for (i, j), value in last.cosines.items():
            torch.testing.assert_close(value, F.cosine_similarity(gradients[i], gradients[j], dim=0))
        assert len(last.losses) == 3
        assert all(loss.dim() == 0 and not loss.requires_grad for loss in last.losses)

    def test_tracking_does_not_change_the_step(self) -> None:
        a, b = network(), network()
        one = FSAM(a.parameters(), torch.optim.Adam, lr=0.1, track=True)
        two = FSAM(b.parameters(), torch.optim.Adam, lr=0.1)
        for _ in range(3):
            one.step(closure_for(one, a, X, Y))
            two.step(closure_for(two, b, X, Y))
        assert torch.equal(flatten(list(a.parameters())), flatten(list(b.parameters())))


@pytest.mark.parametrize("words", ["model", "local_perturbation", "maximize"])
def test_bad_options_are_refused(words: str) -> None:
    bad: dict[str, Any] = {words: object() if words == "model" else True}
    with pytest.raises((TypeError, ValueError), match=f"SAM: {words}"):
        SAM(network().parameters(), torch.optim.SGD, lr=0.1, **bad)


def test_a_text_is_no_switch() -> None:
    with pytest.raises(TypeError, match="WSAM: decouple='no' is a str; it must be true or false"):
        WSAM(network().parameters(), torch.optim.SGD, lr=0.1, decouple="no")  # type: ignore[arg-type]
