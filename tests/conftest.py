"""Settings for every test: the Hypothesis profile, one intra-op thread, and `pytester`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

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
