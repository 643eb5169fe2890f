"""Wrap a base optimizer: parameter groups, state, checkpoints, copies and hooks."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from mecam.hyperparameters import Hyperparameter
from mecam.optim._base import BaseOptimizer, refuse_clashes
from mecam.optim._checkpoint import PREFIX, OwnState, base_part, merge, own_part, without_copies_of_weights
from mecam.optim._options import outside
from mecam.optim.vector import Coefficient, PerGroup

Step = TypeVar("Step", bound=Callable[..., Any])


def hooked(step: Step) -> Step:
    """Run this optimizer's own hooks around `step`. Global ones run around the base optimizer's step, once."""

    @functools.wraps(step)
    def run(self: Wrapper, *args: Any, **kwargs: Any) -> Any:
        call: tuple[Any, ...] = (self, *args)
        for before in self._optimizer_step_pre_hooks.values():
            changed = cast("Any", before(self, call, kwargs))
            call, kwargs = (call, kwargs) if changed is None else changed
        result = step(*call, **kwargs)
        for after in self._optimizer_step_post_hooks.values():
            after(self, call, kwargs)
        return result

    run.hooked = True  # type: ignore[attr-defined]  # otherwise torch adds the global hooks here as well
    return cast("Step", run)


class Wrapper(Optimizer):
    """Show the base optimizer's `param_groups` and `state`, and keep a method's hyperparameters in the groups.

    A hyperparameter is an entry of its own name, or `sharpness_<name>` where the base optimizer has that name itself.
    """

    hyperparameters: ClassVar[Mapping[str, Hyperparameter]] = {}
    keeps: ClassVar[tuple[str, ...]] = ()  # names of the vectors the method keeps between steps
    notes: ClassVar[tuple[str, ...]] = ()  # names of the numbers it keeps a running mean of
    counters: ClassVar[tuple[str, ...]] = ("taken", "skipped")  # of steps
    transient: ClassVar[tuple[str, ...]] = ("step",)  # attributes that copies do not take along

    start: int = 0  # plain steps before the method begins
    base_optimizer: Optimizer
    own_state: OwnState
    _renamed: frozenset[str]

    def _wrap(self, base: Optimizer, given: BaseOptimizer, values: Mapping[str, float | Tensor]) -> None:
        names = [name for name in self._names if name in base.defaults]
        refuse_clashes(given, type(self).__name__, names)
        self._renamed = frozenset(names)
        self.base_optimizer = base
        self.own_state = {}
        defaults = {self.key(name): value for name, value in values.items()}
        # Optimizer.__init__ would make groups and state of its own; __setstate__ makes the rest (hooks)
        self.__setstate__({"defaults": {**base.defaults, **defaults}})
        for group in self.param_groups:
            self._complete(group, defaults)
        self._require_shared(self.param_groups)

    def check(self, group: Mapping[str, Any]) -> None:
        """Refuse values that are allowed one by one but not together."""

    def key(self, name: str) -> str:
        """Return the key of a hyperparameter in param_groups."""
        return PREFIX + name if name in self._renamed else name

    def values(self, *names: str) -> tuple[Coefficient, ...]:
        """Return hyperparameters by name, per group where the groups differ."""
        return tuple(_coefficient([group[self.key(name)] for group in self.param_groups]) for name in names)

    def first(self, name: str) -> Any:
        """Return a shared hyperparameter, counter or note from the first group."""
        return self.param_groups[0][self.key(name)]

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

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not isinstance(param_group, dict):
            raise TypeError(
                f"param_group is a {type(param_group).__name__}; it must be a dict: "
                'optimizer.add_param_group({"params": parameters})'
            )
        group = {**param_group}
        self._complete(group, self.defaults)  # before it joins: one with a bad value is left out as a whole
        # each group its own, since they count in place
        for name in map(self.key, (*self.counters, *self.notes)):
            group[name] = copy.deepcopy(self.param_groups[0][name])
        self._require_shared([*self.param_groups, group])
        self.base_optimizer.add_param_group(group)

    def state_dict(self) -> dict[str, Any]:
        """Return the base optimizer's state, the method's own tensors and the hyperparameters."""
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        packed = merge(self.base_optimizer.state_dict(), self.own_state, self.param_groups)
        for after in self._optimizer_state_dict_post_hooks.values():
            packed = after(self, packed) or packed
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state_dict of this optimizer, or of its base (rho, ... are then unchanged)."""
        state_dict = {**state_dict}  # as torch does: a hook may edit it
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        state_dict = without_copies_of_weights(state_dict)
        present = [{key: group[key] for key in map(self.key, self._names)} for group in self.param_groups]
        to_come = [{**group} for group in state_dict["param_groups"]]
        for group, values in zip(to_come, present, strict=False):  # their number is torch's to check
            self._complete(group, values)  # before anything is loaded: a state with a bad value is refused whole
        self._require_shared(to_come)
        self.base_optimizer.load_state_dict(base_part(state_dict))
        for group, values in zip(self.param_groups, present, strict=True):
            self._complete(group, values)
        self.own_state = own_part(state_dict, self.param_groups, self.keeps)
        if self.keeps and not self.own_state and self.first("taken") > self.start:
            warnings.warn(
                f"{type(self).__name__}: the state loaded has no {', '.join(self.keeps)} and resets it. It is of "
                "another optimizer, or torch.distributed.checkpoint left it out (flatten_optimizer_state_dict=True)",
                stacklevel=outside(),
            )
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in self.transient and not k.startswith("_optimizer_")}

    def __repr__(self) -> str:
        name = type(self).__name__
        return super().__repr__().replace(name, f"{name} on {type(self.base_optimizer).__name__}", 1)

    def _complete(self, group: dict[str, Any], values: Mapping[str, Any]) -> None:
        """Add missing hyperparameters, counters and notes to a group, and check its values."""
        for name, hyperparameter in self.hyperparameters.items():
            key = self.key(name)
            hyperparameter.check(type(self).__name__, name, group.setdefault(key, values[key]))
        self.check({name: group[self.key(name)] for name in self.hyperparameters})
        if group.get("maximize"):
            raise ValueError(
                f"{type(self).__name__}: maximize=True would perturb towards the best case, not the worst. Return and "
                "differentiate the negative of the objective in the closure instead"
            )
        for name in self.counters:
            group.setdefault(self.key(name), 0)
        for name in self.notes:
            group.setdefault(self.key(name), torch.tensor(torch.inf))

    def _require_shared(self, groups: Sequence[Mapping[str, Any]]) -> None:
        for name, hyperparameter in self.hyperparameters.items():
            key = self.key(name)
            values = {float(group[key]): None for group in groups if key in group} if hyperparameter.shared else {}
            if len(values) > 1:
                raise ValueError(
                    f"{type(self).__name__}: {name} is {' and '.join(f'{value:g}' for value in values)} in different "
                    "groups; all groups take their steps together, so there is one for all"
                )

    @property
    def _names(self) -> tuple[str, ...]:
        """Names that this class adds to a group."""
        return (*self.hyperparameters, *self.counters, *self.notes)

    def _all_parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


def _coefficient(values: list[Any]) -> Coefficient:
    first: Coefficient = values[0]
    plain = not any(isinstance(value, Tensor) for value in values)
    same = all(value is first or (plain and value == first) for value in values)
    return first if same else PerGroup(values)
