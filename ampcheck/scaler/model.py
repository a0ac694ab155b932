"""The reference loss scaler: what `torch.amp.GradScaler` does, in plain Python, with what other scalers add to it.

No torch here. Gradients are lists of floats, optimizers are any hashable name. Sources: the documentation of
`torch.amp.GradScaler` for growth, backoff and the found_inf of each optimizer; minimum and maximum scale and hysteresis
as the scalers of large-model trainers have them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["FLOAT32_MAX", "ModelMisuse", "Refill", "ScalerModel"]

#: Largest finite float32: a loss scale lives in one, so growth beyond it would be inf.
FLOAT32_MAX = (2.0 - 2.0**-23) * 2.0**127

Refill = Literal["growth", "clean"]


class ModelMisuse(Exception):
    """The model was driven in an order that a loss scaler forbids, such as unscaling twice: the driver is wrong."""


@dataclass
class ScalerModel:
    """A loss scaler as it should be.

    Args:
        scale: the current loss scale.
        growth_factor: what the scale is multiplied by after `growth_interval` consecutive updates without an overflow.
        backoff_factor: what the scale is multiplied by after an update with an overflow.
        growth_interval: in updates; `None` never grows.
        min_scale: backoff stops here; 0 is no floor.
        max_scale: growth stops here; `None` is torch's rule: a growth that would not be finite in float32 is not made.
        hysteresis: how many overflows it takes to back off; after that each further one does, until the tolerance is refilled.
        refill: what refills the tolerance: the next "growth", or any "clean" update.
        static: the scale never changes by itself.
        skips: whether an overflow skips the step; some static scalers do not look for overflows at all.
        growth_tracker: consecutive clean updates so far.
    """

    scale: float
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int | None = 2000
    min_scale: float = 0.0
    max_scale: float | None = None
    hysteresis: int = 1
    refill: Refill = "growth"
    static: bool = False
    skips: bool = True
    growth_tracker: int = 0
    found_inf: dict[Hashable, bool] = field(default_factory=dict)
    stepped: set[Hashable] = field(default_factory=set)
    tolerance: int = field(init=False)

    def __post_init__(self) -> None:
        self.tolerance = self.hysteresis

    def unscale(self, optimizer: Hashable, gradients: Sequence[float]) -> list[float]:
        """Divide by the scale and note whether anything is inf or NaN, once for each optimizer and iteration."""
        if optimizer in self.found_inf:
            raise ModelMisuse(f"the gradients of {optimizer} were already unscaled since the last update")
        self.found_inf[optimizer] = not all(map(math.isfinite, gradients))
        return [gradient / self.scale for gradient in gradients]

    def step(self, optimizer: Hashable, gradients: Sequence[float]) -> list[float] | None:
        """The gradient that the optimizer applies, or `None` where the step is skipped.

        What is written into the gradients after `unscale` is applied but not looked at, as in torch.
        """
        if optimizer in self.stepped:
            raise ModelMisuse(f"{optimizer} was already stepped since the last update")
        unscaled = list(gradients) if optimizer in self.found_inf else self.unscale(optimizer, gradients)
        self.stepped.add(optimizer)
        return None if self.found_inf[optimizer] and self.skips else unscaled

    def update(self, new_scale: float | None = None) -> None:
        """End the iteration: back off once if any optimizer overflowed, else count it, and grow where it is due."""
        if not self.found_inf and new_scale is None:
            raise ModelMisuse("update() without an unscaled optimizer")
        overflow = any(self.found_inf.values())
        self.found_inf, self.stepped = {}, set()
        if new_scale is not None:
            self.scale = new_scale
        elif not self.static:
            if overflow:
                self._overflowed()
            else:
                self._succeeded()

    def _overflowed(self) -> None:
        self.growth_tracker = 0
        self.tolerance -= 1
        if self.tolerance <= 0:
            self.scale = max(self.scale * self.backoff_factor, self.min_scale)

    def _succeeded(self) -> None:
        if self.refill == "clean":
            self.tolerance = self.hysteresis
        self.growth_tracker += 1
        if self.growth_tracker != self.growth_interval:
            return
        self.growth_tracker = 0
        self.tolerance = self.hysteresis
        grown = self.scale * self.growth_factor
        if self.max_scale is not None:
            self.scale = min(grown, self.max_scale)
        elif grown <= FLOAT32_MAX:
            self.scale = grown

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold for a resumed run to go on as if it had not stopped."""
        return {"scale": self.scale, "growth_tracker": self.growth_tracker, "tolerance": self.tolerance}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.growth_tracker, self.tolerance = state["scale"], state["growth_tracker"], state["tolerance"]
