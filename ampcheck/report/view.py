"""What a person needs to know of a report, in the order in which they need it: the model behind the HTML and Markdown pages,
SARIF and annotations. All text in it is clean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from ampcheck.report.text import LONGEST, clean, one_line, silence

__all__ = ["COUNTS", "Change", "Contract", "Fault", "Reason", "Spot", "View", "name_of", "view"]

COUNTS = ("passed", "failed", "warned", "xfailed", "inconclusive", "not-run")
#: A name is shown up to this length.
NAME = 160
#: So many different texts of one fault are shown.
TEXTS = 3
#: Lines of one text that are shown.
LINES = 20
#: An entry of the document, and what names a contract in it.
Entry = Mapping[str, Any]
State = Literal["failed", "warned", "unjudged", "passed"]


@dataclass(frozen=True)
class Spot:
    """A file below the root, with `/`, and a 1-based line in it; `None` where the file as a whole is meant."""

    file: str
    line: int | None = None


@dataclass
class Fault:
    """A broken rule, with all the contracts that break it at the same place.

    Args:
        id, slug, level, expected, fix, place: of the finding; `place` as text, empty where no single line is to blame.
        spot: the place, if it is a file below the root; else the file of the contract.
        function: the function at the place, if there is one.
        seen: the first few different texts, and `others` the rest.
        contracts: `name_of` each contract.
        followers: ids of checks that fail because of this one.
        reproduce: the command that runs the first of its items alone; empty where it is not known.
    """

    id: str
    slug: str
    level: str
    expected: str
    fix: str
    place: str
    spot: Spot | None
    function: str = ""
    seen: list[str] = field(default_factory=list)
    others: set[str] = field(default_factory=set)
    contracts: list[str] = field(default_factory=list)
    followers: list[str] = field(default_factory=list)
    reproduce: str = ""

    @property
    def name(self) -> str:
        return f"{self.id} {self.slug}".strip()

    @property
    def more_seen(self) -> int:
        return len(self.others)

    @property
    def silence(self) -> str:
        return silence(self.id)


@dataclass
class Change:
    """What changed against the baseline."""

    verdict: str
    contract: str
    kind: str
    text: str
    place: str
    spot: Spot | None

    @property
    def blocks(self) -> bool:
        return self.verdict in ("worse", "new")


@dataclass
class Reason:
    """Why some checks have no verdict: one reason, the checks, the contracts."""

    outcome: str
    reason: str
    checks: list[str] = field(default_factory=list)
    contracts: list[str] = field(default_factory=list)
    count: int = 0


@dataclass
class Contract:
    """One contract on one device. `raw` is the document's entry with its profile, `costs` and `state` are its rows."""

    name: str
    device: str
    counts: dict[str, int]
    judged: bool
    blocked: bool = False
    raw: Entry = field(default_factory=dict)
    costs: list[Entry] = field(default_factory=list)
    state: list[Entry] = field(default_factory=list)

    @property
    def verdict(self) -> State:
        if self.counts["failed"] or self.blocked:
            return "failed"
        return "unjudged" if not self.judged else "warned" if self.counts["warned"] else "passed"

    @property
    def profile(self) -> Entry:
        found = self.raw.get("profile")
        return found if isinstance(found, Mapping) else {}


@dataclass
class View:
    """The report as a person reads it."""

    state: State
    verdict: str
    tally: str
    environment: dict[str, str]
    contracts: list[Contract]
    changes: list[Change]
    baseline: str | None
    errors: list[Fault]
    warnings: list[Fault]
    inconclusive: list[Reason]
    not_run: list[Reason]
    expected: list[Reason]

    @property
    def untold(self) -> list[Change]:
        """Changes that block and are not told by an error: a finding that is new is both."""
        told = [(fault.id, name) for fault in self.errors for name in fault.contracts]
        return [
            change
            for change in self.changes
            if change.blocks and not any(change.text.startswith(id) and name.startswith(change.contract) for id, name in told)
        ]


def name_of(entry: Entry) -> str:
    """`tests/test_amp.py::mlp [cpu]`."""
    return f"{one_line(entry['contract'], NAME)} [{one_line(entry['device'], 20)}]"


def view(document: Entry) -> View:
    """Read a report.

    Args:
        document: as `ampcheck.report.json.document` makes it, of version 1; keys that were added later may be missing.
    """
    items: list[Entry] = document["items"]
    faults = _faults(document)
    changes = [_change(entry) for entry in document.get("changes") or ()]
    contracts = _contracts(document, changes)
    errors, warnings = ([f for f in faults if f.level == level] for level in ("error", "warning"))
    state, verdict = _verdict(contracts, errors, warnings, changes)
    counts = Counter(item["outcome"] for item in items)
    return View(
        state=state,
        verdict=verdict,
        tally=", ".join(f"{counts[name]} {name.replace('-', ' ')}" for name in COUNTS if counts[name]) or "no checks",
        environment=_environment(document.get("environment") or {}),
        contracts=contracts,
        changes=sorted(changes, key=lambda c: (("worse", "new", "info", "better").index(c.verdict), c.contract)),
        baseline=_baseline(document.get("baseline")),
        errors=errors,
        warnings=warnings,
        inconclusive=_reasons(items, "inconclusive"),
        not_run=_reasons(items, "not-run"),
        expected=_reasons(items, "xfailed"),
    )


