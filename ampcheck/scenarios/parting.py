"""Where the step in 16 bits and the FP32 step part: the first line of the forward whose results deviate by more than rounding
explains.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.findings import Location
from ampcheck.scenarios.drive import Built
from ampcheck.scenarios.yardstick import moves_only
from ampcheck.trace.place import place
from ampcheck.trace.randomness import is_random
from ampcheck.trace.recorder import Recorder

__all__ = ["Listener", "Sample", "first_parting", "listening", "reordered"]

#: Elements of a result that are looked at.
_ELEMENTS = 1024
#: Results listened to in one step.
_MOST = 4096
#: How many times the yardstick a result may deviate.
_LIMIT = 12.0
_STEPPING = ("optimizer_step", "scaler_step", "unscale")
Key = tuple[str, str, int]
Draw = tuple[str, tuple[int, ...], str]


@dataclass
class Sample:
    """Some elements of one result, and where it was computed."""

    values: torch.Tensor
    op: str
    site: Location | None
    module: str


@dataclass
class Listener:
    """Keeps a sample of every floating-point result outside autograd, by line, op and occurrence: the same in every precision.

    Args:
        unit: the judged stretch of calls to listen in.
        stepping: whether the arithmetic of optimizers and scalers is heard too.
        draws: what was drawn from a generator, in order: the op, the size, and in a gradient hook the parameter it was for.
    """

    unit: int
    stepping: bool = False
    samples: dict[Key, Sample] = field(default_factory=dict)
    draws: list[Draw] = field(default_factory=list)

    def mode(self, built: Built) -> TorchDispatchMode:
        """The dispatch mode that listens; the innermost of all, so that it hears results as they are used."""
        names: dict[int, str] = {}
        reached = built.reach()
        for path, root in reached.modules.items():
            names.update((id(m), name or path) for name, m in root.named_modules())
        return _Listen(self, built.recorder, reached.names() | names)

    def last_site(self, module: str) -> Location | None:
        """The last line that computed something in a module."""
        return next((s.site for s in reversed(self.samples.values()) if s.module == module), None)


class _Listen(TorchDispatchMode):
    def __init__(self, listener: Listener, recorder: Recorder, names: dict[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.samples, self.draws, self.recorder, self.names = listener.samples, listener.draws, recorder, names
        self.stepping = listener.stepping
        self.counts: dict[tuple[str, str], int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        value = result[0] if isinstance(result, (tuple, list)) and result else result
        if is_random(func) and isinstance(value, torch.Tensor) and len(self.draws) < _MOST:
            leaf = getattr(torch._C._current_autograd_node(), "variable", None)  # of the node that accumulates a gradient
            self.draws.append((func._schema.name, tuple(value.shape), self.names.get(id(leaf), "")))
        if (
            self.recorder.engine_depth == 0
            and isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.layout is torch.strided
            and (func._schema.is_mutable or not moves_only(func))
            and not is_random(func)
            and len(self.samples) < _MOST
            and (self.stepping or not self._in_step())
        ):
            self._keep(func, value)
        return result

    def _in_step(self) -> bool:
        """Whether this is the arithmetic of an optimizer or a scaler; the closure of a step has gradients on."""
        events = self.recorder.trace.events
        return not torch.is_grad_enabled() and any(events[i].kind in _STEPPING for i in self.recorder.open)

    def _keep(self, func: Any, value: torch.Tensor) -> None:
        at = place(False, False)
        name = func._schema.name.partition("::")[2]
        spot = (name, str(at.site))
        self.counts[spot] = self.counts.get(spot, 0) + 1
        key = (*spot, self.counts[spot])
        flat = value.detach().reshape(-1)
        flat = flat[:: max(1, flat.numel() // _ELEMENTS)].to("cpu", torch.float64, copy=True)
        self.samples[key] = Sample(flat, name, at.site, self.names.get(id(at.module), "") if at.module is not None else "")


def listening(
    listener: Listener, prepare: Callable[[Built], contextlib.AbstractContextManager[Any] | None], unit: Callable[[], int]
) -> Callable[[Built], contextlib.AbstractContextManager[Any] | None]:
    """Put a listener inside whatever mode a run has, in its own unit."""

    def both(built: Built) -> contextlib.AbstractContextManager[Any] | None:
        inner = prepare(built)
        if unit() != listener.unit:
            return inner
        heard = listener.mode(built)
        # what is entered last sees an op first, and hears the result after all the others have had it
        return _Stacked(*(() if inner is None else (inner,)), heard)

    return both


class _Stacked(contextlib.AbstractContextManager[None]):
    """Several modes as one that can be entered again and again."""

    def __init__(self, *modes: contextlib.AbstractContextManager[Any]) -> None:
        self.modes = modes
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> None:
        for mode in self.modes:
            self.stack.enter_context(mode)

    def __exit__(self, *exc: object) -> None:
        self.stack.close()


def first_parting(
    reference: Listener, judged: Listener, draws: list[Listener], unit_roundoff: float, scales: Iterable[float] = ()
) -> Sample | None:
    """The first result, in the order of the reference, that deviates by more than rounding explains; `None` if all agree.

    `scales` are the loss scales of the judged run, where the others have 1: what is a multiple of the reference's by one of them, or by its
    inverse, agrees.
    """
    units = [1.0, *(unit for scale in scales for unit in (scale, 1.0 / scale))]
    for key, expected in reference.samples.items():
        seen = judged.samples.get(key)
        if seen is None or seen.values.shape != expected.values.shape:
            continue
        rounding = max((_relative(d.samples[key].values, expected.values) for d in draws if key in d.samples), default=math.inf)
        deviation = min(_relative(seen.values / unit, expected.values) for unit in units)
        if deviation > _LIMIT * max(rounding, unit_roundoff):
            return seen
    return None


def reordered(reference: Listener, judged: Listener) -> bool:
    """Whether the same random numbers are asked for in another order, so that each goes to something else.

    Autograd's order among gradients that are ready at the same time is its own, and casts change it: hooks that draw from one
    generator meet other numbers then.
    """
    return reference.draws != judged.draws and sorted(reference.draws) == sorted(judged.draws)


def _relative(seen: torch.Tensor, expected: torch.Tensor) -> float:
    if seen.shape != expected.shape:
        return math.inf
    finite = expected.isfinite() & (expected.abs() < 1e30)  # what is masked is not compared
    norm = float(expected[finite].norm())
    difference = float((seen[finite] - expected[finite]).norm())
    if not math.isfinite(difference):
        return math.inf
    return difference / norm if norm > 0.0 else 0.0
