"""Family 1: the order of scale, backward, unscale, step and update, judged by its effect on gradients and updates."""

from __future__ import annotations

from collections.abc import Iterator

from ampcheck.checks import _reading as reading
from ampcheck.checks._divergence import diagnose
from ampcheck.checks._errors import causes
from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, Inconclusive, NotRun, Result, check
from ampcheck.trace.events import Event

#: Errors that explain why gradients depend on the scale.
_STRUCTURAL = ("AMP103", "AMP105", "AMP107", "AMP109", "AMP110", "AMP111")


def _from_errors(evidence: Evidence, id: str) -> Iterator[Fault]:
    for found in causes(evidence):
        if found.id == id:
            yield Fault(found.seen, found.location, fix=found.fix, evidence={"scenario": found.scenario})


def _from_divergence(evidence: Evidence, id: str) -> Iterator[Fault]:
    found = diagnose(evidence)
    if found is not None and found.id == id:
        follows = reading.why_wrong_in_backward(evidence) if found.phase == "backward" else None
        yield Fault(found.seen, found.location, fix=found.fix, evidence=found.evidence, follows=follows)


def _without_effect(evidence: Evidence) -> Iterator[Result]:
    """Why the oracle of AMP101 has nothing to say, for the checks that rest on it."""
    if "exact" in evidence.not_run:
        yield NotRun(evidence.not_run["exact"])
    elif not evidence.scaler_in_use():
        yield NotRun(evidence.why_no_scaler())
    elif evidence.exact is None:
        yield NotRun("the FP32 runs were not made")
    elif evidence.exact.status == "not-run":
        yield NotRun(evidence.exact.reason)
    elif evidence.exact.status == "inconclusive":
        yield Inconclusive(evidence.exact.reason)


@check(
    "AMP101",
    "scale-invariance",
    expected="in FP32, gradients, updates and returned numbers are bit-identical at every power-of-two loss scale",
    fix="use the loss scale nowhere but in scaler.scale() and the scaler's own division",
    follows=("AMP102", *_STRUCTURAL[:1], "AMP104", *_STRUCTURAL[1:], "AMP106"),
)
def scale_invariance(evidence: Evidence) -> Iterator[Result]:
    """The loss scale changes nothing but the range of the gradients.

    The step is run in FP32 (autocast regions at float32) with a loss scale of 1, of 2^16, and of one that grows from 2^10. A power
    of two only moves the exponent, so the gradients that enter each optimizer, the updates and the numbers that the step returns
    must be the same to the bit. Where they are not, and the step repeats, and no 16-bit tensor that the code makes itself explains it, the
    scale has leaked into the training. A returned number that follows the scale, while training is right, is a warning.

    Source: PyTorch docs, "Automatic Mixed Precision examples": gradients must be unscaled before they are used.
    """
    exact = evidence.exact
    diagnosis = diagnose(evidence)
    if diagnosis is not None and diagnosis.id != "AMP112":  # a step that the schedule lost is no leak of the scale
        follows = diagnosis.id if diagnosis.id != "AMP101" else None
        yield Fault(diagnosis.seen, diagnosis.location, fix=diagnosis.fix, evidence=diagnosis.evidence, follows=follows)
        return
    if exact is not None and exact.returned is not None:
        path, (plain, scaled) = next(iter(exact.returned.values.items()))
        yield Fault(
            f"in call {exact.returned.call + 1} the step returns {path} = {scaled:g} at loss scale {exact.returned.scale:g} and {plain:g} at 1, while "
            "the training itself is right",
            exact.returned.site,
            fix="return the loss before it is scaled, or divide by the scale it was multiplied with",
            level="warning",
            follows="AMP501",
        )
        return
    yield from _without_effect(evidence)


@check(
    "AMP102",
    "clip-scaled-gradients",
    expected="nothing rescales, thresholds or adds to gradients between backward and unscale as if they were unscaled",
    fix="call scaler.unscale_(optimizer) before clipping, adding noise or thresholding",
)
def clip_scaled_gradients(evidence: Evidence) -> Iterator[Result]:
    """Gradients that carry the loss scale are not clipped, thresholded, noised or penalised as if they did not.

    However it is written: `clip_grad_norm_`, a hand-written clip, a hook, a foreach call, a penalty from `autograd.grad`. What counts is the
    effect: gradients before `unscale_` must be the true ones times the scale. So a threshold that is multiplied by the scale passes.

    Source: PyTorch docs, "Working with Unscaled Gradients" and "Gradient penalty".
    """
    yield from _from_divergence(evidence, "AMP102")
    yield from _without_effect(evidence)


