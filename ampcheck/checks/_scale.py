"""Reading what happened to the loss scale: whether it is stuck, set to nonsense or made anew, and lines for messages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from ampcheck.evidence import Evidence
from ampcheck.findings import Location
from ampcheck.registry import Fault, Inconclusive, Result
from ampcheck.trace.events import Event, Trace

SMALLEST, LARGEST = 2.0**-24, 2.0**127
#: Single precision ends below it.
OVERFLOWS = 2.0**128
#: Skips in a row, in the natural run and its continuation, after which a loop counts as stuck.
STUCK = 30


def stuck(evidence: Evidence) -> Result | None:
    """A loop that never takes a step as it is written, although its FP32 run does."""
    trace = evidence.trace
    if trace.raised is not None or any(e.get("took") for e in trace.of("scaler_step", "optimizer_step")):
        return None
    tries = [e for e in trace.of("scaler_step") if e.get("enabled") and e.get("done")]
    exact = evidence.exact
    if not tries or exact is None or exact.reference is None or not exact.reference.trace.steps:
        return None
    scales = [e.get("scale") for e in trace.of("scale") if e.get("enabled")]
    longer = evidence.recovery
    if longer is not None and longer.trace.steps:
        return None
    if longer is not None:
        more = [e for e in longer.trace.of("scaler_step") if e.get("done")]
        scales = [e.get("scale") for e in longer.trace.of("scale") if e.get("enabled")] or scales
        if len(more) < STUCK and min(scales) > SMALLEST and longer.trace.raised is None:
            return Inconclusive(
                f"no step was taken in {len(more)} calls; give the contract more calls (Training(calls=...)) or a lower initial scale"
            )
        tries = more or tries
    if len(tries) < 4:
        return None
    way = (
        "and the scale does not fall"
        if len(set(scales)) == 1
        else f"while the scale falls from {scales[0]:g} to {scales[-1]:g}"
    )
    return Fault(f"every step is skipped, in {len(tries)} tries {way}; in FP32 the same step is taken", tries[-1].site)


def bad_scale(trace: Trace) -> Event | None:
    """The first update() that the user's code gave a scale which is zero, negative or no number of single precision."""
    for event in trace.of("update"):
        new = event.get("new_scale")
        if event.get("enabled") and new is not None and not 0 < new < OVERFLOWS:
            return event
    return None


def made_anew(trace: Trace) -> Fault | None:
    """A scaler that is made in one call after the other, for an optimizer that stays."""
    used: dict[int, list[int]] = {}
    for event in trace.of("scaler_step"):
        if event.optimizer is not None and event.scaler is not None and event.get("enabled"):
            scalers = used.setdefault(event.optimizer, [])
            if event.scaler not in scalers:
                scalers.append(event.scaler)
    made = {e.scaler: e for e in trace.of("scaler_made") if e.call >= 1}
    for scalers in used.values():
        late = [made[s] for s in scalers if s in made and not any(trace.of("load_state", scaler=s))]
        if len(late) >= 2:
            return Fault(
                f"a new scaler is made in call {late[0].call + 1}, and again in call {late[1].call + 1}: its scale and its growth "
                "count begin anew each time",
                late[0].site,
                fix="make one scaler for the whole run, outside the step",
            )
    return None


def put_back(trace: Trace) -> Fault | None:
    """A growth count that each update advances and something sets back before the next one, each time."""
    counts: dict[int | None, list[Event]] = {}
    for event in trace.of("update"):
        if "tracker" in event.data and event.get("new_scale") is None:
            counts.setdefault(event.scaler, []).append(event)
    for scaler, updates in counts.items():
        lost = []
        for event, later in itertools.pairwise(updates):
            if event.get("found_inf") or event.get("tracker") + 1 == event.get("interval"):
                continue  # the count begins anew by itself
            lost.append(
                (event, later, later.get("tracker") == event.get("tracker") and later.get("before") == event.get("before"))
            )
        if len(lost) >= 2 and all(same for _, _, same in lost):
            first, second, _ = lost[0]
            loads = [e for e in trace.of("load_state", scaler=scaler) if first.index < e.index < second.index]
            return Fault(
                f"the growth count is set back between call {first.call + 1} and call {second.call + 1}, and each time after: the scale does "
                "not grow, and does not stay where an overflow leaves it",
                loads[-1].site if loads else first.site,
                fix="load the scaler's state once, when training is resumed, and leave it alone from then on",
                level="warning",  # it may be meant: a scale that is to be constant
            )
    return None


def all_traces(evidence: Evidence) -> Iterator[tuple[str, Trace]]:
    yield "natural", evidence.trace
    if evidence.overflow is not None:
        yield "overflow", evidence.overflow.run.trace
    if evidence.exact is not None and evidence.exact.growth is not None:
        yield "growth", evidence.exact.growth.trace


def close(a: float, b: float) -> bool:
    return a == b or math.isclose(a, b, rel_tol=1e-5) or (not math.isfinite(a) and not math.isfinite(b))


def site_after(trace: Trace, index: int) -> Location | None:
    return next((e.site for e in trace.events[index:] if e.site is not None), None)


def step_site(trace: Trace, index: int, optimizer: int) -> Location | None:
    """The last line that handled the planted optimizer in its window: the step, else unscale_, else the backward."""
    call = trace.events[index].call if index < len(trace.events) else -1
    for kind in ("scaler_step", "unscale", "backward"):
        events: list[Event] = [
            e for e in trace.of(kind, call=call) if e.index >= index and (kind == "backward" or e.optimizer == optimizer)
        ]
        if events:
            return events[-1].site
    return site_after(trace, index)


def discrepancies(evidence: Evidence, id: str) -> Iterator[Fault]:
    for found, site in evidence.discrepancies or ():
        if found.check == id:
            shown = {"kind": found.kind, "script": list(found.script)}
            saved = "AMP701" if found.kind == "load" else None  # where a checkpoint shows it, that is the plainer word
            yield Fault(found.seen, site, expected=found.expected, evidence=shown, follows=saved)
            return
