"""Checks and case folders belong together: no check of these families without a fault that it names, no case without a check."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from ampcheck.registry import load_checks

CASES = Path(__file__).parents[1] / "cases"
FILES = sorted(path for path in CASES.glob("*/*.py") if path.parent.name != "__pycache__")
#: Checks without a broken twin by their nature: AMP902 says what the machine is, and finds nothing.
WITHOUT_TWIN = {"AMP902"}
TIED = [id for id in load_checks() if (id[3] in "1279" or id == "AMP311") and id not in WITHOUT_TWIN]


def expected(path: Path) -> tuple[str, ...]:
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXPECT":
            value = ast.literal_eval(node.value)
            assert isinstance(value, tuple)
            return value
    raise AssertionError(f"{path.name} says nothing of what it expects")


@pytest.mark.parametrize("id", TIED)
def test_every_check_has_a_case(id: str) -> None:
    cases = sorted((CASES / id).glob("*.py"))
    assert cases, f"give {id} a folder in tests/cases with a fault that it names"
    assert any(id in expected(path) for path in cases), f"no case in the folder of {id} expects it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_case_says_what_it_is(path: Path) -> None:
    doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    if path.parent.name == "correct":
        assert expected(path) == ()
        assert "The trap:" in doc
        return
    assert path.parent.name in load_checks(), f"{path.parent.name} is no check"
    assert set(expected(path)) <= set(load_checks())
    assert expected(path)
    assert "Effect:" in doc
    assert "Source:" in doc
