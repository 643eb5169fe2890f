"""The step that every sharpness-aware optimizer shares. A method adds its formula: `gradient(grad_at)`.

Above 400 lines because it is one class, whose promises are about one step and one state; what can be told apart from it
is in the files with an underscore.
"""

from __future__ import annotations

import copy
import warnings
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from mecam.optim._base import BaseOptimizer, build, refuse_clashes, wants_hessian
from mecam.optim._buffers import Buffers
from mecam.optim._checkpoint import OwnState, base_part, merge, own_part
from mecam.optim._hessian import REFUSAL, hutchinson
from mecam.optim._masked import drop_new_state, looks_for_itself, masked_step, unless_skipped
from mecam.optim._passes import Closure, GradAt, NoGradientError, Passes
from mecam.optim._shards import is_distributed, is_flat_shard, local, reshard
from mecam.optim._update import Update
from mecam.optim.hyperparameters import Hyperparameter, check_switch
from mecam.optim.last import LastStep
from mecam.optim.vector import Coefficient, PerGroup, Space, Vector

Nonfinite = Literal["raise", "skip", "ignore"]
MEMORY = 0.9  # of a running mean, from one value to the next
CLIP_NORM = Hyperparameter("largest norm of the combined gradient", open_low=True)
HOW_TO_STEP = """step() needs a closure, since it takes the gradient at several weights:

    def closure():
        optimizer.zero_grad()
        loss = loss_function(model(inputs), targets)
        loss.backward()
        return loss

    optimizer.step(closure)

With a GradScaler: optimizer.step(closure, scaler=scaler). GradScaler.step(optimizer), which Lightning's 16-mixed and
Accelerate's fp16 call, cannot unscale the passes of a step: train in bf16, or call step yourself. In Lightning:

    def optimizer_step(self, epoch, batch_idx, optimizer, optimizer_closure):
        scaler = self.trainer.precision_plugin.scaler
        optimizer.optimizer.step(optimizer_closure, scaler=scaler)
        scaler.update()

In Accelerate: optimizer.optimizer.step(closure, scaler=accelerator.scaler); accelerator.scaler.update()"""


