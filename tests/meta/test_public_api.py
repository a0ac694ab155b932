"""The public names: one short list, all there, documented, and imported only when asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ampcheck


def test_importing_the_package_imports_nothing_else() -> None:
    program = (
        "import sys, ampcheck; print(*sorted(n for n in sys.modules if n.split('.')[0] in ('ampcheck', 'torch', 'numpy')))"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.split() == ["ampcheck"]


def test_the_list_is_short_and_shown_by_dir() -> None:
    assert len(ampcheck.__all__) <= 20
    assert set(ampcheck.__all__) <= set(dir(ampcheck))
    assert len(set(ampcheck.__all__)) == len(ampcheck.__all__)


@pytest.mark.parametrize("name", sorted(set(ampcheck.__all__) - {"__version__"}))
def test_a_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(ampcheck, name).__doc__


def test_other_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ampcheck.no_such_name
