"""What the items said, gathered across workers, and the report that is made of it."""

from __future__ import annotations

from typing import Any

import pytest

from ampcheck import registry
from ampcheck.config import Settings
from ampcheck.findings import ContractReport, Outcome, Report, Verdict
from ampcheck.report import json as json_report
from ampcheck.report import terminal, unjudged
from ampcheck.report.changes import changes_summary
from ampcheck.report.junit import properties
from ampcheck.report.plain import contract_to_plain, cost_of, finding_of, plain, verdict_of, verdict_to_plain
from ampcheck.report.text import one_line, relative
from ampcheck.session.collect import NONE_FOUND, Found
from ampcheck.session.gate import Gate, Selection, Summary
from ampcheck.session.group import BASELINE
from ampcheck.session.items import ContractItem
from ampcheck.session.publishing import Publishing
from ampcheck.session.reproduce import command
from ampcheck.session.scheduling import group_of, parts_of

__all__ = ["Results"]

#: How pytest counts an outcome, its letter and its word with -v (one word for all skips: pytest groups them under it).
STATUS = {
    "warned": ("passed", "w", "WARNED"),
    "inconclusive": ("skipped", "i", "SKIPPED"),
    "not-run": ("skipped", "n", "SKIPPED"),
}
COLOURS: dict[str, dict[str, bool]] = {"": {}, **{name: {name: True} for name in ("red", "yellow", "green", "bold")}}


