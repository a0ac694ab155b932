"""The terminal summary: a row for each contract, then what needs a person's eyes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from ampcheck.errors import OURS
from ampcheck.findings import ContractReport, Finding, Report
from ampcheck.report.state import state_lines
from ampcheck.report.text import describe, finding_text, one_line, place

__all__ = ["Line", "summary"]

#: A line and its style: "" (plain), "red", "yellow", "green" or "bold".
Line = tuple[str, str]
COUNTS = ("passed", "failed", "warned", "xfailed", "inconclusive", "not-run")
#: What an environment line shows at most; the JSON report has all of it.
SHOWN = 8


def summary(report: Report, root: Path) -> Iterator[Line]:
    """Lines of the summary: the environment, a row for each contract and device, then the findings.

    Findings that failed an item are one line each, since pytest shows them in full; warnings are shown in full here.

    Args:
        report: what was concluded and reported.
        root: the directory that paths are shown relative to.
    """
    facts = [f"{one_line(k, 40)} {one_line(v, 60)}" for k, v in report.environment.items() if isinstance(v, (str, int, float))]
    if facts:
        yield ", ".join(facts[:SHOWN]), ""
    yield from _table(report.contracts)
    yield from ((line, "") for line in state_lines(report.contracts))
    for contract in report.contracts:
        if not contract.facts.get("judged", contract.judged):
            yield f"NOT JUDGED: {_name(contract)}: no check of scaler order and scaling reached a verdict", "yellow"
    for contract in report.contracts:
        yield from _bugs(contract)
    for contract in report.contracts:
        for finding in contract.findings:
            yield from _finding(finding, contract, root)


def _table(contracts: list[ContractReport]) -> Iterator[Line]:
    head = ["contract", *COUNTS, "builds", "steps", "seconds"]
    rows = [[_name(contract), *_figures(contract)] for contract in contracts]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]

    def line(row: list[str]) -> str:
        figures = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        return "  ".join([row[0].ljust(widths[0]), *figures])

    yield line(head), "bold"
    for contract, row in zip(contracts, rows, strict=True):
        outcomes = {verdict.outcome for verdict in contract.verdicts}
        judged = contract.facts.get("judged", contract.judged)
        yield line(row), "red" if "failed" in outcomes else "yellow" if "warned" in outcomes or not judged else "green"


def _bugs(contract: ContractReport) -> Iterator[Line]:
    """A check that we ourselves kept from a verdict is skipped like any other, so it must not pass unseen."""
    reasons: dict[str, list[str]] = {}
    for verdict in contract.verdicts:
        if verdict.reason.startswith(OURS):
            reasons.setdefault(verdict.reason, []).append(verdict.check)
    for reason, checks in reasons.items():
        yield f"NOT JUDGED: {_name(contract)}: {', '.join(dict.fromkeys(checks))}: {one_line(reason, 200)}", "yellow"


def _figures(contract: ContractReport) -> list[str]:
    counts = Counter(verdict.outcome for verdict in contract.verdicts)
    builds, steps = sum(c.builds for c in contract.costs), sum(c.calls for c in contract.costs)
    seconds = sum(c.seconds for c in contract.costs)
    return [*(str(counts.get(name, 0)) for name in COUNTS), str(builds), str(steps), f"{seconds:.2f}"]  # type: ignore[call-overload]


def _name(contract: ContractReport) -> str:
    return f"{one_line(contract.contract, 120)} [{one_line(contract.device, 20)}]"


def _finding(finding: Finding, contract: ContractReport, root: Path) -> Iterator[Line]:
    decided = {v.outcome for v in contract.verdicts if v.check == finding.id and v.policy == finding.policy}
    if "warned" in decided or (finding.level == "warning" and not decided):
        yield "", ""
        yield from ((line, "yellow") for line in f"warning  {finding_text(finding, contract.device, root)}".splitlines())
        return
    kind, style = ("xfailed", "yellow") if "xfailed" in decided else ("error", "red")
    where = place(finding, root)
    yield f"{kind}  {describe(finding)}  {_name(contract)}{where and f' at {where}'}", style
