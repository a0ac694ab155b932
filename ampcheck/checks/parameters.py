"""Family 3, continued: the precision in which parameters and buffers are kept."""

from __future__ import annotations

from collections.abc import Iterator

from ampcheck.checks._precision import low_norms
from ampcheck.checks._state import listed, lost_share, unkept
from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, Inconclusive, NotRun, Result, check
from ampcheck.trace.ops import LOW


@check(
    "AMP307", "parameters-fp32",
    expected="autocast trains FP32 parameters and buffers, unless FP32 master copies exist",
    fix="leave the model in FP32 and let autocast cast; no .half(), .bfloat16() or .to(dtype) on what is trained",
)  # fmt: skip
def parameters_fp32(evidence: Evidence) -> Iterator[Result]:
    """Under autocast or a loss scaler, what is trained is kept in FP32.

    A parameter is judged where an optimizer trains it: frozen 16-bit weights are free, and so are 16-bit weights whose lost
    bits are kept elsewhere: an FP32 master copy that rounds to the weight and goes on doing so, stochastic rounding, or a
    compensation buffer. Where they are the parameters of norms alone, AMP301 or AMP302 says so. A 16-bit buffer is judged
    where a call on the whole module cast it, its module trains in FP32, and its values are not what they would be in FP32; running
    statistics also where they are but move.
    FP32 parameters that the loop rounds to 16 bits after each step are a warning.

    Source: PyTorch docs, `torch.autocast`: "you should not call half() or bfloat16() on your model(s)".
    """
    found = evidence.precision
    if found is None:
        yield NotRun("the natural run left no state")
        return
    if not any(set(dtypes) - {"float32"} for dtypes in evidence.trace.autocast.values()) and not evidence.scaler_in_use():
        yield NotRun("no autocast region was entered, and no loss scaler is used")
        return
    for entry in unkept(found):
        if isinstance(entry, Inconclusive):
            yield entry
            continue
        index, optimizer, low = entry
        dtypes = "/".join(sorted({p.dtype for p in low}))
        yield Fault(
            f"{optimizer.kind} trains {len(low)} of {len(optimizer.trained)} parameters in {dtypes} "
            f"({listed(p.name for p in low)}), without FP32 master copies{lost_share(found, index)}",
            next((p.site for p in low if p.site is not None), None) or optimizer.site,
            evidence={"parameters": [p.name for p in low], "dtype": dtypes},
            follows=low_norms(evidence),
        )
        return
    if found.narrowed:
        step = next((e for e in reversed(evidence.trace.events) if e.kind == "optimizer_step"), None)
        yield Fault(
            f"after each step the FP32 parameters {listed(found.narrowed)} are rounded to 16 bits and kept so: updates below half a "
            "unit in the last place are lost",
            step.site if step is not None else None,
            fix="take a copy for what is to be 16-bit, copy.deepcopy(model).half(), and leave the trained weights as they are",
            level="warning",  # by effect alone: it may be quantisation that is meant
        )
        return
    told = any(norm.running in LOW for norm in evidence.census.norms)  # AMP301 and AMP302 say so
    for buffer in found.natural.buffers:
        if buffer.updated and not told:
            yield Fault(
                f"the running statistics {buffer.name} were cast to {buffer.dtype} with their module, whose parameters are "
                "trained in FP32; what they gain in a step is lost in rounding",
                buffer.site,
                fix="keep running statistics in FP32: norm.float() brings back buffers and parameters",
            )
            return
        if buffer.name in found.rounded:
            yield Fault(
                f"the buffer {buffer.name} was cast to {buffer.dtype} with its module, whose parameters are trained in FP32; "
                "its values are rounded",
                buffer.site,
                fix="keep buffers that were computed in FP32 in FP32, or compute them again after the cast",
                evidence={"buffers": found.rounded},
            )
            return
