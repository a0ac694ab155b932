"""What parity can compare: in which dtype, at which loss scale, over how many calls; or why nothing."""

from __future__ import annotations

from ampcheck.evidence import Evidence
from ampcheck.trace.events import Trace

__all__ = ["calls_for", "coarsest", "entered", "obstacle", "scaled_only", "settled_scales"]


def entered(evidence: Evidence) -> set[str]:
    """16-bit dtypes that the natural run worked in: of its autocast regions on this device, and of its autograd graphs."""
    trace = evidence.trace
    found = set(trace.autocast.get(evidence.device.partition(":")[0], ()))
    for event in trace.of("backward"):
        found |= set(event.get("dtypes") or ())
    return found & {"float16", "bfloat16"}


def coarsest(dtypes: set[str]) -> str:
    return "bfloat16" if "bfloat16" in dtypes else next(iter(dtypes), "")


def obstacle(evidence: Evidence, policy: str, natural: set[str]) -> str:
    trace = evidence.trace
    if trace.raised is not None and trace.raised.call < 1:
        return "the step raises in its first call"
    if evidence.exact is not None and evidence.exact.status == "diverged":
        return "the FP32 step depends on the loss scale; parity is judged once that is mended"
    if not natural and (policy == "as-written" or not trace.autocast):
        return "nothing of the step runs in 16 bits: no autocast region was entered on this device"
    if policy == "float16" and "float16" not in natural and not evidence.scaler_in_use():
        return f"float16 needs a loss scale, and this loop ({', '.join(sorted(natural)) or 'FP32'}) keeps none"
    if evidence.scaler_in_use() and not settled_scales(evidence):
        return "the loop takes no step in 16 bits"
    return ""


def calls_for(evidence: Evidence, units: int) -> int:
    """How many calls it takes to step in `units` of them, as the natural run shows."""
    trace = evidence.trace
    stepping = [call for call in range(trace.calls) if any(True for _ in trace.of("optimizer_step", "scaler_step", call=call))]
    last = stepping[units - 1] if len(stepping) >= units else max(stepping, default=0)
    return last + 1


def settled_scales(evidence: Evidence) -> dict[int, float]:
    """Scaler index -> the loss scale of the first window all of whose steps were taken, or else of its first step that was.

    In the natural run or in a longer one.
    """
    found: dict[int, float] = {}
    runs = [run.trace for run in (evidence.natural, evidence.recovery) if run is not None]
    for settled in (_windows_taken, _settled):
        for trace in runs:
            for index, scale in settled(trace).items():
                found.setdefault(index, scale)
    return found


def _windows_taken(trace: Trace) -> dict[int, float]:
    """Scaler index -> the scale of its first window in which it steps and skips nothing."""
    found: dict[int, float] = {}
    steps: dict[int, list[bool]] = {}
    for event in trace.of("scaler_step", "update"):
        if event.scaler is None or not event.get("enabled"):
            continue
        if event.kind == "scaler_step":
            steps.setdefault(event.scaler, []).append(bool(event.get("took")))
        elif all(taken := steps.pop(event.scaler, [])) and taken and event.get("before"):
            found.setdefault(event.scaler, event.get("before"))
    return found


def _settled(trace: Trace) -> dict[int, float]:
    found: dict[int, float] = {}
    latest: dict[int, float] = {}
    by_hand: dict[int, float] = {}
    for event in trace.events:
        if event.kind == "optimizer_step" and event.get("took") and trace.inside(event, "scaler_step") is None:
            by_hand |= latest | by_hand
        if event.scaler is None or not event.get("enabled"):
            continue
        if event.kind == "scale":
            latest[event.scaler] = event.get("scale")
        elif event.kind == "scaler_step" and event.get("took"):
            found.setdefault(event.scaler, latest.get(event.scaler) or event.get("before") or 1.0)
    stepping = {e.scaler for e in trace.of("scaler_step")}
    return {scaler: scale for scaler, scale in by_hand.items() if scaler not in stepping} | found


def scaled_only(trace: Trace) -> dict[int, int]:
    """Optimizers that are stepped by hand with nothing but scaled gradients: index -> that of the one scaler that scaled them."""
    found: dict[int, set[int | None]] = {}
    for event in trace.events:
        scalers = event.get("scaled_by") if event.kind == "backward" else None
        for index in event.get("optimizers", ()) if scalers is not None else ():
            found.setdefault(index, set()).update(scalers or {None})
    stepped = {e.optimizer for e in trace.steps if trace.inside(e, "scaler_step") is None}
    known = {e.optimizer for e in trace.of("unscale", "scaler_step")}
    single = {i: next(iter(s)) for i, s in found.items() if len(s) == 1 and i in stepped - known}
    return {index: scaler for index, scaler in single.items() if scaler is not None and trace.scalers[scaler].enabled}
