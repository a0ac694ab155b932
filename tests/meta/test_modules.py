"""The shape of the source: no module grows beyond what one can read in one sitting, and every one says what it is for."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

PACKAGE = Path(importlib.util.find_spec("ampcheck").submodule_search_locations[0])
LONGEST = 400


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_is_short_and_introduces_itself(path: Path) -> None:
    source = path.read_text("utf-8")
    assert len(source.splitlines()) <= LONGEST, (
        f"{path.name} is longer than {LONGEST} lines: split it by what its parts are for"
    )
    assert ast.get_docstring(ast.parse(source)), f"{path.name} has no docstring that says what it is for"
