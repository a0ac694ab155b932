"""The oracle of AMP101: in FP32 a power-of-two loss scale is exact, so gradients and updates are bit-identical at every scale.

A reference at scale 2^0, a run at a held 2^16, and one in which the scale grows are compared by bit digests of what enters each
optimizer, of the update, and of the numbers the step returns. Only where they differ is more run: a repeat (does the step repeat
at all?), the widened world (is it only a hard-coded 16-bit tensor?), and once more with the values of the first difference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck.policy import HELD, Policy, power_of_two
from ampcheck.scenarios.blame import blame
from ampcheck.scenarios.custom import ForceScale
from ampcheck.scenarios.drive import Run
from ampcheck.scenarios.natural import groups
from ampcheck.scenarios.returned import following
from ampcheck.scenarios.spec import Spec
from ampcheck.scenarios.stages import compare_at
from ampcheck.trace.differences import Difference, common_factor, wrong_phase
from ampcheck.trace.digest import Digest, digest
from ampcheck.trace.events import Event
from ampcheck.trace.recorder import Probe, Recorder

__all__ = ["Divergence", "Exactness", "Point", "exactness"]

SCALE = 2.0**16
GROWING_FROM = 2.0**10
TINY = 2.0**-16
GROWTH_INTERVAL = 2
#: Differences up to here are rounding in FP32 (a clip's 1e-6 epsilon, logcumsumexp); true ones begin at 4e-2.
NEGLIGIBLE = 2.0**-16
#: One factor on all gradients that is so near 1 is the epsilon of a clip by norm, whose norm is small.
NEARLY_ONE = 2.0**-10
#: A repeat-to-repeat spread up to here leaves a fault visible, whose effect is at least ten times as large.
HIDES_NOTHING = 2.0**-8


@dataclass(frozen=True)
class Point:
    """One optimizer step that was taken: bit digests of the gradients it used and of the parameters after it.

    `settings` are the learning rates, momenta and betas that it was taken with.
    """

    call: int
    optimizer: int
    event: int
    gradient: Digest
    update: Digest | None = None
    settings: tuple[tuple[float, ...], ...] = ()


class DigestProbe(Probe):
    """Notes a `Point` for each step that an optimizer takes."""

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._open: dict[int, Digest] = {}

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        index = event.optimizer
        assert index is not None
        parameters = recorder.parameters(index)
        if entering:
            scale = getattr(optimizer, "grad_scale", None)
            self._open[event.index] = digest([p.grad for p in parameters], scale if isinstance(scale, torch.Tensor) else None)
        else:
            gradient = self._open.pop(event.index, ())
            if event.get("took"):
                after, settings = digest(parameters), groups(optimizer)
                self.points.append(Point(event.call, index, event.index, gradient, after, settings))


@dataclass
class Divergence:
    """Where a run at another scale parts from the reference.

    Args:
        kind: "gradient", "update", "steps" (another number or order of steps), "returned" or "raised".
        scenario: "scaled" or "growth".
        call: index of the call.
        optimizer: index of the optimizer, or `None`.
        scale: the loss scale in force there.
        differences: stage -> what differs there, tensor by tensor.
        site: the line to blame, as far as it can be told; `writer` is the op on it, and `factor` what it multiplied by.
        values: for returned numbers: path -> (at scale 2^0, at the other scale).
        rates: pairs of learning rates, at scale 2^0 and at the other one, where an optimizer's settings differ.
        divided: whether gradients that are the reference's before the scaler divides them are so at a tiny scale too.
        affine: whether the gradients of the backward are a sum of parts that carry the scale and parts that do not.
        base: the loss scale of the reference; `scale` is relative to it.
    """

    kind: str
    scenario: str
    call: int
    optimizer: int | None = None
    scale: float = 1.0
    differences: dict[str, list[Difference]] = field(default_factory=dict)
    site: Any = None
    writer: str = ""
    factor: float | None = None
    values: dict[str, tuple[float, float]] = field(default_factory=dict)
    message: str = ""
    rates: list[tuple[float, float]] = field(default_factory=list)
    divided: bool = False
    affine: bool = False
    base: float = 1.0
    step_event: Event | None = None
    run: Run | None = None


@dataclass
class Exactness:
    """What the oracle says.

    Args:
        status: "exact", "diverged", "inconclusive" or "not-run".
        reason: for the last two, and for "exact" what was needed to see it.
        reproducible: whether the FP32 step gave the same bits twice; `None` if that was not needed or not possible.
        spread: its repeat-to-repeat relative difference.
        returned: a divergence in returned numbers alone (a warning).
        rounded: whether gradients of the last scenario differ by no more than rounding in FP32, behind which a fault may hide.
        top: the largest scale that was tried.
    """

    status: str
    reason: str = ""
    divergence: Divergence | None = None
    returned: Divergence | None = None
    reproducible: bool | None = None
    spread: float = 0.0
    reference: Run | None = None
    growth: Run | None = None
    scaled: Run | None = None
    rounded: bool = False
    top: float = SCALE


def _run(spec: Spec, scenario: str, policy: Policy, calls: int, **how: Any) -> tuple[Run, list[Point], bool]:
    probe, force = DigestProbe(), ForceScale(policy)
    run = spec.run(scenario, policy, calls=calls, probes=[*how.pop("probes", ()), probe], stage=force, **how)
    return run, probe.points, force.forced


def reference_policy(widen: bool = False) -> Policy:
    return Policy("float32", scale=1.0, growth_interval=HELD, widen=widen)


def own_scale(natural: Run) -> float | None:
    """The largest loss scale that a loop visits which sets the scale itself: beyond its caps it does what it never does."""
    if not any(e.get("new_scale") is not None for e in natural.trace.of("update")):
        return None
    return max((e.get("scale", 1.0) for e in natural.trace.of("scale") if e.get("enabled")), default=None)


def scaled_policy(scenario: str, widen: bool = False, top: float = SCALE) -> Policy:
    if scenario == "growth":
        return Policy("float32", scale=min(GROWING_FROM, top / 2.0), growth_interval=GROWTH_INTERVAL, widen=widen)
    return Policy("float32", scale=top, growth_interval=HELD, widen=widen)


def exactness(spec: Spec, calls: int, has_scaler: bool, top: float | None = None) -> Exactness:
    """Compare the contract in FP32 over loss scales; without a scaler only its repeats.

    Args:
        spec: the contract.
        calls: calls of `step` to compare.
        has_scaler: whether the natural run used an enabled scaler.
        top: the largest scale to try; `None`, or one that is not well above 1, is 2^16.
    """
    reference, points, forced = _run(spec, "reference", reference_policy(), calls)
    usable = top is not None and math.isfinite(top) and top >= 4.0
    result = Exactness("exact", reference=reference, top=power_of_two(top) if usable and top is not None else SCALE)
    if reference.trace.raised is not None:
        result.status, result.reason = (
            "not-run",
            f"no FP32 reference: with autocast at float32 the step raises {reference.trace.raised}",
        )
        return result
    if not has_scaler:
        _repeat(spec, calls, result, reference, points)
        result.status, result.reason = "not-run", "no loss scaler"
        return result
    if not forced:
        result.status = "not-run"
        result.reason = "the scale of this scaler cannot be set; declare Training(set_scale=...)"
        return result
    if not points:
        result.status, result.reason = "inconclusive", "the optimizer took no step in the FP32 run"
    for scenario in ("scaled", "growth"):
        wanted = calls if scenario == "scaled" else max(calls, GROWTH_INTERVAL + 2)
        run, others, _ = _run(spec, scenario, scaled_policy(scenario, top=result.top), wanted)
        setattr(result, scenario, run)
        if result.status == "inconclusive":
            continue
        found = first_difference(scenario, reference, points, run, others)
        if found is not None and found.kind == "returned":
            result.returned = result.returned or found
        elif found is not None and result.status == "exact":
            result.rounded = False
            _settle(spec, result, reference, points, found, calls)
            if scenario == "growth" and result.status == "exact" and result.rounded:
                _against_held(spec, result, run, others, wanted)
    if result.status == "exact" and result.reproducible is None:
        result.reproducible = True  # the runs at other scales were repeats, and gave the same bits
    return result


def first_difference(scenario: str, a: Run, points: Sequence[Point], b: Run, others: Sequence[Point]) -> Divergence | None:
    """The first place at which run `b` is not bit-identical to the reference `a`, within the calls both made."""
    calls = min(a.trace.calls, b.trace.calls)
    ours, theirs = [p for p in points if p.call < calls], [p for p in others if p.call < calls]
    raised = b.trace.raised
    for i in range(max(len(ours), len(theirs))):
        p = ours[i] if i < len(ours) else None
        q = theirs[i] if i < len(theirs) else None
        if p is None or q is None or (p.optimizer, p.call) != (q.optimizer, q.call):
            if raised is not None and q is None:
                break
            known = q or p
            assert known is not None
            return Divergence("steps", scenario, known.call, known.optimizer, _scale_at(b, known.call), run=b)
        if p.gradient != q.gradient or p.update != q.update:
            kind = "gradient" if p.gradient != q.gradient else "update"
            step = b.trace.events[q.event]
            driver = b.trace.inside(step, "scaler_step")
            scale = _scale_at(b, q.call, None if driver is None else driver.scaler)
            rates = [(x[0], y[0]) for x, y in zip(p.settings, q.settings, strict=False) if x != y and x and y]
            return Divergence(kind, scenario, p.call, p.optimizer, scale, step_event=step, run=b, rates=rates)
    if raised is not None:
        return Divergence(
            "raised", scenario, raised.call, None, _scale_at(b, raised.call), site=raised.site, message=str(raised), run=b
        )
    found = following(a, b, calls)
    if found is None:
        return None
    return Divergence(
        "returned", scenario, found.call, scale=_scale_at(b, found.call), values=found.values, site=found.site, run=b
    )


def _scale_at(run: Run, call: int, scaler: int | None = None) -> float:
    """The first scale of the call, of one scaler or of any; where that one scaled nothing in it, that of the others."""
    for which in (scaler, None):
        scales = [e.get("scale", 1.0) for e in run.trace.of("scale", call=call, scaler=which) if e.get("enabled")]
        if scales:
            return float(scales[0])
    return 1.0


def _repeat(spec: Spec, calls: int, result: Exactness, reference: Run, points: Sequence[Point]) -> None:
    """Does the FP32 step give the same bits twice?"""
    again, others, _ = _run(spec, "reference", reference_policy(), calls)
    found = first_difference("reference", reference, points, again, others)
    result.reproducible = found is None or found.kind == "returned"
    if found is not None and found.kind in ("gradient", "update") and found.optimizer is not None:
        differences = compare_at(spec, reference_policy(), reference_policy(), calls, _part(points, found))
        result.spread = max((d.relative for ds in differences.values() for d in ds), default=float("inf"))
    elif not result.reproducible:
        result.spread = float("inf")


def _part(points: Sequence[Point], found: Divergence) -> tuple[int | None, int]:
    """The optimizer at whose step the runs part, and how many steps it took before."""
    own = [p.call for p in points if p.optimizer == found.optimizer]
    return found.optimizer, own.index(found.call) if found.call in own else 0


def _settle(spec: Spec, result: Exactness, reference: Run, points: Sequence[Point], found: Divergence, calls: int) -> None:
    """The bits differ: is it a fault? See the verdict rule of AMP101."""
    if result.reproducible is None:
        _repeat(spec, calls, result, reference, points)
    if not result.reproducible and result.spread == float("inf"):
        result.status, result.reason = (
            "inconclusive",
            "the FP32 step does not repeat: two builds with the same seeds do different things",
        )
        return
    # Is it only a 16-bit tensor that the code makes itself, whatever autocast says? Then the widened world is exact.
    wide, wide_points, _ = _run(spec, "widened", reference_policy(True), calls)
    other, other_points, _ = _run(spec, "widened", scaled_policy(found.scenario, True, result.top), calls)
    widen = wide.trace.raised is None and bool(wide_points)
    if widen:
        in_wide = first_difference(found.scenario, wide, wide_points, other, other_points)
        if in_wide is None or in_wide.kind == "returned":
            result.reason = "exact once the 16-bit tensors that the code makes itself are widened to FP32"
            return
        found, points = in_wide, wide_points
    elif _makes_low_precision(spec, calls):
        result.status = "inconclusive"
        result.reason = f"gradients pass through 16-bit tensors that the code makes itself, and it does not run with them in FP32: {wide.trace.raised}"
        return
    elif found.kind == "steps":
        result.status, result.reason = "inconclusive", "the runs at different scales took different numbers of steps"
        if not _is_skip(found):
            result.status = "diverged"
    _measure(spec, result, points, found, calls, widen)


def _before(stages: dict[str, list[Difference]]) -> list[Difference]:
    return stages.get("before unscale_") or stages.get("scaler.step") or []


def _is_affine(found: Divergence, tiny: list[Difference]) -> bool:
    """Whether each gradient is a part that carries the scale and one that does not: what it differs by grows as `scale - 1`."""
    share = abs(TINY - 1.0) / abs(found.scale - 1.0)
    there = {d.name: d.relative for d in tiny}
    pairs = [(d.relative * share, there[d.name]) for d in found.differences.get("backward", []) if d.name in there]
    return bool(pairs) and all(math.isclose(a, b, rel_tol=1e-2, abs_tol=1e-5) for a, b in pairs)


def _is_skip(found: Divergence) -> bool:
    trace = found.run.trace if found.run else None
    return trace is not None and any(not e.get("took") for e in trace.of("scaler_step") if e.get("done"))


def _makes_low_precision(spec: Spec, calls: int) -> bool:
    run = spec.run("widened", reference_policy(), calls=min(calls, 2), inspect_graph=True)
    return any(e.get("dtypes") for e in run.trace.of("backward"))


def _measure(spec: Spec, result: Exactness, points: Sequence[Point], found: Divergence, calls: int, widen: bool) -> None:
    if found.kind in ("gradient", "update"):
        part = _part(points, found)
        other = scaled_policy(found.scenario, widen, result.top)
        found.differences = compare_at(spec, reference_policy(widen), other, calls, part)
        stage = found.differences.get("optimizer" if found.kind == "gradient" else "update", [])
        effect = max((d.relative for d in stage), default=0.0)
        factor = common_factor(stage)
        small = effect <= NEGLIGIBLE or (factor is not None and abs(factor - 1.0) <= NEARLY_ONE)
        if small and found.kind == "gradient":
            result.reason, result.rounded = f"equal up to {effect:.0e}, which is rounding in FP32", True
            return
        if effect <= 2.0 * result.spread and result.spread <= HIDES_NOTHING:
            result.reason = f"equal within the step's own spread of {result.spread:.0e}"
            return
        if effect <= 16.0 * result.spread:
            result.status = "inconclusive"
            result.reason = f"a difference of {effect:.0e} between loss scales does not stand out from the step's own spread of {result.spread:.0e}"
            return
        phase = wrong_phase(found.differences, found.scale)
        if phase == "backward" or (phase == "scaled" and common_factor(_before(found.differences), [1.0]) == 1.0):
            # divided by hand, or cut to a norm that the reference is cut to as well? At a tiny scale nothing is cut.
            tiny = Policy("float32", scale=TINY, growth_interval=HELD, widen=widen)
            low = compare_at(spec, reference_policy(widen), tiny, calls, part)
            found.divided = phase == "scaled" and common_factor(_before(low), [1.0]) == 1.0
            found.affine = phase == "backward" and _is_affine(found, low.get("backward", []))
        blamed = blame(spec, other, calls, part, found.differences, found.scale)
        found.site, found.writer, found.factor = blamed.site, blamed.op, blamed.factor
    result.status, result.divergence = "diverged", found


def _against_held(spec: Spec, result: Exactness, grown: Run, points: Sequence[Point], calls: int) -> None:
    """The growing run against the scale that it began at, held: what rounding at scale 1 has hidden parts where the scale grows."""
    other = scaled_policy("growth", top=result.top)
    assert other.scale is not None
    held = Policy("float32", scale=other.scale, growth_interval=HELD)
    run, held_points, _ = _run(spec, "scaled", held, calls)
    found = first_difference("growth", run, held_points, grown, points)
    if found is None or found.kind != "gradient":
        return
    part = _part(held_points, found)
    found.differences = compare_at(spec, held, other, calls, part)
    effect = max((d.relative for d in found.differences.get("optimizer", [])), default=0.0)
    if effect <= max(NEARLY_ONE, 16.0 * result.spread):
        return
    found.base, found.scale = other.scale, found.scale / other.scale
    blamed = blame(spec, other, calls, part, found.differences, found.scale)
    found.site, found.writer, found.factor = blamed.site, blamed.op, blamed.factor
    result.status, result.divergence = "diverged", found
