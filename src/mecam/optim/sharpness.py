"""The step that all sharpness-aware optimizers share. A method adds its formula: `gradient(grad_at)`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from mecam.hyperparameters import check_switch
from mecam.optim._base import BaseOptimizer, build, wants_hessian
from mecam.optim._beside import SideBySide, fits
from mecam.optim._buffers import Buffers
from mecam.optim._checkpoint import asks_for_state
from mecam.optim._due import Due
from mecam.optim._frameworks import refuse_accumulate, skips_backward
from mecam.optim._frozen import Frozen
from mecam.optim._hessian import REFUSAL, hutchinson, require_one_process
from mecam.optim._options import Nonfinite, check_options, is_capturing, is_ddp, warn_of_half_precision
from mecam.optim._passes import HOW_TO_STEP, Closure, GradAt, NoGradientError, Passes
from mecam.optim._shards import is_distributed, local, refuse_flat_shards, reshard
from mecam.optim._signature import complete, separate
from mecam.optim._unseen import frames_compiled
from mecam.optim._update import Update, counts_on_device, scale_of, unless_skipped
from mecam.optim._wrapper import Wrapper, hooked
from mecam.optim.last import LastStep
from mecam.optim.vector import Space, Vector

MEMORY = 0.9  # decay of running means


class SharpnessAware(Due):
    """A base optimizer fed with a gradient combined from several passes.

    The base optimizer owns `param_groups` and `state`; this class shows them, so that schedulers, checkpoints and
    copies see one set of groups. Hyperparameters (rho, ...) live in the groups and may be floats or 0-dim tensors; the
    method's own tensors live in `own_state`.

    Args:
        params: parameters or parameter groups, which may carry their own rho, ...
        base_optimizer: a class such as torch.optim.Adam, or a function of the parameters that returns an optimizer.
        rho: radius of the perturbation. Default: the method's.
        model: the network. Its buffers (batch-norm statistics) and frozen parameters then change as in one plain pass
            also where its forward cannot be seen to run; needed for `local_perturbation`.
        shared_noise: every pass draws the same random numbers (dropout, augmentation inside the closure).
        clip_norm: largest norm of the combined gradient.
        nonfinite: what to do if the combined gradient is NaN or infinite: "raise" an error before the weights change,
            "skip" the step (decided on the device where the base optimizer allows it, and counted in `skipped`), or
            "ignore" it.
        local_perturbation: under DDP, perturb each rank by its own gradient and all-reduce the combined gradient once.
            What FSAM, LookSAM, MSAM and VaSSO keep is then each rank's own: a checkpoint needs the state of all ranks.
        stochastic_rounding: round weights kept in bfloat16 or float16 at random where they are perturbed, the same on
            every rank. Most perturbations are below their precision.
        track: fill `last` with the passes' losses, gradient norms and cosines.
        start: number of plain steps of the base optimizer before the method begins. Late sharpness-awareness is cheap.
        every: from then on, take the method's passes in every n-th step, and plain steps between.
        settings: the method's other hyperparameters and options, and those of the base optimizer (lr, ...).
    """

    passes: ClassVar[int] = 2
    options: ClassVar[Mapping[str, Any]] = {}  # further arguments of the constructor, with their defaults
    example_loss: ClassVar[str] = "loss_function(model(inputs), targets)"  # in the docstring
    decides_on_host: ClassVar[bool] = False  # by Python what work a step is; such a step cannot be a CUDA graph
    side_by_side: bool = False  # whether captured perturbed passes may overlap: the formula must only add them up
    transient = (
        *Wrapper.transient,
        *("last", "_running", "_space", "_to_keep", "_to_note", "_shift", "_diagonal", "_stepped"),
        *("_watch_every", "_searched", "_compared", "_hidden", "_fits"),
    )
    _step_supports_amp_scaling = True  # GradScaler.step then marks its call with `found_inf`, and it can be refused

    last: LastStep | None
    _running: Passes | None
    _space: Space
    _to_keep: dict[str, Vector]
    _to_note: dict[str, Tensor]
    _shift: Vector | None
    _diagonal: dict[Tensor, Tensor] | None
    _stepped: dict[Tensor, None]  # parameters that the base was seen to keep no state for
    _watch_every: bool  # gradient from before a step
    _hidden: dict[Tensor, None]  # frozen parameters and statistics that closures write to through `.data`
    _compared: Space | None  # whose first step looked for them by a checksum
    _fits: bool  # whether that step has shown that passes can run side by side
    _searched: tuple[Space, int] | None  # when the closure was last searched for modules that cannot be seen

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: BaseOptimizer,
        rho: float | Tensor | None = None,
        *,
        model: nn.Module | None = None,
        shared_noise: bool = False,
        clip_norm: float | None = None,
        nonfinite: Nonfinite = "raise",
        local_perturbation: bool = False,
        stochastic_rounding: bool = False,
        track: bool = False,
        start: int = 0,
        every: int = 1,
        **settings: Any,
    ) -> None:
        name = type(self).__name__
        values, options, base_kwargs = separate(type(self), rho, settings)
        self.check_settings(options)
        vars(self).update(options)
        switches = {"shared_noise": shared_noise, "local_perturbation": local_perturbation, "track": track}
        check_options(name, model, clip_norm, nonfinite, stochastic_rounding=stochastic_rounding, **switches)
        self._set_due(start, every)
        base = build(type(self), base_optimizer, params, base_kwargs)
        parameters = [parameter for group in base.param_groups for parameter in group["params"]]
        if (self.passes > 1 or "rho" in self.hyperparameters) and not stochastic_rounding:
            warn_of_half_precision(name, [p for p in parameters if p.requires_grad])
        refuse_flat_shards(name, parameters)
        self.model = model
        self.shared_noise = shared_noise
        self.clip_norm = clip_norm
        self.nonfinite = nonfinite
        self.local_perturbation = local_perturbation
        self.stochastic_rounding = stochastic_rounding
        self.track = track
        self._wants_hessian = wants_hessian(base)
        self._wrap(base, base_optimizer, values)
        if self._wants_hessian and (is_ddp(model) or any(map(is_distributed, parameters))):
            raise ValueError(REFUSAL)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "gradient" in vars(cls):  # a promise about another formula is not inherited
            cls.side_by_side = vars(cls).get("side_by_side", False)
        complete(cls, SharpnessAware)

    def check_settings(self, options: Mapping[str, Any]) -> None:
        """Refuse values of the method's own `options`."""
        for option, default in self.options.items():
            if isinstance(default, bool):
                check_switch(type(self).__name__, option, options[option])

    @abstractmethod
    def gradient(self, grad_at: GradAt) -> Vector:
        """Return the gradient for the base optimizer: the method's formula. Its first call must be `grad_at()`."""

    def per_parameter(self, name: str) -> list[float | Tensor]:
        """Return a hyperparameter's value for each parameter, in the order of `Vector.select`."""
        space = self._space
        groups = (kind.group for kind, block in zip(space.kinds, space.blocks, strict=True) for _ in block)
        return [self.param_groups[group][self.key(name)] for group in groups]

    def weights(self) -> Vector:
        """Return theta itself, not a copy. Read it before the first `grad_at(offset)`."""
        return self._space.weights()

    def kept(self, name: str) -> Vector | None:
        """Return a vector kept from an earlier step; None before the first.

        It includes parameters without a gradient in this step; `kept(...).within(g)` leaves them out.
        """
        taken = self.first("taken")
        before_first = not isinstance(taken, Tensor) and taken == 0  # what is there then are a checkpoint's zeros
        if before_first or not any(name in state for state in self.own_state.values()):
            return None
        return self._space.vector(lambda parameter: self.own_state.get(parameter, {}).get(name))

    def keep(self, name: str, value: Vector) -> None:
        """Keep a vector for later steps, if this step is taken."""
        self._to_keep[name] = value.copy()

    def noted(self, name: str) -> Tensor:
        """Return a running mean over about ten steps, as a device scalar; infinite before the first."""
        mean: Tensor = self.first(name)
        return mean

    def note(self, name: str, value: Tensor) -> None:
        """Update a running mean, if this step is taken and the value is finite."""
        self._to_note[name] = value

    def plain(self, grad_at: GradAt) -> Vector:
        """Return the gradient for the base optimizer in steps that are not due."""
        return grad_at()

    def shift(self, offset: Vector) -> None:
        """Add an offset to the weights after the base optimizer's step, if it is taken."""
        self._shift = offset

    @property
    def first_pass(self) -> bool:
        """False while the closure runs at perturbed weights: a training step logs only where this is True."""
        return self._running is None or not self._running.losses

    @property
    def needs_graph(self) -> bool:
        """Whether the closure should call loss.backward(create_graph=True): AdaHessian, in the first pass."""
        return self._hessian_due() and self.first_pass

    @property
    def capturable(self) -> Literal["steps", "passes", "nothing"]:
        """The unit that a CUDA graph can replay: whole steps, or single passes where Python decides between them."""
        # a graph can neither set the random state nor be differentiated
        if self.shared_noise or self.stochastic_rounding or self._wants_hessian:
            return "nothing"
        if counts_on_device(self.base_optimizer) and not self.decides_on_host:
            return "steps"
        return "passes" if getattr(self, "virtual_domain", None) is None else "nothing"

    @property
    def skipped(self) -> int | Tensor:
        """The number of steps that were skipped because the gradient was not finite."""
        count: int | Tensor = self.first("skipped")
        return count

    @hooked
    @torch.no_grad()
    def step(self, closure: Closure | None = None, *, scaler: torch.amp.GradScaler | None = None) -> Any:
        """Take one step; return the loss at theta.

        Args:
            closure: clears the gradients, computes the loss, runs backward and returns the loss. It is called once per
                pass. With a scaler it calls scaler.scale(loss).backward().
            scaler: the GradScaler of fp16 training. Its update() is yours to call, as always.
        """
        by_scaler = [self.__dict__.pop(mark) for mark in ("found_inf", "grad_scale") if mark in self.__dict__]
        if not by_scaler and closure is None and asks_for_state(self.param_groups):
            return self._initialise_state()
        if by_scaler or not callable(closure):
            if closure is not None and not callable(closure):
                raise TypeError(
                    f"closure must be callable, got a {type(closure).__name__}; pass a function that computes the loss"
                )
            raise TypeError(HOW_TO_STEP)
        if self._running is not None:
            self._restore(self._running)
            raise RuntimeError(
                "step() was called inside a step, or between first_step() and second_step(). The weights are as before"
            )
        refuse_accumulate()
        if skips_backward(closure):
            with torch.enable_grad():
                return closure()
        scaler = scaler if scaler is not None and scaler.is_enabled() else None
        due = self._take_plan()
        passes = self._begin(closure, scaler, due=due)
        try:
            gradient = (self.gradient if due else self.plain)(passes.grad_at)
        except NoGradientError as error:
            if error.loss is not None:
                raise
            return None  # a closure that leaves out its batch: no loss, no backward
        except RuntimeError as error:
            if passes.after_first is not None and "create_graph" in str(error):  # a compiled backward may refuse it
                raise RuntimeError(f"{REFUSAL} ({error})") from error
            raise
        finally:
            self._restore(passes)
        self._end(passes, gradient, scaler)
        return passes.losses[0]

    def _begin(self, closure: Closure, scaler: torch.amp.GradScaler | None, *, due: bool = True) -> Passes:
        """Prepare the passes of a step."""
        if hessian_due := self._hessian_due():
            require_one_process()
        if self.local_perturbation:
            cast("Any", self.model).require_forward_param_sync = True  # no_sync ends the broadcast of buffers for good
        if not self._space.fits(self.param_groups):
            self._space = Space(self.param_groups)
        self._to_keep, self._to_note, self._shift, self._diagonal = {}, {}, None, None
        beside = due and self.side_by_side and self._fits and self._compared is self._space and is_capturing()
        self._running = Passes(
            self._space,
            closure,
            buffers=Buffers(self.model, self._frozen() if due else None, look_into=partial(self._to_search, closure)),
            shared_noise=self.shared_noise,
            unscale=None if scaler is None else lambda: 1 / scale_of(scaler, self._space.kinds[0].device),
            around=cast("Any", self.model).no_sync if self.local_perturbation else None,
            after_first=self._estimate_hessian if hessian_due else None,
            record=self.track,
            watch_every=self._watch_every,
            rounding=int(self.first("taken") + self.first("skipped")) if self.stochastic_rounding else None,
            beside=SideBySide(self._space, self.passes) if beside else None,
        )
        return self._running

    def _restore(self, passes: Passes) -> None:
        passes.restore()
        if any(kind.distributed for kind in self._space.kinds):
            reshard(self.model)
        self._running = None

    def _end(self, passes: Passes, gradient: Vector, scaler: torch.amp.GradScaler | None = None) -> None:
        """Hand the combined gradient to the base optimizer."""
        self._watch_every = passes.watch_every
        if len(passes.losses) > 1:
            if passes.buffers.compared:
                self._compared = self._space
                self._fits = self.side_by_side and passes.buffers.still and fits(self._space)
            self._searched = self._space, frames_compiled()
        if self.track:
            self.last = LastStep.of(passes.losses, passes.gradients)
        shift = None if self._shift is None else self._shift.copy()
        update = Update(self._space, gradient.collapse(into=passes.gradients[-1]), shift, self._diagonal)
        if passes.finite is not None:
            update.spoil_unless(passes.finite)
        if self.local_perturbation:
            update.average(cast("Any", self.model).process_group)
        if self.clip_norm is not None:
            update.clip(self.clip_norm)
        if scaler is not None:
            scale = scale_of(scaler, self._space.kinds[0].device)
            taken: bool | Tensor = update.take_scaled(self.base_optimizer, scaler, scale)
        else:
            taken = update.take(self.base_optimizer, self.nonfinite, passes.losses, self._stepped)
        self._commit(taken, update.shift)
        self._to_keep, self._shift, self._diagonal = {}, None, None  # each as large as the weights

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._running = None  # the weights between first_step() and second_step() are not to be restored

    def __getstate__(self) -> dict[str, Any]:
        if self._running is not None:
            raise RuntimeError(
                f"{type(self).__name__} cannot be copied between first_step() and second_step() or inside a step: the "
                "weights are perturbed. Copy it after the step"
            )
        return super().__getstate__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.last = self._running = self._shift = self._diagonal = self._searched = self._compared = None
        self._to_keep, self._to_note, self._stepped, self._space = {}, {}, {}, Space([])
        self._watch_every, self._hidden, self._fits = True, {}, False
        super().__setstate__(state)

    def _frozen(self) -> Frozen | None:
        if self.passes == 1:
            return None  # no later pass changes them
        by_value = self._compared is not self._space and not is_capturing()
        return Frozen(self._space.ids, self._hidden, by_value=by_value)

    def _to_search(self, closure: Closure) -> Closure | None:
        """Return the closure in the first step, and whenever more was compiled since; otherwise None."""
        done = self._searched is not None and self._searched == (self._space, frames_compiled())
        return None if done else closure

    def _hessian_due(self) -> bool:
        base: Any = self.base_optimizer
        return self._wants_hessian and self.param_groups[0].get("step", 0) % base.update_period == 0

    def _estimate_hessian(self) -> None:
        base: Any = self.base_optimizer
        parameters = self._all_parameters()
        with torch.enable_grad():
            diagonal = hutchinson(parameters, samples=base.num_samples, distribution=base.distribution)
        unscale = None if self._running is None else self._running.unscale
        scaled = diagonal if unscale is None else [d * unscale() for d in diagonal]
        self._diagonal = dict(zip(parameters, scaled, strict=True))

    def _commit(self, taken: bool | Tensor, shift: Vector | None) -> None:
        """Update counters and kept vectors, unless the step was skipped."""
        count = taken.long() if isinstance(taken, Tensor) else int(taken)
        device = self._space.kinds[0].device
        # where the device may decide it also counts, from the first step on: in place, as a captured step must
        there = self.nonfinite == "skip" and device.type != "cpu"
        for group in self.param_groups:
            for name, more in ((self.key("taken"), count), (self.key("skipped"), 1 - count)):
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
        """Update a running mean in place, as a captured step must."""
        value = value.to(torch.promote_types(value.dtype, torch.float32))
        mean = self.noted(name).to(value)
        moved = torch.where(mean.isinf(), value, mean.lerp(value, 1 - MEMORY))
        mean.copy_(torch.where(value.isfinite(), moved, mean))
        for group in self.param_groups:
            group[self.key(name)] = mean

    def _initialise_state(self) -> None:
        base: Any = self.base_optimizer
        zeros = [torch.zeros_like(p, requires_grad=False) for p in self._all_parameters()]
        base.step(**({"hessian": zeros} if self._wants_hessian else {}))
        for p in self._all_parameters() if self.keeps else ():
            own = self.own_state.setdefault(p, {}) if p.requires_grad else {}
            # what is there stays: a base without state looks new to DCP in the midst of training as well
            own.update({k: torch.zeros_like(p, requires_grad=False) for k in self.keeps if k not in own})
