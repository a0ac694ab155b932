"""Averaged copies of the weights (EMA, SWA): which reachable tensors follow which parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from ampcheck.findings import Location
from ampcheck.scenarios.drive import Built, Stage
from ampcheck.scenarios.masters import owned
from ampcheck.trace.digest import local
from ampcheck.trace.precision import CastSites, dtype_name
from ampcheck.trace.reach import Reached

__all__ = ["AverageStage", "Averages", "Called", "candidates", "interpolates", "moved", "near"]

#: A copy that is further from its parameter than this share of its norm is not looked at: averages trail their parameters.
_NEAR = 0.5


@dataclass
class Averages:
    """Tensors that may be, and those that were seen to be, averages of a parameter.

    Args:
        near: path -> (name of the nearest parameter of the shape, dtype), from the natural run.
        sites: path -> where it got its dtype.
        rounded_from: path of a 16-bit one -> those of the FP32 tensors that it is the rounding of, as the run stands.
        followed: the paths among them that moved by interpolation, in a run that rounds nothing to 16 bits.
        parameters: names of the trained parameters; `uncovered`: those of which there is no copy, near or far.
    """

    near: dict[str, tuple[str, str]] = field(default_factory=dict)
    sites: dict[str, Location | None] = field(default_factory=dict)
    rounded_from: dict[str, list[str]] = field(default_factory=dict)
    followed: set[str] = field(default_factory=set)
    parameters: list[str] = field(default_factory=list)
    uncovered: list[str] = field(default_factory=list)

    def kept_wide(self, path: str) -> bool:
        """Whether a 16-bit copy is made from an average that is kept in FP32: for a forward, say."""
        return any(wide in self.followed for wide in self.rounded_from.get(path, ()))

    def suspicious(self) -> bool:
        """Whether one of them is in 16 bits, or they cover most parameters and not all: only then it is worth a run."""
        partial = bool(self.near) and 0 < len(self.uncovered) <= len(self.parameters) / 2
        return partial or any(dtype in ("float16", "bfloat16") for _, dtype in self.near.values())


def _trained(built: Built) -> dict[int, torch.Tensor]:
    """Parameters that an optimizer moves."""
    return {key: p for key, p in owned(built.recorder).items() if p.requires_grad and p.is_floating_point()}


def _copies(reached: Reached, trained: dict[int, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors shaped like a trained parameter that are neither trained nor optimizer state nor part of a trained module."""
    shapes = {tuple(p.shape) for p in trained.values()}
    modules = [m for root in reached.modules.values() for m in root.modules()]
    beside = {
        id(t)
        for m in modules
        if any(id(p) in trained for p in m._parameters.values())
        for t in [*m._parameters.values(), *m._buffers.values()]
    }
    held = tuple(f"{path}.state." for path in reached.optimizers)
    return {
        path: t
        for path, t in reached.tensors.items()
        if id(t) not in trained and id(t) not in beside and not path.startswith(held) and t.numel() > 1
        and t.is_floating_point() and t.layout is torch.strided and tuple(t.shape) in shapes and t.grad_fn is None
    }  # fmt: skip


def near(built: Built, sites: CastSites, used: Container[int] = ()) -> Averages:
    """The reachable tensors that could be averages of the parameters, as the run stands; not those whose ids are in `used`."""
    reached, trained = built.reach(), _trained(built)
    names = reached.names()
    found = Averages(parameters=[names.get(key, "a parameter") for key in trained])
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for key, p in trained.items():
        by_shape.setdefault(tuple(p.shape), []).append(key)
    copies = {path: t for path, t in _copies(reached, trained).items() if id(t) not in used}
    for path, copy in copies.items():
        keys = by_shape[tuple(copy.shape)]
        for at, key in enumerate(keys):
            # an average that does not move in 16 bits still rounds to what the parameter was
            p, c = local(trained[key]).float(), local(copy).float().to(trained[key].device)
            if float((c - p).norm()) <= _NEAR * float(p.norm()):
                found.near[path] = (names.get(key, "a parameter"), dtype_name(copy.dtype))
                found.sites[path] = sites.of(copy)
                keys.append(keys.pop(at))  # the next copy is most likely of the next parameter
                break
    for path, (_, dtype) in found.near.items():
        if dtype in ("float16", "bfloat16"):
            low = local(copies[path])
            wide = {
                p: local(t) for p, t in copies.items() if p in found.near and t.dtype is torch.float32 and t.shape == low.shape
            }
            found.rounded_from[path] = [p for p, t in wide.items() if torch.equal(t.to(low), low)]
    covered = {name for name, _ in found.near.values()}
    spare = {tuple(copy.shape) for path, copy in copies.items() if path not in found.near}
    for shape, keys in by_shape.items():
        # a parameter that began at zero is far from its average: it is missed only where there are too few copies of its shape,
        # and where each of them is another's
        few = sum(tuple(copy.shape) == shape for copy in copies.values()) < len(keys)
        if math.prod(shape) > 1 and few and shape not in spare:
            found.uncovered += [name for name in (names.get(key, "a parameter") for key in keys) if name not in covered]
    return found


