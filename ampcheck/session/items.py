"""The item of one check of one contract."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from ampcheck.baseline.changes import FAILING
from ampcheck.findings import Verdict
from ampcheck.report.changes import change_line
from ampcheck.report.text import one_line, verdict_text
from ampcheck.session.group import BASELINE, Group, Slot
from ampcheck.session.judging import Judging
from ampcheck.session.reproduce import command

__all__ = ["ContractItem"]


class ContractItem(pytest.Function):
    """Sets up the fixtures, judges the contract if it is the first of its group, and reports one verdict.

    Args:
        slot: what it reports.
        group: the contract it belongs to.
        verdict: what it reported; None until it ran.
        first: whether the contract was judged in this item.
    """

    slot: Slot
    group: Group
    judging: Judging
    verdict: Verdict | None = None
    first: bool = False

    @property
    def function(self) -> Any:
        # The user's function: pytest matches `-k` against the attributes of what this returns.
        return self.obj.function

    def setup(self) -> None:
        self.judging.settle(self.group)
        if self.group.report is not None:
            return
        try:
            super().setup()
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
            skipped = isinstance(error, pytest.skip.Exception)
            self.judging.stop(self.group, f"{'skipped by' if skipped else 'the setup failed in'} a fixture: {one_line(error)}")
            raise

    def nodeid_of(self, check: str, policy: str) -> str:
        """Node id of the item that reports a check of the same contract; this one's where that check has none here."""
        slots = [slot for slot in self.group.slots if slot.check == check]
        slot = next((slot for slot in slots if slot.policy == policy), slots[0] if slots else self.slot)
        return self.nodeid.removesuffix(f"{self.slot.id}]") + f"{slot.id}]"

    def runtest(self) -> None:
        if self.group.report is None:
            self.first = True
            # `stop` first: whatever interrupts the run (a timeout plugin, a fault of ours) has then said what the rest shows.
            self.judging.stop(self.group, f"the run was cut short in {self.slot.id}")
            arguments = {name: self.funcargs[name] for name in self._fixtureinfo.argnames}
            self.judging.judge(self.group, self.obj.function, arguments)
            self.group.blamed = False
        if self.slot.check == BASELINE:
            self._compare()
            return
        self._report(self.judging.verdict(self.group, self.slot))

    def _compare(self) -> None:
        """Report what has changed since the baseline."""
        report = self.group.report
        changes = None if report is None else report.facts.get("changes")
        if changes is None:
            raise pytest.skip.Exception("not-run: the contract was not judged", _use_item_location=True)
        if any(change["verdict"] in FAILING for change in changes):
            head = f"{self.name}: changed since {self.judging.gate.since}"
            pytest.fail("\n".join([head, *map(change_line, changes)]), pytrace=False)

    def _report(self, verdict: Verdict) -> None:
        self.verdict = verdict
        reason = one_line(verdict.reason)
        skipped = verdict.outcome in ("inconclusive", "not-run")
        if skipped and self._must_be_judged():
            reason = f"nothing could be judged, and that is required: {verdict.outcome}: {reason}"
            self.verdict = Verdict(verdict.contract, verdict.check, verdict.slug, "failed", verdict.policy, reason)
            self._fail(self.verdict)
        if skipped:
            # At the contract, not here: pytest shows and groups skips by place.
            raise pytest.skip.Exception(f"{verdict.outcome}: {reason}", _use_item_location=True)
        if verdict.outcome == "failed":
            self._fail(verdict)
        if verdict.outcome == "xfailed":
            pytest.xfail(reason or "expected")

    def _fail(self, verdict: Verdict) -> NoReturn:
        reproduce = command(self.config, self.nodeid)
        pytest.fail(verdict_text(verdict, self.group.device, self.config.rootpath, reproduce), pytrace=False)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException]) -> Any:  # type: ignore[override]
        shown = super().repr_failure(excinfo)
        crash = getattr(shown, "reprcrash", None)
        if crash is not None and isinstance(excinfo.value, pytest.fail.Exception) and not excinfo.value.pytrace:
            # pytest's summary shows this whole on CI servers and with -vv, JUnit as the message: one line, at the contract.
            path, line, _ = self.reportinfo()
            crash.path, crash.lineno = str(path), (line or 0) + 1
            crash.message = crash.message.partition("\n")[0]
        return shown

    def _must_be_judged(self) -> bool:
        """Whether this item is the one that fails because nothing of its contract could be judged."""
        group = self.group
        if self.judging.settings.require != "judged" or group.blamed or group.report is None or group.report.judged:
            return False
        group.blamed = True
        return True
