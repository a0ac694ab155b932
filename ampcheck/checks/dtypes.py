"""Family 3: what runs in which precision: norms, losses, sensitive ops, and the state that autocast is left in."""

from __future__ import annotations

from collections.abc import Iterator

from ampcheck.checks._precision import (
    FINFO_EPS,
    cast_site,
    inside,
    is_batch_norm,
    kept_low,
    low_norms,
    name_of,
    trained,
    without_census,
)
from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, Note, NotRun, Result, check
from ampcheck.trace.ops import LOW, NormUse, OpUse

#: What a model that is 16-bit altogether explains.
_LOW_MODEL = ("AMP307", "AMP403")


@check(
    "AMP301", "batchnorm-fp32",
    expected="BatchNorm's parameters, running statistics and batch statistics are float32",
    fix="keep BatchNorm modules in float32, buffers included: cast the others, or bring it back with norm.float()",
    follows=_LOW_MODEL,
)  # fmt: skip
def batchnorm_fp32(evidence: Evidence) -> Iterator[Result]:
    """BatchNorm keeps its parameters and statistics in FP32, whatever its activations are in.

    In 16 bits an increment of the running statistics is lost next to the running value, and batch statistics are rounded to
    8 or 11 bits. A model that is kept in 16 bits as a whole is AMP307's and AMP403's to judge; a frozen norm is left alone.
    What a kernel rounds by itself (`ampcheck facts` shows it for this device and torch) is a note, not a finding.

    Source: Micikevicius et al., "Mixed Precision Training", 2018, section 4; the measured tables of `ampcheck.facts`.
    """
    yield from _norms(evidence, "AMP301", [n for n in evidence.census.norms if is_batch_norm(n)], "BatchNorm")


@check(
    "AMP302", "layernorm-fp32",
    expected="the parameters and statistics of LayerNorm, GroupNorm, InstanceNorm, RMSNorm and SyncBatchNorm are float32",
    fix="keep the norm's parameters in float32, and give an eps that does not follow the dtype",
    follows=_LOW_MODEL,
)  # fmt: skip
def layernorm_fp32(evidence: Evidence) -> Iterator[Result]:
    """The other norms keep FP32 parameters and statistics too.

    On the CPU a kernel saves 16-bit statistics as soon as its weights are 16-bit. `RMSNorm(eps=None)` of some torch
    versions takes the eps of its input's dtype: 0.0078 for bfloat16. What a kernel rounds by itself, such as the bias
    gradient of the CPU's layer_norm, is a note.

    Source: the measured tables of `ampcheck.facts`; PyTorch docs, `torch.nn.RMSNorm`.
    """
    for norm in evidence.census.handmade:
        dtype = _epsilon_of(norm.epsilon)
        if norm.of_torch and dtype:
            yield Fault(
                f"{norm.module} ({norm.kind}) adds eps {norm.epsilon:g}, that of {dtype}, since none was given", norm.site
            )
            return
    yield from _norms(evidence, "AMP302", [n for n in evidence.census.norms if not is_batch_norm(n)], "other norm")


def _norms(evidence: Evidence, id: str, norms: list[NormUse], what: str) -> Iterator[Result]:
    notes: list[str] = []
    low_model, alone = kept_low(evidence), low_norms(evidence)
    for norm in norms:
        low = {
            part: dtype for part, dtype in (("parameters", norm.weight), ("running statistics", norm.running)) if dtype in LOW
        }
        moves = norm.training and (is_batch_norm(norm) or "running statistics" in low)  # statistics of its own, frozen or not
        if low and not low_model and (norm.trainable or moves):
            parts = " and ".join(low)
            saved = f", and it saves its statistics in {norm.statistics}" if norm.statistics in LOW else ""
            dtype = next(iter(low.values()))
            yield Fault(
                f"the {parts} of {norm.where} are {dtype}{saved}",
                cast_site(evidence, norm),
                evidence={"norm": norm.where, "dtypes": low, "kernel": norm.kernel},
                follows=id if id == alone else None,  # nothing else is 16-bit: AMP307 comes from this
            )
            return
        if norm.statistics in LOW and not low:
            notes.append(f"on {norm.device} {norm.kernel} saves the statistics of {norm.where} in {norm.statistics} by itself")
        notes += _lossy_bias(evidence, norm)
    if notes:
        yield Note(notes[0])
    elif not norms:
        yield from without_census(evidence)
        yield NotRun(f"no {what} ran")


