"""What the report says first, what it puts together, and what comes before what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ampcheck.report import markdown
from ampcheck.report.annotations import MOST, commands
from ampcheck.report.formats import render
from ampcheck.report.view import LINES, TEXTS, Spot, view

Build = Callable[..., dict[str, Any]]
PLACE = {"file": "train.py", "line": 9, "function": "step"}


def report(*outcomes: str, **more: Any) -> dict[str, Any]:
    """A contract for each outcome of its AMP102."""
    contracts = [{"contract": f"t.py::net{n}", "device": "cpu"} for n in range(len(outcomes))]
    checked = {"check": "AMP102", "slug": "clip", "policy": "as-written", "reason": "so", "seconds": 0.0}
    items = [{**contract, **checked, "outcome": outcome} for contract, outcome in zip(contracts, outcomes, strict=True)]
    return {"version": 1, "environment": {}, "findings": [], "items": items, "costs": [], **more}


def finding(contract: int = 0, **more: Any) -> dict[str, Any]:
    told = {"expected": "e", "seen": "s", "fix": "f", "location": PLACE, "evidence": {}, "policy": "as-written"}
    names = {"id": "AMP102", "slug": "clip", "level": "error", "contract": f"t.py::net{contract}", "device": "cpu"}
    return {**names, **told, **more}


def change(verdict: str, contract: int = 0, text: str = "norm: float32 -> bfloat16") -> dict[str, Any]:
    names = {"contract": f"t.py::net{contract}", "device": "cpu", "kind": "modules"}
    return {**names, "verdict": verdict, "text": text, "location": PLACE}


@pytest.mark.parametrize(
    ("document", "state", "said"),
    [
        (report("passed", "passed"), "passed", "Passed: no error in 2 contracts."),
        (report("warned"), "warned", "Passed with 1 warning: no error in 1 contract."),
        (report("passed", "not-run"), "warned", "Passed: no error in 2 contracts; 1 could not be judged."),
        (report("not-run", "inconclusive"), "unjudged", "Nothing was judged: no check of scaler order and scaling reached a verdict."),
        (report(), "unjudged", "Nothing was judged: no check of scaler order and scaling reached a verdict."),
        (report("failed", "passed"), "failed", "Blocked: 1 error, in 1 of 2 contracts."),
        (report("xfailed"), "passed", "Passed: no error in 1 contract."),
        (report("passed", changes=[change("better"), change("info")]), "passed", "Passed: no error in 1 contract."),
        (report("passed", changes=[change("worse")]), "failed", "Blocked: 1 change for the worse since the baseline, in 1 of 1 contract."),
        (report("failed", "passed", changes=[change("new", 1)]), "failed", "Blocked: 1 error and 1 change for the worse since the baseline, in 2 of 2 contracts."),
        (report("not-run", changes=[change("worse")]), "failed", "Blocked: 1 change for the worse since the baseline, in 1 of 1 contract."),
    ],
)  # fmt: skip
def test_the_first_sentence(document: dict[str, Any], state: str, said: str) -> None:
    if any(item["outcome"] == "warned" for item in document["items"]):
        document["findings"] = [finding(level="warning")]
    shown = view(document)
    assert (shown.state, shown.verdict) == (state, said)


def test_one_line_that_breaks_many_contracts_is_one_fault() -> None:
    seen = [finding(n, seen=f"at scale {n % 5}") for n in range(40)]
    (fault,) = view(report(*["failed"] * 40, findings=seen)).errors
    assert len(fault.contracts) == 40
    assert fault.seen == ["at scale 0", "at scale 1", "at scale 2"] and len(fault.seen) == TEXTS
    assert fault.more_seen == 2
    assert fault.spot == Spot("train.py", 9)


def test_faults_in_different_places_stay_apart() -> None:
    elsewhere = finding(1, location={**PLACE, "line": 10})
    nowhere = [finding(2, location=None), finding(3, location=None, seen="other")]
    assert len(view(report(*["failed"] * 4, findings=[finding(), elsewhere, *nowhere])).errors) == 4


def test_an_item_that_fails_without_a_finding_is_an_error() -> None:
    (fault,) = view(report("failed")).errors
    assert (fault.id, fault.seen, fault.place, fault.spot) == ("AMP102", ["so"], "", Spot("t.py"))


def test_what_follows_is_told_with_what_it_follows() -> None:
    document = report("failed", findings=[finding()])
    document["items"].append({**document["items"][0], "check": "AMP101", "follows": "AMP102"})
    (fault,) = view(document).errors
    assert fault.followers == ["AMP101"]


def test_a_finding_that_is_expected_is_no_error() -> None:
    shown = view(report("xfailed", findings=[finding()]))
    assert (shown.errors, shown.warnings) == ([], [])
    assert [(entry.reason, entry.count) for entry in shown.expected] == [("so", 1)]


@pytest.mark.parametrize(
    "file", ["../train.py", "/abs/train.py", "<string>", "C:/train.py", "a/../../train.py", "javascript:alert(1)"]
)
def test_a_place_outside_is_told_and_not_pointed_at(file: str) -> None:
    (fault,) = view(report("failed", findings=[finding(location={**PLACE, "file": file})])).errors
    assert fault.place.startswith(file)
    assert fault.spot == Spot("t.py")


def test_contracts_that_need_eyes_come_first() -> None:
    document = report("passed", "not-run", "warned", "failed", "passed", changes=[change("worse", 4)])
    assert [c.name[9] for c in view(document).contracts] == ["3", "4", "2", "1", "0"]


def test_changes_for_the_worse_come_first() -> None:
    document = report("passed", changes=[change(v) for v in ("info", "better", "new", "worse")])
    assert [c.verdict for c in view(document).changes] == ["worse", "new", "info", "better"]


def test_one_reason_for_many_items_is_told_once_and_the_rare_one_first() -> None:
    document = report(*["not-run"] * 40)
    document["items"][7]["reason"] = "rare"
    assert [(r.reason, r.count, len(r.contracts)) for r in view(document).not_run] == [("rare", 1, 1), ("so", 39, 39)]


def test_a_text_of_many_lines_is_cut() -> None:
    (fault,) = view(report("failed", findings=[finding(seen="x\n" * 500)])).errors
    assert fault.seen[0].count("\n") == LINES
    assert fault.seen[0].endswith("more lines)")


def test_the_environment_is_flat() -> None:
    document = report("passed", environment={"torch": "2", "threads": 1, "tf32": {"matmul": False, "cudnn": True}})
    assert view(document).environment == {"torch": "2", "threads": "1", "tf32 matmul": "no", "tf32 cudnn": "yes"}


def test_the_environments_of_several_devices_are_told_apart() -> None:
    cpu = {"torch": "2", "device": "cpu"}
    cuda = {"torch": "2", "device": "cuda", "card": "H"}
    found = view(report("passed", environment={**cpu, "devices": {"cpu": cpu, "cuda": cuda}})).environment
    assert found == {"torch": "2", "cpu: device": "cpu", "cuda: device": "cuda", "cuda: card": "H"}


def test_annotations_stop_where_github_does() -> None:
    seen = [finding(n, location={**PLACE, "line": n + 1}) for n in range(25)]
    lines = list(commands(report(*["failed"] * 25, findings=seen)))
    assert len(lines) == MOST + 1
    assert lines[0] == "::error file=train.py,line=1,title=AMP102 clip::s%0Afix: f%0Ain t.py::net0 [cpu]"
    assert lines[-1] == "::notice title=ampcheck::15 more errors: GitHub shows 10 of each level; the report has all of them"


def test_annotations_are_below_the_root_of_the_repository() -> None:
    (line,) = commands(report("failed", findings=[finding()]), "packages/a")
    assert line.startswith("::error file=packages/a/train.py,line=9,")


def test_a_new_finding_is_annotated_once() -> None:
    document = report("failed", findings=[finding()], changes=[change("new", text="AMP102 is new: s"), change("worse")])
    assert [line.partition("::")[2].partition("title=")[2].partition("::")[0] for line in commands(document)] == [
        "worse than the baseline",
        "AMP102 clip",
    ]


def test_a_summary_that_is_too_long_says_so() -> None:
    document = report(*["failed"] * 300, findings=[finding(n, location={**PLACE, "line": n + 1}) for n in range(300)])
    whole = markdown.render(document)
    short = markdown.render(document, 10_000)
    assert len(short.encode()) <= 10_000 < len(whole.encode())
    assert short.startswith(whole[:5000])
    assert short.endswith(markdown.NOTE)
    assert markdown.render(document, 10) == ""


@pytest.mark.parametrize("name", ["html", "markdown", "sarif", "junit"])
def test_a_report_of_the_first_days_has_every_format(name: str, undrawn: None) -> None:
    document = report("failed", findings=[finding()])
    for item in document["items"]:
        del item["slug"]
    assert "AMP102" in render(document, name)
