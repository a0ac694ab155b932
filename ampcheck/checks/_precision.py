"""Reading a census: which table of facts holds, what a model is kept in, what torch's kernels do by themselves."""

from __future__ import annotations

from collections.abc import Iterator

from ampcheck.checks._state import unkept
from ampcheck.evidence import Evidence
from ampcheck.findings import Location
from ampcheck.registry import Inconclusive, NotRun, Result
from ampcheck.trace.ops import LOW, NormUse, OpUse

#: eps and the smallest normal number of the 16-bit dtypes, as `torch.finfo` gives them.
FINFO_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
#: Kernel -> the name that people know.
NAMES = {
    "_softmax": "softmax", "_log_softmax": "log_softmax", "linalg_vector_norm": "the vector norm",
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss", "_ctc_loss": "ctc_loss", "multilabel_margin_loss_forward": "multilabel_margin_loss",
}  # fmt: skip

_BATCH_NORMS = (
    "native_batch_norm",
    "_native_batch_norm_legit",
    "_batch_norm_with_update",
    "cudnn_batch_norm",
    "miopen_batch_norm",
    "batch_norm_stats",
)


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


def is_batch_norm(norm: NormUse) -> bool:
    return norm.kernel in _BATCH_NORMS and not norm.kind.startswith(("InstanceNorm", "LazyInstanceNorm", "SyncBatchNorm"))


def low_norms(evidence: Evidence) -> str | None:
    """The check of norms that explains all 16-bit parameters that are trained, if they belong to norms alone."""
    found = evidence.precision
    low = (
        {p.name.rpartition(".")[0] for e in unkept(found) if not isinstance(e, Inconclusive) for p in e[2]} if found else set()
    )
    norms = {n.module: n for n in evidence.census.norms if n.weight in LOW}
    if not low or not low <= norms.keys() or kept_low(evidence):
        return None
    return "AMP301" if any(is_batch_norm(norms[name]) for name in low) else "AMP302"


def cast_site(evidence: Evidence, norm: NormUse) -> Location | None:
    """Where the parameters of a norm got their dtype; else where the norm is called."""
    found = evidence.precision
    held = [p for o in found.natural.optimizers.values() for p in o.trained] if found else []
    return next((p.site for p in held if p.low and p.site and p.name.rpartition(".")[0] == norm.module), norm.site)


def without_census(evidence: Evidence) -> Iterator[Result]:
    """Why there is nothing to judge, where the census itself is the reason."""
    if evidence.census.failed:
        yield NotRun(f"the census of ops is not complete: {evidence.census.failed}")
    elif not evidence.trace.calls:
        yield NotRun("the step was never called")
