"""AMP against FP32, step by step, by the model's own rounding (AMP501 to AMP506).

A reference in the widened world (nothing is rounded to 16 bits, whatever the code asks for), the run as written, and runs of
the
reference with rounded results: the yardsticks. All but the first start each judged step from the reference's state. Two calls
of each where nothing is suspicious; only where something is, more calls and more draws.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.nn.parameter import is_lazy

from ampcheck.evidence import Evidence
from ampcheck.policy import HELD, AutocastChoice, Policy
from ampcheck.scenarios.comparable import calls_for, coarsest, entered, obstacle, settled_scales
from ampcheck.scenarios.drive import Built, Run
from ampcheck.scenarios.kernels import LossyKernels
from ampcheck.scenarios.numbers import DoubledSeeds, is_scale
from ampcheck.scenarios.parting import Listener, first_parting, listening, reordered
from ampcheck.scenarios.spec import Spec
from ampcheck.scenarios.teacher import SEED, Lesson, Pupil, Teacher
from ampcheck.scenarios.yardstick import Grid, Rounding, Yardstick
from ampcheck.trace.deviations import (
    JUDGED,
    LIMITS,
    SUSPICIOUS,
    Judgement,
    Parity,
    Scalar,
    Step,
    judge,
    losses,
    series,
)
from ampcheck.trace.distances import measure
from ampcheck.trace.randomness import DrawInFP32

__all__ = ["parity"]

ALL: tuple[Yardstick, ...] = ("every op", "matmul")
#: Units (calls, up to one that steps an optimizer) that are judged at first, and where something is suspicious.
UNITS, MORE_UNITS = 2, 4
#: Rounded units that are drawn for each yardstick: at first, and at most where something is suspicious.
DRAWS, MOST_DRAWS = 2, 24
#: Repeats of the run in 16 bits, from weights moved by their own rounding, where something is suspicious.
REPEATED = 3
#: After this many draws, an excess of this many times the limit is beyond doubt.
ENOUGH_DRAWS, BEYOND_DOUBT = 8, 5.0
#: The part of a batch's mean that enters a running mean (torch's momentum is 0.1): the mean is as exact as the spread allows.
_SHARE = 2.0**-4
REFERENCE = Policy("float32", scale=1.0, growth_interval=HELD, widen=True, seed=SEED)
#: Each to the power of two that a forced dtype's scale is tried at, below the loop's own.
_LOWER = (1.0, 2.0**-6, 2.0**-12)


def parity(spec: Spec, evidence: Evidence, dtypes: tuple[str, ...] | None) -> None:
    """Measure parity for the dtypes declared, or for what the natural run entered, and leave it in `evidence.parity`.

    Args:
        spec: the contract.
        evidence: of the scenarios before; the natural run at least.
        dtypes: declared 16-bit dtypes; `None` is as written.
    """
    natural = entered(evidence)
    for policy in dtypes or ("as-written",):
        dtype = policy if dtypes else coarsest(natural)
        one = evidence.parity[policy] = Parity(policy, dtype or "")
        one.reason = obstacle(evidence, policy, natural)
        if one.reason:
            one.status = "not-run"
            continue
        forced: AutocastChoice = "as-written" if policy == "as-written" or natural == {policy} else policy  # type: ignore[assignment]
        _Measurement(spec, evidence, one, forced).run()


@dataclass
class _Measurement:
    """One dtype of one contract, from the reference to the last draw that was needed."""

    spec: Spec
    evidence: Evidence
    parity: Parity
    forced: AutocastChoice
    reference: Policy = REFERENCE
    lessons: list[Lesson] = field(default_factory=list)
    draws: dict[Yardstick, int] = field(default_factory=dict)
    scales: dict[int, float] = field(default_factory=dict)

    def run(self) -> None:
        """Measure, as much as is needed, and say where the runs part if they do."""
        self._measure()
        if self.parity.status != "judged":
            return
        found = [judge(one, self.parity.unit_roundoff) for quantity in LIMITS for one in series(self.parity, quantity)]
        excess = next((j for j in found if j.state == "excess"), None)
        if excess is not None:
            self._find_parting(excess)

    def _measure(self) -> None:
        calls = calls_for(self.evidence, UNITS)
        if not self._teach(calls) or not self._judged(calls):
            return
        for yardstick in ALL:
            for _ in range(DRAWS):
                if self._drawn(yardstick) < DRAWS:
                    self._draw(yardstick, calls)
        doubtful = [one for one in series(self.parity, "number") if judge(one, self.parity.unit_roundoff).state != "within"]
        exact = self.evidence.exact
        if doubtful or (exact is not None and exact.returned is not None):
            self.parity.not_numbers = self._not_numbers()
        if self._suspicious():
            self._look_closer(calls)

    def _look_closer(self, calls: int) -> None:
        """More units, repeats of the run in 16 bits, and more draws, until nothing is suspicious or the limit is reached."""
        more = calls_for(self.evidence, MORE_UNITS)
        if more > calls:
            calls = more
            self._forget()
            if not self._teach(calls) or not self._judged(calls):
                return
        for repeat in range(REPEATED):
            self._repeat(repeat, calls)
        for _ in range(MOST_DRAWS):
            wanted = [y for y in ALL if self._wanted(y)]
            if not wanted or self._beyond_doubt():
                break
            for yardstick in wanted:
                self._draw(yardstick, calls)

    # -- runs

    def _teach(self, calls: int) -> bool:
        for policy in (self.reference, Policy("float32", scale=1.0, growth_interval=HELD, seed=SEED)):
            teacher = Teacher()
            run = self.spec.run("parity reference", policy, calls=calls, probes=[teacher], stage=teacher)
            ended = run.trace.calls if run.trace.raised is None else run.trace.raised.call
            self.lessons = [lesson for lesson in teacher.lessons if lesson.gradients and lesson.end <= ended]
            if self.lessons or run.trace.raised is None:
                break
        if not self.lessons and run.trace.raised is not None:
            return self._give_up("not-run", f"no FP32 reference: with autocast at float32 the step raises {run.trace.raised}")
        self.reference = policy
        if not any(lesson.updates for lesson in self.lessons):
            return self._give_up("nothing", "the FP32 run takes no optimizer step")
        for unit, lesson in enumerate(self.lessons):
            self._record(unit, lesson, run)
        events = list(run.trace.of("backward", call=self.lessons[0].start))
        self.parity.site = events[-1].site if events else None
        return True

    def _record(self, unit: int, lesson: Lesson, run: Run) -> None:
        for (optimizer, ordinal), gradients in lesson.gradients.items():
            sizes, mass = measure(gradients)
            moves, _ = measure(lesson.updates.get((optimizer, ordinal), []))
            names = run.names.get(optimizer, [])
            names = [*names, *(f"parameter {i}" for i in range(len(names), len(gradients)))]
            grains = [w and 2.0**-23 * w for w in lesson.weights.get((optimizer, ordinal), [])]
            self.parity.steps.append(Step(unit, optimizer, ordinal, names, sizes, mass, moves, grains))
        for name, (before, after) in lesson.statistics.items():
            moved = float((after.double() - before.double()).norm())
            # a statistic that has settled hardly moves: its own size is what rounding acts on then
            size = max(moved, 2.0**-6 * float(after.double().norm()))
            variance = lesson.statistics.get(f"{name.removesuffix('mean')}var")
            if name.endswith("running_mean") and variance is not None:
                size = max(size, _SHARE * float(variance[1].double().clamp_min(0.0).sqrt().norm()))
            self.parity.statistics.append(Scalar(name, unit, size))
        for label, value in self._labelled(unit, run, lesson.numbers).items():
            self.parity.numbers.append(Scalar(label, unit, abs(value), value=value))

    def _labelled(self, unit: int, run: Run, losses: dict[str, float]) -> dict[str, float]:
        """The numbers of a unit: what was scaled, and what its last call returned."""
        found = dict(losses)
        last = self.lessons[unit].end - 1
        if last < len(run.trace.returned):
            found.update((f"the returned {path}", value) for path, value in run.trace.returned[last].items())
        return found

    def _judged(self, calls: int) -> bool:
        """The run in 16 bits."""
        scales = settled_scales(self.evidence)
        factors = (1.0,) if self.forced == "as-written" or not scales else _LOWER
        for factor in factors:
            self.scales = used = {i: s * factor for i, s in scales.items()}
            kernels = LossyKernels()
            pupil = Pupil(self.lessons, used, kernels.watch)
            run = self.spec.run("parity", self._in_16_bits(), calls=calls, probes=[pupil], stage=pupil)
            if pupil.deviations:
                break
        self.parity.scale = next(iter(used.values()), None)
        if run.trace.raised is not None and run.trace.raised.call < 1:
            return self._give_up("not-run", f"the step raises {run.trace.raised}")
        taken = [key for key, deviation in pupil.deviations.items() if deviation.update]
        if not taken:
            scale = f" at its settled loss scale of {self.parity.scale:g}" if self.parity.scale else ""
            return self._give_up(
                "nothing", f"the step in 16 bits takes no optimizer step{scale}, and the FP32 one does: nothing to compare"
            )
        self._enter(JUDGED, pupil, run)
        self.parity.left_out.update(kernels.names)
        self.parity.units = len({unit for unit, _, _ in taken if unit not in pupil.unforced})
        if all(not any(d.gradient) and not any(d.update) for d in pupil.deviations.values()):
            return self._give_up(
                "identical",
                "every gradient and update is that of the FP32 run to the bit: nothing of it was computed in 16 bits",
            )
        return True

    def _repeat(self, repeat: int, calls: int) -> None:
        """The run in 16 bits once more, from weights that are moved by about their own rounding.

        A decision that flipped because it was close falls the other way in some of these repeats; a fault stays.
        """

        def prepare(built: Built) -> contextlib.AbstractContextManager[Any]:
            grid = Grid(self.parity.dtype, 7919 * (repeat + 1) + pupil.unit)
            for p in _weights(built):
                if p.dtype is torch.float32 and p.layout is torch.strided and p.numel():
                    grid.round_(p.data)
            return DrawInFP32()

        pupil = Pupil(self.lessons, self.scales, prepare)
        run = self.spec.run("parity", self._in_16_bits(), calls=calls, probes=[pupil], stage=pupil)
        self._enter(JUDGED, pupil, run)

    def _in_16_bits(self) -> Policy:
        return Policy(self.forced, growth_interval=HELD, seed=SEED)

    def _draw(self, yardstick: Yardstick, calls: int) -> None:
        """One more rounded run of the reference."""
        self.draws[yardstick] = draw = self.draws.get(yardstick, 0) + 1
        pupil, run = self._rounded(yardstick, draw, calls)
        self._enter(yardstick, pupil, run)

    def _rounded(self, yardstick: Yardstick, draw: int, calls: int, listener: Listener | None = None) -> tuple[Pupil, Run]:
        def prepare(built: Built) -> contextlib.AbstractContextManager[Any]:
            mode = Rounding(self.parity.dtype, yardstick, 1000 * draw + pupil.unit, built.recorder)
            mode.weights(_weights(built))
            pupil.pause = mode.pause
            return mode

        heard = prepare if listener is None else listening(listener, prepare, lambda: pupil.unit)
        pupil = Pupil(self.lessons, self._ones(), heard)
        run = self.spec.run(f"yardstick, {yardstick}", self.reference, calls=calls, probes=[pupil], stage=pupil)
        return pupil, run

    def _ones(self) -> dict[int, float]:
        return dict.fromkeys(range(len(self.evidence.trace.scalers)), 1.0)

    def _find_parting(self, excess: Judgement) -> None:
        """Run the unit of an excess again in each world, and listen."""
        calls = self.lessons[excess.unit].end
        plain, judged, *rounded = (Listener(excess.unit, excess.series.quantity == "update") for _ in range(4))

        def listen(listener: Listener, policy: Policy, scales: dict[int, float], mode: Callable[[Built], Any]) -> None:
            pupil = Pupil(self.lessons, scales, listening(listener, mode, lambda: pupil.unit))
            self.spec.run("parting", policy, calls=calls, probes=[pupil], stage=pupil)

        listen(plain, self.reference, self._ones(), lambda built: None)
        listen(judged, self._in_16_bits(), self.scales, lambda built: DrawInFP32())
        for draw, listener in enumerate(rounded):
            self._rounded(cast("Yardstick", excess.yardstick), draw + 1, calls, listener)
        self.parity.reordered = reordered(plain, judged)
        found = first_parting(plain, judged, rounded, self.parity.unit_roundoff, self.scales.values())
        if found is not None:
            self.parity.part = f"{found.op} in {found.module}" if found.module else found.op
            self.parity.part_site = found.site
        elif excess.series.quantity == "statistics":  # they are at fault by less than their own size: told where they are kept
            self.parity.part_site = judged.last_site(excess.series.label.rpartition(".")[0])

    def _not_numbers(self) -> set[str]:
        """Numbers that are the loss scale, or that come from gradients: in FP32 they follow a doubled seed of the backward."""
        found = {n.label for n in self.parity.numbers if is_scale(n, self.parity.scale)}
        pupil = Pupil(self.lessons, self._ones(), lambda built: DoubledSeeds())
        calls = self.lessons[-1].end
        run = self.spec.run("parity, doubled seeds", self.reference, calls=calls, probes=[pupil], stage=pupil)
        for unit in range(len(self.lessons)):
            losses = {label: value for (u, label), value in pupil.numbers.items() if u == unit}
            values = self._labelled(unit, run, losses)
            found |= {
                n.label for n in self.parity.numbers if n.unit == unit and n.label in values and values[n.label] != n.value
            }
        return found

    def _enter(self, name: str, pupil: Pupil, run: Run) -> None:
        """Put what a run deviated by on record."""
        for step in self.parity.steps:
            deviation = pupil.deviations.get((step.unit, step.optimizer, step.ordinal))
            if deviation is not None and step.unit not in pupil.unforced:
                nothing: list[float | None] = [None] * len(deviation.gradient)
                deviation.update = deviation.update or nothing
                step.runs.setdefault(name, []).append(deviation)
        for one in self.parity.statistics:
            error = pupil.statistics.get((one.unit, one.label))
            if error is not None and one.unit not in pupil.unforced and one.unit in {u for u, _, _ in pupil.deviations}:
                one.runs.setdefault(name, []).append(error)
        for unit in range(len(self.lessons)):
            losses = {label: value for (u, label), value in pupil.numbers.items() if u == unit}
            values = self._labelled(unit, run, losses)
            for one in self.parity.numbers:
                if one.unit == unit and unit not in pupil.unforced and one.label in values:
                    one.runs.setdefault(name, []).append(abs(values[one.label] - one.value))
                    if name == JUDGED and math.isnan(one.seen):
                        one.seen = values[one.label]

    # -- decisions

    def _drawn(self, yardstick: str) -> int:
        return max((len(s.runs.get(yardstick, ())) for s in self.parity.steps), default=0) * max(len(self.lessons), 1)

    def _suspicious(self, yardstick: str | None = None) -> bool:
        """Whether any quantity comes near a limit of this yardstick (or of any)."""
        for quantity in LIMITS:
            for one in series(self.parity, quantity):
                if yardstick is not None:
                    one.draws = {y: d for y, d in one.draws.items() if y == yardstick}
                found = judge(one, self.parity.unit_roundoff)
                if found.state in ("excess", "once") or found.headroom > SUSPICIOUS:
                    return True
        return yardstick is None and bool(losses(self.parity))

    def _wanted(self, yardstick: Yardstick) -> bool:
        drawn = self._drawn(yardstick)
        return drawn < DRAWS or (drawn < MOST_DRAWS and self._suspicious(yardstick))

    def _beyond_doubt(self) -> bool:
        """Whether an excess is so large, after so many draws, that more of them would not change it."""
        if min(self._drawn(y) for y in ALL) < ENOUGH_DRAWS:
            return False
        judged = [judge(one, self.parity.unit_roundoff) for quantity in LIMITS for one in series(self.parity, quantity)]
        return any(j.state == "excess" and j.headroom > BEYOND_DOUBT for j in judged)

    def _forget(self) -> None:
        self.parity.steps, self.parity.numbers, self.parity.statistics = [], [], []
        self.draws = {}

    def _give_up(self, status: str, reason: str) -> bool:
        self.parity.status, self.parity.reason = status, reason
        return False


def _weights(built: Built) -> list[torch.Tensor]:
    """The parameters that are used in 16 bits: of modules, and of optimizers where they are no copies of those (FP32
    masters).
    """
    modules = built.reach().modules.values()
    found: dict[int, torch.Tensor] = {id(p): p for m in modules for p in m.parameters() if not is_lazy(p)}
    used = list(found.values())
    for index in range(len(built.recorder.optimizers)):
        for p in built.recorder.parameters(index):
            if id(p) not in found and not any(p.shape == q.shape and torch.equal(p.to(q.dtype), q) for q in used):
                found[id(p)] = p
    return list(found.values())
