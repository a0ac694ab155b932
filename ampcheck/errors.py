"""Every exception that ampcheck raises on purpose; each docstring says why a user would see it."""

from __future__ import annotations

__all__ = ["OURS", "AmpcheckError", "ContractError", "PolicyError", "ScenarioTimeout", "UsageError", "ours"]

#: How the reason begins where a bug of ampcheck's own kept a check from a verdict.
OURS = "an error of ampcheck's own, please report it: "


def ours(error: Exception) -> str:
    """The reason that a bug of ampcheck's own gives: it blocks nobody's merge, and the summary tells it whatever else there is."""
    return f"{OURS}{type(error).__name__}: {error}"


class AmpcheckError(Exception):
    """Base class: catch this to catch everything that ampcheck itself raises."""


class UsageError(AmpcheckError):
    """A setting is wrong: an unknown check id, a device name, an option value. The message names the nearest match."""


class ContractError(AmpcheckError):
    """A contract cannot be used as it is: it returned nothing, something that is not callable, or shares state between builds."""


class PolicyError(AmpcheckError):
    """A precision was asked for that this device or torch version cannot run."""


class ScenarioTimeout(AmpcheckError):
    """One scenario of one contract ran longer than its timeout allows; the other contracts go on."""
