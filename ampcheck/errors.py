"""Every exception that ampcheck raises on purpose; each docstring says why a user would see it."""

from __future__ import annotations

__all__ = ["AmpcheckError", "ContractError", "PolicyError", "ScenarioTimeout", "UsageError"]


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
