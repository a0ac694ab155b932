"""The baseline of a session: what contracts did when it was agreed on, compared with what they do, or written anew."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ampcheck.baseline.changes import FAILING, Change
from ampcheck.baseline.compare import compare, reevaluated
from ampcheck.baseline.file import NAME, read, text_of
from ampcheck.baseline.fingerprint import Fingerprint, fingerprint, key_of
from ampcheck.config import Settings, merge
from ampcheck.errors import UsageError
from ampcheck.findings import ContractReport, Verdict
from ampcheck.report.contracts import contract_entry
from ampcheck.report.plain import plain
from ampcheck.report.text import one_line, relative
from ampcheck.session.against import CHILD, Base, discard, measure, note_foreign, temporary
from ampcheck.session.devices import missing
from ampcheck.session.group import Group

__all__ = ["Gate"]

KINDS = ("finding", "settings", "modules", "ops", "events", "state", "headroom", "judged", "contract")
KNOWN = "known: it is in the baseline"


class Gate:
    """Whether and with what a session compares.

    Args:
        config: of the session, or of an xdist worker.
        settings: of the session.

    Raises:
        UsageError: for a baseline that cannot be used, and an acknowledgement that names nothing.
    """

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.root = config.rootpath
        self.settings = settings
        options = {"select": "ampcheck_select", "dtypes": "ampcheck_dtype"}
        self.narrowed = {name: config.getoption(option) is not None for name, option in options.items()}
        self.accept = _accepted(settings.accept)
        self.updates = settings.update_baseline
        self.child = os.environ.get(CHILD)
        self.revision = None if self.child else settings.against  # the base's configuration may ask for one as well
        if self.updates and self.revision is not None:
            raise UsageError("--ampcheck-update-baseline and --ampcheck-against exclude each other: one writes, one compares")
        self.path = settings.baseline or self.root / NAME
        self.base: dict[str, Fingerprint] | None = None
        self._folder: Path | None = None
        self.told: dict[str, Any] = getattr(config, "workerinput", {}).get("ampcheck", {})
        if self.told:  # the controller has measured it
            self._use(Base(**self.told))
        elif self.revision is None and not self.updates and (settings.baseline is not None or self.path.exists()):
            self.base = read(self.path)

    def measure(self, config: pytest.Config) -> None:
        """Measure the base commit, where one was asked for; its facts are what counts, whatever file is committed here.

        Raises:
            UsageError: if it cannot be measured.
        """
        if self.revision is None or self.told or config.getoption("collectonly"):
            return
        self._folder = temporary()
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")

        def tell(line: str) -> None:
            if reporter is not None:
                reporter.write_line(one_line(line))

        base = measure(config, self.revision, self._folder, tell)
        if base.note:
            tell(f"ampcheck: {base.revision} is compared with nothing: {base.note}")
        self.told = vars(base)
        self._use(base)

    def close(self) -> None:
        """Remove what measuring the base left."""
        if self._folder is not None:
            discard(self._folder)

    @property
    def since(self) -> str:
        """What is compared with, in words."""
        return one_line(self.revision) if self.revision else "the baseline"

    @property
    def compares(self) -> bool:
        """Whether each contract has an item that tells what has changed; where a base is measured too, for `-k` may name it."""
        return bool(self.child) or (not self.updates and (self.base is not None or self.revision is not None))

    def _use(self, base: Base) -> None:
        self.revision = base.revision
        self.base = read(Path(base.path)) if Path(base.path).exists() else {}

    # -- one contract -------------------------------------------------------------------------------------------------

    def settle(self, group: Group) -> None:
        """A contract was judged: note what it does, and what of it has changed. Known findings do not fail again."""
        report = group.report
        if report is None or not (self.updates or self.base is not None):
            return
        entry = contract_entry(report, self.root)
        now = plain(fingerprint(entry, report.verdicts, group.environment))
        if self.narrowed["select"]:  # what a command line leaves out, as `-k` does, is not what the project has agreed on
            declared = merge(group.contract_options, replace(self.settings, select=None)).select
            now["settings"]["select"] = None if declared is None else sorted(declared)
        report.facts["fingerprint"] = now
        report.facts["builds"] = not any(v.check == "AMP111" and v.outcome in ("failed", "xfailed") for v in report.verdicts)
        if self.updates or self.base is None:
            return
        base = self.base.get(key_of(report.contract, report.device))
        if base is None:
            changes = [Change("contract", "info", "a new contract: there is nothing to compare it with")]
        else:
            every = compare(base, now, self.accept, [name for name, given in self.narrowed.items() if given])
            if self.narrowed["select"]:
                asked = merge(group.contract_options, self.settings).select or ()
                every = [c.told("not asked for") if c.kind == "finding" and c.subject not in asked else c for c in every]
            changes = [_placed(change, entry, report, self.root) for change in every]
            report.facts["reevaluated"] = reevaluated(base, now)
            report.facts["base environment"] = base["environment"]
            report.verdicts = _excused(report.verdicts, base)
        report.facts["changes"] = [change.to_json(report.contract, report.device) for change in changes]

    def leave(self) -> None:
        """In every process of a run that measures a base: say where its modules came from."""
        if self.child:
            note_foreign(self.child)

    # -- the session --------------------------------------------------------------------------------------------------

    def finish(self, contracts: Iterable[ContractReport], selection: Selection) -> Summary:
        """Compare what was there with what was judged, or write the file.

        Args:
            contracts: all that were reported.
            selection: what the session looked at.
        """
        seen = {key_of(c.contract, c.device): c for c in contracts}
        if self.updates:
            return self._write(seen, selection)
        summary = Summary()
        if self.base is None:
            return summary
        summary.changes = list(_missing(self.base, seen, selection, self.accept))
        named = {"revision": self.revision} if self.revision else {"path": relative(str(self.path), self.root)}
        facts = [c.facts for c in seen.values()]
        environment: dict[str, str] = next((f["base environment"] for f in facts if "base environment" in f), {})
        why = next((f["reevaluated"] for f in facts if f.get("reevaluated")), None)
        summary.baseline = {**named, "environment": environment, "reevaluated": why}
        return summary

    def _write(self, seen: Mapping[str, ContractReport], selection: Selection) -> Summary:
        if not selection.finished and not seen:
            return Summary()  # pytest says why
        measured = {k: c.facts["fingerprint"] for k, c in seen.items() if c.facts.get("fingerprint") and c.facts.get("builds")}
        whole = all(key in measured for key in seen)
        try:
            before = read(self.path) if self.path.exists() else {}
        except UsageError as error:
            if "is newer than" in str(error) or not (whole and selection.whole):
                return Summary(problem=f"the baseline is not written: {error}")
            before = {}
        kept = {k: f for k, f in before.items() if k not in measured and (k in seen or not selection.covers(k, seen))}
        if not measured:
            return Summary(problem="the baseline is not written: no contract was judged")
        text = text_of({**kept, **measured})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part = self.path.with_name(f"{self.path.name}.part")
            part.write_text(text, "utf-8", newline="\n")
            part.replace(self.path)
        except OSError as error:
            return Summary(problem=f"the baseline cannot be written: {error}")
        dropped = len(before.keys() - kept.keys() - measured.keys())
        others = [f"{len(kept)} kept as they were"] * bool(kept) + [f"{dropped} gone"] * bool(dropped)
        summary = Summary(
            notes=[f"baseline written: {relative(str(self.path), self.root)} ({', '.join([_count(len(measured)), *others])})"]
        )
        summary.notes += [
            f"not in the baseline: {one_line(k)} was not judged" for k in seen if k not in measured and k not in kept
        ]
        return summary


class Selection:
    """What a session looked at.

    Args:
        config: of the session.
        finished: whether it came to its end.
    """

    def __init__(self, config: pytest.Config, finished: bool) -> None:
        self.finished = finished
        narrowed = [
            config.getoption(name, None) for name in ("keyword", "markexpr", "lf", "deselect", "stepwise", "ampcheck_reference")
        ]
        self.whole = finished and not any("::" in arg for arg in config.args) and not any(narrowed)
        named = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else ()
        files = [config.invocation_params.dir / argument.partition("::")[0] for argument in named]
        self.paths = [relative(str(file), config.rootpath) for file in files]

    def covers(self, key: str, seen: Mapping[str, ContractReport]) -> bool:
        """Whether a contract would have been seen if it were still there."""
        contract, _, device = key.removesuffix("]").rpartition(" [")
        file = contract.partition("::")[0]
        asked = any(path in (".", file) or file.startswith(f"{path}/") for path in self.paths) or not self.paths
        return self.whole and asked and device in {c.device for c in seen.values()}


class Summary:
    """What the end of a session has to say of the baseline.

    Args:
        changes: of contracts that are not there any more, as entries of the document.
        notes: lines for the terminal.
        problem: what makes the run an error.
        baseline: the document's `baseline`.
    """

    def __init__(self, notes: list[str] | None = None, problem: str = "") -> None:
        self.changes: list[dict[str, Any]] = []
        self.notes = notes or []
        self.problem = problem
        self.baseline: dict[str, Any] | None = None

    @property
    def fails(self) -> bool:
        return any(change["verdict"] in FAILING for change in self.changes)


def _count(n: int) -> str:
    return f"{n} contract" + "s" * (n != 1)


def _accepted(accept: Mapping[str, str]) -> dict[str, str]:
    from ampcheck import registry

    found: dict[str, str] = {}
    for word, reason in accept.items():
        if word.lower() in (*KINDS, "strict", "float16", "bfloat16"):
            found[word.lower()] = reason
        elif word.upper().startswith("AMP"):
            registry.expand([word], "ampcheck_accept")
            found[word.upper()] = reason
        else:
            raise UsageError(
                f"ampcheck_accept: {word!r} is neither the id of a check nor a kind of change ({', '.join(KINDS)})"
            )
    return found


def _excused(verdicts: list[Verdict], base: Fingerprint) -> list[Verdict]:
    """The verdicts, less the failures that were agreed on: those of findings that the base has."""
    known = {item for item, outcome in base["findings"].items() if outcome == "failed"}
    ids = {item.split()[0] for item in known}

    def excused(v: Verdict) -> Verdict:
        item = v.check if v.policy == "as-written" else f"{v.check} {v.policy}"
        if v.outcome == "failed" and (v.follows in ids if v.follows else v.finding is not None and item in known):
            return replace(v, outcome="xfailed", reason=KNOWN)
        return v

    return [excused(v) for v in verdicts]


def _placed(change: Change, entry: Mapping[str, Any], report: ContractReport, root: Path) -> Change:
    """The change with its line in the user's code, if one is known."""
    if change.kind == "finding":
        where = next((f.location for f in report.findings if f.id == change.subject and f.location), None)
        seen = next((f.seen for f in report.findings if f.id == change.subject), "")
        text = f"{change.text}: {one_line(seen, 200)}" if change.fails and seen else change.text
        location = (
            None if where is None else {"file": relative(where.file, root), "line": where.line, "function": where.function}
        )
        return replace(change, text=text, location=location)
    profile = entry["profile"]
    line = profile.get("places", {}).get(change.subject) if change.kind == "events" else None
    if change.kind in ("modules", "ops"):
        rows = [*profile.get("ops", ()), *profile.get("modules", ())]
        line = next((r["line"] for r in rows if (r["module"] or r.get("kind")) == change.subject and r["line"]), None)
    if not line:
        return change
    file, _, number = line.rpartition(":")
    return replace(change, location={"file": file, "line": int(number), "function": ""})


