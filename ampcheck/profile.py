"""What a contract does, as plain data that people and other runs can compare: dtypes, ops, order, state. No torch.

Everything is ordered and repeats from run to run; nothing here depends on how long something took.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ampcheck.checks._state import table
from ampcheck.evidence import Evidence
from ampcheck.findings import Location
from ampcheck.trace.deviations import Parity, judge, series
from ampcheck.trace.events import Event, Trace
from ampcheck.trace.ops import NormUse, OpUse, Outline

__all__ = ["profile"]

#: Events that stand in the order of an iteration.
_ORDER = ("scale", "backward", "unscale", "scaler_step", "optimizer_step", "update", "zero_grad")
_STEPS = ("scaler_step", "optimizer_step")


def profile(evidence: Evidence) -> dict[str, Any]:
    """The profile of one contract on one device.

    Args:
        evidence: of all its scenarios.

    Returns:
        JSON data; a piece that was not recorded is an empty list, dict or `None`. Lines are `file:line`, files as they were loaded.

        - `scale`: one entry for each update of a scaler (or step, where it has none): call, scaler, scale, whether it skipped.
        - `gradients`: one for each optimizer step: call, optimizer, and norm and largest absolute value of the unscaled gradient
          (`None` where it is not finite).
        - `modules`: path, class, dtype of its own parameters, how often it returned which dtype, and the line that first called it.
        - `ops`: op, family, phase, dtypes, autocast's dtype or "off", whether an island of the code's own, count, flops, module, line.
        - `events`: the different iterations in the order in which they were first seen, each a list of names; "clip" is any
          write to gradients between backward and step that no scaler made. `places`: name -> line.
        - `state`: bytes of optimizer state by slot.
        - `layers`: policy -> for each parameter, the deviation of its gradient from FP32 and what rounding allows.
        - `first_nonfinite`: the first op that turned finite values into inf or NaN.
    """
    outline = evidence.natural.notes.get("outline")
    outline = outline if isinstance(outline, Outline) else Outline()
    events, places = _iterations(evidence)
    return {
        "scale": _scales(evidence.trace),
        "gradients": _gradients(evidence.trace, outline),
        "modules": [
            {
                "module": m.module,
                "kind": m.kind,
                "parameters": m.parameters or None,
                "forward": dict(sorted(m.outputs.items())),
                "line": next((_line(m.sites[d]) for d in sorted(m.sites)), None),
            }
            for m in outline.modules
        ],
        "ops": _ops(evidence),
        "events": events,
        "places": places,
        "state": table(evidence.precision) if evidence.precision is not None else [],
        "layers": {policy: _layers(parity) for policy, parity in evidence.parity.items()},
        "first_nonfinite": _first_nonfinite(evidence),
    }


def _line(site: Location | None) -> str | None:
    return None if site is None else f"{site.file}:{site.line}"


def _scales(trace: Trace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    skipped: dict[int | None, bool] = {}
    updates = {e.scaler for e in trace.of("update")}
    for event in trace.of("scaler_step", "update"):
        if not event.get("enabled"):
            continue
        if event.kind == "scaler_step":
            lost = bool(event.get("done") and event.get("grads") and not event.get("took"))
            skipped[event.scaler] = skipped.get(event.scaler, False) or lost
            if event.scaler in updates:
                continue
        scale = event.get("before") if event.get("before") is not None else _scale_before(trace, event)
        entry = {"call": event.call, "scaler": event.scaler, "scale": scale, "skipped": skipped.pop(event.scaler, False)}
        found.append(entry)
    return found


def _scale_before(trace: Trace, event: Event) -> float | None:
    known = [e.get("scale") for e in trace.of("scale", scaler=event.scaler) if e.index < event.index]
    return known[-1] if known else None


def _gradients(trace: Trace, outline: Outline) -> list[dict[str, Any]]:
    sizes = {g.event: (g.norm, g.peak) for g in outline.gradients}
    found = []
    for event in trace.of(*_STEPS):
        inner = any(e.parent == event.index for e in trace.of("optimizer_step")) if event.kind == "scaler_step" else False
        if inner or (event.kind == "scaler_step" and not event.get("grads")):
            continue
        norm, peak = sizes.get(event.index, (None, None))  # a skipped step never reaches the optimizer
        found.append({"call": event.call, "optimizer": event.optimizer, "norm": norm, "peak": peak})
    return found


def _ops(evidence: Evidence) -> list[dict[str, Any]]:
    found: dict[tuple[Any, ...], dict[str, Any]] = {}

    def row(one: OpUse | NormUse, dtypes: set[str], op: str, family: str, phase: str) -> dict[str, Any]:
        shown, line = sorted(d for d in dtypes if d), _line(one.site)
        key = (phase, family, one.module, op, tuple(shown), one.autocast, one.island, line or "")
        what = {"op": op, "family": family, "phase": phase, "dtypes": shown, "autocast": one.autocast, "island": one.island}
        return found.setdefault(key, {**what, "count": 0, "flops": 0.0, "module": one.module, "line": line})

    for use in evidence.census.uses:
        entry = row(use, {*use.inputs, *use.outputs}, use.op, use.family, use.phase)
        entry["count"] += use.count
        entry["flops"] += use.flops
    for norm in evidence.census.norms:
        row(norm, {norm.input, norm.output}, norm.kernel, "norm", "forward")["count"] += norm.count
    return [entry for _, entry in sorted(found.items())]


def _layers(parity: Parity) -> list[dict[str, Any]]:
    judged = [(one.label, judge(one, parity.unit_roundoff)) for one in series(parity, "tensor")]
    return [{"name": n, "measured": j.deviation, "allowed": j.allowed} for n, j in judged if j.state != "blind"]


def _first_nonfinite(evidence: Evidence) -> dict[str, Any] | None:
    if evidence.origin is None or not evidence.origin.found:
        return None
    first = evidence.origin.found[0]
    return {
        "call": first.call,
        "op": first.op,
        "module": first.module,
        "phase": first.phase,
        "dtype": first.dtype,
        "kind": first.kind,
        "count": first.count,
        "total": first.total,
        "effect": first.effect,
        "line": _line(first.site),
    }


# -- the order of an iteration ----------------------------------------------------------------------------------------


def _iterations(evidence: Evidence) -> tuple[list[list[str]], dict[str, str]]:
    """The different iterations, and the line of each name in them, of the first event that has one.

    An iteration ends at the last update (or step, where nothing is updated) before the next scale or backward.
    """
    trace, places = evidence.trace, dict[str, str]()
    several = len({e.optimizer for e in trace.of(*_STEPS)} - {None}) > 1
    ends = ("update",) if any(True for _ in trace.of("update")) else _STEPS
    found: list[list[str]] = []
    current: list[str] = []
    between: list[str] = []  # what follows the end and may belong to either side
    ended, call = False, 0

    def close() -> None:
        nonlocal current, ended
        folded = _folded(current)
        if folded and folded not in found:
            found.append(folded)
        current, ended = [], False

    for event, name, site in _named(evidence, several):
        if ended and event.call != call:
            current += between
            between = []
            close()
        call = event.call
        if ended and name.startswith(("scale", "backward")) and not name.startswith("scaler"):
            close()
        if ended and name.startswith("zero_grad"):
            between.append(name)
        else:
            current += [*between, name]
            between = []
        ended = ended or event.kind in ends
        if site is not None:
            places.setdefault(name, f"{site.file}:{site.line}")
    current += between
    close()
    return found, places


def _named(evidence: Evidence, several: bool) -> Iterator[tuple[Event, str, Location | None]]:
    """The events of the order by name, with "clip" where gradients are written to before one of them."""
    trace = evidence.trace
    flow = evidence.natural.notes.get("flow")
    writes = list(flow.writes) if flow is not None else []
    fresh = False  # whether there are gradients that no step has used
    for event in trace.events:
        if event.kind not in _ORDER or event.call < 0:
            continue
        around = trace.events[event.parent].kind if event.parent is not None else ""
        if around in _STEPS and event.kind != "backward":
            continue  # what a step does by itself
        site, seen = event.site, False
        while writes and writes[0].after <= event.index:
            site, seen = writes.pop(0).site or site, True
        # a gradient that was replaced, or written to where no op was seen; the scaler's own division is none
        seen |= bool(event.get("touched")) if event.kind == "unscale" else bool(event.get("written"))
        suffix = f" {event.optimizer}" if several and event.optimizer is not None else ""
        if seen and fresh:
            yield event, f"clip{suffix}", site
        yield event, f"{event.kind}{suffix}", event.site
        fresh = event.kind == "backward" or (fresh and event.kind not in _STEPS)


def _folded(names: list[str]) -> list[str]:
    """Runs of the same few events are written once, with their number: `["4 x (scale, backward)", "scaler_step", "update"]`."""
    found: list[str] = []
    at = 0
    while at < len(names):
        length, times = 1, 1
        for size in range(1, (len(names) - at) // 2 + 1):
            block, n = names[at : at + size], 1
            while names[at + n * size : at + (n + 1) * size] == block:
                n += 1
            if n > 1:
                length, times = size, n
                break
        block = names[at : at + length]
        found += block if times == 1 else [f"{times} x ({', '.join(block)})"]
        at += length * times
    return found
