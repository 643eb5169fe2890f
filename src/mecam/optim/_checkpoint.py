"""Merge the base optimizer's state and the method's own tensors into one state_dict.

In memory the two are apart, since Adam takes a parameter with any state for one it has initialized. In a state_dict
they are together, {state: {0: {exp_avg, ..., sharpness_m}}, param_groups}, since tools for distributed checkpoints
carry just that. The state of a base with another layout (Lookahead) is nested as a whole, under "base_optimizer_state".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain, count
from typing import Any

from torch import Tensor

from mecam.optim._options import outside
from mecam.optim._shards import local

PREFIX = "sharpness_"
NESTED = "base_optimizer_state"
OwnState = dict[Tensor, dict[str, Tensor]]
Groups = Sequence[dict[str, Any]]


def merge(packed: dict[str, Any], own: OwnState, groups: Groups) -> dict[str, Any]:
    """Return the base's state_dict with the method's own tensors added."""
    if not {"state", "param_groups"} <= packed.keys():
        numbers = count()
        plain = [{**group, "params": [next(numbers) for _ in group["params"]]} for group in groups]
        packed = {"state": {}, "param_groups": plain, NESTED: packed}
    states = dict(packed["state"])
    for index, parameter in enumerate(chain.from_iterable(group["params"] for group in groups)):
        if own.get(parameter):
            states[index] = {**states.get(index, {}), **{PREFIX + k: v for k, v in own[parameter].items()}}
    return {**packed, "state": states}


def base_part(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return the state_dict without the method's own tensors."""
    if NESTED in state_dict:
        nested: dict[str, Any] = state_dict[NESTED]
        return nested
    return _select(state_dict, lambda key: not key.startswith(PREFIX))


def without_copies_of_weights(state_dict: dict[str, Any]) -> dict[str, Any]:
    """Convert a state_dict of davda54/sam or pytorch_optimizer, which keep the unperturbed weights as state."""
    kept = _select(state_dict, lambda key: key != "old_p") if "state" in state_dict else state_dict
    if state_dict.get("state") and not kept["state"]:
        warnings.warn(
            "the state loaded has weights (old_p) and nothing of the base optimizer, as davda54/sam saves it: "
            "momentum and other moments start from zero",
            stacklevel=outside(),
        )
    return kept


def own_part(state_dict: dict[str, Any], groups: Groups, names: Sequence[str]) -> OwnState:
    """Return the method's own tensors in a state_dict, copied to the devices of these groups' parameters."""
    saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
    parameters = chain.from_iterable(group["params"] for group in groups)
    own: OwnState = {}
    for index, p in zip(saved, parameters, strict=True):
        state = state_dict["state"].get(index, {})
        present = {name: state[PREFIX + name] for name in names if PREFIX + name in state}
        if present:
            own[p] = {k: v.detach().to(device=p.device, dtype=p.dtype, copy=True) for k, v in present.items()}
    return own


def _select(state_dict: dict[str, Any], wanted: Any) -> dict[str, Any]:
    """Select entries of the parameters' states by name. State without a parameter (MADGRAD's k) stays."""
    states: dict[Any, Any] = {}
    for index, state in state_dict["state"].items():
        if not isinstance(state, dict):
            states[index] = state
        elif chosen := {k: v for k, v in state.items() if not isinstance(k, str) or wanted(k)}:
            states[index] = chosen
    return {**state_dict, "state": states}


def asks_for_state(groups: Groups) -> bool:
    """Return whether torch.distributed.checkpoint calls step() with zero gradients, to create state."""
    gradients = [local(p.grad) for group in groups for p in group["params"] if p.requires_grad]
    return all(group.get("lr", 1) == 0 for group in groups) and all(g is not None and not g.any() for g in gradients)
