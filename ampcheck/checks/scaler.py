"""Family 2: what the loss scale does: skips, backoff, growth, recovery, bounds, arguments, and whether it is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from ampcheck.checks import _scale as reading
from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, NotRun, Result, check


def _without_overflow(evidence: Evidence) -> Iterator[Result]:
    if "overflow" in evidence.not_run:
        yield NotRun(evidence.not_run["overflow"])
    elif not evidence.scaler_in_use():
        yield NotRun(evidence.why_no_scaler())
    elif evidence.overflow is None or not evidence.overflow.planted:
        yield NotRun("no overflow could be planted: no optimizer goes through the scaler's step with gradients")


@check(
    "AMP201",
    "skip-is-atomic",
    expected="an iteration whose gradients are not finite leaves parameters, optimizer state and step counters as they were",
    fix="let scaler.step() decide, and do nothing that belongs to a step taken when it was skipped (the scale falls in update())",
    follows=("AMP103", "AMP102", "AMP104", "AMP208", "AMP101", "AMP111"),
)
def skip_is_atomic(evidence: Evidence) -> Iterator[Result]:
    """A skipped step moves nothing that a step moves.

    An inf is planted into a gradient in one scaler window. If parameters, optimizer state or step counters of that optimizer then move, it is an
    error. If the learning rate or averaged weights advance as they do in a clean iteration, it is a warning: some frameworks do it by choice.
    Counters, cursors, logs, hidden state, copies and buffers of the forward rightly move; so do copies that the step computes with (a teacher, a
    target network), by a rule of their own.

    Source: PyTorch docs, `torch.amp.GradScaler.step`: the step is skipped if inf or NaN are found.
    """
    overflow = evidence.overflow
    for planted in overflow.planted if overflow is not None else ():
        assert overflow is not None
        trace = overflow.run.trace
        if planted.moved and not planted.sanitized:
            step = next((e for e in trace.of("optimizer_step", optimizer=planted.optimizer) if e.index > planted.event), None)
            yield Fault(
                f"after an overflow in call {planted.call + 1} the {' and '.join(planted.moved)} of {trace.optimizers[planted.optimizer].kind} changed",
                step.site if step is not None else reading.site_after(trace, planted.event),
            )
            return
    for planted in overflow.planted if overflow is not None else ():
        assert overflow is not None
        moved = ["the learning rate"] * planted.schedule + [f"averaged weights ({path})" for path in overflow.averages[:1]]
        if moved and not planted.sanitized and not overflow.run.trace.raised:
            trace = overflow.run.trace
            yield Fault(
                f"in call {planted.call + 1}, whose step the scaler skipped, {' and '.join(moved)} moved on as after a step that was taken",
                reading.step_site(trace, planted.event, planted.optimizer),
                level="warning",
            )
            return
    yield from _without_overflow(evidence)


@check(
    "AMP202",
    "backoff",
    expected="an overflowing iteration multiplies the scale by backoff_factor, exactly once",
    fix="call scaler.update() in the overflowing iteration too, and do not hide non-finite gradients from the scaler",
    follows=("AMP105", "AMP106", "AMP103", "AMP111", "AMP104"),
)
def backoff(evidence: Evidence) -> Iterator[Result]:
    """The scale falls by the backoff factor once for each iteration with an overflow.

    Source: PyTorch docs, `torch.amp.GradScaler.update`.
    """
    overflow = evidence.overflow
    for planted in overflow.planted if overflow is not None else ():
        assert overflow is not None
        trace = overflow.run.trace
        info = trace.scalers[planted.scaler]
        if planted.sanitized and planted.hook is not None and planted.clamped:
            continue  # a hook that clips by value, in units of the scale: as below, and there is nothing else to clip with in a backward
        if planted.sanitized:
            yield Fault(
                f"the inf in a gradient of {trace.optimizers[planted.optimizer].kind} in call {planted.call + 1} was gone before the scaler looked: the step was "
                "taken and the scale stays",
                planted.hook or reading.site_after(trace, planted.event),
                level="warning" if planted.clamped else None,  # a clip by value, in units of the scale, does no other harm
            )
            return
        if info.custom:
            continue
        if planted.abandoned:
            yield Fault(
                f"no update() after the overflow in call {planted.call + 1}: the scale stays at {planted.scale:g}",
                reading.step_site(trace, planted.event, planted.optimizer),
            )
            return
    for _, trace in reading.all_traces(evidence):
        for event in trace.of("update"):
            if event.get("found_inf") and {"backoff", "after"} <= event.data.keys() and event.get("new_scale") is None:
                wanted = event.get("before") * event.get("backoff")
                if not reading.close(event.get("after"), wanted):
                    yield Fault(
                        f"in call {event.call + 1} update() after an overflow leaves the scale at {event.get('after'):g}; {wanted:g} was due",
                        event.site,
                    )
                    return
    yield from reading.discrepancies(evidence, "AMP202")
    yield from _without_overflow(evidence)


@check(
    "AMP203",
    "growth",
    expected="the scale grows by growth_factor after growth_interval updates in a row without overflow, never earlier or later",
    fix="leave the growth tracker to update(), and call it once an iteration",
    follows=("AMP105", "AMP208", "AMP111"),
)
def growth(evidence: Evidence) -> Iterator[Result]:
    """The scale grows when torch's rule says so, as torch counts updates, apart from what the user's own `update(new_scale)` sets.

    Tried with a growth interval of two, and on the natural run.

    Source: PyTorch docs, `torch.amp.GradScaler(growth_factor, growth_interval)`.
    """
    seen = False
    for _, trace in reading.all_traces(evidence):
        for event in trace.of("update"):
            ended = {"tracker", "after"} <= event.data.keys()  # one that raised has left the scale as it was
            if not ended or event.get("new_scale") is not None or event.get("found_inf"):
                continue
            seen = True
            grows = event.get("tracker") + 1 == event.get("interval")
            wanted = event.get("before") * (event.get("growth") if grows else 1.0)
            if not math.isfinite(wanted) or wanted > 3.4e38:
                wanted = event.get("before")
            if not reading.close(event.get("after"), wanted):
                yield Fault(
                    f"in call {event.call + 1} update() leaves the scale at {event.get('after'):g}; {wanted:g} was due",
                    event.site,
                )
                return
    anew = reading.made_anew(evidence.trace) or reading.put_back(evidence.trace)
    if anew is not None:
        yield anew
        return
    found = list(reading.discrepancies(evidence, "AMP203"))
    yield from found
    if not seen and not found:
        if not evidence.scaler_in_use():
            yield NotRun(evidence.why_no_scaler())
        elif evidence.discrepancies is None:
            yield NotRun(evidence.not_run.get("scaler", "the scaler makes no update of torch's kind"))


@check(
    "AMP204",
    "recovers",
    expected="after overflows the loop reaches a step that is taken",
    fix="let an overflow pass: no raise on a non-finite norm, no floor above the working range, clear the gradients of a skipped step",
    follows=(
        "AMP206",
        "AMP310",
        "AMP105",
        "AMP106",
        "AMP109",
        "AMP102",
        "AMP103",
        "AMP104",
        "AMP101",
        "AMP201",
        "AMP202",
        "AMP206",
        "AMP207",
        "AMP208",
        "AMP111",
    ),
)
def recovers(evidence: Evidence) -> Iterator[Result]:
    """Overflow is normal: the loop survives it and finds a scale at which it trains.

    After a planted overflow, and from the scale that it starts with: a step is taken again, and nothing raises (`error_if_nonfinite`, a
    hand-written raise).

    Source: PyTorch docs, `torch.amp.GradScaler`: overflow in the first iterations is how the scale is found.
    """
    overflow, natural = evidence.overflow, evidence.trace
    if overflow is not None and overflow.planted:
        trace, raised = overflow.run.trace, overflow.run.trace.raised
        if raised is not None and (natural.raised is None or natural.raised.message != raised.message):
            yield Fault(
                f"after an overflow in call {overflow.planted[0].call + 1} the step raises in call {raised.call + 1}: {raised}",
                raised.site,
            )
            return
        for planted in overflow.planted:
            if planted.ruined >= 0:
                ruined = trace.events[planted.ruined]
                yield Fault(
                    f"after an overflow in call {planted.call + 1} a step is taken with gradients that are not finite, in call "
                    f"{ruined.call + 1}",
                    ruined.site,
                    follows="AMP205" if reading.bad_scale(trace) is not None else None,
                )
                return
            since = max(planted.call, planted.ended)
            later = [e for e in trace.of("scaler_step", optimizer=planted.optimizer) if e.call > since]
            # a loop that skips there by itself, as it is written, is not kept from recovering by the planted overflow
            trains = any(e.call > since for e in natural.steps if e.optimizer == planted.optimizer)
            if trains and len(later) >= 2 and not any(e.get("took") for e in later) and raised is None:
                yield Fault(
                    f"after one overflow in call {planted.call + 1} no later step is taken, in {len(later)} tries",
                    later[0].site,
                )
                return
    stuck = reading.stuck(evidence)
    if stuck is not None:
        yield stuck
        return
    yield from _without_overflow(evidence)


@check(
    "AMP205",
    "scale-bounds",
    expected="the scale stays finite and positive, between 2^-24 and 2^127",
    fix="cap the growth, put a floor under the backoff, and never set a scale that is zero or not finite",
    follows=("AMP204", "AMP310", "AMP102", "AMP206"),
)
def scale_bounds(evidence: Evidence) -> Iterator[Result]:
    """The scale stays a usable number.

    What torch's own scaler does after 160 overflows in a row (it sinks to zero) is a note in the report, not a finding.

    Source: IEEE 754 single precision: 2^127 is its largest power of two, and 2^-24 the smallest number of half precision.
    """
    for scenario, trace in reading.all_traces(evidence):
        bad = reading.bad_scale(trace)
        if bad is not None:
            seen = f"in call {bad.call + 1} update(new_scale={bad.get('new_scale'):g}) sets a scale that cannot be used"
            yield Fault(seen, bad.site, follows="AMP205")  # what else goes wrong comes from this
            return
        for event in trace.of("scale"):
            scale = event.get("scale")
            if (
                scenario == "natural"
                and event.get("enabled")
                and scale is not None
                and not reading.SMALLEST <= scale <= reading.LARGEST
            ):
                yield Fault(f"in call {event.call + 1} the loss is scaled by {scale:g}", event.site)
                return
    yield from reading.discrepancies(evidence, "AMP205")
    if not evidence.scaler_in_use():
        yield NotRun(evidence.why_no_scaler())


@check(
    "AMP206",
    "scaler-arguments",
    expected="growth_factor > 1, 0 < backoff_factor < 1, growth_interval >= 1, init_scale finite and > 0",
    fix="correct the argument; torch accepts bad ones silently",
)
def scaler_arguments(evidence: Evidence) -> Iterator[Result]:
    """The scaler's arguments make sense.

    Source: PyTorch docs, `torch.amp.GradScaler`; its constructor tests only growth_factor > 1 and backoff_factor < 1.
    """
    limits: dict[str, Callable[[float], bool]] = {
        "init_scale": lambda v: math.isfinite(v) and v > 0,
        "growth_factor": lambda v: math.isfinite(v) and v > 1,
        "backoff_factor": lambda v: 0 < v < 1,
        "growth_interval": lambda v: v >= 1,
    }
    known = False
    for info in evidence.trace.scalers:
        for name, right in limits.items():
            value = info.arguments.get(name) if info.enabled else None
            if value is None:
                continue
            known = True
            if not right(value):
                yield Fault(f"{info.kind}({name}={value:g})", info.site)
                return
    limits["growth_factor"] = lambda v: math.isfinite(v) and v >= 1  # set later, 1 holds the scale by choice
    for event in evidence.trace.of("update"):
        for key, name in (("backoff", "backoff_factor"), ("growth", "growth_factor"), ("interval", "growth_interval")):
            value = event.get(key)
            if value is not None and not limits[name](value):
                yield Fault(f"{name} is {value:g} when update() is called in call {event.call + 1}", event.site)
                return
    if not known:
        yield NotRun(evidence.why_no_scaler() if not evidence.scaler_in_use() else "the scaler's arguments are its own")


@check(
    "AMP207",
    "scaler-present",
    expected="float16 autocast trains with an enabled loss scaler, or with a scale that is kept by hand",
    fix="make a GradScaler for the device that is trained on, enabled, and scale the loss with it; or train in bfloat16",
)
def scaler_present(evidence: Evidence) -> Iterator[Result]:
    """float16 gradients are protected from underflow.

    Judged where a backward goes through float16 tensors of an autocast region and an optimizer then steps. A scale kept by hand (a large constant
    factor at the root of the loss or in the seed of backward, or `Training(loss_scale=...)`) is as good as a scaler.

    Source: PyTorch docs, "Gradient Scaling"; Micikevicius et al., "Mixed Precision Training", 2018, section 3.2.
    """
    trace = evidence.trace
    regions = {dtype for dtypes in trace.autocast.values() for dtype in dtypes}
    if "float16" not in regions:
        yield NotRun("no float16 autocast region was entered")
        return
    if evidence.declared.get("loss_scale") is not None or (any(s.enabled for s in trace.scalers) and evidence.scaler_in_use()):
        return
    half = [e for e in trace.of("backward") if "float16" in e.get("dtypes", ())]
    if not half or not any(e.kind == "optimizer_step" for e in trace.events):
        yield NotRun("no gradient goes through float16")
        return
    if any(e.get("hand_scale") for e in half):
        return
    disabled = next((s for s in trace.scalers if not s.enabled), None)
    if disabled is not None:
        why = (
            f"{disabled.kind} for {disabled.device or 'another device'} has disabled itself: there is no such device here"
            if disabled.asked_enabled
            else f"{disabled.kind} is disabled"
        )
        yield Fault(f"the step trains in float16 on {evidence.device}, and {why}", disabled.site)
        return
    what = "the scaler that was made is not used" if trace.scalers else "there is no loss scaler"
    yield Fault(f"the step trains in float16, and {what}", half[0].site)


@check(
    "AMP208",
    "scaler-model",
    expected="the scaler does what the reference model of a loss scaler does",
    fix="compare with the script; ampcheck.scaler_contract tests the class by itself",
    follows=("AMP111",),
)
def scaler_model(evidence: Evidence) -> Iterator[Result]:
    """A copy of the contract's own scaler agrees with the reference model of a loss scaler.

    On sequences that the contract itself shows: clean steps, overflows, finite but large gradients, save and load, with toy parameters. What its
    attributes or `Training(capabilities=...)` do not tell is not judged.

    Source: PyTorch docs, `torch.amp.GradScaler`.
    """
    yield from reading.discrepancies(evidence, "AMP208")
    if not evidence.scaler_in_use():
        yield NotRun(evidence.why_no_scaler())
    elif evidence.discrepancies is None:
        yield NotRun(evidence.not_run.get("scaler", "the scaler was not tried"))


@check(
    "AMP209",
    "scaler-needless",
    level="warning",
    expected="a loss scaler is kept only where gradients are float16",
    fix="make the scaler with enabled=(dtype is torch.float16)",
    follows=("AMP111",),
)
def scaler_needless(evidence: Evidence) -> Iterator[Result]:
    """A scaler in a bfloat16 run does nothing useful: bfloat16 has the range of float32. It costs checks, and may skip steps.

    Source: PyTorch docs, "Automatic Mixed Precision package": gradient scaling is for float16.
    """
    trace = evidence.trace
    if not evidence.scaler_in_use():
        yield NotRun(evidence.why_no_scaler())
        return
    backwards = [e for e in trace.of("backward") if e.get("accumulates")]
    regions = {dtype for dtypes in trace.autocast.values() for dtype in dtypes}
    dtypes = {dtype for e in backwards for dtype in e.get("dtypes", ())}
    if "float16" not in regions and dtypes == {"bfloat16"}:
        used = next(e.scaler for e in trace.of("scale") if e.get("enabled"))
        yield Fault("an enabled loss scaler is used in a run whose 16-bit dtype is bfloat16", trace.scalers[used or 0].site)
