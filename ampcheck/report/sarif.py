"""SARIF 2.1.0, for code hosts and editors that show findings at the line."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import ampcheck
from ampcheck.report.view import Change, Fault, Spot, view

__all__ = ["render"]

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
#: Messages may hold links, `[text](target)`, and placeholders, `{0}`: ours never do.
LINK = re.compile(r"(?<=\])(?=\()|(?<=\{)(?=\d+\})")


def render(document: Mapping[str, Any], prefix: str = "") -> str:
    """The log: one run, a rule for each check with a finding, a result for each place that breaks it.

    Args:
        document: as `ampcheck.report.json.document` makes it.
        prefix: the folder of pytest's rootdir seen from the root of the repository, with `/`; empty if they are the same.
    """
    shown = view(document)
    rules: dict[str, dict[str, Any]] = {}
    results = [_change(change, rules, prefix) for change in shown.untold]
    results += [_fault(fault, rules, prefix) for fault in [*shown.errors, *shown.warnings]]
    driver = {"name": "ampcheck", "semanticVersion": ampcheck.__version__, "rules": list(rules.values())}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The root of the repository."}}},
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, allow_nan=False) + "\n"


def _fault(fault: Fault, rules: dict[str, dict[str, Any]], prefix: str) -> dict[str, Any]:
    rule = {
        "id": fault.id,
        "name": "".join(word.capitalize() for word in re.findall(r"\w+", fault.slug)) or fault.id,
        "shortDescription": {"text": _text(fault.expected or fault.slug or fault.id)},
        "fullDescription": {"text": _text(fault.expected or fault.slug or fault.id)},
        "help": {"text": _text(f"{fault.fix}\n\nSilence: {fault.silence}".strip())},
        "defaultConfiguration": {"level": fault.level},
    }
    at = [f"At {fault.place}."] if fault.place and (fault.spot is None or fault.spot.line is None) else []
    seen = [*fault.seen, *([f"And {fault.more_seen} more."] if fault.more_seen else [])]
    text = "\n".join([*seen, *at, *([f"Fix: {fault.fix}"] if fault.fix else []), f"In {', '.join(fault.contracts)}."])
    file = fault.spot.file if fault.spot else ""
    mark = (fault.id, file, fault.function) if fault.place else (fault.id, *fault.contracts)
    return _result(rule, rules, fault.level, text, fault.spot, fault.contracts, mark, prefix)


def _change(change: Change, rules: dict[str, dict[str, Any]], prefix: str) -> dict[str, Any]:
    rule = {
        "id": f"baseline-{change.verdict}",
        "name": f"Baseline{change.verdict.capitalize()}",
        "shortDescription": {"text": "The step is no worse than the baseline that is committed"},
        "help": {"text": "Mend it, or record a new baseline and let it be reviewed."},
        "defaultConfiguration": {"level": "error"},
    }
    text, mark = f"{change.text}\nIn {change.contract}.", (change.kind, change.contract, change.text)
    return _result(rule, rules, "error", text, change.spot, [change.contract], mark, prefix)


def _result(
    rule: dict[str, Any],
    rules: dict[str, dict[str, Any]],
    level: str,
    text: str,
    spot: Spot | None,
    contracts: Iterable[str],
    mark: Iterable[str],
    prefix: str,
) -> dict[str, Any]:
    rules.setdefault(rule["id"], rule)
    result: dict[str, Any] = {
        "ruleId": rule["id"],
        "ruleIndex": list(rules).index(rule["id"]),
        "level": level,
        "message": {"text": _text(text)},
        # Without the line: a finding that moves with its function is the same one.
        "partialFingerprints": {"ampcheck/v1": hashlib.sha256("\0".join(mark).encode("utf-8")).hexdigest()},
    }
    location: dict[str, Any] = {"logicalLocations": [{"fullyQualifiedName": name, "kind": "function"} for name in contracts]}
    if spot is not None:
        uri = quote(f"{prefix}/{spot.file}" if prefix else spot.file, safe="/")
        location["physicalLocation"] = {
            "artifactLocation": {"uri": uri, "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": spot.line or 1},
        }
    return {**result, "locations": [location]}


def _text(text: str) -> str:
    return LINK.sub(" ", text)