@check(
    "AMP103",
    "step-outside-scaler",
    expected="an optimizer whose gradients carry a scale is stepped by its scaler, once an iteration",
    fix="call scaler.step(optimizer) instead of optimizer.step(), once",
)
def step_outside_scaler(evidence: Evidence) -> Iterator[Result]:
    """No optimizer uses scaled gradients outside its scaler's step, and none uses the same gradients twice.

    An optimizer whose loss was never scaled may be stepped directly, and so may one whose gradients the code unscales and tests itself.

    Source: PyTorch docs, `torch.amp.GradScaler.step`.
    """
    yield from _from_errors(evidence, "AMP103")
    faults = list(_from_divergence(evidence, "AMP103"))
    yield from faults
    if faults:
        return
    for trace in reading.traces(evidence):
        for event in trace.of("optimizer_step", "scaler_step"):
            if not event.get("reused") or not any(e.get("enabled") for e in trace.of("scaler_step", optimizer=event.optimizer)):
                continue
            if event.kind == "optimizer_step" and trace.inside(event, "scaler_step"):
                continue
            yield Fault(
                f"in call {event.call + 1} {reading.name(trace, event)} is stepped again with gradients that it has used already",
                event.site,
            )
            return
    overflow = evidence.overflow
    for planted in [*overflow.planted, *overflow.loose] if overflow is not None else ():
        assert overflow is not None
        trace = overflow.run.trace
        for event in trace.of("optimizer_step", call=planted.call, optimizer=planted.optimizer):
            outside = trace.inside(event, "scaler_step") is None
            if event.index > planted.event and planted.moved and event.get("took") and outside:
                yield Fault(
                    f"after an overflow in call {event.call + 1}, {reading.name(trace, event)} is stepped outside the scaler and uses "
                    "gradients that are not finite",
                    event.site,
                )
                return
    if not evidence.scaler_in_use():
        yield NotRun(evidence.why_no_scaler())


@check(
    "AMP104",
    "backward-unscaled",
    expected="every gradient that a scaler's optimizer uses carries that scale exactly once",
    fix="call backward on what scaler.scale(loss) returns",
)
def backward_unscaled(evidence: Evidence) -> Iterator[Result]:
    """Every gradient that is divided by the scale was multiplied by it, once.

    How the scale got there is free: on the loss, on a divided loss, in the seed of backward, at a cut. A gradient without it is made
    thousands of times too small by the division, and is not protected from underflow.

    Source: PyTorch docs, `torch.amp.GradScaler.scale`.
    """
    yield from _from_errors(evidence, "AMP104")
    yield from _from_divergence(evidence, "AMP104")
    yield from _without_effect(evidence)


@check(
    "AMP105",
    "update-once",
    expected="scaler.update() is called once an iteration, after the steps of all its optimizers",
    fix="call scaler.update() once, at the end of every path through the iteration",
)
def update_once(evidence: Evidence) -> Iterator[Result]:
    """`update()` ends each iteration, once, after every step.

    An error where it is missing, missing on a branch, or between a backward and the step that uses its gradients. A warning where
    several optimizers on one scaler each have an update of their own in one call: the growth tracker then runs that many times too fast.

    Source: PyTorch docs, `torch.amp.GradScaler.update` and "Working with Multiple Models, Losses, and Optimizers".
    """
    yield from _from_errors(evidence, "AMP105")
    trace = evidence.trace
    for event, update in reading.late(trace):
        seen = f"in call {event.call + 1} update() runs between the backward and the step of {reading.name(trace, event)}"
        yield Fault(seen, update.site)
        return
    alternating = reading.alternating_updates(trace)
    if alternating is not None:
        yield Fault(
            f"call {alternating.call + 1} updates the scaler once for each optimizer; the scale grows that many times too fast, and an overflow "
            "of one optimizer is followed by a clean update of another",
            alternating.site,
            level="warning",
        )
        return
    if not evidence.scaler_in_use():
        yield NotRun(evidence.why_no_scaler())
    elif not any(e.get("enabled") for e in trace.of("update")) and all(s.custom for s in trace.scalers if s.enabled):
        yield NotRun("the scaler updates itself inside step()")