def _lossy_bias(evidence: Evidence, norm: NormUse) -> list[str]:
    """The kernel's own loss in the bias gradient, as measured for this device and torch."""
    if evidence.facts is None or not norm.trainable or norm.input not in LOW:
        return []
    amp = None if norm.autocast == "off" else norm.autocast
    fact = evidence.facts.norm(norm.kernel, amp, norm.input, norm.weight or "none")
    if fact is None or fact.bias_gradient != "lossy":
        return []
    sums = f"on {norm.device} the backward of {norm.kernel} sums the bias gradient of {norm.where} in {norm.input}"
    return [f"{sums}: the kernel's own loss, not yours"]


@check(
    "AMP303", "handmade-norm",
    expected="a hand-written norm takes mean, variance and root in float32, with an eps that does not depend on the dtype",
    fix="x.float() before the statistics, and cast only the result back; give eps as a number",
    follows=_LOW_MODEL,
)  # fmt: skip
def handmade_norm(evidence: Evidence) -> Iterator[Result]:
    """A norm that is composed of small ops keeps its statistics in FP32.

    Recognised by its ops, not by its name: a variance or a mean of squares, its root, and the tensor divided by that.
    Neither a vector norm nor a root-mean-square that nothing is divided by is one. The eps of a 16-bit dtype (0.0078 for
    bfloat16) in place of a number is the same rule.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019; the reference implementations compute in float32.
    """
    for norm in evidence.census.handmade:
        name = f"{norm.module} ({norm.kind})" if norm.module else "a hand-written norm"
        if norm.low and not norm.of_torch:
            yield Fault(
                f"{name} computes {', '.join(norm.low)} in {norm.dtype}",
                norm.site,
                evidence={"ops": list(norm.low), "dtype": norm.dtype},
            )
            return
        dtype = _epsilon_of(norm.epsilon)
        if dtype and not norm.of_torch:
            yield Fault(
                f"{name} adds eps {norm.epsilon:g}, that of {dtype}: it follows the dtype of the input",
                norm.site,
                evidence={"eps": norm.epsilon},
            )
            return
    yield from without_census(evidence)


def _epsilon_of(value: float | None) -> str:
    """The 16-bit dtype whose machine epsilon this is."""
    return next((dtype for dtype, eps in FINFO_EPS.items() if value == eps), "")


@check(
    "AMP304", "loss-fp32",
    expected="the loss is computed and reduced in float32",
    fix="compute the loss inside the autocast region, or from outputs.float(); from logits, not from rounded probabilities",
    follows=_LOW_MODEL,
)  # fmt: skip
def loss_fp32(evidence: Evidence) -> Iterator[Result]:
    """Losses are FP32.

    A loss in bfloat16 moves in steps of 1/256 of itself; in float16 the loss scale itself, which is the first gradient,
    overflows at 65536. Judged: the loss ops that a backward goes through, every scalar that the loss is put together from,
    and probabilities that were rounded to 16 bits before their logarithm is taken.

    Source: PyTorch docs, autocast op reference: losses autocast to float32; `binary_cross_entropy_with_logits` instead of
    `binary_cross_entropy`.
    """
    for use in trained(evidence, "loss"):
        if use.low:
            yield Fault(
                f"{name_of(use.op)}{inside(use)} runs in {use.low}",
                use.site,
                fix=_left_low(use),
                evidence={"op": use.op, "autocast": use.autocast},
            )
            return
        if use.source and (use.op == "binary_cross_entropy" or use.autocast == "off"):
            what = "probabilities" if use.op == "binary_cross_entropy" else "log-probabilities"
            yield Fault(
                f"{name_of(use.op)}{inside(use)} is given {what} that were rounded to {use.source}",
                use.site,
                evidence={"op": use.op},
            )
            return
    for event in evidence.trace.of("backward", "scale"):
        low = next((dtype for dtype in event.get("loss_dtypes", ()) if dtype in LOW), None)
        if low is not None and event.get("accumulates", True):  # a gradient that is asked for by itself is no loss's
            # the backward of a sum is a view, so that it is not seen to pass through it
            graph = [u for u in evidence.census.of("reduction", "sensitive") if u.grad and u.outputs == (low,)]
            last = next((u for u in graph if u.trained and u.phase in ("forward", "recompute")), graph[-1] if graph else None)
            what = f"by {name_of(last.op)}{inside(last)} " if last is not None else ""
            yield Fault(
                f"the loss of call {event.call + 1} is reduced {what}to a {low} scalar",
                last.site if last is not None else event.site,
                fix=_left_low(last) if last is not None else "",
            )
            return
    yield from without_census(evidence)


