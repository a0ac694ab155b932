"""Which line changed a gradient between two stages: one more run, with every op that touches the gradients noted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcheck.findings import Location
from ampcheck.policy import Policy
from ampcheck.scenarios.custom import ForceScale
from ampcheck.scenarios.drive import Built
from ampcheck.scenarios.spec import Spec
from ampcheck.trace.differences import Difference, wrong_phase
from ampcheck.trace.events import Event
from ampcheck.trace.recorder import Probe, Recorder
from ampcheck.trace.sources import user_site

__all__ = ["Blame", "blame"]


@dataclass(frozen=True)
class Blame:
    """The line that changed a gradient.

    Args:
        site: the line; that of the nearest event where no op was seen.
        op: its name; "" where none was seen.
        factor: what the op multiplied the gradient with; `None` where it bent it, or none was seen.
    """

    site: Location | None = None
    op: str = ""
    factor: float | None = None


@dataclass
class _Write:
    """One op between two stages: where, what, whether it wrote in place, the factor, and the storages of its results."""

    phase: str
    site: Location | None
    op: str
    mutates: bool
    factor: float | None
    storages: frozenset[int]
    lasts: bool = False


class _Watch(TorchDispatchMode):
    """Notes the user's line of every op that reads or writes a watched storage, and of every op in a backward hook."""

    def __init__(self, probe: WriteProbe) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.probe = probe

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        watched = self.probe.watched(args, kwargs or {})
        before = _lengths(watched)
        result = func(*args, **(kwargs or {}))
        self.probe.saw(func, watched, before, result)
        return result


