"""Which line changed a gradient between two stages: one more run, with every op that touches the gradients noted."""

from __future__ import annotations

from collections.abc import Callable
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

__all__ = ["blame"]


class _Watch(TorchDispatchMode):
    """Notes the user's line of every op that reads or writes a watched storage, and of every op in a backward hook."""

    def __init__(self, probe: WriteProbe) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.probe = probe

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.probe.saw(func, args, kwargs or {}, result)
        return result


class WriteProbe(Probe):
    """Collects `(phase, site, op, wrote)` for the optimizer step number `ordinal`.

    Phases: "backward" (in hooks, while autograd runs), "scaled" (between the last backward and `unscale_`), "unscaled" (after it).
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self.taken = 0
        self.phase = "forward"
        self.seen: list[tuple[str, Location | None, str, bool]] = []
        self.sites: dict[str, Location | None] = {}
        self._storages: set[int] = set()
        self._call_site: Location | None = None

    @property
    def active(self) -> bool:
        return self.taken == self.ordinal

    def _watch(self, recorder: Recorder) -> None:
        self._storages = set()
        for optimizer in recorder.optimizers:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        self._storages.add(_storage(p.grad))

    def saw(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if not self.active or self.phase == "forward":
            return
        name = str(func)
        if self.phase == "backward":
            site = user_site(3)
            if site is not None and site != self._call_site:  # a hook's own line, not that of backward()
                self.seen.append(("backward", site, name, False))
            return
        leaves = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        touched = [t for t in leaves if _storage(t) in self._storages]
        if touched:
            mutates = bool(getattr(func, "_schema", None) and func._schema.is_mutable)
            shapes = {tuple(t.shape) for t in touched}
            made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and tuple(t.shape) in shapes and t.dim() > 0]
            if mutates or made:
                self.seen.append((self.phase, user_site(3), name, mutates))
                for t in made:
                    self._storages.add(_storage(t))

    def backward_starts(self, recorder: Recorder) -> None:
        self.phase, self._call_site = "backward", user_site(2)

    def backward_done(self, recorder: Recorder, event: Event) -> None:
        if not self.active:
            return
        self.phase = "scaled"
        self.sites["backward"] = event.site
        self.seen = [s for s in self.seen if s[0] == "backward"]
        self._watch(recorder)

    def unscale(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if self.active:
            self.phase = "forward" if entering else "unscaled"
            if not entering:
                self.sites["unscale"] = event.site
                self._watch(recorder)

    def scaler_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if self.active and entering:
            self.sites["scaler.step"] = event.site

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if entering and self.active:
            self.sites["optimizer"] = event.site
            self.phase = "forward"
        elif not entering and event.get("took"):
            self.taken += 1


def _storage(tensor: torch.Tensor) -> int:
    values = tensor._values() if tensor.layout is torch.sparse_coo else tensor
    try:
        return values.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return id(tensor)


class _UnderMode(ForceScale):
    """Makes every call under the dispatch mode."""

    def __init__(self, mode: _Watch, scale: float) -> None:
        super().__init__(scale)
        self.mode = mode

    def call(self, built: Built, step: Callable[[], object]) -> object:
        with self.mode:
            return step()


def blame(
    spec: Spec, policy: Policy, calls: int, ordinal: int, stages: dict[str, list[Difference]], scale: float
) -> tuple[Location | None, str]:
    """Find the line between the last stage at which the gradient was right and the first at which it was not.

    Returns:
        `(site, op)`; the op is "" where none was seen (then the site is the nearest event's).
    """
    probe = WriteProbe(ordinal)
    spec.run("blame", policy, calls=calls, probes=[probe], stage=_UnderMode(_Watch(probe), policy.scale or 1.0))
    phase = wrong_phase(stages, scale)
    for writing in (True, False):
        for seen_phase, site, name, wrote in probe.seen:
            if seen_phase == phase and site is not None and wrote >= writing:
                return site, name
    nearest = {"scaled": ["unscale", "scaler.step"], "unscale": ["unscale", "scaler.step"], "backward": ["backward"]}
    for name in [*nearest.get(phase, []), "optimizer", "backward"]:
        if probe.sites.get(name) is not None:
            return probe.sites[name], ""
    return None, ""
