"""Hypothesis strategies for mixed-precision code, for your own property tests.

Importing this module registers two Hypothesis profiles: "ampcheck-ci", fast and deterministic, and "ampcheck-thorough".
`import ampcheck.strategies` in a `conftest.py` makes `pytest --hypothesis-profile=ampcheck-thorough` work.

The values are chosen to be exact: slopes and scales are powers of two, so that scaled and unscaled arithmetic in float32
gives the same bits and a test may compare without a tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

__all__ = ["Plant", "loss_scales", "non_finite", "plants", "scaler_arguments", "slopes"]

CI_PROFILE = "ampcheck-ci"
THOROUGH_PROFILE = "ampcheck-thorough"
# Each example drives torch, and how long that takes on a busy runner says nothing about the scaler.
_COMMON: dict[str, Any] = {
    "deadline": None,
    "print_blob": False,
    "report_multiple_bugs": False,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
}
settings.register_profile(CI_PROFILE, max_examples=60, stateful_step_count=12, derandomize=True, database=None, **_COMMON)
settings.register_profile(THOROUGH_PROFILE, max_examples=2000, stateful_step_count=60, **_COMMON)


@dataclass(frozen=True)
class Plant:
    """A value to write into a gradient: `element` (index into the flattened gradient) of parameter number `parameter`."""

    parameter: int
    element: int
    value: float


def non_finite() -> st.SearchStrategy[float]:
    """inf, -inf or NaN: what an overflow leaves in a gradient. Shrinks to inf."""
    return st.sampled_from([float("inf"), float("-inf"), float("nan")])


def slopes() -> st.SearchStrategy[float]:
    """Gradient values that are exact in float16, and whose sums are exact in float32: 0.5, 1.0, 0.25 and their negatives."""
    return st.sampled_from([0.5, 1.0, 0.25, -0.5, -1.0, -0.25])


def loss_scales(min_exponent: int = 0, max_exponent: int = 24) -> st.SearchStrategy[float]:
    """Powers of two from 2^`min_exponent` to 2^`max_exponent`, as floats."""
    return st.integers(min_exponent, max_exponent).map(lambda exponent: 2.0**exponent)


def plants(sizes: list[int]) -> st.SearchStrategy[Plant]:
    """A non-finite value at any element of any parameter.

    Args:
        sizes: the number of elements of each parameter's gradient.
    """
    places = [(parameter, element) for parameter, size in enumerate(sizes) for element in range(size)]
    return st.builds(lambda place, value: Plant(place[0], place[1], value), st.sampled_from(places), non_finite())


def scaler_arguments(max_interval: int = 5) -> st.SearchStrategy[dict[str, Any]]:
    """Legal keyword arguments of a scaler that is built like `torch.amp.GradScaler`: init_scale, growth_factor,
    backoff_factor and growth_interval. Intervals are short, so that growth is reached.
    """
    return st.fixed_dictionaries(
        {
            "init_scale": loss_scales(2, 20),
            "growth_factor": st.sampled_from([2.0, 4.0, 1.5]),
            "backoff_factor": st.sampled_from([0.5, 0.25, 0.75]),
            "growth_interval": st.integers(1, max_interval),
        }
    )