def _verdict(contracts: list[Contract], errors: list[Fault], warnings: list[Fault], changes: list[Change]) -> tuple[State, str]:
    """The sentence that somebody whose merge was blocked reads first."""
    blocked = [c for c in contracts if c.verdict == "failed"]
    worse = sum(change.blocks for change in changes)
    if blocked or errors or worse:
        said = [_number(len(errors), "error", "errors")] if errors else []
        said += [f"{_number(worse, 'change', 'changes')} for the worse since the baseline"] if worse else []
        where = f", in {len(blocked)} of {_number(len(contracts), 'contract', 'contracts')}" if blocked else ""
        return "failed", f"Blocked: {' and '.join(said) or 'checks failed'}{where}."
    unjudged = sum(c.verdict == "unjudged" for c in contracts)
    if not contracts or unjudged == len(contracts):
        return "unjudged", "Nothing was judged: no check of scaler order and scaling reached a verdict."
    noted = f" with {_number(len(warnings), 'warning', 'warnings')}" if warnings else ""
    tail = f"; {unjudged} could not be judged" if unjudged else ""
    state: State = "warned" if warnings or unjudged else "passed"
    return state, f"Passed{noted}: no error in {_number(len(contracts), 'contract', 'contracts')}{tail}."


def _number(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _body(text: object) -> str:
    """Foreign text of several lines, but not of hundreds."""
    lines = clean(text).split("\n")
    more = len(lines) - LINES
    return "\n".join([*lines[:LINES], *([f"({more} more lines)"] if more > 0 else [])])


# -- findings -------------------------------------------------------------------------------------------------------


def _faults(document: Entry) -> list[Fault]:
    """Findings, and failed items without one; those with the same place (or, without a place, the same text) are one fault."""
    items: list[Entry] = document["items"]
    decided: dict[tuple[str, ...], str] = {_key(i, i["check"], i["policy"]): i["outcome"] for i in items}
    followers: dict[tuple[str, ...], set[str]] = {}
    for item in items:
        if item.get("follows"):
            followers.setdefault(_key(item, item["follows"]), set()).add(one_line(item["check"], 20))
    found: dict[tuple[str, ...], Fault] = {}
    told = set()
    for finding in document["findings"]:
        key = _key(finding, finding["id"], finding["policy"])
        told.add(key)
        outcome = decided.get(key, "failed" if finding["level"] == "error" else "warned")
        if outcome in ("failed", "warned"):
            level = "error" if outcome == "failed" else "warning"
            _add(found, finding, level, followers.get(_key(finding, finding["id"]), set()))
    for item in items:
        if item["outcome"] == "failed" and not item.get("follows") and _key(item, item["check"], item["policy"]) not in told:
            bare = {"id": item["check"], "slug": item.get("slug", ""), "seen": item["reason"] or "no reason was given"}
            _add(found, {**item, **bare}, "error", set())
    return list(found.values())


def _add(found: dict[tuple[str, ...], Fault], finding: Entry, level: str, followers: set[str]) -> None:
    where = finding.get("location")
    place, seen = _place(where), _body(finding["seen"])
    policy = finding["policy"]
    contract = name_of(finding) if policy == "as-written" else f"{name_of(finding)} in {one_line(policy, 20)}"
    key = (level, finding["id"], place or f"{seen}\n{finding['contract'].partition('::')[0]}")
    fault = found.get(key)
    if fault is None:
        fault = found[key] = Fault(
            one_line(finding["id"], 20),
            one_line(finding["slug"], 80),
            level,
            _body(finding.get("expected", "")),
            _body(finding.get("fix", "")),
            place,
            _spot(where, finding["contract"]),
            one_line(where["function"], NAME) if where else "",
            reproduce=one_line(finding.get("reproduce") or "", LONGEST),
        )
    if seen not in fault.seen:
        if len(fault.seen) < TEXTS:
            fault.seen.append(seen)
        else:
            fault.others.add(seen)
    if contract not in fault.contracts:
        fault.contracts.append(contract)
    fault.followers = sorted({*fault.followers, *followers})


def _key(entry: Entry, *more: str) -> tuple[str, ...]:
    return (entry["contract"], entry["device"], *more)


def _place(where: Entry | None) -> str:
    return "" if where is None else one_line(f"{where['file']}:{where['line']} in {where['function']}")


def _spot(where: Entry | None, contract: str) -> Spot | None:
    """Where a code host can point: the place if it is below the root, else the contract's file."""
    if where is not None and _below_root(where["file"]):
        return Spot(one_line(where["file"]), max(int(where["line"]), 1))
    file = contract.partition("::")[0]
    return Spot(one_line(file)) if _below_root(file) and file.endswith(".py") else None


def _below_root(file: str) -> bool:
    path = PurePosixPath(file)
    return bool(file) and not path.is_absolute() and ".." not in path.parts and not file.startswith("<") and ":" not in file


# -- the rest -------------------------------------------------------------------------------------------------------


def _change(entry: Entry) -> Change:
    where = entry.get("location")
    return Change(
        one_line(entry["verdict"], 20),
        name_of(entry),
        one_line(entry["kind"], 80),
        _body(entry["text"]),
        "" if where is None else one_line(f"{where['file']}:{where['line']}"),
        _spot(where, entry["contract"]),
    )


def _baseline(entry: Entry | None) -> str | None:
    if entry is None:
        return None
    named = [one_line(entry[key]) for key in ("path", "revision") if entry.get(key)]
    again = entry.get("reevaluated")
    return " ".join(["Compared with", *(named or ["a baseline"])]) + (f"; judged anew: {one_line(again)}" if again else "")


def _contracts(document: Entry, changes: Iterable[Change]) -> list[Contract]:
    """The contracts, those that need eyes first."""
    outcomes: dict[tuple[str, ...], Counter[str]] = {}
    judged: dict[tuple[str, ...], bool] = {}
    for item in document["items"]:
        key = _key(item)
        outcomes.setdefault(key, Counter())[item["outcome"]] += 1
        decides = item["outcome"] in ("passed", "failed", "warned", "xfailed") and item["check"].startswith(("AMP1", "AMP2"))
        judged[key] = judged.get(key, False) or (decides and item["check"] != "AMP111")
    raw = {_key(entry): entry for entry in document.get("contracts") or ()}
    blocked = {change.contract for change in changes if change.blocks}
    found = []
    for key in dict.fromkeys([*outcomes, *raw]):
        entry: Entry = raw.get(key, {"contract": key[0], "device": key[1]})
        counts = outcomes.get(key, Counter())
        name = name_of(entry)
        found.append(
            Contract(
                name,
                one_line(key[1], 20),
                {outcome: counts.get(outcome, 0) for outcome in COUNTS},
                bool(entry.get("judged", judged.get(key, False))),
                name in blocked,
                entry,
                [cost for cost in document["costs"] if _key(cost) == key],
                [row for row in document.get("optimizer_state") or () if _key(row) == key],
            )
        )
    order = ("failed", "warned", "unjudged", "passed")
    return sorted(found, key=lambda c: order.index(c.verdict))


def _reasons(items: Iterable[Entry], outcome: str) -> list[Reason]:
    """Items of one outcome by reason, the most frequent last: what is rare is what one looks for."""
    found: dict[str, Reason] = {}
    for item in items:
        if item["outcome"] != outcome:
            continue
        reason = _body(item["reason"]) or "no reason was given"
        entry = found.setdefault(reason, Reason(outcome, reason))
        entry.count += 1
        check = f"{one_line(item['check'], 20)} {one_line(item.get('slug', ''), 80)}".strip()
        for text, texts in ((check, entry.checks), (name_of(item), entry.contracts)):
            if text not in texts:
                texts.append(text)
    return sorted(found.values(), key=lambda entry: (entry.count, entry.reason))


def _environment(facts: Entry) -> dict[str, str]:
    """The environment as names and texts; what differs from device to device stands once for each."""
    devices = facts.get("devices")
    if not isinstance(devices, Mapping) or not all(isinstance(entry, Mapping) for entry in devices.values()):
        return _flat(facts)
    flats = {one_line(device, 20): _flat(entry) for device, entry in devices.items()}
    names = dict.fromkeys(name for flat in flats.values() for name in flat)
    shared = {n for n in names if len({flat.get(n) for flat in flats.values()}) == 1}
    found = {name: next(iter(flats.values()))[name] for name in names if name in shared}
    return found | {f"{d}: {n}": text for d, flat in flats.items() for n, text in flat.items() if n not in shared}


def _flat(facts: Entry, prefix: str = "") -> dict[str, str]:
    """The environment as names and texts; what is nested gets names of several words."""
    flat: dict[str, str] = {}
    for key, value in facts.items():
        name = f"{prefix}{one_line(key, 60)}"
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{name} "))
        else:
            flat[name] = {"True": "yes", "False": "no", "None": "none"}.get(str(value), one_line(value))
    return flat
