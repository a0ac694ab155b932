"""Family 5: one step in 16 bits against the same step in FP32, judged by what rounding does to this model's own numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, Inconclusive, Note, NotRun, Result, check
from ampcheck.trace.deviations import Judgement, Parity, Quantity, judge, losses, series

#: What explains a deviation better than its size does.
_CAUSES = tuple(
    f"AMP{number}"
    for number in (
        *(101, 102, 103, 104, 105, 106, 107, 109, 110, 111),
        207,
        *(301, 302, 303, 304, 306, 307, 308, 309, 310),
        *(401, 403, 404, 405),
    )
)


def _measured(evidence: Evidence) -> Parity | Result:
    """What was measured under the policy that is judged, or why there is nothing to judge."""
    if "parity" in evidence.not_run:
        return NotRun(evidence.not_run["parity"])
    parity = evidence.parity.get(evidence.policy)
    if parity is None:
        return NotRun("the runs in 16 bits were not made")
    if parity.status == "nothing":
        return Inconclusive(parity.reason)
    return parity if parity.status == "judged" else NotRun(parity.reason)


def _judge(evidence: Evidence, quantity: Quantity, what: str, fix: str = "") -> Iterator[Result]:
    """Judge every series of a quantity: the worst excess, else why there is no verdict."""
    parity = _measured(evidence)
    if not isinstance(parity, Parity):
        yield parity
        return
    judged = [judge(one, parity.unit_roundoff) for one in series(parity, quantity)]
    if not judged:
        stepped = ("gradient", "tensor", "update")
        why = ": the step in 16 bits is skipped where the FP32 one is taken" if quantity in stepped and parity.steps else ""
        yield NotRun(f"no {quantity} to compare{why}")
        return
    worst = max(judged, key=lambda j: (j.state == "excess", j.state == "once", j.headroom))
    if worst.state == "excess" and parity.reordered:
        yield Inconclusive(
            f"{_named(worst, what)} meets other random numbers than in FP32: hooks of the backward draw from one generator, and casts "
            "change autograd's order; give each parameter a generator of its own, or draw after the backward"
        )
    elif worst.state == "excess":
        yield Fault(_seen(parity, worst, what), parity.part_site or parity.site, fix=fix, evidence=_facts(parity, worst))
    elif worst.state == "once":
        yield Inconclusive(
            f"decisions flipped: {_named(worst, what)} deviates by {worst.deviation:.1e}, "
            f"{worst.deviation / _floor(parity, worst):.0f} times what rounding explains, in one of {parity.units} judged "
            "steps alone; a larger batch averages such flips out"
        )
    elif all(j.state == "blind" for j in judged):
        rounding = min(j.rounding for j in judged)
        amount = f"by {rounding:.0%}" if math.isfinite(rounding) else "without bound"
        yield Inconclusive(
            f"rounding alone moves {_named(judged[0], what)} {amount} in this step: faults drown in it; start from trained weights, "
            "with samples that have something in common"
        )


def _floor(parity: Parity, judgement: Judgement) -> float:
    return max(judgement.rounding, parity.unit_roundoff)


def _named(judgement: Judgement, what: str) -> str:
    return f"{what} {judgement.series.label}".strip() if what else judgement.series.label


def _seen(parity: Parity, worst: Judgement, what: str) -> str:
    deviation = f"{worst.deviation:.1e}" if math.isfinite(worst.deviation) else "a non-finite amount"
    times = f"{worst.deviation / _floor(parity, worst):.0f} times" if math.isfinite(worst.deviation) else "beyond"
    where = f"; the runs part at {parity.part}" if parity.part else ""
    return (
        f"{_named(worst, what)} differs from the FP32 one by {deviation} of its norm, {times} the {_floor(parity, worst):.1e} "
        f"that rounding to {parity.dtype} explains ({worst.yardstick}), step after step{where}"
    )


def _facts(parity: Parity, worst: Judgement) -> dict[str, object]:
    facts: dict[str, object] = {
        "deviation": worst.deviation,
        "rounding": worst.rounding,
        "allowed": worst.allowed,
        "headroom": worst.headroom,
        "yardstick": worst.yardstick,
        "dtype": parity.dtype,
        "judged steps": parity.units,
        "what": worst.series.label,
    }
    return facts | ({"loss scale": parity.scale} if parity.scale is not None else {})


@check(
    "AMP501", "loss-parity",
    expected="losses and returned numbers differ from the FP32 ones by no more than rounding explains",
    fix="compute and reduce the loss in FP32, and report it unscaled",
    follows=("AMP502", *_CAUSES), per_dtype=True,
)  # fmt: skip
def loss_parity(evidence: Evidence) -> Iterator[Result]:
    """The loss, and every number that the step returns, is the FP32 one up to rounding.

    Looked at are what `scale()` is given and the numbers that the step returns, less those that are the loss scale or come from
    a gradient.

    Source: Micikevicius et al., "Mixed Precision Training" (ICLR 2018): reductions and losses are kept in FP32.
    """
    yield from _follows_the_scale(evidence)
    yield from _judge(evidence, "number", "")


def _follows_the_scale(evidence: Evidence) -> Iterator[Fault]:
    """A returned number that depends on the loss scale although the training does not, as the FP32 runs of AMP101 show."""
    exact, parity = evidence.exact, evidence.parity.get(evidence.policy)
    if exact is None or exact.returned is None or parity is None or parity.status != "judged":
        return
    for path, (plain, scaled) in exact.returned.values.items():
        label = f"the returned {path}"
        if label not in parity.not_numbers and plain not in (0.0, 1.0):
            yield Fault(
                f"{label} is {scaled:g} at a loss scale of {exact.returned.scale:g} and {plain:g} at 1, although the training "
                "is the same",
                exact.returned.site, evidence={"what": label, "loss scale": exact.returned.scale, "values": [plain, scaled]},
            )  # fmt: skip


@check(
    "AMP502", "gradient-parity",
    expected="the gradient that enters the optimizer differs from the FP32 one by no more than rounding explains",
    fix="look at what runs in 16 bits at the line named; what sums, squares or subtracts nearly equal numbers belongs in FP32",
    follows=("AMP505", *_CAUSES), per_dtype=True,
)  # fmt: skip
def gradient_parity(evidence: Evidence) -> Iterator[Result]:
    """The whole gradient of a step in 16 bits is the FP32 one up to rounding.

    The reference runs in FP32, whatever the code asks for. How much rounding moves this model's gradient is measured, not
    assumed: FP32 steps whose results are rounded to 16-bit mantissas. A step in 16 bits may deviate by a small multiple of
    that. An excess must be seen in two steps, each started from the reference's own state, since in a single one a ReLU or a
    maximum may have flipped. Where rounding alone moves the whole gradient by a third, as in a deep BatchNorm network, the
    parameters that it leaves clear are judged together, if they are a quarter of all.

    Source: Micikevicius et al., "Mixed Precision Training" (ICLR 2018).
    """
    yield from _judge(evidence, "gradient", "the gradient")


@check(
    "AMP503", "tensor-gradient-parity",
    expected="the gradient of each parameter differs from the FP32 one by no more than rounding explains",
    fix="look at how the parameter that is named is used in 16 bits",
    follows=("AMP502", "AMP505", *_CAUSES), per_dtype=True,
)  # fmt: skip
def tensor_gradient_parity(evidence: Evidence) -> Iterator[Result]:
    """The gradient of each parameter is the FP32 one up to rounding.

    Parameters that hold next to nothing of the gradient are left out, and those whose gradient is rounding noise in FP32
    already, such as a bias before BatchNorm.

    Source: as for AMP502.
    """
    found = list(_judge(evidence, "tensor", "the gradient of"))
    yield from found or _kernels(evidence)


def _kernels(evidence: Evidence) -> Iterator[Result]:
    """What a kernel, not the code, does to a gradient that is therefore left out."""
    parity = _measured(evidence)
    if not isinstance(parity, Parity) or not parity.left_out:
        return
    judged = [judge(one, parity.unit_roundoff) for one in series(replace(parity, left_out={}), "tensor")]
    lost = [j for j in judged if j.series.label in parity.left_out and j.state in ("excess", "once")]
    if lost:
        worst = max(lost, key=lambda j: j.deviation)
        why = parity.left_out[worst.series.label]
        yield Note(
            f"left out, as {why}: {worst.series.label} and {len(lost) - 1} more; it deviates by {worst.deviation:.1e} of its norm"
        )


@check(
    "AMP504", "update-parity",
    expected="the update of the parameters differs from the FP32 one by no more than rounding explains",
    fix="compare what the optimizer does in the two worlds: state, epsilon and weights belong in FP32",
    follows=("AMP502", "AMP503", "AMP505", *_CAUSES), per_dtype=True,
)  # fmt: skip
def update_parity(evidence: Evidence) -> Iterator[Result]:
    """What the optimizer adds to the parameters is the FP32 update up to rounding.

    16-bit parameters are left out: they cannot hold their update, which is the matter of AMP403.

    Source: as for AMP502.
    """
    yield from _judge(evidence, "update", "the update")


@check(
    "AMP505", "underflow",
    expected="next to nothing of the gradient is lost to zero in 16 bits",
    fix="raise the loss scale, or keep the backward of what is named in FP32",
    follows=_CAUSES, per_dtype=True,
)  # fmt: skip
def underflow(evidence: Evidence) -> Iterator[Result]:
    """Gradients do not underflow at the loop's own loss scale.

    Counted is the part of the gradient, by absolute value, that is zero in 16 bits and not in FP32, beyond what rounding alone
    makes zero.

    Source: Micikevicius et al., "Mixed Precision Training" (ICLR 2018), section 3.2.
    """
    parity = _measured(evidence)
    if not isinstance(parity, Parity):
        yield parity
        return
    found = losses(parity)
    repeated = [loss for loss in found if len(loss.units) >= 2]
    if repeated:
        worst = repeated[0]
        share = max(worst.units.values())
        names = [loss.label for loss in repeated if loss.label]
        which = f"of the gradient of {worst.label}" if worst.label else "of the gradient"
        tensors = f"; most of all in {', '.join(names[:3])}" if names and not worst.label else ""
        scale = f" at a loss scale of {parity.scale:g}" if parity.scale is not None else " without a loss scale"
        yield Fault(
            f"{share:.0%} {which} is zero in {parity.dtype} and not in FP32{scale}{tensors}",
            parity.part_site or parity.site,
            evidence={
                "share": share,
                "rounding": worst.rounding,
                "tensors": names,
                "loss scale": parity.scale,
                "dtype": parity.dtype,
            },
        )
    elif found:
        yield Inconclusive(
            "in one judged step alone gradients are zero in 16 bits that are not in FP32: a decision may have flipped"
        )


@check(
    "AMP506", "statistics-parity",
    expected="the running statistics of BatchNorm after the step are the FP32 ones up to rounding",
    fix="keep running statistics, and what they are computed from, in FP32",
    follows=("AMP502", *_CAUSES), per_dtype=True,
)  # fmt: skip
def statistics_parity(evidence: Evidence) -> Iterator[Result]:
    """Running means and variances after the step are the FP32 ones up to rounding.

    Source: PyTorch docs, "Autocast Op Reference": batch_norm keeps FP32 statistics.
    """
    yield from _judge(evidence, "statistics", "")
