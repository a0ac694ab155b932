"""Every case folder against the product: the broken twin is named first and located in its file, the right one is left alone.

A folder is called after the check that its faults are about; `correct/` holds steps without a broken twin, each a trap for a
naive rule. A case is one file with a docstring (what is wrong, its effect, the source of the rule) and

- `EXPECT`: ids that name the fault rightly, the most specific first; empty for a correct step;
- `build(broken, device)`, or `build(device)` for a correct step: the step, or an `ampcheck.Training`;
- optionally `UNLOCATED = True` where no line is to blame, `BLAMES`: what must stand in the line that is blamed,
  `UNJUDGED`: id -> why the right step cannot be judged by it, and
  `QUIET`: ids of warnings that would be wrong here.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ampcheck
from ampcheck.errors import OURS
from ampcheck.findings import Report

HERE = Path(__file__).parent
FAULTS = sorted(HERE.glob("AMP*/*.py"))
CORRECT = sorted(HERE.glob("correct/*.py"))
#: What must be judged in a right step that uses a loss scaler: the exact oracle and the planted overflow.
ORACLES = ("AMP101", "AMP201")
WITHOUT_SCALER = ("no loss scaler", "the loss scaler is disabled", "the loss scaler is not used")


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@functools.cache
def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"case_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judge(make_step: Callable[[], Any]) -> Report:
    return ampcheck.check(make_step, device="cpu", name="case")


def told(report: Report) -> str:
    """All that a report says, for the message of a failed test."""
    lines = [f"{f.id} {f.level}: {f.seen} [{f.location}]" for f in report.findings]
    return "\n".join(lines + [f"{v.check} {v.outcome}: {v.reason}" for v in report.verdicts if v.outcome != "passed"])


def assert_right(report: Report, unjudged: dict[str, str]) -> None:
    """No error-level finding, no error of ampcheck's own, and with a scaler in use both oracles were heard."""
    assert not [f.id for f in report.findings if f.level == "error"], told(report)
    assert not [v.check for v in report.verdicts if v.reason and OURS in v.reason], told(report)
    for verdict in report.verdicts:
        if verdict.check not in ORACLES or verdict.reason in WITHOUT_SCALER:
            continue
        assert (verdict.outcome in ("passed", "warned")) == (verdict.check not in unjudged), told(report)


@pytest.mark.parametrize("path", FAULTS, ids=name_of)
def test_the_fault_is_named_first_and_located(path: Path) -> None:
    case = load(path)
    report = judge(lambda: case.build(True, "cpu"))
    assert report.findings, told(report)
    first = report.findings[0]
    assert first.id in case.EXPECT, told(report)
    if getattr(case, "UNLOCATED", False):
        return
    assert first.location is not None, told(report)
    assert Path(first.location.file) == path, told(report)
    line = path.read_text(encoding="utf-8").splitlines()[first.location.line - 1]
    assert getattr(case, "BLAMES", "") in line, told(report)


@pytest.mark.parametrize("path", FAULTS, ids=name_of)
def test_the_right_twin_is_left_alone(path: Path) -> None:
    case = load(path)
    assert_right(judge(lambda: case.build(False, "cpu")), getattr(case, "UNJUDGED", {}))


@pytest.mark.parametrize("path", CORRECT, ids=name_of)
def test_a_correct_step_is_left_alone(path: Path) -> None:
    case = load(path)
    assert case.EXPECT == ()
    report = judge(lambda: case.build("cpu"))
    assert_right(report, getattr(case, "UNJUDGED", {}))
    assert not {f.id for f in report.findings}.intersection(getattr(case, "QUIET", ())), told(report)