@check(
    "AMP106",
    "unscale-once",
    expected="gradients are divided by the scale exactly once",
    fix="unscale once, by unscale_() or inside scaler.step(), and never by hand as well",
    follows=("AMP105",),
)
def unscale_once(evidence: Evidence) -> Iterator[Result]:
    """The scale is divided out once, by hand or by the scaler, not by both and not twice.

    Source: PyTorch docs, `torch.amp.GradScaler.unscale_`: once for each optimizer and step.
    """
    yield from _from_errors(evidence, "AMP106")
    yield from _from_divergence(evidence, "AMP106")
    yield from _without_effect(evidence)


@check(
    "AMP107",
    "accumulation",
    expected="an accumulation window has one scale, and as many micro-batches as its loss is divided by",
    fix="count the micro-batches since the last step, and update the scale only after the step",
    follows=("AMP105", "AMP109"),
)
def accumulation(evidence: Evidence) -> Iterator[Result]:
    """The micro-batches of a window add up to one step's gradient.

    The scale is constant inside a window: an `update()` in it would mix gradients of two scales. And where losses are divided by the
    size of their window, that size does not change inside one. Whether a loss ought to be divided at all is not judged: sums with a
    smaller learning rate are as good.

    Source: PyTorch docs, "Gradient accumulation".
    """
    yield from _from_errors(evidence, "AMP107")
    yield from _from_divergence(evidence, "AMP107")
    for trace in reading.traces(evidence):
        for event, update in reading.torn(trace):
            seen = f"in call {event.call + 1} the window of {reading.name(trace, event)} goes on over an update() of the scale"
            yield Fault(seen, update.site)
            return
    trace = evidence.trace
    windows = [window for _, window in reading.windows(trace)]
    uneven = reading.uneven(windows)
    if uneven is not None:
        divisors = [f"{d:g}" for d in reading.divisors(uneven)]
        yield Fault(
            f"the window that ends in call {uneven[-1].call + 1} holds {len(uneven)} micro-batches, whose losses are divided by "
            f"{', '.join(divisors)}; other windows are divided by their size",
            uneven[-1].site,
        )
        return
    carried = reading.carried_over(windows)
    if carried is not None:
        window, size = carried
        yield Fault(
            f"the window that ends in call {window[-1].call + 1} holds {len(window)} micro-batches, of which the first were left over "
            f"in call {window[0].call + 1}; losses are divided by {size}",
            window[0].site,
        )
        return
    if not windows:
        yield NotRun("no optimizer step was seen")


@check(
    "AMP108",
    "backward-in-autocast",
    level="warning",
    expected="backward runs outside the autocast region",
    fix="leave the autocast region before calling backward; backward ops run in the dtype of their forward ops anyway",
    follows=("AMP311",),
)
def backward_in_autocast(evidence: Evidence) -> Iterator[Result]:
    """Backward does not run inside an enabled autocast region.

    Source: PyTorch docs, `torch.autocast`: "Backward passes under autocast are not recommended".
    """
    for event in evidence.trace.of("backward"):
        if event.get("in_autocast") and event.get("accumulates"):
            yield Fault(f"backward is called inside an enabled autocast region, in call {event.call + 1}", event.site)
            return


