"""All that was recorded of one contract on one device: what the checks read. Data only, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ampcheck.trace.events import Trace
from ampcheck.trace.ops import Census

if TYPE_CHECKING:
    from ampcheck.facts import Table
    from ampcheck.scenarios.drive import Run
    from ampcheck.scenarios.exact import Exactness
    from ampcheck.scenarios.gain import Gain
    from ampcheck.scenarios.origin import Origins
    from ampcheck.scenarios.overflow import Overflow
    from ampcheck.scenarios.precision import Precision
    from ampcheck.scenarios.resume import Resume
    from ampcheck.trace.deviations import Parity

__all__ = ["Evidence"]


@dataclass
class Evidence:
    """What the scenarios left.

    Args:
        contract, device: which one.
        natural: the run as written; its trace is there even if it raised.
        exact: FP32 over loss scales; `overflow`, `resume`, `recovery`: the scenarios of those names.
        origin: where the first NaN or inf came from; `None` where nothing gave reason to ask.
        precision: dtypes of parameters, optimizer state and averages, of the natural run and of one without 16-bit rounding.
        gain: time and memory against FP32, on a GPU.
        facts: what autocast really does on this device under this torch, as measured.
        discrepancies: where a copy of the contract's own scaler does not do what the reference model does.
        parity: policy ("as-written", or a declared dtype) -> how gradients, updates and numbers compare with FP32.
        policy: the one that a check which is judged for each dtype is to judge.
        not_run: scenario -> why there is no evidence of it.
        declared: what `Training` declared that checks care about.
    """

    contract: str
    device: str
    natural: Run
    exact: Exactness | None = None
    overflow: Overflow | None = None
    precision: Precision | None = None
    resume: Resume | None = None
    recovery: Run | None = None
    origin: Origins | None = None
    facts: Table | None = None
    gain: Gain | None = None
    discrepancies: list[Any] | None = None
    parity: dict[str, Parity] = field(default_factory=dict)
    policy: str = "as-written"
    not_run: dict[str, str] = field(default_factory=dict)
    declared: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trace(self) -> Trace:
        """The natural run's trace."""
        return self.natural.trace

    @property
    def census(self) -> Census:
        """The ops of the natural run; an empty census where none was taken."""
        found = self.natural.notes.get("census")
        return found if isinstance(found, Census) else Census(failed=self.natural.notes.get("unwatched", "no census was taken"))

    def scaler_in_use(self) -> bool:
        """Whether an enabled scaler scaled, unscaled or stepped anything in the natural run."""
        return any(e.get("enabled") for e in self.trace.of("scale", "unscale", "scaler_step"))

    def why_no_scaler(self) -> str:
        if not self.trace.scalers:
            return "no loss scaler"
        return (
            "the loss scaler is disabled" if not any(s.enabled for s in self.trace.scalers) else "the loss scaler is not used"
        )
