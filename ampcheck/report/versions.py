"""What differs between reports of the same contracts under several versions: one Markdown table that also reads as text."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ampcheck.report.text import one_line

__all__ = ["differences", "main", "table"]

#: Columns of the counts, in the order of the outcomes' weight.
COUNTS = ("failed", "warned", "xfailed", "inconclusive", "not-run", "passed")
#: What stands where a version has no such item, or no report at all.
ABSENT = "-"
#: Characters that Markdown would read, in a cell of a table.
MARKUP = str.maketrans({mark: f"\\{mark}" for mark in "\\|<>*_`[]&$~"})

Documents = Mapping[str, Mapping[str, Any] | None]
#: Contract, device, check with its name, policy.
Key = tuple[str, str, str, str]


def differences(documents: Documents) -> list[tuple[Key, list[str]]]:
    """The items whose outcome is not the same in every report.

    Args:
        documents: label (a version) -> the JSON report, or `None` where there is none.

    Returns:
        For each such item its key and its outcome by document; those without a report are left out of the comparison.
    """
    found = {label: _outcomes(document) for label, document in documents.items() if document is not None}
    keys = sorted({key for outcomes in found.values() for key in outcomes})
    differing = [key for key in keys if len({outcomes.get(key) for outcomes in found.values()}) > 1]
    return [(key, [found.get(label, {}).get(key, ABSENT) for label in documents]) for key in differing]


def table(documents: Documents) -> Iterator[str]:
    """Lines of Markdown: a row of counts for each report, then a row for each item that differs, with the reasons.

    Args:
        documents: as for `differences`.
    """
    yield "| version | torch | python | contracts | " + " | ".join(COUNTS) + " |"
    yield "|---" * (4 + len(COUNTS)) + "|"
    for label, document in documents.items():
        yield _row([label, *_counts(document)])
    yield ""
    rows = differences(documents)
    if not rows:
        several = sum(document is not None for document in documents.values()) > 1
        yield "No verdict differs between them." if several else "There are no two reports to compare."
        return
    yield _row(["contract", "check", *documents])
    yield "|---" * (2 + len(documents)) + "|"
    for (contract, device, check, policy), outcomes in rows:
        kind = check if policy == "as-written" else f"{check} {policy}"
        yield _row([f"{contract} [{device}]", kind, *outcomes])
    yield ""
    for label, document in documents.items():
        keys = {key for key, _ in rows}
        for reason, checks in sorted(_reasons(document, keys).items()):
            yield f"- {_cell(label)}: {_cell(', '.join(sorted(checks)))}: {_cell(reason)}"


def _outcomes(document: Mapping[str, Any]) -> dict[Key, str]:
    return {_key(item): str(item["outcome"]) for item in document["items"]}


def _key(item: Mapping[str, Any]) -> Key:
    check = " ".join(filter(None, [str(item["check"]), str(item.get("slug", ""))]))
    return str(item["contract"]), str(item.get("device", "")), check, str(item["policy"])


def _counts(document: Mapping[str, Any] | None) -> list[str]:
    if document is None:
        return ["no report", *[ABSENT] * (2 + len(COUNTS))]
    environment = document.get("environment", {})
    counted = Counter(item["outcome"] for item in document["items"])
    contracts = {(item["contract"], item.get("device")) for item in document["items"]}
    versions = [str(environment.get(name, ABSENT)) for name in ("torch", "python")]
    return [*versions, str(len(contracts)), *(str(counted.get(outcome, 0)) for outcome in COUNTS)]


def _reasons(document: Mapping[str, Any] | None, keys: set[Key]) -> dict[str, set[str]]:
    """What those items say: their own reason, or what the finding saw; by reason, the ids that give it."""
    seen: dict[str, set[str]] = {}
    if document is None:
        return seen
    findings = {(f["id"], f["contract"], f.get("device", ""), f["policy"]): f["seen"] for f in document.get("findings", [])}
    for item in document["items"]:
        if _key(item) in keys and item["outcome"] != "passed":
            found = findings.get((item["check"], item["contract"], item.get("device", ""), item["policy"]))
            seen.setdefault(str(item.get("reason") or found or item["outcome"]), set()).add(str(item["check"]))
    return seen


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return one_line(text, 200).translate(MARKUP)


def read(path: Path) -> Mapping[str, Any] | None:
    """A report; `None` where there is none, or something else."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) and isinstance(document.get("items"), list) else None


def main(arguments: Sequence[str]) -> int:
    """Print what differs: `python -m ampcheck.report.versions LABEL=REPORT.json ...`.

    Returns:
        0; 2 if there is no report to read.
    """
    pairs = [(label, path) if path else (Path(label).stem, label) for label, _, path in (a.partition("=") for a in arguments)]
    documents = {label: read(Path(path)) for label, path in pairs}
    if not any(documents.values()):
        sys.stderr.write("ampcheck: none of these is a JSON report of --ampcheck-json\n")
        return 2
    sys.stdout.write("\n".join([*table(documents), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
