"""What it means that the gradients of a scaled run are not those of the reference: which rule, from where they part."""

from __future__ import annotations

from dataclasses import dataclass

from typing import TYPE_CHECKING

from ampcheck.evidence import Evidence
from ampcheck.findings import Location
from ampcheck.trace.differences import Difference, common_factor, wrong_phase

if TYPE_CHECKING:
    from ampcheck.scenarios.exact import Divergence

__all__ = ["Diagnosis", "diagnose"]


@dataclass(frozen=True)
class Diagnosis:
    """The rule that explains a divergence, in words, with the line and the tensors."""

    id: str
    seen: str
    location: Location | None
    fix: str
    evidence: dict[str, object]
    phase: str = ""


def _worst(stage: list[Difference]) -> Difference | None:
    return max(stage, key=lambda d: d.relative, default=None)


def _power(scale: float) -> str:
    exponent = scale.hex().rpartition("p")[2]
    return f"2^{int(exponent)}" if scale > 0 else str(scale)


def diagnose(evidence: Evidence) -> Diagnosis | None:
    """Name the rule behind the divergence of AMP101, if there is one."""
    exact = evidence.exact
    found = exact.divergence if exact is not None else None
    if found is None:
        return None
    scale = found.scale
    facts: dict[str, object] = {"scenario": found.scenario, "call": found.call + 1, "loss scale": scale, "kind": found.kind}
    at = f"in call {found.call + 1} at loss scale {_power(scale)}"
    if found.kind == "raised":
        return Diagnosis("AMP101", f"{at} the FP32 step raises {found.message}; at scale 1 it does not", found.site, "", facts)
    if found.kind == "steps":
        return Diagnosis("AMP101", f"{at} the FP32 step takes other optimizer steps than at scale 1", found.site, "", facts)
    stages = found.differences
    worst = _worst(stages.get("optimizer" if found.kind == "gradient" else "update", []))
    if worst is not None:
        facts |= {"tensor": worst.name, "relative difference": worst.relative, "ratio": worst.ratio}
    amount = f"{worst.name} differs by {worst.relative:.1e} of its norm" if worst is not None else "it differs"
    if found.kind == "update":
        return Diagnosis(
            "AMP101",
            f"{at} the gradients are those of scale 1 to the bit, but the update is not: {amount}; the scale acts inside the optimizer's step",
            found.site,
            "use the loss scale nowhere but in the scaler",
            facts,
        )
    phase = wrong_phase(stages, scale)
    step = found.step_event
    inside = step is not None and found.run is not None and found.run.trace.inside(step, "scaler_step") is not None
    writer = f" by {found.writer}" if found.writer else ""
    facts["phase"] = phase
    backward, at_optimizer = stages.get("backward", []), stages.get("optimizer", [])
    roots = [bool(e.get("scaled_by") or e.get("hand_scale")) for e in evidence.trace.of("backward", call=found.call)]
    by_hand = found.factor is not None and abs(found.factor * scale - 1.0) < 1e-3
    if phase == "backward":
        return _in_backward(backward, at, found, facts, by_hand, bool(found.writer) and all(roots))
    division = _divided_twice(found)
    if division is not None:
        id, seen, site = division
        return Diagnosis(id, f"{at} {seen}", site, "unscale once, with the scaler that steps", facts, phase)
    if phase == "scaled":
        if found.divided and roots and not any(roots):
            return Diagnosis(
                "AMP104",
                f"{at} the scaler divides gradients that no scaled loss has given",
                found.site,
                "take the gradients of what scaler.scale(loss) returns",
                facts,
                phase,
            )
        if found.divided or by_hand:
            return Diagnosis(
                "AMP106",
                f"{at} the gradients are divided by the scale already when the scaler divides them again",
                found.site,
                "leave the division to unscale_() or scaler.step(), or do not give these gradients to the scaler",
                facts,
                phase,
            )
        return Diagnosis(
            "AMP102",
            f"{at} the gradients are changed{writer} while they carry the scale: {amount}",
            found.site,
            "call scaler.unscale_(optimizer) before clipping, adding noise or thresholding, or scale the threshold too",
            facts,
            phase,
        )
    factor = common_factor(at_optimizer, [1.0, scale, 1.0 / scale])
    if not inside:
        unscaled = bool(stages.get("after unscale_")) or by_hand
        if factor == scale or (not unscaled and common_factor(backward, [scale]) == scale):
            return Diagnosis(
                "AMP103",
                f"{at} the optimizer is stepped outside the scaler, with gradients that still carry the scale",
                step.site if step else found.site,
                "call scaler.step(optimizer) instead of optimizer.step()",
                facts,
                phase,
            )
    elif step is not None and step.get("closure"):
        return Diagnosis(
            "AMP101",
            f"{at} the closure that is given to scaler.step() leaves scaled gradients, which the optimizer then uses",
            found.site,
            "run the closure before scaler.step(), and step without it",
            facts,
            phase,
        )
    if (factor is not None and abs(factor * scale - 1.0) < 1e-3) or (by_hand and stages.get("after unscale_")):
        return Diagnosis(
            "AMP106",
            f"{at} the gradients are divided by the scale once more after unscale_{writer}",
            found.site,
            "after unscale_ the gradients are true gradients: use them as they are",
            facts,
            phase,
        )
    if phase == "unscale":
        left = [d.name for d in stages.get("after unscale_") or at_optimizer if d.is_multiple(scale)]
        what = (
            f"the scaler leaves the scale on {', '.join(left[:3])}"
            if left
            else f"the scaler does not divide by the scale: {amount}"
        )
        return Diagnosis(
            "AMP101",
            f"{at} {what}",
            found.site,
            "divide the gradient of every parameter by the scale, sparse ones too",
            facts,
            phase,
        )
    return Diagnosis(
        "AMP101",
        f"{at} the gradients at the optimizer depend on the loss scale{writer}: {amount}",
        found.site,
        "",
        facts,
        phase,
    )


