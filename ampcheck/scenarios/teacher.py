"""Judged steps that do not depend on each other: the reference hands its state over before each of them.

Left alone, an honest difference of 1e-3 grows with Adam and BatchNorm from call to call, and data fall out of step after a
skip. So the reference run keeps a copy, in host memory, of all state that is reachable at the start of each unit (a call, or
the calls up to the next optimizer step); any other run gets it, cast to its own dtypes, before it makes that unit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ampcheck.policy import reseed
from ampcheck.scenarios.custom import force_scale
from ampcheck.scenarios.drive import Built, Stage
from ampcheck.trace.deviations import Deviation
from ampcheck.trace.distances import difference, host, measure, numbers, plain
from ampcheck.trace.events import Event
from ampcheck.trace.randomness import without_fused_dropout
from ampcheck.trace.reach import reach
from ampcheck.trace.recorder import Probe, Recorder

__all__ = ["Lesson", "Pupil", "Teacher"]

#: Steps of one optimizer that are compared in one unit; a call may hold a whole epoch.
STEPS = 4
SEED = 4321
#: Tensors with more elements than this are looked upon as data.
_LARGE = 2**20
Key = tuple[Any, ...]


@dataclass
class Lesson:
    """One unit of the reference: the state before it, and what came of it. Tensors are in host memory.

    Args:
        start, end: its first call and the one after its last.
        state: key -> tensor; `counts`: key -> number kept in the optimizer's state.
        gradients, updates: (optimizer, ordinal) -> one tensor or `None` for each parameter; `weights`: norms after the step.
        statistics: name of a norm's buffer -> (before, after).
        numbers: label -> what `scale()` was given.
    """

    start: int
    end: int = 0
    state: dict[Key, torch.Tensor] = field(default_factory=dict)
    counts: dict[Key, float] = field(default_factory=dict)
    gradients: dict[tuple[int, int], list[torch.Tensor | None]] = field(default_factory=dict)
    updates: dict[tuple[int, int], list[torch.Tensor | None]] = field(default_factory=dict)
    weights: dict[tuple[int, int], list[float | None]] = field(default_factory=dict)
    statistics: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)


class _Unit(Stage, Probe):
    """What both sides do: follow the units, and hand over gradients, updates, statistics and losses as they come."""

    def __init__(self) -> None:
        self.unit = -1
        self.mode: contextlib.AbstractContextManager[Any] | None = None
        self._taken: dict[int, int] = {}
        self._before: dict[int, list[torch.Tensor]] = {}
        self._norms: dict[str, torch.Tensor] = {}
        self._losses = 0
        self._over = False

    def call(self, built: Built, step: Callable[[], object]) -> object:
        with without_fused_dropout(), self.mode or contextlib.nullcontext():
            return step()

    def begin(self, built: Built) -> None:
        self.unit += 1
        self._taken, self._before, self._losses, self._over = {}, {}, 0, False
        self._norms = dict(_statistics(built))

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        index = event.optimizer
        if index is None or self._over:
            return
        ordinal = self._taken.get(index, 0)
        if entering:
            if ordinal < STEPS and (index not in self._before or event.get("unscaled")):
                parameters = recorder.parameters(index)
                scale = getattr(optimizer, "grad_scale", None)
                gradients = [None if p.grad is None else plain(p.grad) for p in parameters]
                if isinstance(scale, torch.Tensor):
                    gradients = [None if g is None else g.float() / scale.to(g.device) for g in gradients]
                self.gradients(index, ordinal, gradients)
                self._before[index] = [plain(p).clone() for p in parameters]
        elif event.get("took"):
            before = self._before.pop(index, None)
            self._taken[index] = ordinal + 1
            if before is not None:
                now = recorder.parameters(index)
                self.updates(index, ordinal, now, [plain(p).float() - b.float() for p, b in zip(now, before, strict=True)])
        elif event.kind == "optimizer_step":
            self._over = True

    def scaler_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if not entering and not event.get("took"):
            self._over = True  # it skipped: what follows in this unit is another training

    def scaled(self, recorder: Recorder, event: Event, value: Any) -> None:
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(one, torch.Tensor) and one.numel() == 1 and one.is_floating_point():
                self._losses += 1
                self.number(
                    f"the loss given to scale(){'' if self._losses == 1 else f', number {self._losses}'}", float(one.detach())
                )

    def gradients(self, index: int, ordinal: int, gradients: list[torch.Tensor | None]) -> None:
        raise NotImplementedError

    def updates(self, index: int, ordinal: int, parameters: list[torch.Tensor], updates: list[torch.Tensor]) -> None:
        raise NotImplementedError

    def number(self, label: str, value: float) -> None:
        raise NotImplementedError


class Teacher(_Unit):
    """The reference's side.

    Args:
        scale: of scalers that torch's class knows nothing of.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lessons: list[Lesson] = []
        self._versions: dict[Key, tuple[int, int, torch.Tensor]] = {}

    def built(self, built: Built) -> None:
        for scaler, info in zip(built.recorder.scalers, built.recorder.trace.scalers, strict=True):
            if info.custom:
                force_scale(built, scaler, 1.0)

    def before_call(self, built: Built, call: int) -> None:
        reseed(SEED + call)
        if call == 0 or _stepped(built.recorder, call - 1):
            self._end(built, call)
            self.begin(built)
            lesson = Lesson(call)
            for key, tensor in _tensors(built):
                if tensor.is_floating_point() and tensor.layout is torch.strided:
                    lesson.state[key] = self._copy(key, tensor)
            lesson.counts = dict(_counts(built.recorder))
            lesson.statistics = {name: (b := host(t), b) for name, t in self._norms.items()}
            self.lessons.append(lesson)

    def _copy(self, key: Key, tensor: torch.Tensor) -> torch.Tensor:
        """A copy; of large data the last one if it was not written since (kernels do not count what they write to
        statistics).
        """
        if tensor.numel() <= _LARGE or key[0] or isinstance(tensor, torch.nn.Parameter) or tensor.is_inference():
            return host(tensor)
        version = (id(tensor), tensor._version)
        known = self._versions.get(key)
        if known is None or known[:2] != version:
            known = self._versions[key] = (*version, host(tensor))
        return known[2]

    def finished(self, built: Built) -> None:
        self._end(built, built.recorder.trace.calls)

    def _end(self, built: Built, call: int) -> None:
        if self.lessons:
            lesson = self.lessons[-1]
            lesson.end = call
            lesson.statistics = {n: (before, host(self._norms[n])) for n, (before, _) in lesson.statistics.items()}

    def gradients(self, index: int, ordinal: int, gradients: list[torch.Tensor | None]) -> None:
        self.lessons[-1].gradients[index, ordinal] = [None if g is None else host(g).float() for g in gradients]

    def updates(self, index: int, ordinal: int, parameters: list[torch.Tensor], updates: list[torch.Tensor]) -> None:
        self.lessons[-1].updates[index, ordinal] = [host(u) for u in updates]
        self.lessons[-1].weights[index, ordinal] = measure([plain(p) for p in parameters])[0]

    def number(self, label: str, value: float) -> None:
        self.lessons[-1].numbers[label] = value


