"""Whose code a file is: the user's, an installed package's, or never the user's."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

import ampcheck
from ampcheck.trace.sources import _rank

OWN = Path(ampcheck.__file__).resolve().parent
PACKAGES = Path(sysconfig.get_paths()["purelib"])


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        (OWN / "runner.py", 2),
        (OWN / "trace" / "recorder.py", 2),
        (OWN / "reference.py", 0),
        (OWN.parent / "ampcheck_demo" / "train.py", 0),
        (Path(f"{OWN}-tests") / "train.py", 0),
        (PACKAGES / "torch" / "nn" / "modules" / "module.py", 2),
        (PACKAGES / "pytest" / "__main__.py", 2),
        (PACKAGES / "_pytest" / "python.py", 2),
        (PACKAGES / "accelerate" / "optimizer.py", 1),
        (PACKAGES / "pytest_of_mine" / "train.py", 1),
        (Path(os.__file__), 2),
        ("<string>", 2),
    ],
)
def test_whose_code_a_file_is(file: Path | str, rank: int) -> None:
    assert _rank(str(file)) == rank
