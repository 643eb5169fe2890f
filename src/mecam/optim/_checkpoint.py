"""A sharpness-aware optimizer's state as one state_dict: the base's, with the method's tensors beside its own.

In memory the two are apart, since Adam takes a parameter with any state for one it has initialised. In a state_dict
they are together, {state: {0: {exp_avg, ..., sharpness_m}}, param_groups}, since tools for distributed checkpoints
carry just that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from torch import Tensor

PREFIX = "sharpness_"
OwnState = dict[Tensor, dict[str, Tensor]]
Groups = Sequence[dict[str, Any]]


def merge(packed: dict[str, Any], own: OwnState, groups: Groups) -> dict[str, Any]:
    """The base's state_dict with the own tensors in it."""
    states = dict(packed["state"])
    for index, parameter in enumerate(chain.from_iterable(group["params"] for group in groups)):
        if own.get(parameter):
            states[index] = {**states.get(index, {}), **{PREFIX + k: v for k, v in own[parameter].items()}}
    return {**packed, "state": states}


def base_part(state_dict: dict[str, Any]) -> dict[str, Any]:
    """The state_dict without the own tensors; a parameter with nothing else has no state."""
    states = {i: {k: v for k, v in s.items() if not _is_own(k)} for i, s in state_dict["state"].items()}
    return {**state_dict, "state": {index: state for index, state in states.items() if state}}


def own_part(state_dict: dict[str, Any], groups: Groups, names: Sequence[str]) -> OwnState:
    """The own tensors of these names in a state_dict, copied to where these groups' parameters are."""
    saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in groups)
    own: OwnState = {}
    for index, p in zip(saved, parameters, strict=True):
        state = state_dict["state"].get(index, {})
        found = {name: state[PREFIX + name] for name in names if PREFIX + name in state}
        if found:
            own[p] = {k: v.detach().to(device=p.device, dtype=p.dtype, copy=True) for k, v in found.items()}
    return own


def _is_own(key: Any) -> bool:
    return isinstance(key, str) and key.startswith(PREFIX)
