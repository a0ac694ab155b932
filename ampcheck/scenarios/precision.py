"""Precision of parameters and optimizer state: the run as written against one in which nothing is rounded to 16 bits.

The natural run leaves what there is. Only where it holds 16-bit parameters without masters, 16-bit state, 16-bit buffers
that were cast, or what could be 16-bit averages, two more runs are made, until each optimizer has stepped once: in the
widened world, and as written with the ops of the optimizer watched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck.findings import Location
from ampcheck.policy import Policy
from ampcheck.scenarios.averages import Averages, AverageStage
from ampcheck.scenarios.averages import near as near_averages
from ampcheck.scenarios.compensation import compensation
from ampcheck.scenarios.drive import Built, Run, Stage, Together
from ampcheck.scenarios.narrowed import Narrowed
from ampcheck.scenarios.rounding import Epsilon, FirstUpdate, Lost, OptimizerOps, compare, vanishes
from ampcheck.scenarios.spec import Spec
from ampcheck.scenarios.state import StateProbe, States
from ampcheck.trace.digest import local
from ampcheck.trace.events import Event
from ampcheck.trace.precision import CastSites
from ampcheck.trace.recorder import Recorder

__all__ = ["Precision", "PrecisionProbe", "precision"]


@dataclass
class Precision:
    """What was found.

    Args:
        natural: parameters and state of the natural run; `widened`: of the run without 16-bit rounding, where one was needed.
        reason: why there is no widened run although one was needed.
        lost: optimizer index -> what rounding did to its first update, where it steps 16-bit parameters without masters.
        epsilons: those that were used in a dtype in which they are zero.
        made: `(optimizer, parameter, slot)` -> the optimizer's own line that makes this state in 16 bits.
        rounded: paths of 16-bit buffers whose values are not those of the widened run.
        averages: tensors that are or may be averages of parameters.
        narrowed: FP32 parameters that the loop rounds to 16 bits after their steps, and does not in the widened run.
    """

    natural: States = field(default_factory=States)
    widened: States | None = None
    reason: str = ""
    lost: dict[int, Lost] = field(default_factory=dict)
    epsilons: list[Epsilon] = field(default_factory=list)
    made: dict[tuple[int, int, str], Location | None] = field(default_factory=dict)
    rounded: list[str] = field(default_factory=list)
    averages: Averages = field(default_factory=Averages)
    narrowed: list[str] = field(default_factory=list)

    def suspicious(self) -> bool:
        """Whether the extra runs have anything to decide."""
        state = self.natural
        steps = any(o.steps for o in state.optimizers.values())
        low = state.low_parameters() or state.low_slots() or state.low_extra() or state.buffers or self.narrowed
        return steps and (bool(low) or self.averages.suspicious())


class PrecisionProbe(StateProbe):
    """`StateProbe` for the natural run; it also leaves what could be averages."""

    def __init__(self, sites: CastSites) -> None:
        super().__init__(sites)
        self.result = Precision(self.states)
        self.narrowed = Narrowed()

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        super().optimizer_step(recorder, event, optimizer, entering)
        self.narrowed.optimizer_step(recorder, event, optimizer, entering)

    def after_call(self, built: Built, call: int) -> bool:
        return self.narrowed.after_call(built, call)

    def finished(self, built: Built) -> None:
        if built.recorder.trace.steps:
            self.result.averages = near_averages(built, self.sites, self._used)
        self.narrowed.finished(built)
        self.result.narrowed = self.narrowed.names
        super().finished(built)


class _Buffers(Stage):
    """Copies of chosen buffers as they are before the first call."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.values: dict[str, torch.Tensor] = {}

    def built(self, built: Built) -> None:
        if not self.paths:
            return
        modules = built.reach().modules
        buffers = {f"{p}.{n}" if p else n: b for root, m in modules.items() for p, n, b in _named_buffers(root, m)}
        self.values = {path: local(buffers[path]).to("cpu", copy=True) for path in self.paths if path in buffers}


def _named_buffers(root: str, module: torch.nn.Module) -> list[tuple[str, str, torch.Tensor]]:
    return [(path, n, b) for path, m in module.named_modules(prefix=root) for n, b in m._buffers.items() if b is not None]


class _Until(Stage):
    """Stops when everything that is waited for has been seen."""

    def __init__(self, seen: Callable[[Recorder], bool]) -> None:
        self.seen = seen

    def after_call(self, built: Built, call: int) -> bool:
        return self.seen(built.recorder)