class SharpnessAware(Optimizer):
    """A base optimizer fed with a gradient combined from several passes.

    The base optimizer owns `param_groups` and `state`; this class shows them, so that schedulers, checkpoints and
    copies see one set of groups. Hyperparameters (rho, ...) live in the groups and may be floats or 0-dim tensors; the
    method's own tensors live in `own_state`.

    Args:
        params: parameters or parameter groups, which may carry their own rho, ...
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        model: the network. Its buffers (batch-norm statistics) then change as in one plain pass also where its forward
            is hidden inside a compiled function; needed for `local_perturbation`.
        shared_noise: every pass draws the same random numbers (dropout, augmentation inside the closure).
        clip_norm: largest norm of the combined gradient.
        nonfinite: what a NaN or infinite combined gradient does. "raise" an error, the weights as before; "skip" the
            step (decided on the device where the base optimizer allows it, and counted in `skipped`); "ignore".
        local_perturbation: under DDP, perturb each rank by its own gradient and all-reduce the combined gradient once.
            What FSAM and LookSAM keep is then each rank's own: a checkpoint needs the state of all ranks.
        track: fill `last` with the passes' losses, gradient norms and cosines.
        base_kwargs: passed on to the base optimizer (lr, weight_decay, ...).
    """

    hyperparameters: ClassVar[Mapping[str, Hyperparameter]]
    passes: ClassVar[int]
    decides_on_host: ClassVar[bool] = False  # by Python what work a step is; such a step cannot be a CUDA graph
    keeps: ClassVar[tuple[str, ...]] = ()  # names of the vectors the method keeps between steps
    notes: ClassVar[tuple[str, ...]] = ()  # names of the numbers it keeps a running mean of
    counters: ClassVar[tuple[str, ...]] = ("taken", "skipped")  # of steps
    _step_supports_amp_scaling = True  # GradScaler.step then marks its call with `found_inf`, and it can be refused

    last: LastStep | None
    _running: Passes | None
    _space: Space
    _to_keep: dict[str, Vector]
    _to_note: dict[str, Tensor]
    _shift: Vector | None
    _diagonal: dict[Tensor, Tensor] | None
    _stepped: dict[Tensor, None]  # parameters that the base was seen to keep no state for

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        values: Mapping[str, float | Tensor],
        *,
        model: nn.Module | None = None,
        shared_noise: bool = False,
        clip_norm: float | None = None,
        nonfinite: Nonfinite = "raise",
        local_perturbation: bool = False,
        track: bool = False,
        **base_kwargs: Any,
    ) -> None:
        name = type(self).__name__
        if nonfinite not in ("raise", "skip", "ignore"):
            raise ValueError(f"{name}: nonfinite={nonfinite!r} is not allowed; it must be 'raise', 'skip' or 'ignore'")
        switches = {"shared_noise": shared_noise, "local_perturbation": local_perturbation, "track": track}
        for switch, value in switches.items():
            check_switch(name, switch, value)
        if clip_norm is not None:
            CLIP_NORM.check(name, "clip_norm", clip_norm)
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(
                f"{name}: model is a {type(model).__name__}; it must be the torch.nn.Module that is trained"
            )
        if local_perturbation and not _is_ddp(model):
            raise ValueError(f"{name}: local_perturbation needs model= to be the DistributedDataParallel module")
        if local_perturbation and cast("Any", model).static_graph:
            raise ValueError(f"{name}: local_perturbation needs DDP's no_sync, which fails with static_graph=True")
        self.base_optimizer = build(base_optimizer, params, base_kwargs)
        if any(map(is_flat_shard, self._all_parameters())):
            raise ValueError(
                f"{name}: FullyShardedDataParallel (FSDP1) does not show how its parameters are sharded, so no norm "
                "over all ranks can be taken. Shard the model with torch.distributed.fsdp.fully_shard (FSDP2)"
            )
        refuse_clashes(self.base_optimizer, name, self._entries)
        self.model = model
        self.shared_noise = shared_noise
        self.clip_norm = clip_norm
        self.nonfinite = nonfinite
        self.local_perturbation = local_perturbation
        self.track = track
        self.own_state: OwnState = {}
        self._wants_hessian = wants_hessian(self.base_optimizer)
        # Optimizer.__init__ would make groups and state of its own; __setstate__ makes the rest (hooks)
        self.__setstate__({"defaults": {**self.base_optimizer.defaults, **values}})
        for group in self.param_groups:
            self._complete(group, values)
        self._require_shared(self.param_groups)
        if self._wants_hessian and (_is_ddp(model) or any(map(is_distributed, self._all_parameters()))):
            raise ValueError(REFUSAL)

    @abstractmethod
    def gradient(self, grad_at: GradAt) -> Vector:
        """The method's formula: the gradient for the base optimizer. Its first call must be `grad_at()`, at theta."""

    def check(self, group: Mapping[str, Any]) -> None:
        """Refuse values that are allowed one by one but not together."""

    def values(self, *names: str) -> tuple[Coefficient, ...]:
        """The hyperparameters of these names, group by group where the groups differ."""
        return tuple(_coefficient([group[name] for group in self.param_groups]) for name in names)

    def per_parameter(self, name: str) -> list[float | Tensor]:
        """A hyperparameter's value at each parameter, in the order of `Vector.select`."""
        space = self._space
        groups = (kind.group for kind, block in zip(space.kinds, space.blocks, strict=True) for _ in block)
        return [self.param_groups[group][name] for group in groups]

    def weights(self) -> Vector:
        """theta itself, not a copy: to be read before the first `grad_at(offset)`."""
        return self._space.weights()

    def kept(self, name: str) -> Vector | None:
        """A vector kept from an earlier step; None before the first.

        It also has parts at parameters without a gradient in this step: `kept(...).within(g)` is without them.
        """
        taken = self.param_groups[0]["taken"]
        before_first = not isinstance(taken, Tensor) and taken == 0  # what is there then are a checkpoint's zeros
        if before_first or not any(name in state for state in self.own_state.values()):
            return None
        return self._space.vector(lambda parameter: self.own_state.get(parameter, {}).get(name))

    def keep(self, name: str, value: Vector) -> None:
        """Keep a vector for later steps, if this step is taken."""
        self._to_keep[name] = value.copy()

    def noted(self, name: str) -> Tensor:
        """A running mean over the values of some ten steps, on the device; infinite before the first."""
        mean: Tensor = self.param_groups[0][name]
        return mean

    def note(self, name: str, value: Tensor) -> None:
        """Let a running mean take in a value, if this step is taken and the value is finite."""
        self._to_note[name] = value

    def plan(self) -> Hashable:
        """Of what kind the next step is. Steps of one kind are the same work, and so may be one CUDA graph.

        A method that chooses between kinds does so here, on the host, before the step. Who replays graphs asks before
        each step; `step` asks where nobody did.
        """
        return None

    def shift(self, offset: Vector) -> None:
        """Move the weights by this after the base optimizer's step, if it is taken."""
        self._shift = offset

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.base_optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base_optimizer.param_groups = groups

    @property
    def state(self) -> Any:
        return self.base_optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.base_optimizer.state = state

    @property
    def first_pass(self) -> bool:
        """False while the closure runs at perturbed weights: a training step logs only where this is True."""
        return self._running is None or not self._running.losses

    @property
    def needs_graph(self) -> bool:
        """Whether the closure should call loss.backward(create_graph=True): AdaHessian, in the first pass."""
        return self._hessian_due() and self.first_pass

    @property
    def skipped(self) -> int | Tensor:
        """How many steps were not taken because the gradient was not finite."""
        count: int | Tensor = self.param_groups[0]["skipped"]
        return count

    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, scaler: torch.amp.GradScaler | None = None) -> Any:
        """One step; returns the loss at theta.

        Args:
            closure: clears the gradients, computes the loss, runs backward and returns the loss. It is called once per
                pass. With a scaler it calls scaler.scale(loss).backward().
            scaler: the GradScaler of fp16 training. Its update() is yours to call, as always.
        """
        by_scaler = [self.__dict__.pop(mark) for mark in ("found_inf", "grad_scale") if mark in self.__dict__]
        if closure is None or by_scaler:
            if by_scaler or not self._is_checkpointing():
                raise TypeError(HOW_TO_STEP)
            return self._initialise_state()
        if hessian_due := self._hessian_due():
            self._refuse_hessian_in_a_group()
        if self.local_perturbation:
            cast("Any", self.model).require_forward_param_sync = True  # no_sync ends the broadcast of buffers for good
        if not self._space.fits(self.param_groups):
            self._space = Space(self.param_groups)
        self._to_keep, self._to_note, self._shift, self._diagonal = {}, {}, None, None
        scaler = scaler if scaler is not None and scaler.is_enabled() else None
        scale = None if scaler is None else scaler.scale(torch.ones((), device=self._space.kinds[0].device))
        passes = self._running = Passes(
            self._space,
            closure,
            buffers=Buffers(self.model),
            shared_noise=self.shared_noise,
            unscale=None if scale is None else 1 / scale,
            around=cast("Any", self.model).no_sync if self.local_perturbation else None,
            after_first=self._estimate_hessian if hessian_due else None,
            record=self.track,
        )
        try:
            gradient = self.gradient(passes.grad_at)
        except NoGradientError as error:
            if error.loss is not None:
                raise
            return None  # a closure that leaves out its batch: no loss, no backward
        except RuntimeError as error:
            if hessian_due and "create_graph" in str(error):  # a compiled backward may refuse it itself
                raise RuntimeError(f"{REFUSAL} ({error})") from error
            raise
        finally:
            passes.restore()
            if any(kind.distributed for kind in self._space.kinds):
                reshard(self.model)
            self._running = None
        if self.track:
            self.last = LastStep.of(passes.losses, passes.gradients)
        shift = None if self._shift is None else self._shift.copy()
        update = Update(self._space, gradient.collapse(into=passes.gradients[-1]), shift, self._diagonal)
        self._commit(self._finish(update, passes, scaler, scale), update.shift)
        return passes.losses[0]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        group = {**param_group}
        self._complete(group, self.defaults)  # before it joins: one with a bad value is left out as a whole
        # each group its own, since they count in place
        group.update({n: copy.deepcopy(self.param_groups[0][n]) for n in (*self.counters, *self.notes)})
        self._require_shared([*self.param_groups, group])
        self.base_optimizer.add_param_group(group)

    def state_dict(self) -> dict[str, Any]:
        """All of it: the base optimizer's state, the method's own tensors, the hyperparameters."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        packed = merge(self.base_optimizer.state_dict(), self.own_state, self.param_groups)
        for after in self._optimizer_state_dict_post_hooks.values():
            packed = after(self, packed) or packed
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` gave, or a plain state of the base optimizer (rho, ... then stay as they are)."""
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        present = [{name: group[name] for name in self._entries} for group in self.param_groups]
        to_come = [{**group} for group in state_dict["param_groups"]]
        for group, values in zip(to_come, present, strict=False):  # their number is torch's to check
            self._complete(group, values)  # before anything is loaded: a state with a bad value is refused whole
        self._require_shared(to_come)
        self.base_optimizer.load_state_dict(base_part(state_dict))
        for group, values in zip(self.param_groups, present, strict=True):
            self._complete(group, values)
        self.own_state = own_part(state_dict, self.param_groups, self.keeps)
        if self.keeps and not self.own_state and self.param_groups[0]["taken"] > 0:
            warnings.warn(
                f"{type(self).__name__}: the state loaded has no {', '.join(self.keeps)} and starts it anew. "
                "torch.distributed.checkpoint leaves it out with flatten_optimizer_state_dict=True",
                stacklevel=2,
            )
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        transient = ("step", "last", "_running", "_space", "_to_keep", "_to_note", "_shift", "_diagonal", "_stepped")
        return {k: v for k, v in self.__dict__.items() if k not in transient and not k.startswith("_optimizer_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.last = self._running = self._shift = self._diagonal = None
        self._to_keep, self._to_note, self._stepped, self._space = {}, {}, {}, Space([])
        super().__setstate__(state)

    def _complete(self, group: dict[str, Any], values: Mapping[str, Any]) -> None:
        """Give a group the hyperparameters, counters and notes that it does not bring, and check its values."""
        for name, hyperparameter in self.hyperparameters.items():
            hyperparameter.check(type(self).__name__, name, group.setdefault(name, values[name]))
        self.check(group)
        if group.get("maximize"):
            raise ValueError(
                f"{type(self).__name__}: maximize=True would perturb towards the best case, not the worst. Return and "
                "differentiate the negative of the objective in the closure instead"
            )
        for name in self.counters:
            group.setdefault(name, 0)
        for name in self.notes:
            group.setdefault(name, torch.tensor(torch.inf))

    def _require_shared(self, groups: Sequence[Mapping[str, Any]]) -> None:
        for name, hyperparameter in self.hyperparameters.items():
            values = {float(group[name]): None for group in groups if name in group} if hyperparameter.shared else {}
            if len(values) > 1:
                raise ValueError(
                    f"{type(self).__name__}: {name} is {' and '.join(f'{value:g}' for value in values)} in different "
                    "groups; all groups take their steps together, so there is one for all"
                )

    @property
    def _entries(self) -> tuple[str, ...]:
        """What a group has of ours."""
        return (*self.hyperparameters, *self.counters, *self.notes)

    def _all_parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _hessian_due(self) -> bool:
        base: Any = self.base_optimizer
        return self._wants_hessian and self.param_groups[0].get("step", 0) % base.update_period == 0

    def _refuse_hessian_in_a_group(self) -> None:
        """DDP itself would only say that a leaf variable is used in-place, from inside the closure's backward."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise RuntimeError(REFUSAL)

    def _estimate_hessian(self) -> None:
        base: Any = self.base_optimizer
        parameters = self._all_parameters()
        with torch.enable_grad():
            diagonal = hutchinson(parameters, samples=base.num_samples, distribution=base.distribution)
        unscale = None if self._running is None else self._running.unscale
        scaled = diagonal if unscale is None else [d * unscale for d in diagonal]
        self._diagonal = dict(zip(parameters, scaled, strict=True))

    def _finish(
        self, update: Update, passes: Passes, scaler: torch.amp.GradScaler | None, scale: Tensor | None
    ) -> bool | Tensor:
        """Hand the update to the base optimizer; whether the step was taken, known here or on the device alone."""
        if passes.finite is not None:
            update.spoil_unless(passes.finite)
        if self.local_perturbation:
            update.average(cast("Any", self.model).process_group)
        if self.clip_norm is not None:
            update.clip(self.clip_norm)
        if scaler is not None and scale is not None:
            update.scale(scale)
            overflow = ~update.is_finite()
            update.write()
            known = set(self.state)
            update.step(self.base_optimizer, scaler)
            if not overflow:
                return True
            drop_new_state(self.base_optimizer, known)
            return False
        if self.nonfinite == "ignore":
            update.write()
            update.step(self.base_optimizer)
            return True
        finite = update.is_finite()
        if self.nonfinite == "skip":
            update.write()
            return update.step_if(finite, self.base_optimizer, self._stepped)
        ahead = looks_for_itself(self.base_optimizer)  # then the verdict is awaited with the step under way
        if not ahead:
            _require(finite, passes.losses)
        update.write()
        if ahead:
            known = set(self.state)
            masked_step(self.base_optimizer, finite)
            if not finite:
                drop_new_state(self.base_optimizer, known)
                _require(finite, passes.losses)
        else:
            update.step(self.base_optimizer)
        return True

    def _commit(self, taken: bool | Tensor, shift: Vector | None) -> None:
        """What a step leaves behind; nothing of it if the step was not taken."""
        count = taken.long() if isinstance(taken, Tensor) else int(taken)
        device = self._space.kinds[0].device
        # where the device may decide it also counts, from the first step on: in place, as a captured step must
        there = self.nonfinite == "skip" and device.type != "cpu"
        for group in self.param_groups:
            for name, more in (("taken", count), ("skipped", 1 - count)):
                counter = torch.as_tensor(group[name], device=device) if there else group[name]
                group[name] = counter.add_(more) if isinstance(counter, Tensor) else counter + more
        if taken is False:
            return
        if shift is not None:
            unless_skipped(shift, taken).add_to_weights()
        for name, value in self._to_keep.items():
            for parameter, new in unless_skipped(value, taken, otherwise=self.kept(name)).items():
                if new is not None:
                    own = self.own_state.setdefault(parameter, {})
                    if name not in own:
                        own[name] = torch.zeros_like(parameter, requires_grad=False)
                    local(own[name]).copy_(new)
        for name, noted in self._to_note.items():
            self._take_in(name, torch.where(taken, noted, torch.nan) if isinstance(taken, Tensor) else noted)

    def _take_in(self, name: str, value: Tensor) -> None:
        """In place, as a captured step must, and where the value is from its first one on."""
        value = value.to(torch.promote_types(value.dtype, torch.float32))
        mean = self.noted(name).to(value)
        moved = torch.where(mean.isinf(), value, mean.lerp(value, 1 - MEMORY))
        mean.copy_(torch.where(value.isfinite(), moved, mean))
        for group in self.param_groups:
            group[name] = mean

    def _is_checkpointing(self) -> bool:
        """torch.distributed.checkpoint fills a new optimizer's state by a step at learning rate 0, without closure."""
        return all(group.get("lr", 1) == 0 for group in self.param_groups) and all(
            p.grad is not None for p in self._all_parameters() if p.requires_grad
        )

    def _initialise_state(self) -> None:
        base: Any = self.base_optimizer
        zeros = [torch.zeros_like(p, requires_grad=False) for p in self._all_parameters()]
        base.step(**({"hessian": zeros} if self._wants_hessian else {}))
        for p in self._all_parameters() if self.keeps else ():
            own = self.own_state.setdefault(p, {}) if p.requires_grad else {}
            # what is there stays: a base without state looks new to DCP in the midst of training as well
            own.update({k: torch.zeros_like(p, requires_grad=False) for k in self.keeps if k not in own})


def _require(finite: Tensor, losses: list[Any]) -> None:
    if not finite:
        seen = ", ".join(_shown(loss) for loss in losses)
        raise FloatingPointError(
            f"the combined gradient is not finite (losses of the passes: {seen}); the step was not taken and the "
            "weights are as before it. Look at the batch, lower the learning rate, or pass nonfinite='skip'"
        )


def _shown(loss: Any) -> str:
    """A closure may return more than a number, which is no reason to fail on the way to an error."""
    try:
        return f"{float(loss):g}"
    except (TypeError, ValueError, RuntimeError):
        return f"a {type(loss).__name__}"


def _is_ddp(model: nn.Module | None) -> bool:
    return hasattr(model, "no_sync") and hasattr(model, "process_group")


def _coefficient(values: list[Any]) -> Coefficient:
    first: Coefficient = values[0]
    plain = not any(isinstance(value, Tensor) for value in values)
    same = all(value is first or (plain and value == first) for value in values)
    return first if same else PerGroup(values)
