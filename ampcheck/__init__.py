"""ampcheck: a contract test suite for mixed-precision training.

Public names are imported on first use (PEP 562), so that `import ampcheck` costs nothing and never imports torch.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampcheck import strategies as strategies
    from ampcheck.contract import Contract as Contract
    from ampcheck.contract import Training as Training
    from ampcheck.contract import contract as contract
    from ampcheck.errors import AmpcheckError as AmpcheckError
    from ampcheck.errors import ContractError as ContractError
    from ampcheck.errors import UsageError as UsageError
    from ampcheck.findings import Finding as Finding
    from ampcheck.findings import Report as Report
    from ampcheck.findings import Verdict as Verdict
    from ampcheck.policy import policy as policy
    from ampcheck.runner import check as check
    from ampcheck.scaler.contract import scaler_contract as scaler_contract
    from ampcheck.trace import Trace as Trace
    from ampcheck.trace import trace as trace

__version__ = "0.1.0"

_HOME = {
    "AmpcheckError": "errors",
    "Contract": "contract",
    "ContractError": "errors",
    "Finding": "findings",
    "Report": "findings",
    "Trace": "trace",
    "Training": "contract",
    "UsageError": "errors",
    "Verdict": "findings",
    "check": "runner",
    "contract": "contract",
    "policy": "policy",
    "scaler_contract": "scaler.contract",
    "trace": "trace",
}
__all__ = [*sorted(_HOME), "__version__", "strategies"]


class _Package(types.ModuleType):
    """Keeps `ampcheck.contract` the decorator: importing the module of that name must not replace it."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name in _HOME:
        value: object = getattr(importlib.import_module(f"ampcheck.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name == "strategies":
        return importlib.import_module("ampcheck.strategies")
    raise AttributeError(f"module 'ampcheck' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