def _missing(
    base: Mapping[str, Fingerprint], seen: Mapping[str, ContractReport], selection: Selection, accept: Mapping[str, str]
) -> Iterable[dict[str, Any]]:
    """Contracts of the base that are gone, or were not judged."""
    fresh = {k: c.facts["fingerprint"] for k, c in seen.items() if k not in base and c.facts.get("fingerprint")}
    for key in sorted(base):
        contract, _, device = key.removesuffix("]").rpartition(" [")
        if key in seen:
            if seen[key].facts.get("fingerprint"):
                continue
            reason = next((v.reason for v in seen[key].verdicts if v.reason), "no reason was given")
            change = Change("judged", "worse", f"the contract was not judged: {one_line(reason, 200)}")
            if missing(device):
                change = replace(change, verdict="info")
        elif selection.covers(key, seen):
            same = next((k for k, f in fresh.items() if not any(c.fails for c in compare(base[key], f))), None)
            change = Change("contract", "worse", "the contract is gone")
            if same is not None:
                change = Change("contract", "info", f"the contract is gone; {same} does the same")
        else:
            continue
        for word in (change.kind, "contract"):
            if word in accept and change.fails:
                change = replace(change, verdict="info", text=f"accepted: {change.text} ({accept[word]})")
        yield json.loads(json.dumps(plain(change.to_json(contract, device))))