class Results:
    """Records travel as plain data on pytest's own reports, so that it is all one whether a worker is another process."""

    def __init__(self, config: pytest.Config, settings: Settings, gate: Gate) -> None:
        self.gate, self.gated = gate, Summary()
        self.config = config
        self.settings = settings
        self.items: dict[str, dict[str, Any]] = {}
        self.contracts: dict[tuple[str, str], dict[str, Any]] = {}
        self.environments: dict[str, dict[str, Any]] = {}
        self.found = Found()
        self.workers = 0
        self.problem = ""
        self.is_worker = hasattr(config, "workerinput")
        writes = not self.is_worker and not config.getoption("collectonly")
        self.publishing = Publishing(settings, config.rootpath) if writes else None

    def attach(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Put what an item has to say on its report."""
        if not isinstance(item, ContractItem) or report.when == "teardown" or (report.when == "setup" and report.passed):
            return
        verdict = _verdict(item, report)
        group = item.group
        if report.failed and item.verdict is None and (line := command(self.config, item.nodeid)):
            report.sections.append(("ampcheck", f"reproduce {line}"))  # ended by pytest or a plugin, in words of its own
        record: dict[str, Any] = {"device": group.device, "verdict": verdict_to_plain(verdict), "findings": []}
        if item.slot.check == BASELINE:
            record["verdict"] = None  # what has changed travels with the contract
        ids = {verdict.follows or verdict.check} if verdict.outcome in ("failed", "warned", "xfailed") else set()
        if group.report is not None:
            record["findings"] = [
                [
                    rank,
                    plain({**finding.to_json(), "reproduce": command(self.config, item.nodeid_of(finding.id, finding.policy))}),
                ]
                for rank, finding in enumerate(group.report.findings)
                if finding.id in ids and (verdict.follows or finding.policy == verdict.policy)
            ]
            if item.first or not group.report.costs:
                record["contract"] = contract_to_plain(group.report)
                record["environment"] = plain(group.environment)
        vars(report)["ampcheck"] = record
        if record["verdict"] is None:
            return
        # pytest's own JUnit report takes them from the report of the teardown, which has those of the item.
        finding = next((f for _, f in record["findings"]), None)
        told = properties({**verdict.to_json(), "device": group.device}, finding, self.config.rootpath)
        item.user_properties += [entry for entry in told if entry not in item.user_properties]
        report.user_properties = list(item.user_properties)

    def add(self, report: pytest.TestReport) -> None:
        """Take a record in; the last one of an item counts (a plugin may run it again)."""
        record: dict[str, Any] | None = getattr(report, "ampcheck", None)
        if record is None or self.is_worker:
            return
        if record["verdict"] is not None:
            self.items[report.nodeid] = record
        if contract := record.get("contract"):
            self.contracts.setdefault((contract["contract"], record["device"]), contract)
        if environment := record.get("environment"):
            self.environments.setdefault(record["device"], environment)

    def status(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """How pytest shows an item; None leaves it to pytest."""
        record: dict[str, Any] | None = getattr(report, "ampcheck", None)
        if record is None or report.when != "call" or hasattr(report, "wasxfail") or report.failed or record["verdict"] is None:
            return None
        return STATUS.get(record["verdict"]["outcome"])

    def report(self) -> Report:
        """Everything that was reported; contracts by name, their findings primary first."""
        grouped: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in self.contracts}
        for record in self.items.values():
            grouped.setdefault((record["verdict"]["contract"], record["device"]), []).append(record)
        contracts = []
        for (contract, device), records in sorted(grouped.items()):
            whole = self.contracts.get((contract, device), {"costs": [], "facts": {"judged": False}})
            ranked = {rank: finding for record in records for rank, finding in record["findings"]}
            contracts.append(
                ContractReport(
                    contract,
                    device,
                    sorted((verdict_of(r["verdict"]) for r in records), key=lambda v: (v.check, v.policy)),
                    [finding_of(finding) for _, finding in sorted(ranked.items())],
                    [cost_of(cost) for cost in whole["costs"]],
                    whole["facts"],
                )
            )
        changes = [change for contract in contracts for change in contract.facts.get("changes", ())]
        return Report(self._environment(), contracts, self.gated.baseline, [*changes, *self.gated.changes])

    def worker_finished(self, node: Any) -> None:
        """On xdist's controller: what a worker found."""
        told = getattr(node, "workeroutput", {}).get("ampcheck")
        if told is not None:
            self.workers += 1
            self.found.contracts = max(self.found.contracts, told["contracts"])
            self.found.left_out = told["left_out"]

    def crashed(self, nodeid: str, report: pytest.TestReport, scheduler: Any) -> None:
        """On xdist's controller: a contract took its worker down; its other items are not run."""
        if group_of(nodeid) is None or nodeid.endswith(f"-{BASELINE}]"):
            return
        vars(report)["ampcheck"] = _lost(nodeid, "failed", "the worker crashed while it judged this contract")
        if line := command(self.config, nodeid):
            report.sections.append(("ampcheck", f"reproduce {line}"))
        reason = f"the worker crashed in {nodeid.rpartition('-AMP')[0].rpartition('::')[2]}]"
        for other in getattr(scheduler, "given_up", ()):
            if other.endswith(f"-{BASELINE}]"):
                continue
            record = _lost(other, "not-run", reason)
            path = other.partition("::")[0]
            skipped = pytest.TestReport(
                nodeid=other,
                location=(path, None, path),
                keywords={},
                outcome="skipped",
                longrepr=(path, 1, f"Skipped: not-run: {reason}"),
                when="call",
                ampcheck=record,
                node=vars(report)["node"],
            )
            self.config.hook.pytest_runtest_logreport(report=skipped)

    def finish(self, session: pytest.Session, found: Found) -> None:
        """Hand over to the controller, or write the report."""
        self.gate.leave()
        if self.is_worker:
            session.config.workeroutput["ampcheck"] = vars(found)  # type: ignore[attr-defined]
            return
        if self.config.pluginmanager.has_plugin("dsession"):
            partial = any("::" in arg for arg in self.config.args) or self.config.getoption("lf", False)
            if self.workers and not self.found.contracts and not partial and not session.testsfailed:
                self.problem = NONE_FOUND
        else:
            self.found = found
        if self.publishing is not None:
            finished = session.exitstatus in (0, 1, 5) and not session.shouldstop and not session.shouldfail
            self.gated = self.gate.finish(self.report().contracts, Selection(self.config, finished))
            self.problem = self.gated.problem or self.problem
            if self.gated.fails and session.exitstatus in (0, 5):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self.problem = self.publishing.write(self.document()) or self.problem
        if self.problem:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def document(self) -> dict[str, Any]:
        """What every written report is made of."""
        return json_report.document(self.report(), self.config.rootpath)

    def summarize(self, reporter: pytest.TerminalReporter) -> None:
        """Write the summary."""
        report = self.report()
        if report.contracts or self.problem or self.found.left_out:
            reporter.section("ampcheck")
        if report.contracts:
            for line, style in terminal.summary(report, self.config.rootpath):
                reporter.write_line(line, **COLOURS[style])
        for one in report.contracts:
            if kept := one.facts.get("evidence"):
                reporter.write_line(f"evidence: {one_line(relative(kept, self.config.invocation_params.dir))}", yellow=True)
            for note in one.facts.get("notes", ()):
                if note.startswith("no evidence bundle: "):
                    reporter.write_line(one_line(note), yellow=True)
        for line, style in changes_summary(report.changes, report.baseline) if report.contracts or report.changes else ():
            reporter.write_line(line, **COLOURS[style])
        for note in self.gated.notes:
            reporter.write_line(note, **COLOURS["bold"])
        for contract in self.found.left_out:
            reporter.write_line(f"left out: {one_line(contract)} declares no device that was asked for", yellow=True)
        if self.problem:
            reporter.write_line(f"ERROR: {self.problem}", red=True)
        document = self.document()
        if document["items"] and self.config.get_verbosity() > 0:
            for line in unjudged.lines(document):
                reporter.write_line(line)
        if self.publishing is not None and (document["items"] or document["changes"]):
            for line in self.publishing.tell(document):
                reporter.write_line(line)

    def _environment(self) -> dict[str, Any]:
        """What the contracts were judged on; by device where there are several."""
        if len(self.environments) < 2:
            return next(iter(self.environments.values()), {})
        first = next(iter(self.environments.values()))
        return {**first, "devices": dict(sorted(self.environments.items()))}


def _lost(nodeid: str, outcome: Outcome, reason: str) -> dict[str, Any]:
    """The record of an item that a crash kept from leaving one."""
    contract, device, id, rest = parts_of(nodeid)
    slug = registry.CHECKS[id].slug if id in registry.CHECKS else rest
    policy = rest.removeprefix(slug).removeprefix("-") or "as-written"
    verdict = Verdict(contract, id, slug, outcome, policy, reason)
    return {"device": device, "verdict": verdict_to_plain(verdict), "findings": []}


def _verdict(item: ContractItem, report: pytest.TestReport) -> Verdict:
    """The verdict of an item; where pytest or another plugin ended it before there was one, what that amounts to."""
    verdict = item.verdict
    expected = getattr(report, "wasxfail", None)
    if verdict is None:
        slot = item.slot
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext.strip().rpartition("\n")[2]
        outcome: Outcome = "not-run" if report.skipped else "failed"
        verdict = Verdict(item.group.contract, slot.check, slot.slug, outcome, slot.policy, one_line(reason))
    if expected is not None and verdict.outcome == "failed" and report.skipped:
        # pytest's own xfail mark on the contract.
        verdict = Verdict(verdict.contract, verdict.check, verdict.slug, "xfailed", verdict.policy, one_line(expected))
    return verdict
