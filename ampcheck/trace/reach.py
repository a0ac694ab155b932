"""Everything that a training step holds on to: tensors, modules, optimizers, scalers, by the path on which it is found.

The walk goes through closures, bound objects, partials, containers, modules, and the module-level names that a function of
the user's uses. It calls nothing and changes nothing.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ampcheck.trace.sources import _rank

__all__ = ["Reached", "named_modules", "reach"]

_DEPTH = 16
_WIDTH = 512
_LEAVES = (str, bytes, int, float, complex, bool, torch.dtype, torch.device, torch.Generator, type, types.ModuleType)


@dataclass
class Reached:
    """What was found: path -> object, in the order of the walk; each object once, on its first path."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    modules: dict[str, torch.nn.Module] = field(default_factory=dict)
    optimizers: dict[str, Any] = field(default_factory=dict)
    scalers: dict[str, Any] = field(default_factory=dict)

    def names(self) -> dict[int, str]:
        """Parameter id -> name in the outermost module that holds it, with the module's path where there are several."""
        found: dict[int, str] = {}
        roots = [
            (path, m) for path, m in self.modules.items() if not any(path.startswith(f"{other}.") for other in self.modules)
        ]
        for path, module in roots:
            prefix = f"{path.rpartition('.')[2]}." if len(roots) > 1 else ""
            for name, p in module.named_parameters(remove_duplicate=False):
                found.setdefault(id(p), prefix + name)
        for path, tensor in self.tensors.items():
            found.setdefault(id(tensor), path)
        return found


def named_modules(found: Mapping[str, torch.nn.Module]) -> Iterator[tuple[str, torch.nn.Module]]:
    """All modules of those that were found, named as their parameters are (see `Reached.names`)."""
    roots = {path: m for path, m in found.items() if not any(path.startswith(f"{other}.") for other in found)}
    for path, root in roots.items():
        yield from root.named_modules(prefix=path.rpartition(".")[2] if len(roots) > 1 else "")


def reach(*roots: tuple[str, Any]) -> Reached:
    """Walk from named roots, such as `("step", step)`.

    Returns:
        What was found. Parameters and buffers of modules are among the tensors, under the module's path; so is the
        state of optimizers, under `<path>.state.<index>.<slot>`.
    """
    found = Reached()
    seen: set[int] = set()
    for name, root in roots:
        _walk(root, name, found, seen, 0)
    return found


def _walk(o: Any, path: str, found: Reached, seen: set[int], depth: int) -> None:
    if o is None or isinstance(o, _LEAVES) or id(o) in seen or depth > _DEPTH:
        return
    seen.add(id(o))
    if isinstance(o, torch.Tensor):
        found.tensors[path] = o
    elif isinstance(o, torch.amp.GradScaler):
        found.scalers[path] = o
    elif isinstance(o, torch.optim.Optimizer):
        found.optimizers[path] = o
        _optimizer(o, path, found, seen, depth)
    elif isinstance(o, torch.nn.Module):
        found.modules[path] = o
        for name, tensor in [*o.named_parameters(), *o.named_buffers()]:
            if id(tensor) not in seen and not is_lazy(tensor):  # one that is made in the first forward has nothing yet
                seen.add(id(tensor))
                found.tensors[f"{path}.{name}"] = tensor
        for module in o.modules():
            seen.add(id(module))
            _attributes(module, path, found, seen, depth, skip=("_parameters", "_buffers", "_modules"))
    elif isinstance(o, dict | types.MappingProxyType):
        for key, value in list(o.items())[:_WIDTH]:
            _walk(
                value,
                f"{path}.{key}" if isinstance(key, (str, int)) else f"{path}.{type(key).__name__}",
                found,
                seen,
                depth + 1,
            )
    elif isinstance(o, (list, tuple, set, frozenset, collections.deque)):
        for i, value in enumerate(list(o)[:_WIDTH]):
            _walk(value, f"{path}[{i}]", found, seen, depth + 1)
    elif isinstance(o, types.MethodType):
        _walk(o.__self__, f"{path}.self", found, seen, depth + 1)
        _walk(o.__func__, path, found, seen, depth + 1)
    elif isinstance(o, functools.partial):
        _walk([o.func, o.args, o.keywords], path, found, seen, depth + 1)
    elif isinstance(o, types.FunctionType) and (o.__module__ or "").startswith("ampcheck.trace."):
        _walk(getattr(o, "__wrapped__", None), path, found, seen, depth + 1)  # the recorder watches it: not into the recorder
    elif isinstance(o, types.FunctionType):
        _function(o, path, found, seen, depth)
    elif not type(o).__module__.startswith(("torch._", "torch.fx", "torch.autograd", "torch.utils.hooks")):
        _attributes(o, path, found, seen, depth)


def _attributes(o: Any, path: str, found: Reached, seen: set[int], depth: int, skip: tuple[str, ...] = ()) -> None:
    for name, value in list(getattr(o, "__dict__", {}).items())[:_WIDTH]:
        if name not in skip:
            _walk(value, f"{path}.{name}", found, seen, depth + 1)


def _function(o: types.FunctionType, path: str, found: Reached, seen: set[int], depth: int) -> None:
    for name, cell in zip(o.__code__.co_freevars, o.__closure__ or (), strict=False):
        try:
            value = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
        _walk(value, name if path in ("step", "") else f"{path}.{name}", found, seen, depth + 1)
    _walk(list(o.__defaults__ or ()), path, found, seen, depth + 1)
    if _rank(o.__code__.co_filename) == 0:  # module-level names of the user's own functions
        for name in o.__code__.co_names:
            value = o.__globals__.get(name)
            if not isinstance(value, types.ModuleType) and not isinstance(value, type):
                _walk(value, name, found, seen, depth + 1)


def _optimizer(o: Any, path: str, found: Reached, seen: set[int], depth: int) -> None:
    for g, group in enumerate(o.param_groups):
        _walk(group["params"], f"{path}.params{g}", found, seen, depth + 1)
    for i, state in enumerate(o.state.values()):
        for slot, value in state.items() if isinstance(state, dict) else ():
            if isinstance(value, torch.Tensor) and id(value) not in seen:
                seen.add(id(value))
                found.tensors[f"{path}.state.{i}.{slot}"] = value
    for name, value in vars(o).items():
        if name not in ("state", "param_groups", "defaults", "step"):
            _walk(value, f"{path}.{name}", found, seen, depth + 1)