def candidates(built: Built) -> dict[str, torch.Tensor]:
    """Copies, in host memory, of the reachable tensors that could be averages: path -> values."""
    found = _copies(built.reach(), _trained(built))
    return {path: local(t).to("cpu", copy=True) for path, t in found.items()}


def moved(old: dict[str, torch.Tensor], built: Built) -> set[str]:
    """Paths among those of `candidates` that have moved towards a parameter since."""
    parameters = {str(i): local(p).detach().to("cpu", copy=True) for i, p in enumerate(_trained(built).values())}
    return {path for path, new in candidates(built).items() if path in old and interpolates(old[path], new, parameters)}


class AverageStage(Stage):
    """Sees which of the tensors that `near` found move by interpolation between two calls."""

    def __init__(self, averages: Averages) -> None:
        self.averages = averages
        self._last: dict[str, torch.Tensor] = {}

    @property
    def done(self) -> bool:
        return self.averages.followed == set(self.averages.near)

    def built(self, built: Built) -> None:
        self._last = self._copy(built)

    def after_call(self, built: Built, call: int) -> bool:
        now = self._copy(built)
        parameters = {str(key): local(p).detach().to("cpu", copy=True) for key, p in _trained(built).items()}
        names = built.reach().names()
        for path, new in now.items():
            leader = _leader(self._last[path], new, parameters) if path in self._last else None
            if leader is not None:
                # the parameter that is nearest need not be it: the weights of all norms begin at 1
                self.averages.near[path] = (names.get(int(leader), "a parameter"), self.averages.near[path][1])
                self.averages.followed.add(path)
        self._last = now
        return self.done

    def _copy(self, built: Built) -> dict[str, torch.Tensor]:
        tensors = built.reach().tensors
        return {p: local(tensors[p]).to("cpu", copy=True) for p in self.averages.near if p in tensors}


class Called(Stage):
    """Knows, when the run is over, which reachable tensors belong to modules that its calls computed with: `paths`."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self._used: set[int] = set()

    def call(self, built: Built, step: Callable[[], object]) -> object:
        def after(module: torch.nn.Module, args: Any, result: Any) -> None:
            self._used.update(id(t) for t in (*module._parameters.values(), *module._buffers.values()))

        handle = register_module_forward_hook(after)
        try:
            return step()
        finally:
            handle.remove()

    def finished(self, built: Built) -> None:
        self.paths = {path for path, t in built.reach().tensors.items() if id(t) in self._used}


def interpolates(old: torch.Tensor, new: torch.Tensor, parameters: dict[str, torch.Tensor]) -> bool:
    """Whether `new` is `old + a (p - old)` for one of the parameters and 0 < a < 1."""
    return _leader(old, new, parameters) is not None


def _leader(old: torch.Tensor, new: torch.Tensor, parameters: dict[str, torch.Tensor]) -> str | None:
    """Which of the parameters it is that a copy has moved towards."""
    if old.shape != new.shape or torch.equal(old, new):
        return None
    step = new.double() - old.double()
    for name, p in parameters.items():
        if p.shape != old.shape:
            continue
        way = p.double() - old.double()
        length = float((way * way).sum())
        if length == 0.0:
            continue
        share = float((step * way).sum()) / length
        if 0.0 < share < 0.999999 and float((step - share * way).norm()) <= 1e-3 * float(step.norm()) + 1e-7 * float(
            p.double().norm()
        ):
            return name
    return None
