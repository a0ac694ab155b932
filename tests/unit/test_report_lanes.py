"""Reports side by side, and what a lane could not judge: functions of the JSON document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ampcheck.report import unjudged, versions

HOSTILE = "\x1b[31m|<img src=x>\n## heading `x` ::error::" + "y" * 10_000


def item(check: str, outcome: str, reason: str = "", contract: str = "t.py::net", policy: str = "as-written") -> dict[str, Any]:
    return {"contract": contract, "device": "cpu", "check": check, "policy": policy, "outcome": outcome, "reason": reason}


def document(*items: dict[str, Any], findings: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"version": 1, "environment": {"torch": "2.4", "device": "cpu"}, "items": list(items), "findings": list(findings)}


def test_only_what_differs_is_a_row() -> None:
    old = document(item("AMP101", "passed"), item("AMP207", "failed"), item("AMP502", "passed", policy="float16"))
    new = document(item("AMP101", "passed"), item("AMP207", "passed"))
    assert versions.differences({"2.4": old, "none": None, "2.13": new}) == [
        (("t.py::net", "cpu", "AMP207", "as-written"), ["failed", "-", "passed"]),
        (("t.py::net", "cpu", "AMP502", "float16"), ["passed", "-", "-"]),
    ]


def test_a_row_comes_with_its_reason_or_with_what_the_finding_saw() -> None:
    finding = {"id": "AMP207", "contract": "t.py::net", "device": "cpu", "policy": "as-written", "seen": "no scaler"}
    old = document(item("AMP207", "failed"), item("AMP603", "not-run", "no GPU"), findings=(finding,))
    new = document(item("AMP207", "passed"), item("AMP603", "not-run", "no GPU"))
    shown = list(versions.table({"2.4": old, "2.13": new}))
    assert "- 2.4: AMP207: no scaler" in shown
    assert not any("no GPU" in line for line in shown), "the same in both"


def test_agreement_is_said_and_one_report_is_no_agreement() -> None:
    one = document(item("AMP101", "passed"))
    assert list(versions.table({"a": one, "b": one}))[-1] == "No verdict differs between them."
    assert list(versions.table({"a": one, "b": None}))[-1] == "There are no two reports to compare."


def test_hostile_text_stays_in_its_cell() -> None:
    old, new = document(item("AMP101", "failed", HOSTILE, HOSTILE)), document(item("AMP101", "passed", "", HOSTILE))
    lines = [*versions.table({HOSTILE: old, "b": new}), *unjudged.lines(document(item("AMP1", "not-run", HOSTILE)))]
    for line in lines:
        assert "\n" not in line
        assert "\x1b" not in line
        assert len(line) < 2000
        assert not line.startswith(("#", "::"))
    markup = [line for line in lines if "img" in line and not line.startswith("  ")]
    assert markup
    assert all("\\<img" in line for line in markup)


def test_what_is_left_is_counted_by_reason() -> None:
    items = [item("AMP603", "not-run", "no GPU"), item("AMP1", "not-run", "no scaler"), item("AMP2", "not-run", "no scaler")]
    shown = list(unjudged.lines(document(*items, item("AMP3", "passed"))))
    assert shown[0] == "ampcheck on cpu: 1 of 4 items judged, 3 not"
    assert [line.split() for line in shown[1:]] == [
        ["not-run", "2", "x", "no", "scaler", "(AMP1,", "AMP2)"],
        ["not-run", "1", "x", "no", "GPU", "(AMP603)"],
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"items": 3}', "\x00", '{"items": [{}]}'])
def test_what_is_no_report_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    assert unjudged.main([str(path)]) == 2
    if text != '{"items": [{}]}':
        assert versions.main([f"2.4={path}"]) == 2
    assert capsys.readouterr().err.startswith("ampcheck: ")
    assert unjudged.main([]) == unjudged.main([str(tmp_path / "absent")]) == 2


def test_both_are_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "torch.json"
    path.write_text(json.dumps(document(item("AMP101", "passed"))))
    assert versions.main([str(path), f"b={path}"]) == 0
    assert "| torch | 2.4 |" in capsys.readouterr().out
    assert unjudged.main([str(path)]) == 0
    assert "1 of 1 items judged, 0 not" in capsys.readouterr().out
