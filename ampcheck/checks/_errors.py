"""What an error of torch's own means: which rule the step broke before torch refused to go on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ampcheck.checks._scale import bad_scale
from ampcheck.evidence import Evidence
from ampcheck.findings import Location
from ampcheck.trace.events import Event, Raised, Trace

__all__ = ["Cause", "cause", "causes"]

#: What torch and its extensions say when two dtypes meet.
_DTYPES_MEET = re.compile(
    r"same dtype|should be the same|scalar type|dtypes? (?:mis)?match|dtypes to match|data type|expected .*(?:half|float)",
    re.IGNORECASE,
)
#: What torch says where 16 bits are not supported at all.
_NO_LOW_PRECISION = ("unscale FP16 gradients", "not implemented for 'BFloat16'", "not implemented for 'Half'")


@dataclass(frozen=True)
class Cause:
    """The rule behind an exception: check id, what happened, where, what mends it, and in which scenario."""

    id: str
    seen: str
    location: Location | None
    fix: str = ""
    scenario: str = "natural"
    raised: Raised | None = None


def causes(evidence: Evidence) -> list[Cause]:
    """The cause of the natural run's exception, and of those that only another scenario provokes."""
    found: list[Cause] = []
    natural = evidence.trace.raised
    if natural is not None:
        found.append(cause(evidence.trace, natural))
    overflow = evidence.overflow
    if overflow is not None and overflow.run.trace.raised is not None and overflow.planted:
        raised = overflow.run.trace.raised
        if natural is None or (raised.type, raised.message) != (natural.type, natural.message):
            found.append(cause(overflow.run.trace, raised, "overflow"))
    return found


def cause(trace: Trace, raised: Raised, scenario: str = "natural") -> Cause:
    """Name the rule behind an exception that came out of the contract."""
    after = {"overflow": " (after a planted overflow)"}.get(scenario, "")
    at = "while the contract was built" if raised.call < 0 else f"in call {raised.call + 1}{after}"
    text = f"{at}: {raised}"
    if raised.type in ("ContractError", "ScenarioTimeout"):  # our own words, complete as they are
        return Cause("AMP111", raised.message, raised.site, "", scenario, raised)

    def found(id: str, seen: str, fix: str = "", location: Location | None = None) -> Cause:
        return Cause(id, f"{seen} ({text})", location or raised.site, fix, scenario, raised)

    bad = bad_scale(trace)
    if bad is not None and bad.call == raised.call and not bad.get("done"):
        return found("AMP205", f"update() is given a scale of {bad.get('new_scale'):g}", location=bad.site)
    message, last = raised.message, _last(trace, raised)
    since = trace.events[last.index + 1 :] if last is not None else []
    backward_since = any(e.kind == "backward" for e in since)
    direct = [
        e
        for e in since
        if e.kind == "optimizer_step" and e.optimizer == raised.optimizer and trace.inside(e, "scaler_step") is None
    ]
    if direct and ("already been called" in message or "after step()" in message):
        return found(
            "AMP103",
            "the optimizer is stepped outside the scaler, which still waits for its step and update",
            "call scaler.step(optimizer) and scaler.update() instead of optimizer.step()",
            direct[0].site,
        )
    if "unscale_() has already been called" in message and last is not None:
        new_window = last.call != raised.call and any(e.get("cleared") for e in since if e.kind == "backward")
        if new_window:
            return found(
                "AMP105", _left(last), "call scaler.update() on every path that ends an iteration", _end_of(trace, last)
            )
        return found(
            "AMP106",
            "unscale_() is called again for gradients of the same scaler window",
            "unscale once, after the last backward of the window",
        )
    if "unscale_() is being called after step()" in message or "step() has already been called" in message:
        if backward_since:
            return found(
                "AMP105",
                "a new iteration begins and update() was not called since the last step",
                "call scaler.update() after the step",
                last.site if last else None,
            )
        if "unscale_" in message:
            return found(
                "AMP106", "unscale_() is called after step() has divided the gradients already", "unscale before the step, once"
            )
        return found(
            "AMP103", "the same optimizer is stepped twice in one iteration", "step each optimizer once between two updates"
        )
    if "No inf checks were recorded for this optimizer" in message:
        return _no_gradients(trace, raised, found)
    if "No inf checks were recorded prior to update" in message:
        taken = _taken_by_hand(trace, raised)
        if taken is not None:
            return found(
                "AMP103",
                "the optimizer is stepped outside the scaler, whose update() then finds nothing that it has unscaled or stepped",
                "call scaler.step(optimizer) instead of optimizer.step()",
                taken.site,
            )
        return found(
            "AMP105",
            "update() is called although no optimizer was unscaled or stepped since the last one",
            "call update() once, after the steps of the iteration",
        )
    if "but _scale is None" in message:
        return found(
            "AMP104",
            "the scaler is used although it has never scaled a loss",
            "scale every loss whose gradients the scaler's optimizer uses",
        )
    if "Closure use is not currently supported" in message:
        return found(
            "AMP103", "a closure is given to scaler.step()", "run the closure before scaler.step(), and step without it"
        )
    return _precision(raised, text, scenario)


