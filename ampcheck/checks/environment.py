"""Family 9: what the verdicts rest on: a step that repeats, and the machine."""

from __future__ import annotations

from collections.abc import Iterator

from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, NotRun, Result, check


@check(
    "AMP901",
    "reproducible",
    level="warning",
    expected="the FP32 step gives the same bits twice",
    fix="seed every generator inside the contract, and use deterministic algorithms; exact checks use the step's own spread until then",
    follows=("AMP111",),
)
def reproducible(evidence: Evidence) -> Iterator[Result]:
    """Two builds with the same seeds do the same to the bit.

    Where they do not, exact checks are judged against the step's own spread, and are inconclusive where a fault could hide in it.

    Source: PyTorch docs, "Reproducibility".
    """
    exact = evidence.exact
    if exact is None or exact.reproducible is None:
        yield NotRun(
            evidence.not_run.get("exact") or (exact.reason if exact is not None and exact.reason else "no FP32 run was made")
        )
    elif not exact.reproducible:
        yield Fault(f"two FP32 runs with the same seeds differ by {exact.spread:.1e}")


@check(
    "AMP902",
    "hardware",
    expected="device, dtypes, TF32 flags and versions stand in the report",
    fix="nothing to mend: it is never a finding",
)
def hardware(evidence: Evidence) -> Iterator[Result]:
    """Never a finding: what the machine is stands in every report, so that two reports can be compared.

    Source: PyTorch docs, `torch.backends` and `torch.cuda.get_device_properties`.
    """
    if not evidence.environment:
        yield NotRun("the environment was not recorded")
