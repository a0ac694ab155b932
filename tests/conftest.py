"""For every test: the Hypothesis profile, one intra-op thread, `pytester`, and where a place lies."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

from ampcheck.findings import Location
from ampcheck.strategies import CI_PROFILE

pytest_plugins = ["pytester"]

# Deterministic and quick by default: a merge is never red by luck. "ampcheck-thorough" looks for new counter-examples.
settings.load_profile(os.environ.get("AMPCHECK_HYPOTHESIS_PROFILE", CI_PROFILE))


@pytest.fixture(autouse=True)
def no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine of one's own: what tests run has nothing to say to the service that runs them."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Two intra-op threads on a busy two-core machine make small steps a hundred times slower than one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def lies_in() -> Callable[[Location, Callable[..., Any]], bool]:
    """Tells whether a place is in the body of a function: its name is qualified from Python 3.11 on alone."""

    def tell(location: Location, function: Callable[..., Any]) -> bool:
        function = inspect.unwrap(function)
        lines, first = inspect.getsourcelines(function)
        return location.file == inspect.getsourcefile(function) and first <= location.line < first + len(lines)

    return tell
