"""What a run concludes, as plain data: findings, verdicts and the report that carries them.

Nothing here imports torch, so that reports can be read, merged and written anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["ContractReport", "Cost", "Finding", "Level", "Location", "Outcome", "Report", "Verdict"]

Level = Literal["error", "warning"]
Outcome = Literal["passed", "failed", "warned", "inconclusive", "not-run", "xfailed"]
#: Version of the JSON schema written by `Report.to_json`.
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Location:
    """A line of the user's code: absolute `file`, 1-based `line`, and the `function` that holds it."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


@dataclass(frozen=True)
class Finding:
    """One broken rule, in five beats: the rule, expected against seen, where, how to fix it, how to silence it."""

    id: str
    slug: str
    level: Level
    contract: str
    expected: str
    seen: str
    fix: str
    policy: str = "as-written"
    location: Location | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    #: The shell command that runs the item of this finding alone; "" where there is none (`check()`).
    reproduce: str = ""

    def to_json(self) -> dict[str, Any]:
        where = self.location
        return {
            "id": self.id,
            "slug": self.slug,
            "level": self.level,
            "contract": self.contract,
            "policy": self.policy,
            "expected": self.expected,
            "seen": self.seen,
            "fix": self.fix,
            "location": None if where is None else {"file": where.file, "line": where.line, "function": where.function},
            "evidence": dict(self.evidence),
            "reproduce": self.reproduce,
        }


@dataclass(frozen=True)
class Verdict:
    """The outcome of one check on one contract under one policy: one pytest item.

    `finding` is the finding that decided it (with "failed", "warned" and "xfailed"); `follows` is the id of another
    check whose finding explains this one, which then stands in the report alone.
    """

    contract: str
    check: str
    slug: str
    outcome: Outcome
    policy: str = "as-written"
    reason: str = ""
    seconds: float = 0.0
    follows: str | None = None
    finding: Finding | None = None

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {
            "contract": self.contract,
            "check": self.check,
            "policy": self.policy,
            "outcome": self.outcome,
            "reason": self.reason,
            "seconds": round(self.seconds, 6),
        }
        if self.follows is not None:
            entry["follows"] = self.follows
        return entry


@dataclass
class Cost:
    """What one scenario of one contract took: how often the contract was built, calls of `step`, wall seconds."""

    scenario: str
    builds: int = 0
    calls: int = 0
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"scenario": self.scenario, "builds": self.builds, "calls": self.calls, "seconds": round(self.seconds, 6)}


@dataclass
class ContractReport:
    """Everything that was concluded about one contract on one device. `findings` are primary first, then by id."""

    contract: str
    device: str
    verdicts: list[Verdict] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def judged(self) -> bool:
        """Whether at least one check of families 1-2 reached a verdict on what the step does."""
        return any(
            v.outcome in ("passed", "failed", "warned", "xfailed") and v.check[3] in "12" and v.check != "AMP111"
            for v in self.verdicts
        )

    @property
    def ok(self) -> bool:
        return not any(v.outcome == "failed" for v in self.verdicts)


@dataclass
class Report:
    """All contracts of one session, with the environment they ran in."""

    environment: dict[str, Any] = field(default_factory=dict)
    contracts: list[ContractReport] = field(default_factory=list)
    #: What the contracts were compared with, and what has changed; see `ampcheck.baseline`.
    baseline: dict[str, Any] | None = None
    changes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        return [finding for contract in self.contracts for finding in contract.findings]

    @property
    def verdicts(self) -> list[Verdict]:
        return [verdict for contract in self.contracts for verdict in contract.verdicts]

    @property
    def ok(self) -> bool:
        """True if no check failed; warnings do not fail, expected failures do not either."""
        return all(contract.ok for contract in self.contracts)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": SCHEMA_VERSION,
            "environment": self.environment,
            "findings": [finding.to_json() for finding in self.findings],
            "items": [verdict.to_json() for verdict in self.verdicts],
            "costs": [
                {"contract": c.contract, "device": c.device, **cost.to_json()} for c in self.contracts for cost in c.costs
            ],
        }
