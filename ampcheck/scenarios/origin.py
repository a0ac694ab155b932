"""Where did the first NaN or inf come from? Run only where the natural run gives reason to ask.

The contract is run as written with a widened shadow (see `trace.shadow`). A value that is finite in the shadow and not in the
run was made by 16 bits; the first such op is the origin. It counts if something came of it: a mask of -inf that a softmax turns
into zeros, or a branch that `where()` does not select, is nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ampcheck.policy import HELD, Policy
from ampcheck.scenarios.drive import Built, Run, Stage
from ampcheck.scenarios.spec import Spec
from ampcheck.trace.events import Event, Trace
from ampcheck.trace.flow import Flow, FlowMode
from ampcheck.trace.reach import named_modules
from ampcheck.trace.recorder import Probe, Recorder
from ampcheck.trace.shadow import Origin, ShadowMode

__all__ = ["FlowStage", "Origins", "calls_in_doubt", "overflow_origin"]

#: A loss scale so low that a backward which overflows even there does so at any scale that is of use.
LOWEST = 2.0**-10
#: How people and torch say that a number is not finite.
_NOT_FINITE = re.compile(r"\b(nans?|infs?|infinity|infinite)\b|finite|overflow", re.IGNORECASE)


class FlowStage(Stage):
    """Puts the flow mode around each call of the natural run; what it found goes to `Run.notes["flow"]`."""

    def __init__(self) -> None:
        self.flow = Flow()
        self._mode: FlowMode | None = None

    def call(self, built: Built, step: Callable[[], object]) -> object:
        if self._mode is None:
            self._mode = FlowMode(built.recorder)
            self.flow = self._mode.flow
        try:
            with self._mode:
                return step()
        finally:
            self._mode.close_call(built.recorder.call)

    def finished(self, built: Built) -> None:
        self._mode = None


@dataclass
class Origins:
    """What the shadowed run found: origins that led to something, in the order of the run."""

    found: list[Origin] = field(default_factory=list)


def calls_in_doubt(run: Run) -> int:
    """How many calls of the natural run have to be looked at again; 0 if nothing in it gives reason to.

    Reasons: a 16-bit result outside the backward that is not finite; a returned number that is not; a step that is skipped at a
    scale no higher than one at which it was taken, or skips only; an exception that speaks of numbers that are not finite.
    """
    trace, flow = run.trace, run.notes.get("flow") or Flow()
    doubtful: dict[tuple[str, str], int] = {}
    for suspect in flow.suspects:
        doubtful.setdefault((suspect.op, suspect.phase), suspect.call)
    calls = list(doubtful.values())
    calls += [c for c, numbers in enumerate(trace.returned) if any(not math.isfinite(v) for v in numbers.values())][:1]
    calls += unsettled_skips(trace)[:1]
    if trace.raised is not None and _NOT_FINITE.search(trace.raised.message):
        calls.append(trace.raised.call)
    return max(calls, default=-1) + 1


def unsettled_skips(trace: Trace) -> list[int]:
    """Calls whose step was skipped although one had been taken at that scale or a higher one, or any if none ever was."""
    steps = [e for e in trace.of("scaler_step") if e.get("done") and e.get("enabled")]
    taken: dict[int | None, float] = {}
    found = []
    ever = any(e.get("took") for e in steps)
    for event in steps:
        scale = _scale_of(trace, event)
        if event.get("took"):
            taken[event.optimizer] = max(scale, taken.get(event.optimizer, 0.0))
        elif event.get("grads") and (not ever or scale <= taken.get(event.optimizer, 0.0)):
            found.append(event.call)
    return found


def _scale_of(trace: Trace, event: Event) -> float:
    scales = [e.get("scale") for e in trace.of("scale", scaler=event.scaler) if e.index < event.index and e.get("scale")]
    return float(scales[-1]) if scales else 1.0


class _ShadowProbe(Probe):
    """Asks, where it matters, what has become of each origin."""

    def __init__(self, backward: bool = False) -> None:
        self.mode: ShadowMode | None = None
        self.backward = backward
        self._excused: set[int] = set()

    def backward_starts(self, recorder: Recorder) -> None:
        self.leaves("it reaches the loss or a tensor that the step keeps")

    def backward_done(self, recorder: Recorder, event: Event) -> None:
        if self.mode is not None:
            self.mode.mark_gradients()
            for index in event.get("optimizers", ()):
                self._excuse(recorder, index)

    def unscale(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if entering:
            self._excuse(recorder, event.optimizer)

    def scaler_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if entering:
            self._excuse(recorder, event.optimizer)
            self._gradients(recorder, event.optimizer)

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if entering:
            self._gradients(recorder, event.optimizer)

    def leaves(self, effect: str) -> None:
        if self.mode is not None:
            for origin in self.mode.pending():
                if origin.phase in ("forward", "recompute"):
                    origin.effect = origin.effect or effect

    def _excuse(self, recorder: Recorder, index: int | None) -> None:
        """Gradients that do not fit into 16 bits at this loss scale: it is still too high, and will fall."""
        for p in () if self.mode is None or index is None else recorder.parameters(index):
            origin, fits = (None, True) if p.grad is None or self.mode is None else self.mode.in_tensor(p.grad)
            if origin is not None and origin.scale is not None and not fits:
                self._excused.add(id(origin))

    def _gradients(self, recorder: Recorder, index: int | None) -> None:
        if self.mode is None or index is None:
            return
        for p in recorder.parameters(index):
            origin = None if p.grad is None else self.mode.in_tensor(p.grad)[0]
            if origin is None or origin.effect:
                continue
            judged = origin.phase == "gradients" and id(origin) not in self._excused
            if judged or origin.phase in ("forward", "recompute"):
                origin.effect = "it reaches a gradient that the optimizer uses"
            elif origin.phase == "backward" and self.backward and (origin.scale is None or origin.scale <= LOWEST):
                at = "" if origin.scale is None else f", even at a loss scale of 2^{math.log2(origin.scale):g}"
                origin.effect = f"it reaches a gradient that the optimizer uses{at}"


class _ShadowStage(Stage):
    def __init__(self, probe: _ShadowProbe) -> None:
        self.probe = probe
        self.result = Origins()

    def call(self, built: Built, step: Callable[[], object]) -> object:
        mode = self.probe.mode = ShadowMode(built.recorder, _module_names(built))
        try:
            with mode:
                value = step()
            self._buffers(built, mode)
            self.probe.leaves("it is in what the step leaves behind")
            return value
        finally:
            self.result.found += [o for o in mode.origins if o.effect]
            self.probe.mode = None

    def after_call(self, built: Built, call: int) -> bool:
        return bool(self.result.found)

    def _buffers(self, built: Built, mode: ShadowMode) -> None:
        parameters = [p for i in range(len(built.recorder.optimizers)) for p in built.recorder.parameters(i)]
        trained, gradients = {id(p) for p in parameters}, {id(p.grad) for p in parameters}
        for path, tensor in built.reach().tensors.items():
            if id(tensor) in gradients or not tensor.is_floating_point():
                continue
            origin, _ = mode.in_tensor(tensor)
            used = id(tensor) in trained or ".state." in path  # a bucket of gradients may overflow while the scale settles
            if origin is None or (origin.effect and ".state." in path):
                continue
            if origin.phase in ("forward", "recompute") or (origin.phase == "gradients" and used):
                origin.effect = f"{path} is not finite after the call"


def _module_names(built: Built) -> dict[int, str]:
    """Id of a module -> its name, as everywhere else; its class's name where it is the only one at the top."""
    names: dict[int, str] = {}
    for name, part in named_modules(built.reach().modules):
        names.setdefault(id(part), name or type(part).__name__)
    return names


def overflow_origin(spec: Spec, natural: Run, calls: int) -> Origins:
    """Run the contract as written beside its shadow.

    Args:
        spec: the contract.
        natural: its natural run.
        calls: calls to make; it ends earlier, with the first one in which an origin led to something.
    """
    steps = [e for e in natural.trace.of("scaler_step") if e.get("enabled")]
    result = _shadowed(spec, Policy(), calls, backward=False)
    if not result.found and not any(e.get("took") for e in steps):  # does the backward overflow at any scale?
        result = _shadowed(spec, Policy(scale=LOWEST, growth_interval=HELD), calls, backward=True)
    return result


def _shadowed(spec: Spec, policy: Policy, calls: int, backward: bool) -> Origins:
    probe = _ShadowProbe(backward)
    stage = _ShadowStage(probe)
    spec.run("origin", policy, calls=calls, probes=[probe], stage=stage)
    return stage.result
