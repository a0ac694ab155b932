"""Reading a trace: windows of accumulation, updates between a backward and its step, and names for messages."""

from __future__ import annotations

from collections.abc import Iterator

from ampcheck.evidence import Evidence
from ampcheck.findings import Location
from ampcheck.trace.events import Event, Trace


def traces(evidence: Evidence) -> list[Trace]:
    """The traces in which order is judged."""
    return [evidence.trace, *(trace for _, trace in others(evidence))]


def others(evidence: Evidence) -> Iterator[tuple[str, Trace]]:
    """Those beside the natural run, by scenario."""
    if evidence.overflow is not None and evidence.overflow.planted:
        yield "overflow", evidence.overflow.run.trace
    if evidence.exact is not None and evidence.exact.growth is not None:
        yield "growth", evidence.exact.growth.trace


def mixtures(evidence: Evidence) -> Iterator[Event]:
    """Steps that use gradients which were added to after they had been used."""
    for trace in traces(evidence):
        yield from (e for e in trace.of("scaler_step", "optimizer_step") if e.get("tainted"))


def name(trace: Trace, event: Event) -> str:
    """The optimizer of an event, for messages."""
    if event.optimizer is None:
        return "the optimizer"
    info = trace.optimizers[event.optimizer]
    same = [i for i, o in enumerate(trace.optimizers) if o.kind == info.kind]
    return info.kind if len(same) == 1 else f"{info.kind} number {same.index(event.optimizer) + 1}"


def straddling(trace: Trace) -> Iterator[tuple[Event, Event]]:
    """Steps through a scaler that use gradients older than its last update, each with that update."""
    for event in trace.of("scaler_step"):
        if event.scaler is None or not event.get("enabled") or not event.get("ages", {}).get(event.scaler):
            continue
        updates = [e for e in trace.of("update", scaler=event.scaler) if e.index < event.index]
        if updates:
            yield event, updates[-1]


def torn(trace: Trace) -> Iterator[tuple[Event, Event]]:
    """Steps whose window goes on after an update of the scale, each with that update."""
    return (found for found in straddling(trace) if _last_backward(trace, found[0]) > found[1].index)


def late(trace: Trace) -> Iterator[tuple[Event, Event]]:
    """Steps between whose last backward and which the scale was updated, each with that update."""
    return (found for found in straddling(trace) if -1 < _last_backward(trace, found[0]) < found[1].index)


def _last_backward(trace: Trace, step: Event) -> int:
    before = (e for e in trace.events[: step.index] if e.kind == "backward")
    return max((e.index for e in before if step.optimizer in e.get("optimizers", ())), default=-1)


def why_wrong_in_backward(evidence: Evidence) -> str | None:
    """The rule that explains gradients which are wrong when the backward ends: it added to used ones, or at another scale."""
    if any(mixtures(evidence)):
        return "AMP109"
    return "AMP107" if any(found for trace in traces(evidence) for found in torn(trace)) else None


def alternating_updates(trace: Trace) -> Event | None:
    """The first update of a call that has one for each of several optimizers, call after call."""
    calls = 0
    first: Event | None = None
    for call in range(trace.calls):
        for scaler in range(len(trace.scalers)):
            stepped: set[int] = set()
            sets: list[frozenset[int]] = []
            updates: list[Event] = []
            for event in trace.of("scaler_step", "update", call=call, scaler=scaler):
                if not event.get("enabled"):
                    continue
                if event.kind == "scaler_step" and event.optimizer is not None:
                    stepped.add(event.optimizer)
                elif event.kind == "update" and event.get("new_scale") is None and stepped:
                    sets.append(frozenset(stepped))
                    updates.append(event)
                    stepped = set()
            if (
                len(sets) >= 2
                and not frozenset.intersection(*sets)
                and len(frozenset.union(*sets)) == sum(len(s) for s in set(sets))
                and len(set(sets)) > 1
            ):
                calls += 1
                first = first or updates[0]
    return first if calls >= 2 or (calls and trace.calls == 1) else None


def divisors(window: list[Event]) -> tuple[float, ...]:
    """What the losses of a window are divided by."""
    return tuple(round(e.get("divisor", 1.0), 6) for e in window)


