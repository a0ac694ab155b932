"""A copy of the contract's own scaler against the reference model, on sequences that the natural run shows (AMP208)."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch

from ampcheck.evidence import Evidence
from ampcheck.findings import Location
from ampcheck.policy import Policy
from ampcheck.scenarios.drive import Built, Stage
from ampcheck.scenarios.spec import Spec
from ampcheck.trace.sources import of_callable

__all__ = ["scaler_discrepancies"]

#: A growth interval that is seen to its end in an instant.
QUICK = 10


class _Copy(Stage):
    """Takes a copy of each scaler right after the build."""

    def __init__(self) -> None:
        self.copies: list[Any] = []
        self.error = ""

    def after_call(self, built: Built, call: int) -> bool:
        return True

    def built(self, built: Built) -> None:
        for scaler, info in zip(built.recorder.scalers, built.recorder.trace.scalers, strict=True):
            if not info.enabled:
                continue
            # the recorder's wrappers are on the instance: the copy must not report to it
            hidden = {k: v for k, v in getattr(scaler, "__dict__", {}).items() if k in _WATCHED}
            for name in hidden:
                delattr(scaler, name)
            try:
                self.copies.append(_quick(copy.deepcopy(scaler)))
            except Exception as error:
                self.error = f"the scaler cannot be copied: {type(error).__name__}: {error}"
            finally:
                for name, value in hidden.items():
                    setattr(scaler, name, value)


def _quick(scaler: Any) -> Any:
    """Let a scaler of torch's kind grow after a few updates, so that growth, and the way down from there, can be seen."""
    if isinstance(scaler, torch.amp.GradScaler) and scaler.get_growth_interval() > QUICK:
        scaler.set_growth_interval(QUICK)
    return scaler


_WATCHED = ("scale", "unscale_", "step", "update", "get_scale", "load_state_dict")


def scaler_discrepancies(spec: Spec, evidence: Evidence) -> None:
    """Try copies of the contract's scalers and note where they part from the model; torch's own class is known to agree."""
    trace = evidence.trace
    custom = [i for i, s in enumerate(trace.scalers) if s.enabled and (s.custom or s.kind != "GradScaler")]
    if not custom:
        evidence.discrepancies = []  # torch's own class: the suite's own tests cover it
        return
    from ampcheck.scaler.probe import Usage, probe

    stage = _Copy()
    spec.run("scaler", Policy(), calls=0, stage=stage)
    if not stage.copies:
        evidence.not_run["scaler"] = stage.error or "the scaler is not there after the build"
        return
    found: list[tuple[Any, Location | None]] = []
    usage = Usage.of_trace(trace)
    for scaler in stage.copies:
        result = probe(scaler, usage, capabilities=evidence.declared.get("capabilities", {}), device=spec.device)
        if result.not_run:
            evidence.not_run["scaler"] = result.not_run
            return
        found += [(discrepancy, _home(scaler, discrepancy.check)) for discrepancy in result]
    evidence.discrepancies = found


def _home(scaler: Any, check: str) -> Location | None:
    """Where the scaler's class decides: `update` for the scale, `step` for skips and what it does to gradients."""
    names = ("step", "update") if check == "AMP208" else ("update", "step")
    methods = [getattr(scaler, name, None) for name in names]
    # one that only overrides what torch's own step calls: the first method that is not torch's
    methods += [
        m for cls in type(scaler).__mro__ for name, m in vars(cls).items() if inspect.isfunction(m) and name != "__init__"
    ]
    return next((site for site in map(of_callable, methods) if site is not None), None)