def _divided_twice(found: Divergence) -> tuple[str, str, Location | None] | None:
    """Whether scalers divided the gradients of one step more than once: by which rule, in words, and where."""
    step = found.step_event
    if step is None or found.run is None:
        return None
    trace = found.run.trace
    before = [e for e in trace.events[: step.index] if e.optimizer == step.optimizer]
    last = max((e.index for e in before if e.kind == "optimizer_step"), default=-1)
    divisions = [e for e in before if e.kind == "unscale" and e.index > last and e.get("enabled")]
    if len(divisions) < 2:
        return None
    if len({e.scaler for e in divisions}) > 1:
        return (
            "AMP110",
            "the gradients are unscaled by one scaler and stepped by another, which divides them again",
            divisions[0].site,
        )
    return "AMP106", "the scaler divides the same gradients twice", divisions[1].site


def _in_backward(
    backward: list[Difference], at: str, found: Divergence, facts: dict[str, object], by_hand: bool, hooked: bool
) -> Diagnosis:
    """What it means that a gradient is wrong when the backward ends.

    Args:
        backward: the gradients then.
        at, found, facts: where, and what else was seen.
        by_hand: whether a hook was seen that divides by the scale.
        hooked: whether a hook changed gradients of losses that were all scaled.
    """
    scale = found.scale

    def diagnosis(id: str, seen: str, fix: str) -> Diagnosis:
        return Diagnosis(id, f"{at} {seen}", found.site, fix, facts, "backward")

    if by_hand and found.writer:
        return diagnosis(
            "AMP106",
            "a hook divides gradients by the scale, and the scaler divides them again",
            "leave the division to the scaler",
        )
    twice = [d.name for d in backward if d.is_multiple(scale * scale)]
    if twice and all(d.is_multiple(scale) or d.is_multiple(scale * scale) for d in backward):
        return diagnosis("AMP104", f"the gradient of {', '.join(twice[:3])} carries the scale twice", "scale each loss once")
    of_others = [scale * 8.0**k for k in (-3, -2, -1, 1, 2, 3)]  # see Policy: each scaler has an eighth of the one before
    if common_factor(backward, of_others) in of_others:
        return diagnosis(
            "AMP110",
            "the gradients carry the scale of another scaler than the one that steps their optimizer",
            "scale, unscale and step the gradients of one optimizer with one scaler",
        )
    if found.affine and not hooked:
        wrong = [d for d in backward if not d.is_multiple(scale)]
        part = "" if all(d.is_multiple(1.0) for d in wrong) else "part of "
        return diagnosis(
            "AMP104",
            f"{part}the gradient of {', '.join(d.name for d in wrong[:3])} does not carry the scale that the scaler divides it by",
            "call backward on what scaler.scale(loss) returns, for every part of the loss",
        )
    worst = _worst(backward)
    amount = f": {worst.name} is {worst.ratio:.3g} times the true one, not {scale:g} times" if worst is not None else ""
    if hooked:
        return diagnosis(
            "AMP102",
            f"a hook changes gradients while they carry the scale, as if they did not{amount}",
            "multiply the threshold by scaler.get_scale(), or do it after scaler.unscale_(optimizer)",
        )
    return diagnosis(
        "AMP102",
        f"the backward does not give the scale times the true gradient{amount}: something in it is not linear in the scale",
        "divide by scaler.get_scale() before a penalty, threshold or clip is computed from scaled gradients",
    )
