"""The catalogue is tied together: every check has its documentation, a name of its own and a row in the README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from ampcheck.registry import Check, load_checks

ROOT = Path(__file__).parents[2]
CATALOGUE = load_checks()


def test_there_are_checks() -> None:
    assert CATALOGUE


def test_no_two_checks_share_a_slug() -> None:
    assert [slug for slug, count in Counter(check.slug for check in CATALOGUE.values()).items() if count > 1] == []


@pytest.mark.parametrize("check", CATALOGUE.values(), ids=lambda check: check.id)
def test_a_check_documents_itself(check: Check) -> None:
    assert len(check.doc) > len(check.expected), (
        "the docstring is what `ampcheck explain` shows: it says more than the one-liner"
    )
    assert check.expected.strip(), "what must hold"
    assert check.fix.strip(), "what mends it"
    assert check.slug == check.slug.lower().replace("_", "-").replace(" ", "-")
    assert set(check.follows) <= set(CATALOGUE), "follows names checks that exist"
    assert check.function.__module__.startswith("ampcheck.checks.")


def test_the_readme_shows_the_catalogue(script: Callable[[str], ModuleType]) -> None:
    catalogue = script("catalogue")
    _, shown, _ = catalogue.split((ROOT / "README.md").read_text("utf-8"))
    assert shown == catalogue.table(), "run: python ci/catalogue.py --write"