class Pupil(_Unit):
    """A run that starts each unit from the reference's state, and is compared with it.

    Args:
        lessons: of the reference.
        scales: scaler index -> loss scale that each unit starts with.
        prepare: told at the start of each unit, after the state was handed over, and returns the mode to run the unit in.
    """

    def __init__(
        self,
        lessons: list[Lesson],
        scales: Mapping[int, float],
        prepare: Callable[[Built], contextlib.AbstractContextManager[Any] | None],
    ) -> None:
        super().__init__()
        self.lessons, self.scales, self.prepare = lessons, scales, prepare
        self.starts = {lesson.start: i for i, lesson in enumerate(lessons)}
        self.unforced: dict[int, str] = {}
        self.deviations: dict[tuple[int, int, int], Deviation] = {}
        self.statistics: dict[tuple[int, str], float] = {}
        self.numbers: dict[tuple[int, str], float] = {}
        self.pause: Callable[[bool], None] | None = None
        self._undecided: dict[int, list[torch.Tensor | None]] = {}

    def before_call(self, built: Built, call: int) -> None:
        reseed(SEED + call)
        if call not in self.starts:
            return
        self._end()
        self.begin(built)
        self.unit = self.starts[call]
        problem = _hand_over(built, self.lessons[self.unit])
        if problem and self.unit:
            self.unforced[self.unit] = problem
        recorder = built.recorder
        for index, scale in self.scales.items():
            if index < len(recorder.scalers):
                _set_scale(built, recorder.scalers[index], recorder.trace.scalers[index].custom, scale)
        self._norms = dict(_statistics(built))
        self.mode = self.prepare(built)

    def finished(self, built: Built) -> None:
        self._end()

    def _end(self) -> None:
        if self.unit < 0:
            return
        for name, tensor in self._norms.items():
            known = self.lessons[self.unit].statistics.get(name)
            if known is not None and known[1].shape == tensor.shape:
                self.statistics[self.unit, name] = float((tensor.detach().double().cpu() - known[1].double()).norm())

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if self.pause is not None:
            self.pause(entering)
        with _disable_current_modes():  # what is measured is neither rounded nor listened to
            super().optimizer_step(recorder, event, optimizer, entering)

    def gradients(self, index: int, ordinal: int, gradients: list[torch.Tensor | None]) -> None:
        expected = self.lessons[self.unit].gradients.get((index, ordinal))
        if expected is not None and len(expected) == len(gradients):
            pairs = [difference(a, b) for a, b in zip(gradients, expected, strict=True)]
            errors, lost = numbers([p and p[0] for p in pairs]), numbers([p and p[1] for p in pairs])
            self.deviations[self.unit, index, ordinal] = Deviation(errors, lost)
            # Adam and sign optimizers make whole steps of the smallest gradients: where the sign itself is rounding, the update
            # says nothing
            self._undecided[index] = [
                g.sign() != e.sign().to(g.device) if g is not None and e is not None and g.shape == e.shape else None
                for g, e in zip(gradients, expected, strict=True)
            ]

    def updates(self, index: int, ordinal: int, parameters: list[torch.Tensor], updates: list[torch.Tensor]) -> None:
        expected = self.lessons[self.unit].updates.get((index, ordinal))
        deviation = self.deviations.get((self.unit, index, ordinal))
        if expected is not None and deviation is not None and len(expected) == len(updates):
            whole = [p.dtype not in (torch.float16, torch.bfloat16) for p in parameters]
            undecided = self._undecided.pop(index, [None] * len(updates))
            kept = [
                u if m is None or e is None else torch.where(m, e.to(u.device), u)
                for u, e, m in zip(updates, expected, undecided, strict=True)
            ]
            pairs = [difference(u, e) if w else None for u, e, w in zip(kept, expected, whole, strict=True)]
            deviation.update = numbers([p and p[0] for p in pairs])

    def number(self, label: str, value: float) -> None:
        self.numbers[self.unit, label] = value


