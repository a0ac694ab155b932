"""What is written to parameters and optimizer state by hand, outside of steps: window by window."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ampcheck.trace.digest import Digest, digest, local, relative_difference
from ampcheck.trace.recorder import Recorder

__all__ = ["Outside", "Snapshot", "digests", "snapshot"]

#: What a parameter may differ by, of its norm, and still count as not moved.
NEGLIGIBLE = 2.0**-20

_KINDS = ("parameters", "optimizer state")


class Outside:
    """Tells what a step moved from what the loop moved by itself.

    A decay or a momentum by hand belongs to the step: it is there in each window. A copy back of averaged or slow weights every few
    windows (Lookahead, Reptile), a mask, a return to the last checkpoint do not: they are right after a skipped step too.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[Digest, Digest]] = {}
        self._inside: dict[int, set[str]] = {}
        self._outside: dict[int, set[str]] = {}
        self._habits: dict[int, list[set[str]]] = {}

    def seen(self, optimizer: int, parameters: Digest, state: Digest, inside: bool) -> None:
        """The digests of an optimizer's parameters and state now, at the end of something inside or outside of a step."""
        now, last = (parameters, state), self._last.get(optimizer)
        self._last[optimizer] = now
        if last is not None:
            moved = {kind for kind, a, b in zip(_KINDS, last, now, strict=True) if a != b}
            (self._inside if inside else self._outside).setdefault(optimizer, set()).update(moved)

    def window_ends(self, optimizer: int, clean: bool = False) -> set[str]:
        """The window is over.

        Args:
            optimizer: index in the trace.
            clean: whether nothing was planted in it, nor before it.

        Returns:
            What was moved inside of a step.
        """
        inside, outside = self._inside.pop(optimizer, set()), self._outside.pop(optimizer, set())
        if clean:
            self._habits.setdefault(optimizer, []).append(outside)
        return inside

    def habitual(self, optimizer: int) -> set[str]:
        """What the loop moves outside of steps in each clean window; everything where there was none."""
        return set(_KINDS).intersection(*self._habits.get(optimizer, ()))


@dataclass
class Snapshot:
    """Parameters, in host memory, and digests of them and of the optimizer's state; whether all of it is finite."""

    values: list[torch.Tensor]
    parameters: Digest
    state: Digest
    finite: bool

    def parameters_moved(self, other: Snapshot) -> bool:
        """Whether a parameter differs by more than rounding (a projection of the weights that is done once more)."""
        pairs = zip(self.values, other.values, strict=False)
        return self.parameters != other.parameters and any(relative_difference(b, a)[0] > NEGLIGIBLE for a, b in pairs)


def _state(recorder: Recorder, index: int) -> list[torch.Tensor]:
    """The tensors of an optimizer's state, less those of parameters whose state is all zeros.

    A fused optimizer is called on a skip too, and makes the state of a parameter that was not trained before: nothing has moved.
    """
    slots = getattr(recorder.optimizers[index], "state", {})
    held = [[v for v in s.values() if isinstance(v, torch.Tensor)] for s in slots.values() if isinstance(s, dict)]
    return [v for tensors in held if any(bool(local(t).any()) for t in tensors) for v in tensors]


def digests(recorder: Recorder, index: int) -> tuple[Digest, Digest]:
    """Of an optimizer's parameters and of its state."""
    return digest(recorder.parameters(index)), digest(_state(recorder, index))


def snapshot(recorder: Recorder, index: int) -> Snapshot:
    """Of an optimizer's parameters and state, as they are now."""
    parameters, state = recorder.parameters(index), _state(recorder, index)
    finite = all(bool(local(t).isfinite().all()) for t in [*parameters, *state])
    return Snapshot([local(p).to("cpu", copy=True) for p in parameters], *digests(recorder, index), finite)
