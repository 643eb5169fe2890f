"""Gradients from before a step: cleared in whatever way, or refused."""

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mecam.optim import SAM, MeCAM, SharpnessAware
from tests.optim.flat import batch, closure_for, flatten, network
from tests.optim.test_passes import assert_same_bits, bits

X, Y = batch()


class TestLeftovers:
    """Gradients from before the step: cleared in whatever way, or refused."""

    def step_twice(self, clear: Callable[[SharpnessAware, nn.Module], None]) -> Tensor:
        model = network()
        optimizer = MeCAM(model.parameters(), torch.optim.Adam, lr=0.1)

        def closure() -> Tensor:
            clear(optimizer, model)
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            return loss

        optimizer.step(closure)
        assert model[0].weight.grad is not None  # the combined gradient stays, as with any optimizer
        optimizer.step(closure)
        return flatten(list(model.parameters()))

    def test_every_way_of_clearing_gives_the_same(self) -> None:
        ways: list[Callable[[SharpnessAware, nn.Module], None]] = [
            lambda optimizer, _: optimizer.zero_grad(),
            lambda optimizer, _: optimizer.zero_grad(set_to_none=False),
            lambda _, model: model.zero_grad(),
            lambda _, model: [p.grad.zero_() for p in model.parameters() if p.grad is not None] and None,
        ]
        results = [self.step_twice(way) for way in ways]
        for result in results[1:]:
            assert torch.equal(result, results[0])

    def test_uncleared_is_refused(self) -> None:
        with pytest.raises(RuntimeError, match="did not clear them"):
            self.step_twice(lambda *_: None)

    def test_accumulation_outside_is_refused_and_weights_are_untouched(self) -> None:
        model = network()
        optimizer = SAM(model.parameters(), torch.optim.Adam, lr=0.1)
        before = bits(model)
        F.cross_entropy(model(X[:6]), Y[:6]).backward()

        def closure() -> Tensor:
            loss = F.cross_entropy(model(X[6:]), Y[6:])
            loss.backward()
            return loss

        with pytest.raises(RuntimeError, match="loop over them inside the closure"):
            optimizer.step(closure)
        assert_same_bits(model, before)

    def test_a_stale_gradient_of_an_unused_parameter_is_refused(self) -> None:
        used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        unused.grad = torch.ones(3)
        optimizer = SAM([{"params": [used]}, {"params": [unused]}], torch.optim.SGD, lr=0.1)

        def closure() -> Tensor:
            used.grad = None
            loss = used.square().sum()
            loss.backward()
            return loss

        with pytest.raises(RuntimeError, match="did not clear them"):
            optimizer.step(closure)

    @pytest.mark.parametrize("in_place", [False, True])
    def test_a_part_that_is_not_cleared_is_refused(self, in_place: bool) -> None:
        """In the first step that has leftovers, whichever part of the network it is."""
        for cleared, kept in ((0, 2), (2, 0)):
            model = network()
            optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)

            def closure(cleared: int = cleared, model: nn.Sequential = model) -> Tensor:
                model[cleared].zero_grad(set_to_none=not in_place)
                loss = F.cross_entropy(model(X), Y)
                loss.backward()
                return loss

            optimizer.step(closure)
            before = bits(model)
            with pytest.raises(RuntimeError, match="did not clear them"):
                optimizer.step(closure)
            assert_same_bits(model, before)
            assert model[kept].weight.grad is not None

    @pytest.mark.parametrize("cleared", [0, 2])
    def test_a_part_is_not_cleared_after_steps_that_cleared_all(self, cleared: int) -> None:
        model = network()
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)

        def closure() -> Tensor:
            model[cleared].zero_grad()
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure_for(optimizer, model, X, Y))
        before = bits(model)
        with pytest.raises(RuntimeError, match="did not clear them"):
            optimizer.step(closure)
        assert_same_bits(model, before)

    def test_parts_that_are_cleared_one_after_the_other(self) -> None:
        model, whole = network(), network()
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        expected = SAM(whole.parameters(), torch.optim.SGD, lr=0.1)

        def closure() -> Tensor:
            losses = []
            for part in (model[2], model[0]):
                part.zero_grad()
                loss = F.cross_entropy(model(X), Y)
                gradients = torch.autograd.grad(loss, list(part.parameters()))
                torch.autograd.backward(list(part.parameters()), list(gradients))
                losses.append(loss)
            return losses[0]

        for _ in range(4):
            optimizer.step(closure)
            expected.step(closure_for(expected, whole, X, Y))
        torch.testing.assert_close(flatten(list(model.parameters())), flatten(list(whole.parameters())))

    @pytest.mark.parametrize("in_place", [False, True])
    def test_a_closure_that_writes_gradients_itself_need_not_clear_them(self, in_place: bool) -> None:
        model, whole = network(), network()
        parameters = list(model.parameters())
        optimizer = MeCAM(parameters, torch.optim.SGD, lr=0.1)
        expected = MeCAM(whole.parameters(), torch.optim.SGD, lr=0.1)

        def closure() -> Tensor:
            loss = F.cross_entropy(model(X), Y)
            for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                if in_place and p.grad is not None:
                    p.grad.copy_(gradient)
                else:
                    p.grad = gradient
            return loss

        for _ in range(4):
            optimizer.step(closure)
            expected.step(closure_for(expected, whole, X, Y))
        assert torch.equal(flatten(parameters), flatten(list(whole.parameters())))

    def test_hooks_are_few_where_gradients_are_cleared_by_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model, hooks = network(), 0
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)
        register = Tensor.register_hook

        def counted(tensor: Tensor, hook: Callable[[Tensor], None]) -> object:
            nonlocal hooks
            hooks += 1
            return register(tensor, hook)  # type: ignore[no-untyped-call]

        monkeypatch.setattr(Tensor, "register_hook", counted)
        counts = []
        for _ in range(4):
            hooks = 0
            optimizer.step(closure_for(optimizer, model, X, Y))
            counts.append(hooks)
        assert counts == [0, 4, 1, 1]

    def test_cleared_gradients_are_freed_before_the_first_backward(self) -> None:
        model, alive = network(), []
        optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1)

        def closure() -> Tensor:
            old = [weakref.ref(p.grad) for p in model.parameters() if p.grad is not None]
            optimizer.zero_grad()
            if optimizer.first_pass:
                alive.append(sum(gradient() is not None for gradient in old))
            loss = F.cross_entropy(model(X), Y)
            loss.backward()
            return loss

        for _ in range(4):
            optimizer.step(closure)
        assert alive == [0, 0, 0, 0]

    def test_without_clearing_the_first_step_is_right(self) -> None:
        """The machinery keeps the passes of one step apart even then; only a second step is refused."""
        a, b = network(), network()
        one, two = (MeCAM(m.parameters(), torch.optim.SGD, lr=0.1) for m in (a, b))

        def closure() -> Tensor:
            loss = F.cross_entropy(a(X), Y)
            loss.backward()
            return loss

        one.step(closure)
        two.step(closure_for(two, b, X, Y))
        assert torch.equal(flatten(list(a.parameters())), flatten(list(b.parameters())))
