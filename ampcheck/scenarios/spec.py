"""What every scenario of one contract needs to know, and the account of what they took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ampcheck.findings import Cost
from ampcheck.policy import Policy
from ampcheck.scenarios.drive import Run, SharedState, drive

__all__ = ["Spec"]


@dataclass
class Spec:
    """One contract on one device.

    Args:
        make_step: builds the contract afresh.
        name: for messages.
        device: device type it is judged on.
        timeout: seconds for each run.
        progress: told the name of each scenario as it begins.
        beside: watchers of the natural run beside its own: each is a stage and a probe.
    """

    make_step: Callable[[], object]
    name: str
    device: str = "cpu"
    timeout: float | None = None
    progress: Callable[[str], None] | None = None
    beside: tuple[Any, ...] = ()
    costs: dict[str, Cost] = field(default_factory=dict)
    shared: SharedState = field(init=False)

    def __post_init__(self) -> None:
        self.shared = SharedState(self.name)

    def run(self, scenario: str, policy: Policy, *, calls: int | None, **how: Any) -> Run:
        """Drive the contract once (see `drive`) and put it on the account of `scenario`."""
        if self.progress is not None:
            self.progress(scenario)
        cost = self.costs.setdefault(scenario, Cost(scenario))
        cost.builds += 1
        began = time.perf_counter()
        try:
            run = drive(self.make_step, policy, name=self.name, calls=calls, timeout=self.timeout, shared=self.shared, **how)
        finally:
            cost.seconds += time.perf_counter() - began
        cost.calls += run.trace.calls
        return run
