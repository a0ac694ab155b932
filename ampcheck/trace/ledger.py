"""What has happened to each parameter's gradient: received, cleared, used by a step, added to after it was used.

Gradients are told apart by where they lie and by their version counter, so it does not matter who clears or writes them
or how: `zero_grad`, `p.grad = None`, `p.grad.zero_()`, or a foreach call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck.findings import Location

__all__ = ["Entry", "Ledger"]


@dataclass(slots=True)
class Entry:
    """The state of one parameter's gradient.

    Args:
        key: where the gradient lay, and its version, when it was last looked at.
        fresh: a backward added to it since it was last cleared or used.
        received: a backward added something other than zeros since the last step of its optimizer (cleared since or not).
        used_by: the optimizer that used it, while it has not been cleared since.
        tainted: where a backward added to it although it was used already.
        generations: for each scaler, how many updates it had made when the oldest part of the gradient was added.
    """

    key: tuple[int, int] | None = None
    fresh: bool = False
    received: bool = False
    used_by: int | None = None
    tainted: Location | None = None
    is_tainted: bool = False
    generations: dict[int, int] = field(default_factory=dict)

    def clear(self) -> None:
        self.fresh = self.is_tainted = False
        self.used_by = self.tainted = None
        self.generations = {}


def _key(grad: torch.Tensor) -> tuple[int, int]:
    values = grad._values() if grad.layout is torch.sparse_coo else grad
    try:
        return values.data_ptr(), values._version
    except (RuntimeError, NotImplementedError):  # inference tensors have no version, wrapper subclasses no storage
        return id(grad), 0


def all_zero(grads: list[torch.Tensor]) -> bool:
    """Whether every gradient is zero everywhere; one transfer for dense gradients of one device and dtype."""
    for grad in grads:
        values = grad._values() if grad.layout is torch.sparse_coo else grad
        if values.numel() and bool(values.detach().any()):
            return False
    return True


class Ledger:
    """One entry for each parameter of each optimizer that is known."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._parameters: dict[int, torch.Tensor] = {}
        self.generation: dict[int, int] = {}
        #: Parameters that a `zero_grad` was called for since the last backward: zeros there were put, not computed.
        self.zeroed: set[int] = set()
        #: Gradients as an `unscale_` left them.
        self._unscaled: dict[int, tuple[int, int]] = {}

    def watch(self, optimizer: Any) -> list[torch.Tensor]:
        """The parameters of an optimizer as they are now, each with an entry."""
        parameters = [p for group in optimizer.param_groups for p in group["params"] if isinstance(p, torch.Tensor)]
        for p in parameters:
            if id(p) not in self._entries:
                self._entries[id(p)] = Entry()
                self._parameters[id(p)] = p
        return parameters

    def entry(self, parameter: torch.Tensor) -> Entry:
        return self._entries[id(parameter)]

    def before_backward(self) -> bool:
        """Autograd is about to run: notice what was cleared or replaced since; returns whether anything was."""
        cleared = False
        for key, p in self._parameters.items():
            cleared |= self._look(self._entries[key], p)
        return cleared

    def _look(self, entry: Entry, p: torch.Tensor) -> bool:
        grad = p.grad
        if grad is None:
            had = entry.key is not None
            entry.clear()
            entry.key = None
            return had
        key, cleared = _key(grad), False
        if entry.key is None or key[0] != entry.key[0]:
            entry.clear()  # another tensor was put there
            entry.fresh = cleared = True
            entry.generations = dict(self.generation)
        elif entry.key != key and all_zero([grad]):
            entry.clear()
            cleared = True
        elif entry.used_by is not None and all_zero([grad]):
            entry.clear()  # a zero gradient that was used: adding to it does no harm
        entry.key = key
        return cleared

    def after_backward(self, site: Location | None) -> list[torch.Tensor]:
        """Autograd has run: which parameters did it add to?"""
        self.zeroed.clear()
        added: list[torch.Tensor] = []
        for id_, p in self._parameters.items():
            entry, grad = self._entries[id_], p.grad
            if grad is None:
                continue
            key = _key(grad)
            if key == entry.key:
                continue
            if entry.used_by is not None and not entry.is_tainted:
                entry.is_tainted, entry.tainted = True, site
            if not entry.fresh:
                entry.generations = dict(self.generation)
            entry.fresh = True
            entry.key = key
            self._unscaled.pop(id_, None)
            added.append(p)
        if not all_zero([p.grad for p in added if p.grad is not None]):
            for p in added:
                self._entries[id(p)].received = True
        return added

    def at_step(self, parameters: Iterable[torch.Tensor], optimizer: int, in_backward: bool) -> dict[str, Any]:
        """An optimizer is about to use its gradients.

        Returns:
            `grads`: how many parameters have one; `reused`: how many were used by this optimizer already and not
            touched since; `tainted`: how many hold a used gradient that was added to, `tainted_site` where;
            `cleared`: whether gradients were received since the last step and none of them is left;
            `touched`: how many were written to since the last backward; `ages`: for each scaler, how many updates ago the oldest part of a gradient was added.
        """
        grads = reused = tainted = received = touched = 0
        site: Location | None = None
        left: list[torch.Tensor] = []
        zeroed = True
        ages: dict[int, int] = {}
        for p in parameters:
            entry, grad = self._entries[id(p)], p.grad
            received += entry.received
            if grad is None:
                continue
            grads += 1
            left.append(grad)
            zeroed &= id(p) in self.zeroed
            touched += entry.key is not None and entry.key != _key(grad)
            key = _key(grad)
            if entry.used_by == optimizer and entry.key == key and not entry.fresh and not in_backward:
                reused += 1
            if entry.is_tainted:
                # in place and to zero after the backward: the mixture is gone
                if entry.key is not None and key[0] == entry.key[0] and not (key != entry.key and all_zero([grad])):
                    tainted, site = tainted + 1, entry.tainted
            elif entry.key is not None and key[0] != entry.key[0]:
                entry.generations = dict(self.generation)  # assigned by hand after the last backward
            if entry.fresh:
                for scaler, generation in self.generation.items():
                    ages[scaler] = max(ages.get(scaler, 0), generation - entry.generations.get(scaler, 0))
        cleared = bool(received) and not reused and (not left or (zeroed and all_zero(left)))
        return {
            "grads": grads,
            "reused": reused,
            "tainted": tainted,
            "tainted_site": site,
            "cleared": cleared and not in_backward,
            "touched": touched,
            "ages": ages,
        }

    def touched(self, parameters: Iterable[torch.Tensor]) -> int:
        """How many gradients were written to, or replaced, since the last backward."""
        entries = [(self._entries[id(p)], p.grad) for p in parameters if id(p) in self._entries]
        return sum(grad is not None and entry.key is not None and entry.key != _key(grad) for entry, grad in entries)

    def unscaled(self, parameters: Iterable[torch.Tensor]) -> None:
        """A scaler has divided these gradients: what is written to them from here on is somebody else's doing."""
        for p in parameters:
            if p.grad is not None:
                self._unscaled[id(p)] = _key(p.grad)

    def written(self, parameters: Iterable[torch.Tensor]) -> int:
        """How many gradients were written to, or replaced, since the last backward, or since a scaler divided them."""
        entries = [(self._unscaled.get(id(p), self._entries[id(p)].key), p.grad) for p in parameters if id(p) in self._entries]
        return sum(grad is not None and key is not None and key != _key(grad) for key, grad in entries)

    def holds(self, address: int) -> bool:
        """Whether a gradient lay at this address when it was last looked at."""
        return any(entry.key is not None and entry.key[0] == address for entry in self._entries.values())

    def used(self, parameters: Iterable[torch.Tensor], optimizer: int) -> None:
        """An optimizer has used its gradients, or its scaler has thrown them away in a skip."""
        for p in parameters:
            entry, grad = self._entries[id(p)], p.grad
            entry.clear()
            entry.received = False
            entry.key = None if grad is None else _key(grad)
            self._unscaled.pop(id(p), None)
            entry.used_by = None if grad is None else optimizer

    def updated(self, scaler: int) -> None:
        self.generation[scaler] = self.generation.get(scaler, 0) + 1
