"""A planted overflow: inf is written into one gradient of each optimizer that goes through a scaler, in one scaler window only.

A huge scale is no overflow for many correct steps; a planted inf is one for all. The run is in FP32 at the loop's own scale, so
that nothing else overflows and the loop's caps and floors are as they are written.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck.findings import Location
from ampcheck.policy import Policy
from ampcheck.scenarios.averages import Called, interpolates
from ampcheck.scenarios.drive import Built, Run, Stage, Together
from ampcheck.scenarios.hooked import Hooked
from ampcheck.scenarios.natural import groups
from ampcheck.scenarios.outside import Outside, Snapshot, digests, snapshot
from ampcheck.scenarios.spec import Spec
from ampcheck.trace.digest import local
from ampcheck.trace.events import Event
from ampcheck.trace.reach import Reached
from ampcheck.trace.recorder import Probe, Recorder

__all__ = ["Overflow", "Planted", "overflow"]

#: Calls after the one with the planted overflow in which the loop may recover.
RECOVERY_CALLS = 3
#: Elements around the planted one by which its gradient is known again.
_AROUND = 4096


@dataclass
class Planted:
    """What one optimizer went through.

    Args:
        optimizer, scaler: indices in the trace.
        event: index of the event before which inf was planted.
        call: in which call.
        scale: the loss scale at that time.
        used: whether the scaler's `step` was reached with it.
        moved: which of "parameters", "optimizer state" changed although the gradient was not finite: in a step, or by hand
            as in each clean window.
        inside: those of which some changed in a step.
        spoiled: whether parameters or optimizer state are not finite any more.
        closed: index of the event that ended the window, or -1; `ended` is the call it was in.
        abandoned: whether the next call began anew, without the gradient, although no update had ended the window.
        schedule: whether the learning rate moved in the skipped window as it does in most clean ones.
        sanitized: whether the optimizer was stepped all the same, with gradients that somebody had made finite.
        clamped: whether what took the place of the inf is a limit, as a clip by value leaves it.
        hook: where a hook is defined that has hidden the inf from the scaler, or None.
        ruined: index of a later step, or -1, that was taken although gradients were still, or again, not finite.
    """

    optimizer: int
    scaler: int
    event: int
    call: int
    scale: float
    used: bool = False
    moved: list[str] = field(default_factory=list)
    inside: set[str] = field(default_factory=set)
    spoiled: bool = False
    closed: int = -1
    ended: int = -1
    abandoned: bool = False
    schedule: bool = False
    sanitized: bool = False
    clamped: bool = False
    hook: Location | None = None
    ruined: int = -1


@dataclass
class Overflow:
    """The run, what was planted in it, and the averaged copies that moved in the skipped window.

    `loose` are optimizers that a scaler neither unscales nor steps, although it has scaled their gradients.
    """

    run: Run
    planted: list[Planted] = field(default_factory=list)
    averages: list[str] = field(default_factory=list)
    loose: list[Planted] = field(default_factory=list)


class PlantProbe(Probe):
    """Plants, and measures around the planted window.

    Args:
        drivers: optimizer index -> index of the scaler it is stepped by, from the natural run.
        clean: windows with a step that is taken before the one that is planted into. An average that begins as a copy of the
            weights follows them from the second one on; so two, where there are enough.
    """

    def __init__(self, drivers: dict[int, int], clean: int) -> None:
        self.drivers, self.clean = drivers, clean
        self.built: Built | None = None
        self.planted: dict[int, Planted] = {}
        self._followed: dict[bool, set[str]] = {}
        self._outside = Outside()
        self._in_scaler = False
        self._at: int | None = None
        self._windows = 0
        self._took = False
        self._done = False
        self._unscaled: set[int] = set()
        self._before: dict[int, Snapshot] = {}
        self._ended: dict[int, Snapshot] = {}
        self._around: dict[int, torch.Tensor] = {}
        self._bad: int = -1
        self._clean: int = -1
        self._schedule: list[dict[int, Any]] = []
        self._last: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] | None = None
        self._boundary = True
        self._hooked = Hooked()

    # -- planting

    @property
    def armed(self) -> bool:
        return not self._done and self._windows >= self.clean

    def backward_starts(self, recorder: Recorder) -> None:
        for index, planted in self.planted.items():
            if planted.closed < 0 and planted.call < recorder.call and not self._holds(recorder, index):
                scaler = recorder.scalers[min(planted.scaler, len(recorder.scalers) - 1)]
                if recorder.current_scale(scaler) < planted.scale:  # the loop has backed off by itself
                    planted.closed, planted.ended = len(recorder.trace.events) - 1, recorder.call - 1
                else:
                    planted.abandoned = True
        self._end()
        self._judge(recorder, last=True)
        if self._boundary:
            self._boundary = False
            self._mark(recorder)
        if self.armed and not self.planted:
            self._hooked.spoil(recorder, self.drivers)

    def backward_done(self, recorder: Recorder, event: Event) -> None:
        self._hooked.restore(recorder, event.get("optimizers", ()))
        if self.armed:
            for index in event.get("optimizers", ()):
                if index in self.drivers and index not in self._unscaled:
                    self._plant(recorder, index, event, new=True)

    def unscale(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        index = event.optimizer
        if index is None or not self.armed:
            return
        if entering and index in self.drivers and index not in self._unscaled:
            self._plant(recorder, index, event)
        elif not entering:
            self._unscaled.add(index)

    def scaler_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        index = event.optimizer
        self._see(recorder, index, inside=not entering)
        self._in_scaler = entering
        if index is None or not self.armed:
            if not entering:
                self._took |= bool(event.get("took"))
            return
        if entering:
            if index in self.drivers and index not in self._unscaled:
                self._plant(recorder, index, event)
            if index in self.planted:
                self.planted[index].used = True
        else:
            self._took |= bool(event.get("took"))

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        self._see(recorder, event.optimizer, inside=self._in_scaler or not entering)
        if not entering and event.optimizer in self.drivers:
            self._took |= bool(event.get("took"))
        planted = self.planted.get(event.optimizer) if event.optimizer is not None else None
        if planted is None:
            return
        if not entering:
            if event.get("took") and self._bad == event.index and planted.ruined < 0:
                planted.ruined = event.index
            planted.sanitized |= bool(event.get("took")) and self._clean == event.index
            return
        grads = [local(p.grad) for p in recorder.parameters(planted.optimizer) if p.grad is not None]
        finite = all(bool(g.isfinite().all()) for g in grads)
        if planted.closed < 0 and planted.call == recorder.call:
            self._clean = event.index if grads and finite else -1  # a fused optimizer is called on a skip too
        elif planted.closed >= 0 and not finite:
            self._bad = event.index

    def _cleaned(self, planted: Planted, values: torch.Tensor) -> bool:
        """Whether the gradient is the one that was planted into, with something finite in the place of the inf."""
        now, old = values.detach().flatten()[:_AROUND].double().cpu(), self._around.get(planted.optimizer)
        if old is None or old.shape != now.shape or now.numel() < 2:
            return False
        a, b = old[1:], now[1:]
        product = float(a.norm() * b.norm())
        if not 0.0 < product < float("inf") or float(a @ b) < 0.999 * product:
            return False
        planted.clamped = 0.0 < float(now[0]) < 1e30
        return True

    def _plant(self, recorder: Recorder, index: int, event: Event, new: bool = False) -> None:
        """Write inf into the first gradient of an optimizer; `new`: a backward has just added to it."""
        grads = [p.grad for p in recorder.parameters(index) if p.grad is not None]
        values = [
            v
            for v in (g._values() if g.layout is torch.sparse_coo else g for g in grads)
            if v.numel() and v.is_floating_point()
        ]
        if not values:
            return
        known = self.planted.get(index)
        if known is not None and not all(bool(v.isfinite().all()) for v in values):
            self._around[index] = local(values[0]).detach().flatten()[:_AROUND].double().cpu()
            return  # it is still there, and more around it
        hidden = index in self._hooked.hidden
        if known is not None and (hidden or not new) and self._cleaned(known, local(values[0])):
            return  # somebody has taken it away
        if self._at is None:
            self._at = len(self._schedule) - 1
        if known is None:
            self._before[index] = snapshot(recorder, index)
            scaler = min(self.drivers[index], len(recorder.scalers) - 1)  # one that is made anew in every call
            self.planted[index] = Planted(
                index, scaler, event.index, recorder.call, recorder.current_scale(recorder.scalers[scaler])
            )
        with torch.no_grad():
            target = values[0]
            local_target = target.to_local() if hasattr(target, "to_local") else target
            self._around[index] = local_target.detach().flatten()[:_AROUND].double().cpu()
            if hidden:
                self.planted[index].hook = self._hooked.hidden[index]
            else:
                local_target[(0,) * local_target.dim()] = float("inf")

    # -- measuring

    def _see(self, recorder: Recorder, index: int | None, inside: bool) -> None:
        if index is not None and index in self.drivers and index < len(recorder.optimizers):
            self._outside.seen(index, *digests(recorder, index), inside)

    def updated(self, recorder: Recorder, event: Event) -> None:
        if event.get("new_scale") is not None:
            return
        self._boundary = True
        if self._took and not self.planted:
            self._windows += 1
        for planted in self.planted.values():
            if planted.scaler == event.scaler and planted.closed < 0:
                planted.closed, planted.ended = event.index, recorder.call
        self._end()
        self._remember(recorder)
        self._unscaled.clear()

    def call_done(self, recorder: Recorder, call: int) -> None:
        self._judge(recorder, last=False)
        self._remember(recorder)

    def _remember(self, recorder: Recorder) -> None:
        """What there is between windows, before the one that is planted into."""
        if not self.planted:
            self._ended = {i: snapshot(recorder, i) for i in self.drivers if i < len(recorder.optimizers)}

    def _end(self) -> None:
        """One window only: when every optimizer's is over, nothing is planted any more."""
        if self.planted and not self._done and all(p.closed >= 0 or p.abandoned for p in self.planted.values()):
            self._done = self._boundary = True

    def _holds(self, recorder: Recorder, index: int) -> bool:
        """Whether the planted inf is still in a gradient."""
        grads = [local(p.grad) for p in recorder.parameters(index) if p.grad is not None]
        return any(g.is_floating_point() and not bool(g.isfinite().all()) for g in grads)

    def _judge(self, recorder: Recorder, last: bool) -> None:
        """The window is over (the next backward begins, or the call has ended): did anything move?

        Weights that are exchanged for the forward (binary ones for latent ones) are back only at the next backward, the last time to look.
        """
        for index, planted in self.planted.items():
            if index in self._before and (planted.closed >= 0 or planted.abandoned):
                self._compare(recorder, index, planted)
                if last or not planted.moved:
                    del self._before[index]

    def _compare(self, recorder: Recorder, index: int, planted: Planted) -> None:
        before, after = self._before[index], snapshot(recorder, index)
        # weights that were exchanged or perturbed for the backward are put back: to what they were when the window before ended
        known = [before, self._ended[index]] if index in self._ended else [before]
        planted.moved = ["parameters"] * all(old.parameters_moved(after) for old in known)
        planted.moved += ["optimizer state"] * all(old.state != after.state for old in known)
        planted.spoiled = after.finite < before.finite

    def finish(self, recorder: Recorder) -> None:
        """The run is over, perhaps with an exception in the planted window."""
        for index in list(self._before):
            self._compare(recorder, index, self.planted[index])
        self._mark(recorder)
        for index, planted in self.planted.items():
            customary = planted.inside | self._outside.habitual(index)
            planted.moved = [kind for kind in planted.moved if kind in customary or planted.spoiled]
        self._schedules()

    # -- what moves once a step in clean windows: schedules and averaged weights

    @property
    def averages(self) -> list[str]:
        """Paths of the averaged copies that moved in the planted window as they do in a clean one."""
        return sorted(self._followed.get(True, set()) & self._followed.get(False, set()))

    def _mark(self, recorder: Recorder) -> None:
        """A window begins here, and the one before is over."""
        ended = len(self._schedule) - 1
        for index in self.drivers:
            self._see(recorder, index, inside=False)
            if ended == self._at and index in self.planted:
                self.planted[index].inside = self._outside.window_ends(index)
            elif ended >= 0:
                self._outside.window_ends(index, clean=self._at is None)
        self._schedule.append({i: groups(recorder.optimizers[i]) for i in self.drivers if i < len(recorder.optimizers)})
        if self.built is None or (self._at is not None and ended > self._at + 1):
            self._last = None
            return
        now = (self._parameters(recorder), self._followers(recorder, self.built.reach()))
        if self._last is not None:
            old, (parameters, new) = self._last[1], now
            moved = {path for path in new if path in old and interpolates(old[path], new[path], parameters)}
            self._followed.setdefault(ended == self._at, set()).update(moved)
        self._last = now

    def _parameters(self, recorder: Recorder) -> dict[str, torch.Tensor]:
        return {
            f"{i}.{j}": p.detach().to("cpu", copy=True)
            for i in self.drivers
            if i < len(recorder.optimizers)
            for j, p in enumerate(recorder.parameters(i))
            if p.is_floating_point()
        }

    def _followers(self, recorder: Recorder, reached: Reached) -> dict[str, torch.Tensor]:
        """Copies of the reachable tensors that are shaped like a parameter and are none, nor optimizer state."""
        own = {id(p) for i in range(len(recorder.optimizers)) for p in recorder.parameters(i)}
        shapes = {tuple(p.shape) for i in self.drivers if i < len(recorder.optimizers) for p in recorder.parameters(i)}
        found = {}
        for path, t in reached.tensors.items():
            if id(t) in own or ".state." in path or not t.is_floating_point() or t.layout is not torch.strided:
                continue
            if tuple(t.shape) in shapes and t.numel() > 1:
                found[path] = local(t).to("cpu", copy=True)
        return found

    def _schedules(self) -> None:
        marks, at = self._schedule, self._at
        for index, planted in self.planted.items():
            changed = [a.get(index) != b.get(index) for a, b in itertools.pairwise(marks)]
            clean = [c for i, c in enumerate(changed) if i != at]
            # Most, not all: the last rate of a warm-up and the first of the decay after it are the same.
            planted.schedule = at is not None and at < len(changed) and changed[at] and 2 * sum(clean) > len(clean)


