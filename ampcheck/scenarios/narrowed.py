"""FP32 parameters that a step leaves in FP32 and the loop then rounds: `model.half()` and back, a copy through 16 bits."""

from __future__ import annotations

from typing import Any

import torch

from ampcheck.scenarios.drive import Built, Stage
from ampcheck.trace.digest import local
from ampcheck.trace.events import Event
from ampcheck.trace.recorder import Probe, Recorder

__all__ = ["Narrowed"]

#: Fewer different magnitudes are a mask, signs or a constant, which 16 bits hold as well as 32.
_DISTINCT = 8


class Narrowed(Probe, Stage):
    """Names the parameters whose values fit in 16 bits at the end of each call, and did not after the steps of these calls.

    Those that fit after the first call are looked at in the later ones: none, as a rule.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self._calls = 0
        self._trained: dict[int, torch.Tensor] = {}
        self._narrow: dict[int, torch.Tensor] = {}

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if entering or not event.get("took") or event.optimizer is None:
            return
        trained = {id(p): p for p in recorder.parameters(event.optimizer) if p.grad is not None}
        self._trained |= trained
        for key in trained.keys() & self._narrow.keys():
            if _fits(trained[key]):  # the step itself leaves it so
                del self._narrow[key]

    def after_call(self, built: Built, call: int) -> bool:
        if self._trained:
            self._calls += 1
            seen = self._trained if self._calls == 1 else self._narrow
            self._narrow = {key: p for key, p in seen.items() if key in self._trained and _fits(p)}
            self._trained = {}
        return False

    def finished(self, built: Built) -> None:
        if self._calls > 1 and self._narrow:
            names = built.reach().names()
            self.names = [names.get(key, "a parameter") for key in self._narrow]
        self._narrow = {}


def _fits(p: torch.Tensor) -> bool:
    """Whether an FP32 tensor of many magnitudes holds nothing that 16 bits would not."""
    values = local(p)
    if values.dtype is not torch.float32 or values.numel() < _DISTINCT:
        return False
    if not _narrow(values.flatten()[: 8 * _DISTINCT]) or not _narrow(values):
        return False
    return int(values.abs().unique().numel()) >= _DISTINCT


def _narrow(values: torch.Tensor) -> bool:
    """By bits: a cast would be answered with FP32 in the widened world."""
    bits, size = values.view(torch.int32), values.abs()
    if not bool((bits & 0xFFFF).any()):
        return True  # bfloat16
    normal = (bits & 0x1FFF == 0) & (size >= 2.0**-14) & (size <= 65504.0)
    subnormal = (size < 2.0**-14) & (values * 2.0**24 == (values * 2.0**24).round())
    return bool((normal | subnormal).all())
