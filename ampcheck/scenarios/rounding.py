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

__all__ = ["FirstUpdate", "Lost", "OptimizerOps", "compare", "vanishes"]


#: Ops in which a constant keeps a denominator from being zero, whether or not the optimizer calls it eps.
_ADDS = ("aten.add.", "aten.add_.", "aten._foreach_add", "aten.clamp_min")


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
    """

    def __init__(self, chosen: Mapping[int, set[int]]) -> None:
        self.chosen = chosen
        self.moved: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}
        #: root of the mean square of the gradient that was used
        self.sizes: dict[tuple[int, int], float] = {}
        self._taken: set[int] = set()
        self._before: dict[int, dict[int, torch.Tensor]] = {}

    @property
    def done(self) -> bool:
        return self._taken == set(self.chosen)

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        index = event.optimizer
        if index is None or index not in self.chosen or index in self._taken:
            return
        chosen = {j: p for j, p in enumerate(recorder.parameters(index)) if j in self.chosen[index]}
        if entering:
            self._before[index] = {j: _host(p) for j, p in chosen.items()}
            grads = {j: local(p.grad).float() for j, p in chosen.items() if p.grad is not None}
            self.sizes |= {(index, j): float(g.square().mean().sqrt()) for j, g in grads.items() if g.numel()}
        elif event.get("took"):
            self._taken.add(index)
            self.moved |= {(index, j): (before, _host(chosen[j])) for j, before in self._before.pop(index, {}).items()}


def _host(tensor: torch.Tensor) -> torch.Tensor:
    return local(tensor).to("cpu", copy=True)


def compare(wide: FirstUpdate, low: FirstUpdate) -> dict[int, Lost]:
    """Count the weights that the FP32 run's first update moves and that of the 16-bit run does not."""
    found: dict[int, Lost] = {}
    for (index, j), (before, after) in low.moved.items():
        if (index, j) in wide.moved and before.shape == wide.moved[index, j][0].shape:
            lost = found.setdefault(index, Lost())
            moved = wide.moved[index, j][1] != wide.moved[index, j][0]
            lost.elements += int(moved.sum())
            lost.unchanged += int((moved & (after == before)).sum())
    return found


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
            added = args[1] if len(args) > 1 and isinstance(args[1], float) and str(func).startswith(_ADDS) else None
            self._see(str(func), tree_leaves((args, kwargs or {})), tree_leaves(result), added)
        return result

    def _see(self, name: str, inputs: list[Any], outputs: list[Any], added: float | None) -> None:
        index = self._index
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
        used = (used & self.vanishing.get(index, set())) | ({added} if added is not None else set())
        # a fused kernel computes in FP32 whatever it reads and writes
        for value in used if "fused" not in name else ():
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
