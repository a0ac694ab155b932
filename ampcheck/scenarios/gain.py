"""What 16 bits bring on a GPU: time and peak memory of a call, as written against FP32. Two runs, no op of which is watched."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ampcheck.policy import Policy
from ampcheck.scenarios.drive import Built, Stage
from ampcheck.scenarios.spec import Spec

__all__ = ["Gain", "gain"]

#: Calls before the first one that counts: lazy allocation, kernel selection, the loss scale on its way down.
WARM_UP = 2


@dataclass(frozen=True)
class Gain:
    """Medians over the calls that count.

    Args:
        seconds, fp32_seconds: of one call.
        bytes, fp32_bytes: peak of allocated memory in a call.
        calls: how many count in each run.
    """

    seconds: float
    fp32_seconds: float
    bytes: float
    fp32_bytes: float
    calls: int


class _Measure(Stage):
    """Times each call between two synchronisations and reads the peak of its memory."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.bytes: list[float] = []

    def call(self, built: Built, step: Callable[[], object]) -> object:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        try:
            return step()
        finally:
            torch.cuda.synchronize()
            self.seconds.append(time.perf_counter() - began)
            self.bytes.append(float(torch.cuda.max_memory_allocated()))


def gain(spec: Spec, calls: int) -> Gain | None:
    """Measure the contract as written and with every autocast region at float32.

    Args:
        spec: the contract, on a CUDA device.
        calls: calls of `step` in each run; the first two do not count.

    Returns:
        Medians, or `None` where one of the runs raises or has no call that counts.
    """
    found: list[_Measure] = []
    for policy in (Policy(), Policy(autocast="float32")):
        stage = _Measure()
        run = spec.run("gain", policy, calls=calls, stage=stage)
        if run.trace.raised is not None or len(stage.seconds) <= WARM_UP:
            return None
        found.append(stage)
    low, full = found
    count = min(len(low.seconds), len(full.seconds)) - WARM_UP

    def median(values: list[float]) -> float:
        return statistics.median(values[WARM_UP : WARM_UP + count])

    return Gain(median(low.seconds), median(full.seconds), median(low.bytes), median(full.bytes), count)