@check(
    "AMP109",
    "zero-grad",
    expected="a gradient that was used, or left by a skipped step, is cleared before the next backward adds to it",
    fix="clear the gradients once an iteration: optimizer.zero_grad() before the backward or after the step, on every path",
    follows=("AMP103", "AMP310"),
)
def zero_grad(evidence: Evidence) -> Iterator[Result]:
    """Gradients are cleared between their use and the next backward, and not between the last backward and their use.

    By any means and any number of times. Gradients that no step uses (a first pass, a discriminator under the generator's loss) may be thrown
    away.

    Source: PyTorch docs, `torch.optim.Optimizer.zero_grad`.
    """
    yield from _from_errors(evidence, "AMP109")
    for scenario, trace in [("", evidence.trace), *reading.others(evidence)]:
        for event in trace.of("scaler_step", "optimizer_step"):
            if event.get("tainted"):
                when = " after a skipped step" if scenario == "overflow" else ""
                yield Fault(
                    f"the backward in call {event.call + 1} adds to gradients that {reading.name(trace, event)} has used already{when}; "
                    f"{event.get('tainted')} parameters hold the mixture",
                    event.get("tainted_site") or event.site,
                )
                return
            # a step that is skipped for an overflow that was seen before needs no gradients any more
            lost = event.get("took") or (event.kind == "scaler_step" and not event.get("done"))
            if event.get("cleared") and lost:
                yield Fault(
                    f"the gradients of {reading.name(trace, event)} were cleared between the backward and the step in call {event.call + 1}: it uses none",
                    event.site,
                )
                return
    lost = reading.thrown_away(evidence.trace)
    if lost is not None:
        window, site = lost
        yield Fault(
            f"in call {window[-1].call + 1} gradients are cleared before each of the {len(window)} micro-batches that losses are divided for",
            site,
        )
        return
    if not any(True for _ in evidence.trace.of("optimizer_step", "scaler_step")):
        yield NotRun("no optimizer step was seen")


@check(
    "AMP110",
    "several-optimizers",
    expected="each optimizer is unscaled and stepped by the scaler that scaled its gradients, before its update",
    fix="one scaler for each set of gradients; step only optimizers that received gradients",
)
def several_optimizers(evidence: Evidence) -> Iterator[Result]:
    """With several optimizers or scalers, each gradient meets one scaler, and each scaler steps only optimizers that have gradients.

    An optimizer without gradients, or on purpose not stepped, is passed over.

    Source: PyTorch docs, "Working with Multiple Models, Losses, and Optimizers".
    """
    yield from _from_errors(evidence, "AMP110")
    yield from _from_divergence(evidence, "AMP110")
    yield from _without_effect(evidence)


_BUILD = "see the error; if the contract builds alone, an earlier one left state in the process: reset that at its start"


@check(
    "AMP111",
    "runs",
    expected="the contract builds and its step runs",
    fix="see the error; run the step once by hand",
)
def runs(evidence: Evidence) -> Iterator[Result]:
    """The step runs without an error, torch's own scaler and dtype errors included.

    An error whose cause is the order of scaler calls is named by the check of that rule (AMP103 to AMP110), and this one follows it.

    Source: the messages of `torch.amp.GradScaler`.
    """
    for found in causes(evidence):
        if found.scenario != "natural":
            continue
        raised, mine = found.raised, found.id == "AMP111"
        ran = raised is None or raised.call >= 0 or raised.type == "ContractError"
        fix = found.fix or ("" if ran else _BUILD)
        yield Fault(found.seen, found.location, fix=fix if mine else "", follows=None if mine else found.id)
        return


@check(
    "AMP112",
    "schedule-once",
    level="warning",
    expected="a learning-rate schedule advances once for each optimizer step, not for each micro-batch",
    fix="call scheduler.step() after the optimizer step, where the accumulation window ends",
)
def schedule_once(evidence: Evidence) -> Iterator[Result]:
    """A per-step schedule advances once for each optimizer step taken.

    Judged on accumulation windows: between two backwards of one window, nothing of the optimizer's learning rate, momentum or betas
    changes. (A schedule that advances on a skipped step is AMP201.)

    Source: PyTorch docs, "How to adjust learning rate".
    """
    yield from _from_divergence(evidence, "AMP112")
    windows = reading.windows(evidence.trace)
    moved: list[list[Event]] = []
    for optimizer, window in windows:
        seen = [e.get("groups", {}).get(optimizer) for e in window]
        if len(set(seen)) > 1:
            moved.append(window)
    if len(moved) >= 2 or (moved and len(windows) == 1):
        late = moved[0][-1]
        yield Fault(f"the learning rate changes between the micro-batches of one window, in call {late.call + 1}", late.site)
    elif not windows:
        yield NotRun("no optimizer step was seen")
