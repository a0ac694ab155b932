"""The scripts of `ci/`, as modules."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    """`script("startup")` is the module `ci/startup.py`."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"ci_{name}", Path(__file__).parents[2] / "ci" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
