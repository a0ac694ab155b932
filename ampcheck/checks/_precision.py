"""Reading a census: which table of facts holds, what a model is kept in, what torch's kernels do by themselves."""

from __future__ import annotations

from collections.abc import Iterator

from ampcheck.evidence import Evidence
from ampcheck.registry import NotRun, Result
from ampcheck.trace.ops import LOW, NormUse, OpUse

#: eps and the smallest normal number of the 16-bit dtypes, as `torch.finfo` gives them.
FINFO_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
#: Kernel -> the name that people know.
NAMES = {
    "_softmax": "softmax", "_log_softmax": "log_softmax", "linalg_vector_norm": "the vector norm",
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss", "_ctc_loss": "ctc_loss", "multilabel_margin_loss_forward": "multilabel_margin_loss",
}  # fmt: skip


def name_of(op: str) -> str:
    return NAMES.get(op, op)


def inside(use: OpUse | NormUse) -> str:
    """` in fc1 (Linear)`, or nothing."""
    return f" in {use.where}" if use.where else ""


def trained(evidence: Evidence, *families: str) -> list[OpUse]:
    """Forward ops, recomputed ones included, that a backward went through."""
    return [u for u in evidence.census.of(*families) if u.trained and u.phase in ("forward", "recompute")]


def kept_low(evidence: Evidence) -> bool:
    """Whether the model itself is kept in 16 bits: most of its trainable weights are."""
    weights = evidence.census.weights
    low = sum(n for dtype, n in weights.items() if dtype in LOW)
    return 2 * low > sum(weights.values())


def without_census(evidence: Evidence) -> Iterator[Result]:
    """Why there is nothing to judge, where the census itself is the reason."""
    if evidence.census.failed:
        yield NotRun(f"the census of ops is not complete: {evidence.census.failed}")
    elif not evidence.trace.calls:
        yield NotRun("the step was never called")