def uneven(windows: list[list[Event]]) -> list[Event] | None:
    """The first window inside which the divisor changes, although in others it is the size of the window.

    Each time differently: a second loss with a weight of its own gives the same pattern in every window.
    """
    sizes = [divisors(window) for window in windows]
    right = [d for d in sizes if len(d) >= 2 and set(d) == {len(d)}]
    mixed = [w for w, d in zip(windows, sizes, strict=True) if len(set(d)) > 1 and all(x == int(x) for x in d)]
    return mixed[0] if right and len({divisors(w) for w in mixed}) >= 2 else None


def carried_over(windows: list[list[Event]]) -> tuple[list[Event], int] | None:
    """A window that took in what an earlier call left over: longer than what its losses are divided by, and over two calls.

    Only where the other windows lie within a call each and hold as many micro-batches as their losses are divided by.
    """
    sizes = {d for window in windows for d in divisors(window)}
    if len(sizes) != 1 or len({e.site for window in windows for e in window}) != 1:
        return None
    size = sizes.pop()
    within = [window for window in windows if window[0].call == window[-1].call]
    across = [window for window in windows if window[0].call != window[-1].call]
    if size < 2 or len(across) < 2 or not within:
        return None
    if all(len(w) == size for w in within) and all(len(w) > size for w in across):
        return across[0], int(size)
    return None


def thrown_away(trace: Trace) -> tuple[list[Event], Location | None] | None:
    """A window whose losses are divided by their number, and whose gradients are cleared before each; with the line that clears.

    A micro-batch may have several losses: then the same backwards follow each other in the same order, and are cleared before the first.
    Not where something has written to the gradients after the last backward: it may have put a sum there.
    """
    for optimizer, window in windows(trace):
        sites = [e.site for e in window]
        losses = next((i for i in range(1, len(window)) if sites[i] == sites[0]), len(window))
        batches = len(window) // losses if window else 0
        if (
            batches < 2
            or sites != sites[:losses] * batches
            or not any(set(divisors(window[i::losses])) == {batches} for i in range(losses))
            or _closure_of(trace, window[0], optimizer) is not None  # the closure is run again and again
            or [bool(e.get("cleared")) for e in window[1:]] != [i % losses == 0 for i in range(1, len(window))]
        ):
            continue
        uses = trace.of("unscale", "scaler_step", "optimizer_step", optimizer=optimizer)
        use = next((e for e in uses if e.index > window[-1].index), None)
        if use is not None and not use.get("touched"):
            clearing = [e for e in trace.of("zero_grad") if window[0].index < e.index < window[-1].index]
            return window[::losses], (clearing or window)[-1].site
    return None


def windows(trace: Trace) -> list[tuple[int, list[Event]]]:
    """For each optimizer step: which optimizer, and the backwards since its last one that added to its gradients.

    A backward in the closure of a step belongs to that step.
    """
    windows: list[tuple[int, list[Event]]] = []
    pending: dict[int, list[Event]] = {}
    begun: dict[int, list[Event]] = {}
    for event in trace.events:
        if event.kind == "backward" and event.get("accumulates"):
            for optimizer in event.get("optimizers", ()):
                step = _closure_of(trace, event, optimizer)
                window = pending.setdefault(optimizer, []) if step is None else begun[step.index]
                window.append(event)
        elif event.kind in ("scaler_step", "optimizer_step") and event.optimizer is not None:
            driver = trace.inside(event, "scaler_step") if event.kind == "optimizer_step" else None
            if driver is None or driver.index not in begun:
                windows.append((event.optimizer, pending.pop(event.optimizer, [])))
                begun[event.index] = windows[-1][1]
            else:
                begun[event.index] = begun[driver.index]
    return [(optimizer, window) for optimizer, window in windows if window]


def _closure_of(trace: Trace, backward: Event, optimizer: int) -> Event | None:
    """The step of that optimizer in whose closure the backward is called, if it is."""
    parent = backward.parent
    while parent is not None:
        outer = trace.events[parent]
        if outer.kind == "optimizer_step" and outer.optimizer == optimizer:
            return outer
        parent = outer.parent
    return None
