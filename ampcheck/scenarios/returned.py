"""Returned numbers that follow the loss scale: a loss that is reported while it is scaled, or is divided by another scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ampcheck.findings import Location
from ampcheck.scenarios.drive import Run
from ampcheck.trace.events import Event

__all__ = ["Following", "following"]


@dataclass(frozen=True)
class Following:
    """In which call; path -> (value at scale 1, value at the other scale); and the line that it comes from."""

    call: int
    values: dict[str, tuple[float, float]]
    site: Location | None


def following(a: Run, b: Run, calls: int) -> Following | None:
    """Returned numbers that follow the loss scale by an exact power of two.

    A number that comes from the scale alone is itself a power of two, or zero, at scale 1 (the scale, its inverse, its
    logarithm, a counter): those are left out, and so is any other difference, which only repeats a finding on gradients.
    """
    for call in range(min(calls, len(a.trace.returned), len(b.trace.returned))):
        values = {}
        for path, value in a.trace.returned[call].items():
            other = b.trace.returned[call].get(path)
            if other is None or other == value or _is_power_of_two(value) or not value:
                continue
            if _is_power_of_two(other / value):
                values[path] = (value, other)
        if values:
            return Following(call, values, _reading_site(b, call))
    return None


def _is_power_of_two(value: float) -> bool:
    return math.isfinite(value) and value > 0 and math.frexp(value)[0] == 0.5


def _reading_site(run: Run, call: int) -> Location | None:
    """Where a scaled number came from: the first reading of the scale after the update, else where the loss was scaled."""
    events = list(run.trace.of(call=call))
    updates = [e.index for e in events if e.kind == "update"]
    late = [e for e in events if e.kind == "get_scale" and updates and e.index > updates[-1]]
    scaled = [e for e in events if e.kind == "scale"]
    return (late or scaled or [Event("", call)])[0].site
