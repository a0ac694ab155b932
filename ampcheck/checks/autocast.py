"""Family 3: whether autocast does what the code asks it to."""

from __future__ import annotations

from collections.abc import Iterator

from ampcheck.checks._precision import inside, name_of, trained, without_census
from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, NotRun, Result, check
from ampcheck.trace.ops import LOW, OpUse

#: Dtypes that autocast casts from; float64 and complex it leaves alone.
_PLAIN = "float32"


@check(
    "AMP306", "autocast-honoured",
    expected="ops that autocast casts on this device, and that training goes through, run in the region's dtype",
    fix="enter autocast for the device type of the tensors, around the forward that is trained, in the thread that runs it",
    follows=("AMP311", "AMP307", "AMP308", "AMP309", "AMP111"),
)  # fmt: skip
def autocast_honoured(evidence: Evidence) -> Iterator[Result]:
    """What runs under autocast runs in its dtype, from the weights as they are now.

    Found by what the ops did, not by how the code looks: a copy of weights that was cast while gradients were off, or
    before the optimizer moved them; a region for another device type than the tensors have; a worker thread, which does not
    inherit the region; an enabled scaler, or an enabled region, and no op in 16 bits. Islands in FP32 on purpose
    (`autocast(enabled=False)` for the device of the tensors), float64 and complex numbers are right. A library kernel that
    picks another 16-bit dtype by itself is a warning.

    Source: PyTorch docs, `torch.autocast`: thread-local, per device type, weight cache until the outermost region ends; the
    measured tables of `ampcheck.facts`.
    """
    for rule in (_stale, _worker, _foreign, _without_effect, _other_dtype):
        found = rule(evidence)
        if found is not None:
            yield found
            return
    yield from without_census(evidence)
    if not _asked(evidence):
        yield NotRun(
            f"no autocast region was entered, and there is {evidence.why_no_scaler()}"
            if not evidence.scaler_in_use()
            else "no autocast region was entered"
        )


def _asked(evidence: Evidence) -> bool:
    return any(e.get("asked", e.get("enabled")) for e in evidence.trace.of("autocast"))


def _stale(evidence: Evidence) -> Fault | None:
    for stale in evidence.census.stale:
        module = f" in {stale.module}" if stale.module else ""
        others = len({s.weight for s in evidence.census.stale if s.why == stale.why}) - 1
        more = f" and {others} more" if others else ""
        copy = f"in call {stale.call + 1} {stale.op}{module} uses a {stale.dtype} copy of {stale.weight}{more}"
        if stale.why == "no-grad":
            return Fault(
                f"{copy} that was made while gradients were off: the weight gets no gradient from it",
                stale.site,
                fix="empty the cache between the pass without gradients and the one that is trained, or give each its own",
            )
        return Fault(
            f"{copy} from before the last optimizer step",
            stale.site,
            fix="end the outermost autocast region, which holds the casts, before the optimizer steps, or empty the cache",
        )
    return None


def _worker(evidence: Evidence) -> Fault | None:
    for use in trained(evidence, "matmul"):
        if use.worker and set(use.inputs) == {_PLAIN} and _casts(evidence, use):
            return Fault(
                f"{use.op}{inside(use)} runs in {_PLAIN} in another thread, where autocast is off, while the step is inside a "
                "region",
                use.site,
                fix="enter autocast inside the thread too, with the device type, dtype and enabled flag of the caller",
            )
    return None


def _casts(evidence: Evidence, use: OpUse) -> bool:
    return evidence.facts is None or evidence.facts.casts_to_low(use.op)


def _foreign(evidence: Evidence) -> Fault | None:
    devices = {use.device for use in evidence.census.uses}
    for use in trained(evidence, "matmul"):
        region = use.foreign
        if region is None or region.device in devices:
            continue
        what = f"{use.op}{inside(use)}"
        # a region around everything only chooses the device; an island leaves other ops of the region outside
        island = any(other.low and other.foreign != region for other in trained(evidence, "matmul"))
        if region.asked and use.autocast == "off" and set(use.inputs) == {_PLAIN}:
            return Fault(
                f"autocast was entered for {region.device}, and the tensors are on {use.device}: {what} runs in {_PLAIN}",
                region.site,
                evidence={"op": use.op, "line of the op": str(use.site)},
            )
        if not region.asked and use.autocast != "off" and use.low and island:
            return Fault(
                f"autocast was disabled for {region.device}, and the tensors are on {use.device}: {what} still runs in "
                f"{use.low}",
                region.site,
                fix="disable autocast for the device type of the tensors (x.device.type), and cast what comes in with .float()",
                evidence={"op": use.op, "line of the op": str(use.site)},
            )
    return None


def _without_effect(evidence: Evidence) -> Fault | None:
    """Mixed precision was asked for, and nothing that is trained runs in 16 bits."""
    census, trace = evidence.census, evidence.trace
    if census.failed or census.low_forward or census.low_backward:
        return None
    backward = [e for e in trace.of("backward") if e.get("done")]
    plain = [u for u in census.of("matmul") if u.phase == "backward" and set(u.inputs) == {_PLAIN}]
    if not backward or not plain:
        return None
    for device, site in census.unused:
        if device == plain[0].device and not any(e.get("enabled") for e in trace.of("autocast")):
            return Fault(f"autocast for {device} is made and never entered: no op of the training runs in 16 bits", site)
    if evidence.scaler_in_use():
        off = next((e for e in trace.of("autocast") if not e.get("enabled")), None)
        made = trace.scalers[next(e.scaler or 0 for e in trace.of("scale", "unscale", "scaler_step") if e.get("enabled"))]
        region = "autocast is disabled" if off is not None else "autocast is not entered"
        if any(e.get("enabled") for e in trace.of("autocast")):
            region = "autocast has no effect"
        return Fault(
            f"an enabled {made.kind} scales the loss, and no op of the training runs in 16 bits: {region}",
            off.site if off is not None else made.site or backward[0].site,
            fix="enable autocast with a 16-bit dtype, or disable the scaler with it",
        )
    entered = next((e for e in trace.of("autocast") if e.get("enabled") and e.get("device") == plain[0].device), None)
    elsewhere = any(u.low for u in census.of("matmul")) or any(u.island for u in census.of("matmul"))
    if entered is not None and not elsewhere:
        region = f"autocast is entered for {entered.get('device')} in {entered.get('dtype')}"
        return Fault(f"{region}, and no op of the training runs in 16 bits", entered.site)
    return None


def _other_dtype(evidence: Evidence) -> Fault | None:
    for use in trained(evidence, "matmul"):
        if use.autocast in LOW and use.low and use.low != use.autocast:
            return Fault(
                f"{name_of(use.op)}{inside(use)} runs in {use.low} under {use.autocast} autocast: the kernel's own choice",
                use.site, level="warning", fix="mind the range of float16 there, or run the module in float32",
            )  # fmt: skip
    return None