def _last(trace: Trace, raised: Raised) -> Event | None:
    """The last unscale or step, of the optimizer that the error is about, that went through since the last update."""
    seen: Event | None = None
    for event in trace.events:
        if event.kind == "update" and event.scaler == raised.scaler and event.get("done"):
            seen = None
        if event.kind in ("unscale", "scaler_step") and event.optimizer == raised.optimizer and event.get("done"):
            seen = event
    return seen


def _taken_by_hand(trace: Trace, raised: Raised) -> Event | None:
    """A step outside the scaler, after a backward from a scaled loss, since the last update."""
    backward, taken = None, None
    for event in trace.events:
        if event.kind == "update" and event.get("done"):
            backward, taken = None, None
        if event.kind == "backward" and raised.scaler in event.get("scaled_by", ()):
            backward = event
        if event.kind == "optimizer_step" and backward is not None and event.optimizer in backward.get("optimizers", ()):
            taken = taken or event
    return taken


def _left(event: Event) -> str:
    what = "unscaled" if event.kind == "unscale" else "stepped"
    return f"call {event.call + 1} {what} the optimizer and ended without update()"


def _end_of(trace: Trace, last: Event) -> Location | None:
    """Where the iteration that lacks its update was left, as far as events tell."""
    return [e for e in trace.of(call=last.call) if e.index >= last.index and e.site is not None][-1].site


def _no_gradients(trace: Trace, raised: Raised, found: object) -> Cause:
    assert callable(found)
    step = next((e for e in reversed(trace.events) if e.kind == "scaler_step" and e.optimizer == raised.optimizer), None)
    result: Cause
    if step is not None and step.get("cleared"):
        result = found(
            "AMP109",
            "the gradients were cleared between the backward and the step",
            "clear gradients before the backward or after the step",
        )
        return result
    window = [e for e in trace.events if e.kind == "backward" and e.call == raised.call]
    if any(o != raised.optimizer for e in window for o in e.get("optimizers", ())):
        result = found(
            "AMP110",
            "the scaler steps an optimizer none of whose parameters has a gradient in this iteration",
            "step an optimizer only in iterations in which its parameters take part",
        )
        return result
    result = found(
        "AMP111",
        "no parameter of the optimizer received a gradient: the loss is not connected to them",
        "leave out the whole iteration, or return a loss that depends on the parameters",
    )
    return result


def _precision(raised: Raised, text: str, scenario: str) -> Cause:
    """Errors that come of dtypes: 16 bits not supported, two that meet, another recomputation, a constant out of range."""

    def found(id: str, seen: str, fix: str = "") -> Cause:
        return Cause(id, f"{seen} ({text})", raised.site, fix, scenario, raised)

    message = raised.message
    if "not implemented for" in message and any(words in message for words in _NO_LOW_PRECISION) and raised.during is None:
        fix = "leave autocast for it, torch.autocast(device_type, enabled=False), and cast what comes in with .float()"
        return found("AMP111", "an op of the forward has no 16-bit kernel on this device", fix)
    if any(words in message for words in _NO_LOW_PRECISION):
        return found("AMP307", "parameters or gradients are 16-bit")
    if raised.function is not None and _DTYPES_MEET.search(message):
        name, side = raised.function
        if side == "recompute":
            return found("AMP309", "two dtypes meet in a recomputation that the forward went through")
        fix = "give custom_fwd cast_inputs=, or cast the inputs to one dtype by hand"
        if side == "backward":
            fix = "decorate forward with torch.amp.custom_fwd and backward with custom_bwd, or cast the gradient"
        return found("AMP308", f"two dtypes meet in the {side} of {name}", fix)
    if raised.type == "CheckpointError":
        fix = "make the region do the same twice: no cast or cache that the first forward leaves for the second"
        return found("AMP309", "the recomputation of a checkpoint does not save what the forward saved", fix)
    if "without overflow" in message and "cannot be converted" in message:
        fix = "take the constant from torch.finfo(tensor.dtype), or work in FP32 here"
        return found("AMP111", "a constant that 16 bits cannot hold is written into a 16-bit tensor", fix)
    return Cause("AMP111", text, raised.site, "", scenario, raised)
