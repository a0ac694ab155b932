"""The items of one contract on one device: what they report, and what was concluded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ampcheck.contract import Options
from ampcheck.findings import ContractReport, Verdict

__all__ = ["BASELINE", "Group", "Slot"]

#: The item that tells what has changed: `contract[cpu-baseline]`.
BASELINE = "baseline"


@dataclass(frozen=True)
class Slot:
    """What one item reports: a check under a policy, "as-written" or a dtype."""

    check: str
    slug: str
    policy: str

    @property
    def id(self) -> str:
        if self.check == BASELINE:
            return BASELINE
        return f"{self.check}-{self.slug}" + ("" if self.policy == "as-written" else f"-{self.policy}")


@dataclass
class Group:
    """The items of one contract, with its parameters, on one device.

    Args:
        contract: node id of the function, `[params]` included.
        device: the device type.
        contract_options: what the contract declares.
        slots: what its items report.
        report: what was concluded; None until the first item runs.
        blamed: whether an item already fails for the whole contract.
        environment: what it was judged on.
    """

    contract: str
    device: str
    contract_options: Options
    slots: tuple[Slot, ...]
    report: ContractReport | None = None
    blamed: bool = False
    environment: dict[str, Any] = field(default_factory=dict)

    def without_verdicts(self, reason: str) -> ContractReport:
        """A report in which nothing was run, because of `reason`."""
        slots = [slot for slot in self.slots if slot.check != BASELINE]
        return ContractReport(
            self.contract,
            self.device,
            [Verdict(self.contract, slot.check, slot.slug, "not-run", slot.policy, reason) for slot in slots],
        )
