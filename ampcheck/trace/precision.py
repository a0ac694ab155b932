"""Where a parameter or buffer got its 16-bit dtype: the line that made it so, or that cast it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ampcheck.findings import Location
from ampcheck.trace.patches import PatchSet
from ampcheck.trace.sources import user_site

__all__ = ["LOW", "CastSites", "dtype_name", "is_low", "watch_casts"]

#: Floating dtypes with fewer bits than float32.
LOW = frozenset({"float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"})


def dtype_name(dtype: torch.dtype) -> str:
    """`float16` for `torch.float16`."""
    return str(dtype).removeprefix("torch.")


def is_low(tensor: object) -> bool:
    """Whether it is a tensor of fewer than 32 floating bits."""
    return isinstance(tensor, torch.Tensor) and dtype_name(tensor.dtype) in LOW


class CastSites:
    """The lines that gave tensors their low precision, while the tensors live."""

    def __init__(self) -> None:
        self._sites: dict[int, tuple[weakref.ref[torch.Tensor], Location | None, bool]] = {}

    def note(self, tensor: object, site: Location | None, cast: bool) -> None:
        if isinstance(tensor, torch.Tensor) and is_low(tensor):
            self._sites[id(tensor)] = (weakref.ref(tensor), site, cast)

    def of(self, tensor: torch.Tensor) -> Location | None:
        """The line, where it is known."""
        known = self._sites.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def was_cast(self, tensor: torch.Tensor) -> bool:
        """Whether it had more bits before, and a call on a whole module took them."""
        known = self._sites.get(id(tensor))
        return known is not None and known[0]() is tensor and known[2]


@contextlib.contextmanager
def watch_casts() -> Iterator[CastSites]:
    """Note, while the block runs, which line registers or casts parameters and buffers of modules in low precision.

    `p.data = p.data.half()` goes past every function that could be watched; its line is not known.
    """
    sites = CastSites()
    module: Any = torch.nn.Module
    register, apply, register_buffer = module.register_parameter, module._apply, module.register_buffer

    def registered(self: torch.nn.Module, name: str, parameter: Any) -> None:
        register(self, name, parameter)
        sites.note(parameter, user_site(2), False)

    def buffered(self: torch.nn.Module, name: str, tensor: Any, *args: Any, **kwargs: Any) -> None:
        register_buffer(self, name, tensor, *args, **kwargs)
        sites.note(tensor, user_site(2), False)

    def applied(self: torch.nn.Module, function: Callable[..., Any], *args: Any, **kwargs: Any) -> torch.nn.Module:
        before = {name: (t, t.dtype) for name, t in _own(self)}
        result: torch.nn.Module = apply(self, function, *args, **kwargs)
        for name, tensor in _own(self):
            old, dtype = before.get(name, (tensor, None))
            if dtype != tensor.dtype:
                sites.note(tensor, user_site(2), True)
            elif old is not tensor:  # it only moved to another device
                sites.note(tensor, sites.of(old), sites.was_cast(old))
        return result

    with PatchSet() as patches:
        patches.set(module, "register_parameter", registered)
        patches.set(module, "register_buffer", buffered)
        patches.set(module, "_apply", applied)
        yield sites


def _own(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The module's parameters and buffers without its children's: `_apply` visits each of them."""
    return [(name, t) for name, t in [*module._parameters.items(), *module._buffers.items()] if t is not None]