def _left_low(use: OpUse) -> str:
    """What helps where the op is in an autocast region already, and this device's autocast leaves it as it comes."""
    if use.autocast == "off":
        return ""
    return f"compute the loss from outputs.float(): autocast on {use.device} leaves {name_of(use.op)} in the dtype that comes"


@check(
    "AMP305", "sensitive-op", level="warning",
    expected="softmax, exp, log, pow, norms, cumulative and long sums, and the angles of sin and cos are computed in float32",
    fix="x.float() before the op, or an autocast region (on a device where autocast casts it)",
    follows=("AMP303", "AMP304", "AMP310", "AMP308", *_LOW_MODEL),
)  # fmt: skip
def sensitive_op(evidence: Evidence) -> Iterator[Result]:
    """Ops that lose precision or range in 16 bits run in FP32 where training goes through them.

    Which ops autocast itself casts depends on the device: the measured tables say. Softmax inside an autocast region of a
    device that leaves it in 16 bits (the CPU) is a note. Angles are judged by size: a warning once neighbouring 16-bit
    numbers are 0.05 radians apart.

    Source: PyTorch docs, autocast op reference; the measured tables of `ampcheck.facts`.
    """
    notes: list[str] = []
    for angle in evidence.census.angles:
        yield Fault(
            f"the argument of {angle.op} was computed in {angle.dtype} and reaches {angle.largest:.4g}, where the numbers of "
            f"that dtype are {angle.step:.2g} radians apart",
            angle.site,
            fix="compute positions, frequencies and their product in float32",
        )
        return
    for use in trained(evidence, "sensitive", "reduction"):
        if use.source and use.op.startswith("log") and not use.low:
            yield Fault(f"{use.op}{inside(use)} is taken of probabilities that were rounded to {use.source}", use.site)
            return
        if (
            not use.low
            or use.outputs[0] not in LOW
            or (use.op == "pow" and use.low == "bfloat16")
            or (use.family == "reduction" and not use.long and not (use.squares and use.low == "float16"))
        ):
            continue
        if use.op in ("_softmax", "_log_softmax") and use.autocast != "off":
            notes.append(f"autocast on {use.device} leaves {name_of(use.op)}{inside(use)} in {use.low}")
            continue
        long = f" of {use.long} terms" if use.long else " of squares" if use.squares else ""
        yield Fault(
            f"{name_of(use.op)}{long}{inside(use)} runs in {use.low}",
            use.site,
            evidence={"op": use.op, "autocast": use.autocast},
        )
        return
    if notes:
        yield Note(notes[0])
    else:
        yield from without_census(evidence)


@check(
    "AMP311",
    "autocast-restored",
    expected="after the step, and after an exception inside it, autocast's state, cache and nesting are as before",
    fix="enter autocast in a with statement, and undo torch.set_autocast_* on every path",
)
def autocast_restored(evidence: Evidence) -> Iterator[Result]:
    """The step leaves autocast as it found it.

    A region that is entered and not left, or `torch.set_autocast_enabled` without its counterpart, puts everything after it
    under autocast: evaluation, the optimizer, the next step's loss.

    Source: PyTorch docs, `torch.autocast`: a context manager or decorator.
    """
    traces = [evidence.trace]
    if evidence.overflow is not None:
        traces.append(evidence.overflow.run.trace)
    for trace in traces:
        for call, what, site in trace.leaks:
            yield Fault(f"in call {call + 1} {what}", site)
            return
    if not evidence.trace.calls:
        yield NotRun("the step was never called")
