"""Family 3: precision on its way through custom Functions, recomputation and overflow."""

from __future__ import annotations

from collections.abc import Iterator

from ampcheck.checks._errors import causes
from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, Inconclusive, NotRun, Result, check

_PHASES = {"recompute": ", as the backward recomputes it", "gradients": ", on gradients", "backward": ", in the backward"}
_BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}


@check(
    "AMP308", "custom-function",
    expected="a custom autograd.Function keeps one precision in forward and backward",
    fix="decorate forward with torch.amp.custom_fwd and backward with torch.amp.custom_bwd; cast_inputs= fixes the dtype",
    follows=("AMP309",),
)  # fmt: skip
def custom_function(evidence: Evidence) -> Iterator[Result]:
    """A custom autograd Function computes its backward in the precision of its forward.

    The backward of a Function is Python code that autograd calls outside the autocast region, or inside another one: what it
    computes in follows from the tensors it is given, unless `custom_bwd` restores the state. An error if matmuls of the
    backward run in 16 bits and those of the forward do not run in the same (they overflow or underflow where the forward does
    not); a warning if sums or other results do so, or if matmuls fall back to FP32. A forward or backward that raises because
    two dtypes meet is this rule too.

    Source: PyTorch docs, "Automatic Mixed Precision examples", functions that need a particular dtype; `torch.amp.custom_fwd`.
    """
    for cause in causes(evidence):
        if cause.id == "AMP308":
            yield Fault(cause.seen, cause.location, fix=cause.fix)
            return
    flow = evidence.natural.notes.get("flow")
    functions = [] if flow is None else flow.functions
    for level in ("error", "warning"):
        for use in functions:
            for kind, what in (("matmul", "matmuls"), ("reduction", "sums"), ("any", "results")):
                forward, backward = use.forward.get(kind, set()), use.backward.get(kind, set())
                low = sorted(d for d in backward - forward if _BITS.get(d) == 16)
                other = low or sorted(backward - forward)
                if not forward or not other or use.recomputes:
                    continue
                if (level == "error") != (kind == "matmul" and bool(low)):
                    continue
                if not low and kind != "matmul":
                    continue  # adding up in FP32 what was computed in 16 bits is what one wants
                yield Fault(
                    f"{use.name} computes the {what} of its forward in {' and '.join(sorted(forward))} and those of its "
                    f"backward in {other[0]}, in call {use.call + 1}",
                    use.sites.get(("backward", kind, other[0])),
                    level="error" if level == "error" else "warning",
                    evidence={"function": use.name, "forward": sorted(forward), "backward": sorted(backward)},
                )
                return
    if not functions:
        yield NotRun("no custom autograd Function was seen")


@check(
    "AMP309", "checkpoint-recompute",
    expected="activation checkpointing recomputes under the autocast state of the forward",
    fix="restore autocast's enabled flag and dtype of the forward around the recomputation, as torch.utils.checkpoint does",
)  # fmt: skip
def checkpoint_recompute(evidence: Evidence) -> Iterator[Result]:
    """What a backward computes again, it computes in the dtypes of the forward.

    Whoever recomputes: `torch.utils.checkpoint`, reentrant or not, or a custom Function that runs its forward again. The
    recomputed matmuls are compared with those of the same module and line in the forward of the same call. A checkpoint that
    raises because it saved other tensors the second time (a cast that the first forward took from a cache) is this rule too.

    Source: PyTorch docs, `torch.utils.checkpoint`: the autocast state of the forward is saved and restored.
    """
    for cause in causes(evidence):
        if cause.id == "AMP309":
            yield Fault(cause.seen, cause.location, fix=cause.fix)
            return
    flow = evidence.natural.notes.get("flow")
    for again in () if flow is None else flow.recomputed:
        where = f" of {again.module}" if again.module else ""
        yield Fault(
            f"the backward of call {again.call + 1} recomputes {again.op}{where} in {again.dtype}; the forward computed it in "
            f"{' and '.join(again.forward)}",
            again.site,
            evidence={"op": again.op, "forward": list(again.forward), "recomputed": again.dtype},
        )
        return
    if flow is None or not flow.recompute_ops:
        yield NotRun("the backward recomputes nothing")


@check(
    "AMP310", "overflow-origin",
    expected="no op turns finite values into inf or NaN in 16 bits where FP32 stays finite",
    fix="run this op in FP32, bring its input into range before it, or use an epsilon that 16 bits can hold",
    follows=("AMP304", "AMP308", "AMP309", "AMP404"),
)  # fmt: skip
def overflow_origin(evidence: Evidence) -> Iterator[Result]:
    """The first op that turns finite values into inf or NaN in 16 bits where the same computation in FP32 is finite.

    In the forward, recomputation and buffers included, and in what is done to gradients (a norm in half, a compression).
    Values that are absorbed do not count: a mask of -inf under a softmax, a branch that `where()` leaves, a saturated sigmoid.
    In the backward an overflow is how a dynamic loss scale finds its level; it counts only where no smaller scale would help.
    The run is repeated beside a shadow in FP32 where it gives reason to: a 16-bit result that is not finite, a skipped step at
    a scale that had been good, a returned number that is not finite.

    Source: Micikevicius et al., "Mixed Precision Training" (2018); IEEE 754 binary16 ends at 65504 and begins at 6e-8.
    """
    if evidence.origin is None:
        reason = evidence.not_run.get("origin")
        if reason:
            yield NotRun(reason)
        return
    for origin in evidence.origin.found:
        bits = f"{origin.count} of {origin.total} elements" if origin.total > 1 else "the result"
        where = f" in {origin.module}" if origin.module else ""
        during = _PHASES.get(origin.phase, "")
        facts = {name: getattr(origin, name) for name in ("op", "module", "phase", "dtype", "widened", "fits", "scale")}
        yield Fault(
            f"{origin.op}{where} turns finite values into {origin.kind} in {origin.dtype}{during}, in call "
            f"{origin.call + 1} ({bits}; FP32 gives at most {origin.widened:.3g} there); {origin.effect}",
            origin.site,
            evidence=facts,
            follows="AMP303" if _in_low_norm(evidence, origin.module) else None,
        )
        return
    if _only_skips(evidence):
        yield Inconclusive("every step was skipped, and no op was found that 16 bits alone made non-finite")


def _in_low_norm(evidence: Evidence, module: str) -> bool:
    """Whether it is a hand-written norm whose statistics are in 16 bits: they are what overflows, there and in its backward."""
    return any(norm.low and not norm.of_torch and norm.module == module for norm in evidence.census.handmade if module)


def _only_skips(evidence: Evidence) -> bool:
    steps = [e for e in evidence.trace.of("scaler_step") if e.get("enabled") and e.get("done")]
    later = evidence.recovery is not None and any(e.get("took") for e in evidence.recovery.trace.of("scaler_step"))
    return bool(steps) and not any(e.get("took") for e in steps) and not later