class _Keep(Stage):
    def __init__(self, probe: PlantProbe) -> None:
        self.probe = probe

    def built(self, built: Built) -> None:
        self.probe.built = built

    def after_call(self, built: Built, call: int) -> bool:
        ended = [p.ended for p in self.probe.planted.values()]
        return bool(ended) and min(ended) >= 0 and call >= max(ended) + RECOVERY_CALLS

    def finished(self, built: Built) -> None:
        self.probe.finish(built.recorder)


def overflow(spec: Spec, drivers: dict[int, int], windows: int, loose: dict[int, int] | None = None) -> Overflow:
    """Run the contract with one planted overflow.

    Args:
        spec: the contract.
        drivers: optimizer index -> scaler index, from the natural run.
        windows: how many scaler windows the natural run had.
        loose: the same for optimizers that are stepped by hand with scaled gradients alone.
    """
    probe = PlantProbe(drivers | (loose or {}), clean=0 if windows < 2 else 1 if windows < 5 else 2)
    called = Called()  # a teacher or a target network moves by a rule of its own
    run = spec.run("overflow", Policy("float32"), calls=None, probes=[probe], stage=Together(_Keep(probe), called))
    probe.built = None
    planted = probe.planted.values()
    return Overflow(
        run,
        [p for p in planted if p.optimizer in drivers],
        [path for path in probe.averages if path not in called.paths] if drivers else [],
        [p for p in planted if p.optimizer not in drivers],
    )