class _Following(AverageStage):
    """Follows averages without ending the run."""

    def after_call(self, built: Built, call: int) -> bool:
        super().after_call(built, call)
        return False


class _Under(Stage):
    """Makes each call under the mode that watches the optimizer's ops."""

    def __init__(self, mode: OptimizerOps) -> None:
        self.mode = mode

    def call(self, built: Built, step: Callable[[], object]) -> object:
        with self.mode:
            return step()


class _Compensation(Stage):
    """Asks, when the run is over, how optimizers keep what rounding takes from their 16-bit parameters.

    Args:
        updates: of the same run; its choice of parameters.
        known: optimizers of torch's own, which round to nearest and keep nothing.
    """

    def __init__(self, updates: FirstUpdate, known: set[int]) -> None:
        self.updates, self.known = updates, known
        self.means: dict[int, str] = {}

    def finished(self, built: Built) -> None:
        for index, positions in self.updates.chosen.items():
            used = {j: self.updates.sizes[index, j] for j in sorted(positions) if (index, j) in self.updates.sizes}
            if index not in self.known and used:
                parameters = [p for j, p in enumerate(built.recorder.parameters(index)) if j in used]
                self.means[index] = compensation(built.recorder.optimizers[index], parameters, list(used.values()))


def precision(spec: Spec, found: Precision, calls: int) -> None:
    """Make the extra runs, at most `calls` calls each, and complete `found`."""
    state = found.natural
    stepped = {i for i, o in state.optimizers.items() if o.steps}
    chosen = {
        i: {j for j, p in enumerate(o.parameters) if p.trained and p.low and not p.master}
        for i, o in state.optimizers.items()
        if i in stepped and any(p.low and p.trained and not p.master for p in o.parameters)
    }
    wide = FirstUpdate(chosen)
    buffers = _Buffers([b.name for b in state.buffers])
    widened = _widened(spec, found, calls, wide, buffers, stepped)
    slots = state.low_slots()
    if not chosen and not slots and not state.buffers:
        return
    ops = OptimizerOps(_vanishing(state), slots)
    low, as_written = FirstUpdate(chosen), _Buffers(buffers.paths)
    stop = _Until(lambda recorder: low.done and ops.taken >= stepped)
    means = _Compensation(low, {i for i, o in state.optimizers.items() if o.known is not None})
    stage = Together(as_written, _Under(ops), stop, means)
    spec.run("precision", Policy(), calls=calls, probes=[low, ops], stage=stage)
    found.epsilons, found.made = ops.epsilons, ops.made
    if widened.trace.raised is None:
        found.lost = compare(wide, low)
    for index, how in means.means.items():
        found.lost.setdefault(index, Lost()).compensated = how
    found.rounded = [
        path
        for path, value in as_written.values.items()
        if path in buffers.values and not torch.equal(value.double(), buffers.values[path].double())
    ]


def _widened(spec: Spec, found: Precision, calls: int, wide: FirstUpdate, buffers: _Buffers, stepped: set[int]) -> Run:
    probe, narrowed = StateProbe(masters=False), Narrowed()
    following = _Following(found.averages if found.averages.suspicious() else Averages())
    stop = _Until(lambda recorder: set(probe.states.optimizers) >= stepped and following.done and not found.narrowed)
    stage = Together(probe, buffers, following, narrowed, stop)
    calls = max(calls, 2) if found.narrowed else calls
    run = spec.run("widened", Policy("float32").widened(), calls=calls, probes=[probe, wide, narrowed], stage=stage)
    found.narrowed = [] if run.trace.raised else [name for name in found.narrowed if name not in narrowed.names]
    if set(probe.states.optimizers) >= stepped:
        found.widened = probe.states
    elif run.trace.raised is not None:
        found.reason = f"the run without 16-bit rounding raises {run.trace.raised}"
    else:
        found.reason = "an optimizer takes no step in the run without 16-bit rounding"
    return run


def _vanishing(state: States) -> dict[int, set[float]]:
    """For each optimizer the epsilons that are zero in a 16-bit dtype that it holds."""
    found: dict[int, set[float]] = {}
    for index, optimizer in state.optimizers.items():
        dtypes = {p.dtype for p in optimizer.trained if p.low and not p.master}
        dtypes |= {slot.dtype for p in optimizer.parameters for slot in p.slots.values()}
        low = [getattr(torch, d) for d in dtypes if d in ("float16", "bfloat16")]
        found[index] = {e for e in optimizer.eps if any(vanishes(e, d) for d in low)}
    return found