class WriteProbe(Probe):
    """Collects `(phase, site, op, wrote)` for the step number `ordinal` of one optimizer; what is done for others is passed over.

    Phases: "backward" (in hooks, while autograd runs), "scaled" (between the last backward and `unscale_`), "unscaled" (after it).
    """

    def __init__(self, optimizer: int | None, ordinal: int) -> None:
        self.optimizer = optimizer
        self.ordinal = ordinal
        self.taken = 0
        self.phase = "forward"
        self.seen: list[_Write] = []
        self.sites: dict[str, Location | None] = {}
        self._storages: set[int] = set()
        self._call_site: Location | None = None
        self._interrupted = "forward"

    def _foreign(self, recorder: Recorder, event: Event) -> bool:
        """Whether it is about an optimizer of other parameters; one that wraps this one is not."""
        own, other = self.optimizer, event.optimizer
        if own is None or other is None or own == other:
            return False
        return not {id(p) for p in recorder.parameters(own)} & {id(p) for p in recorder.parameters(other)}

    @property
    def active(self) -> bool:
        return self.taken == self.ordinal

    def _watch(self, recorder: Recorder) -> None:
        self._storages = set()
        for index, optimizer in enumerate(recorder.optimizers):
            if self.optimizer not in (None, index):
                continue
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self._storages.add(_storage(p.grad))

    def watched(self, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """The gradients among the arguments of an op; in a backward hook all its tensors, whose storages are not known."""
        if not self.active or self.phase == "forward":
            return []
        leaves = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.dim() > 0]
        return leaves if self.phase == "backward" else [t for t in leaves if _storage(t) in self._storages]

    def saw(self, func: Any, watched: list[torch.Tensor], before: list[float], result: Any) -> None:
        if not watched:
            return
        site, hook = user_site(3), self.phase == "backward"
        if hook and (site is None or site == self._call_site):  # autograd's own op, on the line of backward()
            return
        mutates = bool(getattr(func, "_schema", None) and func._schema.is_mutable)
        shapes = {tuple(t.shape) for t in watched}
        made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and tuple(t.shape) in shapes and t.dim() > 0]
        if not mutates and not made:
            return
        after = watched if mutates else made
        storages = frozenset(_storage(t) for t in [*after, *made])
        self._storages |= set() if hook else storages
        self.seen.append(_Write(self.phase, site, str(func), mutates, _factor(before, _lengths(after)), storages))

    def _close(self, recorder: Recorder) -> None:
        """A phase ends: which of its ops made the gradients that are there now?"""
        self._watch(recorder)
        for write in self.seen:
            write.lasts |= write.phase == self.phase and bool(write.storages & self._storages)

    def backward_starts(self, recorder: Recorder) -> None:
        self._interrupted, self.phase, self._call_site = self.phase, "backward", user_site(2)

    def backward_done(self, recorder: Recorder, event: Event) -> None:
        if not self.active:
            return
        adds_to = event.get("optimizers", ())
        if adds_to and self.optimizer not in (None, *adds_to):
            self.phase = self._interrupted
            return
        self._close(recorder)
        self.phase = "scaled"
        self.sites["backward"] = event.site
        self.seen = [s for s in self.seen if s.phase == "backward"]

    def unscale(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if self.active and not self._foreign(recorder, event):
            if entering:
                self._close(recorder)
            self.phase = "forward" if entering else "unscaled"
            if not entering:
                self.sites["unscale"] = event.site
                self._watch(recorder)

    def scaler_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if self.active and entering and not self._foreign(recorder, event):
            self.sites["scaler.step"] = event.site

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if self._foreign(recorder, event):
            return
        if entering and self.active:
            self._close(recorder)
            self.sites["optimizer"] = event.site
            self.phase = "forward"
        elif not entering and event.get("took"):
            self.taken += self.optimizer in (None, event.optimizer)


def _lengths(tensors: Sequence[torch.Tensor]) -> list[float]:
    return [
        float(t.detach().double().norm()) if t.is_floating_point() and t.layout is torch.strided else math.nan for t in tensors
    ]


def _factor(before: list[float], after: list[float]) -> float | None:
    """The one factor by which every tensor was lengthened, up to rounding."""
    ratios = [b / a for a, b in zip(before, after, strict=False) if a > 0.0 and math.isfinite(b / a)]
    if not ratios or max(ratios) - min(ratios) > 1e-4 * max(ratios):
        return None
    return ratios[0]


def _storage(tensor: torch.Tensor) -> int:
    values = tensor._values() if tensor.layout is torch.sparse_coo else tensor
    try:
        return values.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return id(tensor)


class _UnderMode(ForceScale):
    """Makes every call under the dispatch mode."""

    def __init__(self, mode: _Watch, policy: Policy) -> None:
        super().__init__(policy)
        self.mode = mode

    def call(self, built: Built, step: Callable[[], object]) -> object:
        with self.mode:
            return step()


def blame(
    spec: Spec,
    policy: Policy,
    calls: int,
    step: tuple[int | None, int],
    stages: dict[str, list[Difference]],
    scale: float,
) -> Blame:
    """Find the line between the last stage at which the gradient was right and the first at which it was not.

    `step` is the one to look at: the optimizer's index, and how many steps it took before.

    First choice is an op that changed what the gradients are at the end of the phase, then any that wrote in place, then any.
    """
    probe = WriteProbe(*step)
    spec.run("blame", policy, calls=calls, probes=[probe], stage=_UnderMode(_Watch(probe), policy))
    phase = wrong_phase(stages, scale)
    found = [w for w in probe.seen if w.phase == phase and w.site is not None]
    changing = [w for w in found if w.factor is None or abs(w.factor - 1.0) > 1e-6]
    for choice in ([w for w in changing if w.lasts], [w for w in changing if w.mutates], changing, found):
        if choice:
            return Blame(choice[0].site, choice[0].op, choice[0].factor)
    nearest = {"scaled": ["unscale", "scaler.step"], "unscale": ["unscale", "scaler.step"], "backward": ["backward"]}
    for name in [*nearest.get(phase, []), "optimizer", "backward"]:
        if probe.sites.get(name) is not None:
            return Blame(probe.sites[name])
    return Blame()
