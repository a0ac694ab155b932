"""JUnit: properties on each test case that pytest writes, and the whole file where there is only the document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from ampcheck.report.text import clean, one_line, relative, silence

__all__ = ["properties", "render"]

KINDS = {"failed": "failure", "inconclusive": "skipped", "not-run": "skipped", "xfailed": "skipped"}


def properties(item: Mapping[str, Any], finding: Mapping[str, Any] | None, root: Path | None = None) -> list[tuple[str, str]]:
    """What a dashboard can filter by, as pytest's `user_properties`.

    Args:
        item: an entry of `items` of the document.
        finding: the entry of `findings` that decided it, if there is one.
        root: the directory that its place is shown relative to; as it is if None.
    """
    where = finding and finding["location"]
    file = where and (where["file"] if root is None else relative(where["file"], root))
    found = {
        "ampcheck_id": item["check"],
        "ampcheck_outcome": item["outcome"],
        "ampcheck_policy": item["policy"],
        "ampcheck_device": item["device"],
        "ampcheck_follows": item.get("follows"),
        "ampcheck_level": finding and finding["level"],
        "ampcheck_location": where and f"{file}:{where['line']}",
    }
    return [(name, one_line(value)) for name, value in found.items() if value]


def render(document: Mapping[str, Any]) -> str:
    """A JUnit file: one suite, a test case for each item.

    Args:
        document: as `ampcheck.report.json.document` makes it.
    """
    findings = {(f["contract"], f["device"], f["id"], f["policy"]): f for f in document["findings"]}
    items = document["items"]
    outcomes = [item["outcome"] for item in items]
    totals = {
        "tests": str(len(items)),
        "failures": str(outcomes.count("failed")),
        "errors": "0",
        "skipped": str(sum(KINDS.get(outcome) == "skipped" for outcome in outcomes)),
        "time": f"{sum(item['seconds'] for item in items):.6f}",
    }
    root = ET.Element("testsuites", {"name": "ampcheck"})
    suite = ET.SubElement(root, "testsuite", {"name": "ampcheck", **totals})
    for item in items:
        # A check that follows from another is told by the finding of that one.
        id = item.get("follows") or item["check"]
        key = (item["contract"], item["device"], id)
        finding = findings.get((*key, item["policy"])) or findings.get((*key, "as-written"))
        _case(suite, item, finding if item["outcome"] in ("failed", "warned", "xfailed") else None)
    ET.indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, item: Mapping[str, Any], finding: Mapping[str, Any] | None) -> None:
    policy = "" if item["policy"] == "as-written" else f"-{item['policy']}"
    name = one_line(f"{item['contract'].rpartition('::')[2]}[{item['device']}-{item['check']}-{item.get('slug', '')}{policy}]")
    file = one_line(item["contract"].partition("::")[0])
    seconds = f"{item['seconds']:.6f}"
    case = ET.SubElement(
        suite, "testcase", {"classname": file.removesuffix(".py").replace("/", "."), "name": name, "time": seconds}
    )
    listed = ET.SubElement(case, "properties")
    for key, value in properties(item, finding):
        ET.SubElement(listed, "property", {"name": key, "value": value})
    kind = KINDS.get(item["outcome"])
    if kind is None:
        return
    reason = one_line(item["reason"])
    follows = one_line(item.get("follows") or "")
    told = {
        "message": f"follows from {follows}" if follows else reason if kind == "failure" else f"{item['outcome']}: {reason}"
    }
    ET.SubElement(case, kind, told).text = "" if finding is None or follows else _beats(finding)


def _beats(finding: Mapping[str, Any]) -> str:
    where = finding["location"]
    at = "no single line is to blame" if where is None else "{file}:{line} in {function}".format(**where)
    beats = {**{name: finding[name] for name in ("expected", "seen")}, "at": at, "fix": finding["fix"]}
    return "\n".join(
        [*(f"{name}: {clean(text)}" for name, text in beats.items()), f"silence: {silence(one_line(finding['id']))}"]
    )
