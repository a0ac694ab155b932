"""Traces: what happened in a run, as data. `ampcheck.trace()` records any code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ampcheck.trace.events import Event as Event
from ampcheck.trace.events import Raised as Raised
from ampcheck.trace.events import Trace as Trace

if TYPE_CHECKING:
    from ampcheck.trace.recorder import Recorder as Recorder

__all__ = ["Event", "Raised", "Trace", "trace"]


@contextlib.contextmanager
def trace() -> Iterator[Trace]:
    """Record the mixed-precision events of any code.

    Returns:
        A context manager; it gives a `Trace` that fills while the block runs and is complete when it ends.

    Example:
        >>> with ampcheck.trace() as recorded:
        ...     train_one_step()
        >>> recorded.assert_order("scale", "backward", "unscale", "scaler_step", "update")
    """
    from ampcheck.trace.recorder import Recorder

    recorder = Recorder(inspect_graph=True)
    recorder.call = 0
    recorder.trace.calls = 1
    with recorder:
        yield recorder.trace
    recorder.finish()
