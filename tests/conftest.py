"""Settings for every test: the Hypothesis profile, one intra-op thread, and `pytester`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]

# Deterministic and quick: a merge is never red by luck. The thorough one looks for new counter-examples.
settings.register_profile(
    "ampcheck-ci", derandomize=True, database=None, deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ampcheck-thorough", deadline=None, max_examples=1000, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("AMPCHECK_HYPOTHESIS_PROFILE", "ampcheck-ci"))


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Two intra-op threads on a busy two-core machine make small steps a hundred times slower than one."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
