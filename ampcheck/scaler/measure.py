"""Measures of a scaler what its author did not declare and its attributes do not tell."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from ampcheck.errors import UsageError
from ampcheck.scaler.capabilities import Capabilities
from ampcheck.scaler.session import Session

__all__ = ["resolve"]

#: Clean iterations in which growth is looked for, and overflows in which a floor is.
CLEAN, OVERFLOWS = 64, 60
#: A cap is only looked for where growth is this frequent.
SHORT_INTERVAL = 30
#: Above this no cap of a scaler's own is assumed, only that of float32.
HIGHEST_CAP = 2.0**120


def resolve(factory: Callable[[], Any], declared: Mapping[str, Any], device: str = "cpu") -> Capabilities:
    """What to hold the scaler to: declared, else read from its attributes, else measured, else torch's default.

    A measured interval, factor, cap or floor is only believed where the scale was seen to move in the right direction, so
    that a scaler which never backs off is not taken for one that stands at its floor.

    Raises:
        UsageError: if the factory builds no scaler.
    """
    scaler = factory()
    for method in ("scale", "step"):
        if not callable(getattr(scaler, method, None)):
            raise UsageError(f"{type(scaler).__name__} is no loss scaler: it has no method {method!r}")
    can = Capabilities.of(scaler, declared)
    if can.static:
        return can
    try:
        if can.update and can.sources["update"] != "declared" and _moves_in_step(factory, can, device):
            # Where `step` does it all, `update` is called but has nothing left to do.
            can = can.settled_in_step()
        can = can.measured(**_on_overflow(factory, can, device))
        can = can.measured(**_on_clean(factory, can, device))
    # A scaler that raises on such runs is judged, and its error shown, by the contract itself.
    except Exception:
        return can
    return can


def _session(factory: Callable[[], Any], can: Capabilities, device: str) -> Session:
    session = Session(factory(), [], device=device, step_args=can.step_args, step_kwargs=can.step_kwargs)
    session.prepare("a")
    return session


def _iterate(session: Session, can: Capabilities, *, overflow: bool = False, slope: float = 0.0) -> float:
    session.run(*session.backward_lines("a", slope))
    if overflow:
        session.run(session.plant_line("a0", 0, float("inf")))
    session.run(session.step_line("a"))
    if can.update:
        session.run("scaler.update()")
    session.blocks.clear()
    return session.scale()


def _moves_in_step(factory: Callable[[], Any], can: Capabilities, device: str) -> bool:
    session = _session(factory, can, device)
    for _ in range(8):
        session.run(*session.backward_lines("a", 0.0), session.plant_line("a0", 0, float("inf")))
        before = session.scale()
        session.run(session.step_line("a"))
        stepped = session.scale()
        session.run("scaler.update()")
        if stepped != before:
            return session.scale() == stepped
    return False


def _on_overflow(factory: Callable[[], Any], can: Capabilities, device: str) -> dict[str, float]:
    session = _session(factory, can, device)
    scales = [session.scale()] + [_iterate(session, can, overflow=True) for _ in range(OVERFLOWS)]
    drops = [after / before for before, after in itertools.pairwise(scales) if 0.0 < after < before]
    found: dict[str, float] = {}
    if drops:
        found["backoff_factor"] = drops[0]
        if scales[-1] == scales[-10] > 0.0:
            found["min_scale"] = scales[-1]
    return found


def _on_clean(factory: Callable[[], Any], can: Capabilities, device: str) -> dict[str, Any]:
    if can.growth_interval is None or (can.sources["growth_interval"] != "default" and can.growth_interval > SHORT_INTERVAL):
        return {}
    session = _session(factory, can, device)
    scales = [session.scale()]
    # A known interval tells how long to look for a cap; else growth must show within `CLEAN` iterations.
    known = can.growth_interval if can.sources["growth_interval"] != "default" else None
    limit = CLEAN if known is None else known
    while len(scales) <= limit and scales[-1] == scales[0]:
        scales.append(_iterate(session, can))
    if not scales[-1] > scales[0]:
        return {}
    interval = len(scales) - 1
    found: dict[str, Any] = {"growth_interval": interval, "growth_factor": scales[-1] / scales[0]}
    if interval <= SHORT_INTERVAL and can.sources["max_scale"] == "default":
        scales += [_iterate(session, can) for _ in range(130 * interval)]
        if scales[-1] == scales[-2 * interval - 1] < HIGHEST_CAP:
            found["max_scale"] = scales[-1]
    return found
