"""How the gradients of two runs differ, as numbers: no tensors, no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Difference", "common_factor", "wrong_phase"]

#: Two factors are the same up to rounding in FP32.
_CLOSE = 2.0**-18


@dataclass(frozen=True)
class Difference:
    """One tensor at one stage.

    Args:
        name: of the parameter.
        relative: norm of the difference over the norm of the reference.
        ratio: the factor by which it is the reference, in the least-squares sense; NaN where the reference is zero.
    """

    name: str
    relative: float
    ratio: float

    def is_multiple(self, factor: float) -> bool:
        """Whether the tensor is `factor` times the reference, up to rounding."""
        if math.isnan(self.ratio):
            return self.relative == 0.0
        if not math.isfinite(self.relative) or not math.isfinite(self.ratio):
            return False
        residual = math.sqrt(max(0.0, self.relative**2 - (self.ratio - 1.0) ** 2))
        return abs(self.ratio - factor) <= _CLOSE * abs(factor) and residual <= max(
            _CLOSE * abs(factor), 2e-7 * abs(self.ratio - 1.0)
        )


def common_factor(differences: Sequence[Difference], candidates: Iterable[float] = ()) -> float | None:
    """The one factor by which every tensor is the reference's, or `None`: they are bent, or bent differently.

    Args:
        differences: of one stage.
        candidates: factors to prefer, such as 1 and the loss scale, where rounding leaves a choice.
    """
    known = [d for d in differences if not math.isnan(d.ratio)]
    if not known:
        return None
    for factor in [*candidates, known[0].ratio]:
        if all(d.is_multiple(factor) for d in differences):
            return factor
    return None


def wrong_phase(stages: dict[str, list[Difference]], scale: float) -> str:
    """Between which two moments the gradient goes wrong.

    Returns:
        "backward" (it was never the reference's times the scale), "scaled" (between backward and `unscale_`), "unscale"
        (in the scaler's division), or "unscaled" (after it).
    """
    if stages.get("backward") and common_factor(stages["backward"], [scale]) != scale:
        return "backward"
    before = stages.get("before unscale_") or stages.get("scaler.step")
    if before and common_factor(before, [scale]) != scale:
        return "scaled"
    after = stages.get("after unscale_")
    if after:
        return "unscaled" if common_factor(after, [1.0]) == 1.0 else "unscale"
    return "unscale" if before else "unscaled"
