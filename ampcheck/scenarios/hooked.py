"""An overflow that goes through the hooks of the parameters, as a real one does: do they hide it from the scaler?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from ampcheck.findings import Location
from ampcheck.trace.digest import local
from ampcheck.trace.recorder import Recorder
from ampcheck.trace.sources import of_callable

__all__ = ["Hooked"]


class Hooked:
    """Spoils the gradients of one backward before the hooks of the parameters see them.

    Only of optimizers all of whose parameters have hooks of the contract's: where one has none, an overflow still reaches the
    scaler through it.
    """

    def __init__(self) -> None:
        #: Optimizers whose gradients were spoiled and are finite all the same -> where the last hook is defined.
        self.hidden: dict[int, Location] = {}
        self._handles: dict[int, list[Any]] = {}
        self._sites: dict[int, Location] = {}
        self._spoiled: set[int] = set()

    def spoil(self, recorder: Recorder, optimizers: Iterable[int]) -> None:
        """Put a hook of our own before theirs, until `restore`."""
        for index in optimizers:
            parameters = [p for p in recorder.parameters(index) if p.requires_grad] if index < len(recorder.optimizers) else []
            theirs = [list((p._backward_hooks or {}).values()) for p in parameters]
            site = of_callable(theirs[-1][-1]) if theirs and all(theirs) else None
            if site is not None:
                self._sites[index] = site
                self._handles[index] = [self._first(recorder, p, index) for p in parameters]

    def _first(self, recorder: Recorder, parameter: torch.Tensor, index: int) -> Any:
        def spoil(gradient: torch.Tensor) -> torch.Tensor | None:
            running = (recorder.trace.events[i] for i in recorder.open)
            if not any(e.kind == "backward" and e.get("accumulates") for e in running):
                return None  # a gradient that is asked for, as for a penalty, is none that is stepped with
            if gradient.layout is not torch.strided or not gradient.numel() or not gradient.is_floating_point():
                return None
            self._spoiled.add(index)
            spoiled = gradient.clone()
            spoiled[(0,) * spoiled.dim()] = math.inf
            return spoiled

        handle = parameter.register_hook(spoil)
        hooks: Any = parameter._backward_hooks
        own = hooks.pop(handle.id)
        theirs = dict(hooks)
        hooks.clear()  # autograd goes by the order of insertion, not by that of `move_to_end`
        hooks[handle.id] = own
        hooks.update(theirs)
        return handle

    def restore(self, recorder: Recorder, optimizers: Iterable[int]) -> None:
        """A backward that added to the gradients of `optimizers` is over: take our hooks away, and see what theirs have left."""
        for index, handles in self._handles.items():
            for handle in handles:
                handle.remove()
            left = [p.grad for p in recorder.parameters(index) if p.grad is not None]
            if index in self._spoiled and index in optimizers and all(bool(local(g).isfinite().all()) for g in left):
                self.hidden[index] = self._sites[index]
        self._handles, self._spoiled = {}, set()
