"""Family 3: what runs in which precision. So far the state that autocast is left in."""

from __future__ import annotations

from collections.abc import Iterator

from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, NotRun, Result, check


@check(
    "AMP311", "autocast-restored",
    expected="after the step, and after an exception inside it, autocast's state, cache and nesting are as before",
    fix="enter autocast in a with statement, and undo torch.set_autocast_* on every path",
)  # fmt: skip
def autocast_restored(evidence: Evidence) -> Iterator[Result]:
    """The step leaves autocast as it found it.

    A region that is entered and not left, or `torch.set_autocast_enabled` without its counterpart, puts everything after it under autocast:
    evaluation, the optimizer, the next step's loss.

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
