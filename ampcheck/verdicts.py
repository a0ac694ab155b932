"""Lets the checks judge the evidence, and settles what each item's outcome is and which findings stand in the report."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from ampcheck.contract import Options
from ampcheck.errors import ours
from ampcheck.evidence import Evidence
from ampcheck.findings import ContractReport, Finding, Level, Outcome, Verdict
from ampcheck.registry import Check, Fault, Inconclusive, Note, NotRun, load_checks, matches

__all__ = ["decide", "narrow"]

#: A check's id and the policy it is judged under: "as-written", or a declared dtype.
Item = tuple[str, str]
#: Families that say nothing about a contract which uses no gradient in an optimizer's step; they must not pass silently.
_NEED_STEPS = ("AMP10", "AMP110", "AMP112", "AMP2", "AMP4", "AMP5")
_NO_STEP = (
    "no optimizer used a gradient in {calls} calls of the step; if it is not torch's, step it through the scaler or name it in "
    "Training(optimizers=...)"
)


def _steps(evidence: Evidence) -> bool:
    return any(e.get("grads") for e in evidence.trace.of("optimizer_step", "scaler_step"))


def decide(report: ContractReport, evidence: Evidence, options: Options) -> None:
    """Let each check judge, settle which findings only follow from others, and apply xfail, strict and ignore."""
    results: dict[Item, tuple[Check, list[Any], float]] = {}
    for id, one in load_checks().items():
        for policy in options.dtypes if one.per_dtype and options.dtypes is not None else ("as-written",):
            began = time.perf_counter()
            results[id, policy] = (one, _judged(one, replace(evidence, policy=policy)), time.perf_counter() - began)
    faults = {item: found[0] for item, (_, found, _) in results.items() if found and isinstance(found[0], Fault)}
    leads = _leads(results, faults, options)
    for item, (one, found, seconds) in results.items():
        report.verdicts.append(_verdict(report, item, one, found, seconds, faults, leads, options))
    report.findings = _ordered(
        [
            v.finding
            for v in report.verdicts
            if v.finding is not None and v.follows is None and v.outcome in ("failed", "warned")
        ]
    )
    built = evidence.trace.raised is None or evidence.trace.raised.call >= 0
    if not built:
        reason = f"the contract could not be built: {evidence.trace.raised}"
        report.verdicts = [
            v if v.check == "AMP111" else replace(v, outcome="not-run", reason=reason, finding=None, follows=None)
            for v in report.verdicts
        ]
        report.findings = [f for f in report.findings if f.id == "AMP111"]


def narrow(report: ContractReport, ids: tuple[str, ...] | None) -> None:
    """Leave in a report what was asked for, and the findings that it follows from.

    Args:
        report: of one contract, with all that was judged. Whether any check reached a verdict is kept in its facts.
        ids: of the checks asked for; `None` for all.
    """
    report.facts["judged"] = report.judged
    if ids is None:
        return
    report.verdicts = [verdict for verdict in report.verdicts if verdict.check in ids]
    shown = {verdict.follows or verdict.check for verdict in report.verdicts}
    report.findings = [finding for finding in report.findings if finding.id in shown]


def _judged(one: Check, evidence: Evidence) -> list[Any]:
    """A check's results: faults first; a fault makes the reasons for having no verdict moot."""
    if evidence.trace.raised is not None and evidence.trace.raised.call < 0 and one.id != "AMP111":
        return []
    if one.id.startswith(_NEED_STEPS) and evidence.trace.raised is None and not _steps(evidence):
        return [NotRun(_NO_STEP.format(calls=evidence.trace.calls))]
    try:
        found = list(one.function(evidence))
    except Exception as error:  # the user's merge is not blocked by a bug of ours, and the other checks go on
        return [Inconclusive(ours(error))]
    return sorted(found, key=lambda r: (not isinstance(r, Fault), not isinstance(r, Inconclusive)))[:1]


def _level(one: Check, fault: Fault, options: Options) -> Level:
    level = fault.level or one.level
    if level == "warning" and (
        options.strict is True or (isinstance(options.strict, tuple) and matches(one.id, options.strict))
    ):
        return "error"
    return level


def _leads(
    results: dict[Item, tuple[Check, list[Any], float]], faults: dict[Item, Fault], options: Options
) -> dict[Item, Item]:
    """For each fault that another one explains, the id of that one, followed to its end."""
    leads: dict[Item, Item] = {}
    for item, fault in faults.items():
        id, policy = item
        for other in [fault.follows] if fault.follows else results[item][0].follows:
            lead = next((i for i in ((other, policy), (other, "as-written")) if i in faults), None) if other != id else None
            if lead is not None and _level(results[lead][0], faults[lead], options) == "error":
                leads[item] = lead
                break
    for item in list(leads):
        seen = {item}
        while leads[item] in leads and leads[leads[item]] not in seen:
            seen.add(leads[item])
            leads[item] = leads[leads[item]]
    return leads


def _verdict(
    report: ContractReport,
    item: Item,
    one: Check,
    found: list[Any],
    seconds: float,
    faults: dict[Item, Fault],
    leads: dict[Item, Item],
    options: Options,
) -> Verdict:
    def verdict(outcome: Outcome, reason: str = "", **more: Any) -> Verdict:
        return Verdict(report.contract, one.id, one.slug, outcome, item[1], reason, seconds, **more)

    leading = leads.get(item)
    lead = leading[0] if leading is not None else None
    expected_failure = options.xfail.get(lead or one.id)
    result = found[0] if found else None
    if isinstance(result, Fault):
        finding = _finding(report.contract, one, item[1], result, _level(one, result, options))
        if expected_failure is not None:
            return verdict("xfailed", expected_failure, finding=finding, follows=lead)
        if matches(lead or one.id, options.ignore):
            return verdict("not-run", f"ignored: {lead or one.id}", follows=lead)
        if leading is not None:
            level = _level(load_checks()[leading[0]], faults[leading], options)
            return verdict("failed" if level == "error" else "warned", f"follows from {lead}", follows=lead, finding=finding)
        return verdict("failed" if finding.level == "error" else "warned", finding.seen, finding=finding)
    elsewhere = any(id == one.id for id, _ in faults)  # a check that is judged for each dtype may fail in another one
    if one.id in options.xfail and not isinstance(result, Inconclusive) and not elsewhere:
        return verdict("failed", "XPASS(strict)")
    if isinstance(result, Inconclusive):
        return verdict("inconclusive", result.reason)
    if isinstance(result, Note):
        return verdict("passed", result.reason)
    if result is not None:
        return verdict("not-run", result.reason)
    return verdict("passed")


def _finding(contract: str, one: Check, policy: str, fault: Fault, level: Level) -> Finding:
    return Finding(
        one.id,
        one.slug,
        level,
        contract,
        fault.expected or one.expected,
        fault.seen,
        fault.fix or one.fix,
        policy,
        location=fault.location,
        evidence=fault.evidence or {},
    )


def _ordered(findings: list[Finding]) -> list[Finding]:
    """Errors before warnings; within them primary rules (order, then the scaler) by id, the general AMP101 and AMP111 last of the errors."""
    return sorted(findings, key=lambda f: (f.level != "error", f.id[3] in "69", f.id in ("AMP101", "AMP111"), f.id))
