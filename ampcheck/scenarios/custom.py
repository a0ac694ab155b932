"""Forcing the scale of a loss scaler that torch's class knows nothing of, and the moment at which torch's own grows."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ampcheck.policy import HELD, Policy
from ampcheck.scenarios.drive import Built, Stage

__all__ = ["ForceScale", "force_scale"]


class ForceScale(Stage):
    """Forces the scale of a scaler of the user's own after the build; torch's own is forced by the policy.

    Where the policy lets the scale grow, torch's own is left one clean update short of it: the second window has another scale.
    """

    def __init__(self, policy: Policy) -> None:
        self.scale = policy.scale or 1.0
        self.tracker = 0 if policy.growth_interval in (None, HELD) else policy.growth_interval - 1
        self.forced = True

    def built(self, built: Built) -> None:
        for scaler in built.recorder.scalers if self.tracker else ():
            if isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled():
                scaler._init_growth_tracker = self.tracker
                if scaler._growth_tracker is not None:
                    scaler._growth_tracker.fill_(self.tracker)
        custom = [i for i, info in enumerate(built.recorder.trace.scalers) if info.custom]
        self.forced = all(force_scale(built, built.recorder.scalers[i], self.scale) for i in custom)


def force_scale(built: Built, scaler: Any, scale: float) -> bool:
    """Set the scale by the declared `set_scale`, else through `load_state_dict`.

    Returns:
        Whether the scaler now says that it has this scale.
    """
    training, recorder = built.training, built.recorder
    if recorder.current_scale(scaler) == scale:
        return True
    if training.set_scale is not None:
        training.set_scale(scale)
        return recorder.current_scale(scaler) == scale
    state_dict, load = getattr(scaler, "state_dict", None), getattr(scaler, "load_state_dict", None)
    if not callable(state_dict) or not callable(load):
        return False
    saved = copy.deepcopy(state_dict())
    if not isinstance(saved, dict):
        return False
    current = recorder.current_scale(scaler)
    for key in sorted(saved, key=lambda k: "scale" not in str(k)):
        value = saved[key]
        if isinstance(value, bool) or not isinstance(value, (int, float, torch.Tensor)):
            continue
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            continue
        if float(value) != current:
            continue
        changed = copy.deepcopy(saved)
        changed[key] = torch.full_like(value, scale) if isinstance(value, torch.Tensor) else type(value)(scale)
        load(changed)
        if recorder.current_scale(scaler) == scale:
            return True
        load(copy.deepcopy(saved))
    return False
