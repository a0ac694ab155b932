"""Which numbers of a step are no losses: the loss scale itself, and what comes from a gradient."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch

from ampcheck.trace.deviations import Scalar
from ampcheck.trace.patches import PatchSet

__all__ = ["DoubledSeeds", "is_scale"]


class DoubledSeeds(contextlib.AbstractContextManager[None]):
    """Every backward starts from twice the gradient it is given: exact, and all that comes from gradients follows."""

    def __enter__(self) -> None:
        self.patches = PatchSet()
        autograd: Any = torch.autograd
        original = autograd._engine_run_backward

        def run(roots: Any, seeds: Any, *args: Any, **kwargs: Any) -> Any:
            return original(roots, tuple(None if s is None else s * 2 for s in seeds), *args, **kwargs)

        self.patches.set(autograd, "_engine_run_backward", run)

    def __exit__(self, *exc: object) -> None:
        self.patches.close()


def is_scale(number: Scalar, scale: float | None) -> bool:
    """Whether a number is the loss scale, or its logarithm: it is that of scale 1 in the reference."""
    if scale is None or not math.isfinite(number.seen):
        return False
    plain, seen = number.value, number.seen
    return (plain == 1.0 and seen == scale) or (
        plain == 0.0 and any(math.isclose(seen, f(scale)) for f in (math.log2, math.log, math.log10))
    )
