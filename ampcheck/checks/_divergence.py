"""What it means that the gradients of a scaled run are not those of the reference: which rule, from where they part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampcheck.evidence import Evidence
from ampcheck.findings import Location
from ampcheck.trace.differences import Difference, common_factor, wrong_phase

if TYPE_CHECKING:
    from ampcheck.scenarios.exact import Divergence
    from ampcheck.trace.events import Event

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


def diagnose(evidence: Evidence) -> Diagnosis | None:
    """Name the rule behind the divergence of AMP101, if there is one."""
    exact = evidence.exact
    found = exact.divergence if exact is not None else None
    return None if found is None else _Reasoning(evidence, found).diagnosis()


def _worst(stage: list[Difference]) -> Difference | None:
    return max(stage, key=lambda d: d.relative, default=None)


def _power(scale: float) -> str:
    exponent = scale.hex().rpartition("p")[2]
    return f"2^{int(exponent)}" if scale > 0 else str(scale)


class _Reasoning:
    """One divergence, from the first stage at which the gradient is wrong to the rule that explains it."""

    def __init__(self, evidence: Evidence, found: Divergence) -> None:
        self.found, self.scale, self.stages = found, found.scale, found.differences
        worst = _worst(self.stages.get("optimizer" if found.kind == "gradient" else "update", []))
        self.amount = f"{worst.name} differs by {worst.relative:.1e} of its norm" if worst is not None else "it differs"
        self.facts: dict[str, object] = {
            "scenario": found.scenario,
            "call": found.call + 1,
            "loss scale": found.scale * found.base,
            "kind": found.kind,
        }
        if worst is not None:
            self.facts |= {"tensor": worst.name, "relative difference": worst.relative, "ratio": worst.ratio}
        self.phase = ""
        #: Whether each backward of the call began at something that was scaled.
        backwards = list(evidence.trace.of("backward", call=found.call))
        self.roots = [bool(e.get("scaled_by") or e.get("hand_scale")) for e in backwards]
        #: The scalers whose scale the gradients of that optimizer carry.
        adding = [e for e in backwards if found.optimizer in e.get("optimizers", ())]
        self.scalers = {scaler for e in adding for scaler in e.get("scaled_by", ())}
        #: Whether an op was seen that divides by the scale.
        self.by_hand = found.factor is not None and abs(found.factor * found.scale - 1.0) < 1e-3

    def say(self, id: str, seen: str, fix: str = "", site: Location | None = None) -> Diagnosis:
        at = f"in call {self.found.call + 1} at loss scale {_power(self.scale * self.found.base)}"
        return Diagnosis(id, f"{at} {seen}", site or self.found.site, fix, self.facts, self.phase)

    @property
    def backward(self) -> list[Difference]:
        return self.stages.get("backward", [])

    @property
    def writer(self) -> str:
        return f" by {self.found.writer}" if self.found.writer else ""

    def diagnosis(self) -> Diagnosis:
        found = self.found
        if found.kind == "raised":
            return self.say("AMP101", f"the FP32 step raises {found.message}; at scale 1 it does not")
        if found.kind == "steps":
            return self.say("AMP101", "the FP32 step takes other optimizer steps than at scale 1")
        if found.kind == "update":
            return self.of_update()
        self.phase = wrong_phase(self.stages, self.scale)
        self.facts["phase"] = self.phase
        if self.phase == "backward":
            return self.in_backward()
        divisions = _divisions(found)
        if len(divisions) > 1:
            return self.divided_twice(divisions)
        return self.while_scaled() if self.phase == "scaled" else self.at_optimizer()

    def of_update(self) -> Diagnosis:
        """Right gradients, another update."""
        if not self.found.rates:
            return self.say(
                "AMP101",
                f"the gradients are those of scale 1 to the bit, but the update is not: {self.amount}; the scale acts inside "
                "the optimizer's step",
                "use the loss scale nowhere but in the scaler",
            )
        one, other = self.found.rates[0]
        rate = (
            f"the learning rate is {other:g}, and {one:g} at scale 1" if one != other else "the momentum is not that of scale 1"
        )
        if self.found.scenario == "growth":
            fix = "advance the schedule unless the scale fell: scaler.get_scale() >= before"
            return self.say("AMP112", f"after the scale has grown, {rate}: the schedule depends on it", fix)
        return self.say("AMP101", rate, "compute learning rates from unscaled gradients, and never from the loss scale")

    def in_backward(self) -> Diagnosis:
        """The gradient is wrong when the backward ends."""
        found, scale, backward = self.found, self.scale, self.backward
        early = _unscaled_early(found)
        if early is not None:
            return self.say(
                "AMP107",
                "unscale_() runs before the last backward of its window, which then adds scaled gradients to unscaled ones",
                "call scaler.unscale_(optimizer) once, after the last backward of the window",
                early.site,
            )
        if self.by_hand and found.writer:
            return self.say(
                "AMP106",
                "a hook divides gradients by the scale, and the scaler divides them again",
                "leave the division to the scaler",
            )
        twice = [d.name for d in backward if d.is_multiple(scale * scale)]
        if twice and all(d.is_multiple(scale) or d.is_multiple(scale * scale) for d in backward):
            return self.say("AMP104", f"the gradient of {', '.join(twice[:3])} carries the scale twice", "scale each loss once")
        of_others = [scale * 8.0**k for k in (-3, -2, -1, 1, 2, 3)]  # see Policy: each scaler has an eighth of the one before
        if common_factor(backward, of_others) in of_others:
            return self.say(
                "AMP110",
                "the gradients carry the scale of another scaler than the one that steps their optimizer",
                "scale, unscale and step the gradients of one optimizer with one scaler",
            )
        if len(self.scalers) > 1 and not found.writer:
            return self.say(
                "AMP110",
                "the gradients of one optimizer carry the scales of several scalers, and one of them divides them all",
                "scale every loss of one optimizer with the scaler that steps it",
            )
        hooked = bool(found.writer) and all(self.roots)  # all losses were scaled, and a hook was seen to change gradients
        if found.affine and not hooked:
            wrong = [d for d in backward if not d.is_multiple(scale)]
            part = "" if all(d.is_multiple(1.0) for d in wrong) else "part of "
            names = ", ".join(d.name for d in wrong[:3])
            return self.say(
                "AMP104",
                f"{part}the gradient of {names} does not carry the scale that the scaler divides it by",
                "call backward on what scaler.scale(loss) returns, for every part of the loss",
            )
        worst = _worst([d for d in backward if not d.is_multiple(scale)])
        amount = "" if worst is None else f": {worst.name} is {worst.ratio:.3g} times the true one, not {scale:g} times"
        if hooked:
            return self.say(
                "AMP102",
                f"a hook changes gradients while they carry the scale, as if they did not{amount}",
                "multiply the threshold by scaler.get_scale(), or do it after scaler.unscale_(optimizer)",
            )
        return self.say(
            "AMP102",
            f"the backward does not give the scale times the true gradient{amount}: something in it is not linear in the scale",
            "divide by scaler.get_scale() before a penalty, threshold or clip is computed from scaled gradients",
        )

    def divided_twice(self, divisions: list[Event]) -> Diagnosis:
        """Scalers divided the gradients of one step more than once."""
        fix = "unscale once, with the scaler that steps"
        if len({e.scaler for e in divisions}) > 1:
            seen = "the gradients are unscaled by one scaler and stepped by another, which divides them again"
            return self.say("AMP110", seen, fix, divisions[0].site)
        return self.say("AMP106", "the scaler divides the same gradients twice", fix, divisions[1].site)

    def while_scaled(self) -> Diagnosis:
        """The gradient goes wrong between the backward and the scaler's division."""
        if self.found.divided and self.roots and not any(self.roots):
            return self.say(
                "AMP104",
                "the scaler divides gradients that no scaled loss has given",
                "take the gradients of what scaler.scale(loss) returns",
            )
        if self.found.divided or self.by_hand:
            return self.say(
                "AMP106",
                "the gradients are divided by the scale already when the scaler divides them again",
                "leave the division to unscale_() or scaler.step(), or do not give these gradients to the scaler",
            )
        return self.say(
            "AMP102",
            f"the gradients are changed{self.writer} while they carry the scale: {self.amount}",
            "call scaler.unscale_(optimizer) before clipping, adding noise or thresholding, or scale the threshold too",
        )

    def at_optimizer(self) -> Diagnosis:
        """The gradient goes wrong in the scaler's division, after it, or where there is none."""
        scale, step, run = self.scale, self.found.step_event, self.found.run
        after, at_optimizer = self.stages.get("after unscale_", []), self.stages.get("optimizer", [])
        factor = common_factor(at_optimizer, [1.0, scale, 1.0 / scale])
        around = run.trace.inside(step, "scaler_step") if step is not None and run is not None else None
        inside = around is not None and bool(around.get("enabled"))
        unscaled = bool(after) or self.by_hand
        if not inside and (factor == scale or (not unscaled and common_factor(self.backward, [scale]) == scale)):
            return self.say(
                "AMP103",
                "the optimizer is stepped outside the scaler, with gradients that still carry the scale",
                "call scaler.step(optimizer) instead of optimizer.step()",
                step.site if step is not None else None,
            )
        if around is not None and step is not None and around.optimizer != step.optimizer and factor == scale:
            return self.say(
                "AMP103",
                "the optimizer is stepped within the step of another one, with gradients that still carry the scale",
                "call scaler.step(optimizer) for this optimizer too",
                step.site,
            )
        if inside and step is not None and step.get("closure"):
            return self.say(
                "AMP101",
                "the closure that is given to scaler.step() leaves scaled gradients, which the optimizer then uses",
                "run the closure before scaler.step(), and step without it",
            )
        if (factor is not None and abs(factor * scale - 1.0) < 1e-3) or (self.by_hand and after):
            return self.say(
                "AMP106",
                f"the gradients are divided by the scale once more after unscale_{self.writer}",
                "after unscale_ the gradients are true gradients: use them as they are",
            )
        if self.phase != "unscale":
            return self.say("AMP101", f"the gradients at the optimizer depend on the loss scale{self.writer}: {self.amount}")
        left = [d.name for d in after or at_optimizer if d.is_multiple(scale)]
        return self.say(
            "AMP101",
            f"the scaler leaves the scale on {', '.join(left[:3])}"
            if left
            else f"the scaler does not divide by it: {self.amount}",
            "divide the gradient of every parameter by the scale, sparse ones too",
        )


def _divisions(found: Divergence) -> list[Event]:
    """The `unscale_` events of the step at which runs part: those since the last step of its optimizer."""
    step = found.step_event
    if step is None or found.run is None:
        return []
    before = [e for e in found.run.trace.events[: step.index] if e.optimizer == step.optimizer]
    last = max((e.index for e in before if e.kind == "optimizer_step"), default=-1)
    return [e for e in before if e.kind == "unscale" and e.index > last and e.get("enabled")]


def _unscaled_early(found: Divergence) -> Event | None:
    """The `unscale_` after which a backward still adds to the gradients."""
    step, divisions = found.step_event, _divisions(found)
    if step is None or found.run is None or not divisions:
        return None
    later = found.run.trace.events[divisions[0].index : step.index]
    adds = any(e.kind == "backward" and step.optimizer in e.get("optimizers", ()) for e in later)
    return divisions[0] if adds else None
