"""The natural run: the contract as it is written, all its calls, watched but without copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ampcheck.policy import Policy
from ampcheck.scenarios.census import CensusStage, OutlineStage
from ampcheck.scenarios.drive import Built, Run, Stage, Together
from ampcheck.scenarios.origin import FlowStage
from ampcheck.scenarios.precision import PrecisionProbe
from ampcheck.scenarios.spec import Spec
from ampcheck.trace.events import Event
from ampcheck.trace.precision import watch_casts
from ampcheck.trace.recorder import Probe, Recorder

__all__ = ["groups", "natural", "needed_calls", "recovery"]


def groups(optimizer: Any) -> tuple[tuple[float, ...], ...]:
    """What a schedule may change of an optimizer: learning rate, momentum and betas of each group, as numbers. None is none: an
    optimizer that chooses its own rate has no number there.
    """
    found = []
    for group in optimizer.param_groups:
        values: list[float] = []
        for key in ("lr", "momentum", "betas"):
            value = group.get(key, ())
            values += [float(v) for v in (value if isinstance(value, (tuple, list)) else [value]) if v is not None]
        found.append(tuple(values))
    return tuple(found)


class ScheduleProbe(Probe):
    """Notes the optimizers' hyperparameters after each backward, for AMP112."""

    def backward_done(self, recorder: Recorder, event: Event) -> None:
        event.data["groups"] = {i: groups(recorder.optimizers[i]) for i in event.get("optimizers", ())}


class Patience(Stage):
    """Ends a run before a call that the time limit would cut short: a slow step is judged by the calls that fit.

    Args:
        limit: seconds that the run may take; None is any.
        clock: tells the time, in seconds.
    """

    def __init__(self, limit: float | None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.limit, self.clock = limit, clock
        self.began = self.last = clock()
        self.slowest = 0.0
        self.note: str | None = None

    def before_call(self, built: Built, call: int) -> None:
        self.last = self.clock()

    def after_call(self, built: Built, call: int) -> bool:
        now = self.clock()
        self.slowest = max(self.slowest, now - self.last)
        most = built.training.most_calls
        if self.limit is None or call + 1 >= most or now - self.began + 1.25 * self.slowest <= self.limit:
            return False
        self.note = (
            f"judged by {call + 1} of {most} calls of the step, which take up to {self.slowest:.3g} s: no more fit in "
            f"{self.limit:g} s (ampcheck_timeout, or timeout= of the contract)"
        )
        return True


def natural(spec: Spec) -> Run:
    """Run the contract as written, every op of it watched.

    A dispatch mode is not always invisible: torch then takes another path through some composite ops (a CTC loss with lengths on the
    CPU raises on CUDA). So a run that raises is made once more unwatched, and that one counts if it gets further.
    """
    run = _watched(spec)
    raised = run.trace.raised
    if raised is None or raised.call < 0:
        return run
    plain = _unwatched(spec)
    if plain.trace.raised is None or plain.trace.raised.call > raised.call:
        plain.notes["unwatched"] = f"the step raises while its ops are watched, and only then: {raised}"
        return plain
    return run


def _unwatched(spec: Spec) -> Run:
    with watch_casts() as sites:
        state = PrecisionProbe(sites)
        patience = Patience(spec.timeout)
        stage, probes = Together(state, *spec.beside, patience), [ScheduleProbe(), state, *spec.beside]
        run = spec.run("natural", Policy(), calls=None, probes=probes, inspect_graph=True, stage=stage)
    run.notes["patience"] = patience.note
    run.notes["precision"] = state.result
    return run


def _watched(spec: Spec) -> Run:
    flow, census, outline = FlowStage(), CensusStage(), OutlineStage()
    with watch_casts() as sites:
        state = PrecisionProbe(sites)
        patience = Patience(spec.timeout)
        stage = Together(census, flow, state, outline, *spec.beside, patience)
        probes = [ScheduleProbe(), census.probe, state, outline.probe, *spec.beside]
        run = spec.run("natural", Policy(), calls=None, probes=probes, inspect_graph=True, stage=stage)
    run.notes["patience"] = patience.note
    run.notes["flow"], run.notes["precision"], run.notes["census"] = flow.flow, state.result, census.census
    run.notes["outline"] = outline.probe.outline
    return run


def recovery(spec: Spec, calls: int) -> Run:
    """The natural run again, for longer: does a loop that only skipped so far ever take a step?"""

    class UntilStep(Stage):
        def after_call(self, built: Built, call: int) -> bool:
            return bool(built.recorder.trace.steps)

    return spec.run("recovery", Policy(), calls=calls, stage=UntilStep())


def needed_calls(run: Run) -> int:
    """How many calls the other scenarios need: two, or up to the first call that did something else than the one before.

    The first call is left out of the comparison: what is made lazily is made there.
    """
    trace = run.trace
    for call in range(2, trace.calls):
        if trace.signature(call) != trace.signature(1) or _scales(run, call) != _scales(run, 1):
            return call + 1
    return min(2, max(trace.calls, 1))


def _scales(run: Run, call: int) -> list[float]:
    return [e.get("scale") for e in run.trace.of("scale", call=call) if e.get("enabled")]
