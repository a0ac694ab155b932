"""The catalogue is tied together: every check has its documentation, a name of its own and a row in the README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType

import pytest

from ampcheck.registry import Check, load_checks

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


@pytest.mark.parametrize("table", ["catalogue", "drift", "options"])
def test_the_tables_of_the_readme_are_up_to_date(table: str, script: Callable[[str], ModuleType]) -> None:
    readme = script("readme")
    assert readme.shown(readme.README.read_text("utf-8"))[table] == readme.TABLES[table](), "run: python ci/readme.py --write"