# -- state ----------------------------------------------------------------------------------------------------------


def _stepped(recorder: Recorder, call: int) -> bool:
    """Whether a call ended a window: it stepped an optimizer, or accumulated nothing."""
    events = list(recorder.trace.of(call=call))
    if any(e.kind in ("optimizer_step", "scaler_step") for e in events):
        return True
    return not any(e.kind == "backward" and e.get("accumulates") for e in events)


def _tensors(built: Built) -> Iterator[tuple[Key, torch.Tensor]]:
    """Every tensor of the training's state: those of optimizers by position, the others by path; none of a scaler's."""
    recorder = built.recorder
    seen: set[int] = set()
    for scaler in (*recorder.scalers, built.training.scaler):
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            seen.update(id(t) for t in reach(("", vars(scaler) if hasattr(scaler, "__dict__") else None)).tensors.values())
    for key, value in _optimizer_state(recorder):
        if isinstance(value, torch.Tensor) and id(value) not in seen:
            seen.add(id(value))
            yield key, value
    for path, tensor in built.reach().tensors.items():
        if id(tensor) not in seen:
            yield ("", path), tensor


def _optimizer_state(recorder: Recorder) -> Iterator[tuple[Key, Any]]:
    for k, optimizer in enumerate(recorder.optimizers):
        state = getattr(optimizer, "state", None)
        for j, p in enumerate(recorder.parameters(k)):
            yield ("parameter", k, j), p
            slots = state.get(p) if isinstance(state, Mapping) else None
            for slot, value in slots.items() if isinstance(slots, Mapping) else ():
                for i, one in enumerate(value if isinstance(value, (list, tuple)) else [value]):
                    yield ("state", k, j, slot, i), one


def _counts(recorder: Recorder) -> Iterator[tuple[Key, float]]:
    for key, value in _optimizer_state(recorder):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield key, value


def _hand_over(built: Built, lesson: Lesson) -> str:
    """Copy the reference's state in; returns what could not be, where that matters."""
    recorder = built.recorder
    mine = dict(_tensors(built))
    problem = ""
    with torch.no_grad():
        for key, value in lesson.state.items():
            target = mine.get(key)
            if (
                target is None
                or target.shape != value.shape
                or not target.is_floating_point()
                or target.layout is not torch.strided
            ):
                if key[0] == "parameter":
                    problem = "a parameter is not there, or has another shape"
                continue
            with contextlib.suppress(RuntimeError):  # memory that is shared or may not be written: left as it is
                target.data.copy_(value)
    for key, count in lesson.counts.items():
        _, k, j, slot, _ = key
        slots = recorder.optimizers[k].state.get(recorder.parameters(k)[j]) if k < len(recorder.optimizers) else None
        if isinstance(slots, dict) and type(slots.get(slot)) in (int, float):
            slots[slot] = count
    theirs = {key[1] for key in (*lesson.state, *lesson.counts) if key[0] == "state"}
    ours = {key[1] for key, _ in _optimizer_state(recorder) if key[0] == "state"}
    return problem or ("an optimizer that has state in the FP32 run has none" if theirs - ours else "")


def _set_scale(built: Built, scaler: Any, custom: bool, scale: float) -> None:
    if custom:
        force_scale(built, scaler, scale)
    elif scaler.is_enabled():
        if scaler._scale is None:
            scaler._init_scale = scale
        else:
            scaler._scale.fill_(scale)


def _statistics(built: Built) -> Iterator[tuple[str, torch.Tensor]]:
    """Running statistics of the norms that are trained, by name; those of an averaged copy follow them, and are AMP405's."""
    seen: set[int] = set()
    trained = {id(p) for index in range(len(built.recorder.optimizers)) for p in built.recorder.parameters(index)}
    roots = built.reach().modules
    for path, root in roots.items():
        for name, module in root.named_modules():
            if id(module) in seen:
                continue
            seen.add(id(module))
            own = list(module.parameters(recurse=False)) or list(root.parameters())
            if not any(id(p) in trained for p in own):
                continue
            for slot in ("running_mean", "running_var"):
                buffer = getattr(module, slot, None)
                if isinstance(buffer, torch.Tensor) and buffer.is_floating_point():
                    yield f"{name or path}.{slot}", buffer
