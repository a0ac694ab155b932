"""What becomes of an optimizer's update when it is rounded to 16-bit weights: kept by other means, or lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcheck.findings import Location
from ampcheck.scenarios.state import kept
from ampcheck.trace.digest import local
from ampcheck.trace.events import Event
from ampcheck.trace.precision import dtype_name, is_low
from ampcheck.trace.recorder import Probe, Recorder
from ampcheck.trace.sources import user_site

__all__ = ["FirstUpdate", "Lost", "OptimizerOps", "compare"]

#: Explicit mantissa bits and the exponent of the smallest subnormal.
_GRID = {torch.float16: (10, -24), torch.bfloat16: (7, -133)}
#: Moves of weights by updates of less than a quarter of a unit in the last place that rounding at random would have to make for
#: their absence to mean something.
_ENOUGH = 8.0


@dataclass
class Lost:
    """The first update of one optimizer in 16 bits, against the same in FP32.

    Args:
        elements: weights whose FP32 update is not zero; `unchanged`: those whose bits stayed as they were.
        compensated: how the rest is kept: "stochastic rounding", the slot of a compensation buffer, or "".
    """

    elements: int = 0
    unchanged: int = 0
    compensated: str = ""

    @property
    def share(self) -> float:
        return self.unchanged / self.elements if self.elements else 0.0


class FirstUpdate(Probe):
    """Copies, in host memory, of chosen parameters before and after the first step of their optimizer.

    Args:
        chosen: optimizer index -> positions of parameters.
        slots: whether state of the parameter's shape is copied too.
    """

    def __init__(self, chosen: Mapping[int, set[int]], slots: bool = False) -> None:
        self.chosen, self.slots = chosen, slots
        self.moved: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self.state: dict[tuple[int, int], dict[str, tuple[torch.Tensor, torch.Tensor]]] = {}
        self.calls: dict[int, int] = {}
        self._before: dict[int, dict[int, tuple[torch.Tensor, dict[str, torch.Tensor]]]] = {}

    @property
    def done(self) -> bool:
        return set(self.calls) == set(self.chosen)

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        index = event.optimizer
        if index is None or index not in self.chosen or index in self.calls:
            return
        chosen = [(j, p) for j, p in enumerate(recorder.parameters(index)) if j in self.chosen[index]]
        now = {j: (_host(p), self._state(optimizer, p)) for j, p in chosen}
        if entering:
            self._before[index] = now
        elif event.get("took"):
            self.calls[index] = event.call
            for j, (before, slots) in self._before.pop(index, {}).items():
                self.moved[index, j] = (before, now[j][0])
                after = now[j][1]
                self.state[index, j] = {name: (slots.get(name, torch.zeros_like(t)), t) for name, t in after.items()}

    def _state(self, optimizer: Any, p: torch.Tensor) -> dict[str, torch.Tensor]:
        if not self.slots:
            return {}
        slots = [(str(name), t) for name, t in kept(optimizer, p).items() if isinstance(t, torch.Tensor)]
        return {name: _host(t) for name, t in slots if t.shape == p.shape and t.is_floating_point()}


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return local(tensor).to("cpu", copy=True)


def compare(wide: FirstUpdate, low: FirstUpdate, known: Mapping[int, bool]) -> dict[int, Lost]:
    """Compare the first updates of the 16-bit run with those of the FP32 run.

    Args:
        wide: from the run in which nothing is rounded to 16 bits.
        low: from the run as written, with the state.
        known: for each optimizer, whether it is one of torch's, which round to nearest and compensate for nothing.
    """
    found: dict[int, Lost] = {}
    sums: dict[int, dict[tuple[str, int], float]] = {}
    moves: dict[int, list[float]] = {}
    for (index, j), (before, after) in low.moved.items():
        if (index, j) not in wide.moved or before.dtype not in _GRID or before.shape != wide.moved[index, j][0].shape:
            continue
        lost = found.setdefault(index, Lost())
        update = (wide.moved[index, j][1] - wide.moved[index, j][0]).float()
        change = after.float() - before.float()
        lost.elements += int((update != 0).sum())
        lost.unchanged += int(((update != 0) & (change == 0)).sum())
        if known.get(index) or wide.calls.get(index) != low.calls.get(index):
            continue
        unit = _unit(before, update)
        tiny = (update != 0) & (update.abs() < 0.25 * unit)
        expected, seen, wide_expected, wide_seen = moves.setdefault(index, [0.0, 0.0, 0.0, 0.0])
        small = update.abs() <= 8 * unit
        part = (update.abs() / unit).frac()
        part = torch.minimum(part, 1 - part)
        clear = small & (part < 0.4)
        moves[index] = [
            expected + float((update.abs() / unit)[tiny].sum()),
            seen + float((change != 0)[tiny].sum()),
            wide_expected + float(part[clear].sum()),
            wide_seen + float(((change - update).abs() > 0.6 * unit)[clear].sum()),
        ]
        total = sums.setdefault(index, {})
        for key, error in _errors(update, change, unit, low.state[index, j]):
            total[key] = total.get(key, 0.0) + error
    for index, lost in found.items():
        expected, seen, wide_expected, wide_seen = moves.get(index, [0.0] * 4)
        if expected >= _ENOUGH:
            random = seen >= 0.5 * expected
        else:
            random = wide_expected >= _ENOUGH and wide_seen >= 0.5 * wide_expected
        lost.compensated = "stochastic rounding" if random else _buffer(sums.get(index, {}))
    return found


def _unit(before: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """The unit in the last place of each weight."""
    bits, least = _GRID[before.dtype]
    size = torch.maximum(before.float().abs(), (before.float() + update).abs())
    return torch.exp2((torch.frexp(size).exponent - 1 - bits).clamp(min=least).float())


def _errors(
    update: torch.Tensor, change: torch.Tensor, unit: torch.Tensor, slots: Mapping[str, tuple[torch.Tensor, torch.Tensor]]
) -> list[tuple[tuple[str, int], float]]:
    """Squares of the FP32 update, of what the weights miss of it, and of what is missing with each buffer added or taken."""
    found = [(("", 0), float(update.square().sum())), (("", 1), float((change - update).square().sum()))]
    for name, (before, after) in slots.items():
        if bool((after.float().abs() > 1.01 * unit).any()):
            continue  # what rounding left over is never more than a unit
        held = after.float() - before.float()
        found += [((name, sign), float((change + sign * held - update).square().sum())) for sign in (1, -1)]
    return found


def _buffer(sums: Mapping[tuple[str, int], float]) -> str:
    """The slot that, with the weights, holds the update as FP32 does; "" if none does."""
    whole, missed = sums.get(("", 0), 0.0), sums.get(("", 1), 0.0)
    for (name, _), error in sums.items():
        if name and error <= 0.04 * whole and error <= 0.1 * missed:
            return name
    return ""


@dataclass(frozen=True)
class Epsilon:
    """An epsilon that rounds to zero: its value, and the dtype, op and line it was used in."""

    optimizer: int
    value: float
    dtype: str
    op: str
    site: Location | None


class OptimizerOps(TorchDispatchMode, Probe):
    """Watches the ops of the first step of each optimizer: epsilons that are used in 16 bits, and where 16-bit state is made.

    Args:
        vanishing: optimizer index -> epsilons that round to zero in a dtype that the optimizer holds.
        slots: `(optimizer, parameter, slot)` of 16-bit state.
    """

    def __init__(self, vanishing: Mapping[int, set[float]], slots: list[tuple[int, int, str]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.vanishing, self.slots = vanishing, slots
        self.epsilons: list[Epsilon] = []
        self.made: dict[tuple[int, int, str], Location | None] = {}
        self.taken: set[int] = set()
        self._index: int | None = None
        self._born: dict[int, Location | None] = {}

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        index = event.optimizer
        if entering:
            self._index = index if index not in self.taken else None
            return
        self._index = None
        if index is None or not event.get("took") or index in self.taken:
            return
        self.taken.add(index)
        parameters = recorder.parameters(index)
        for i, j, slot in self.slots:
            held = kept(optimizer, parameters[j]).get(slot) if i == index and j < len(parameters) else None
            site = self._born.get(_place(held)) if isinstance(held, torch.Tensor) else None
            if site is not None and site != event.site:  # a line of the optimizer's own, not the one that steps it
                self.made[i, j, slot] = site
        self._born = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._index is not None:
            self._see(func, tree_leaves((args, kwargs or {})), tree_leaves(result))
        return result

    def _see(self, func: Any, inputs: list[Any], outputs: list[Any]) -> None:
        index, name = self._index, str(func)
        given = {id(t) for t in inputs if isinstance(t, torch.Tensor)}
        returned = any(isinstance(t, torch.Tensor) for t in outputs)
        low = [t for t in (outputs if returned else inputs) if is_low(t)]  # foreach ops in place return nothing
        if not low or index is None:
            return
        for t in low:
            if id(t) not in given:
                self._born.setdefault(_place(t), user_site(3))
        scalars = [
            t for t in inputs if isinstance(t, torch.Tensor) and t.dim() == 0 and t.dtype in (torch.float32, torch.float64)
        ]
        used = {v for v in inputs if isinstance(v, float)} | {float(t) for t in scalars}
        # a fused kernel computes in FP32 whatever it reads and writes
        for value in (used & self.vanishing.get(index, set())) if "fused" not in name else ():
            if vanishes(value, low[0].dtype):
                self.epsilons.append(Epsilon(index, value, dtype_name(low[0].dtype), name, user_site(3)))


def vanishes(value: float, dtype: torch.dtype) -> bool:
    """Whether a positive number is zero in this dtype."""
    return value > 0 and float(torch.tensor(value, dtype=dtype)) == 0.0


def _place(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return id(tensor)
