"""The outline of a run, for people who compare two of them: dtypes of modules, and the sizes of gradients.

Forward hooks and two reductions a gradient; nothing is copied, and nothing here is judged.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import _disable_current_modes

from ampcheck.trace.events import Event
from ampcheck.trace.ops import GradientSize, ModuleUse, Outline
from ampcheck.trace.precision import dtype_name
from ampcheck.trace.reach import named_modules
from ampcheck.trace.recorder import Probe, Recorder
from ampcheck.trace.sources import user_site

__all__ = ["OutlineTaker"]


class OutlineTaker(Probe):
    """Fills an `Outline`: put `watch` around each call of a run, and give it to the recorder as a probe."""

    def __init__(self) -> None:
        self.outline = Outline()
        self._uses: weakref.WeakKeyDictionary[torch.nn.Module, ModuleUse] = weakref.WeakKeyDictionary()
        self._sizes: list[tuple[GradientSize, list[torch.Tensor], torch.Tensor | None]] = []

    def built(self, modules: Mapping[str, torch.nn.Module]) -> None:
        """The contract was built: learn its modules and the dtypes that their own parameters have."""
        for name, module in named_modules(modules):
            if module not in self._uses:
                own = {dtype_name(p.dtype) for p in module.parameters(recurse=False)}
                use = self._uses[module] = ModuleUse(name, type(module).__name__, "+".join(sorted(own)))
                self.outline.modules.append(use)

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Note what each module returns, in a forward (a recomputation is none)."""

        def after(module: torch.nn.Module, args: Any, result: Any) -> None:
            use = self._uses.get(module)
            if use is None or torch._C._current_autograd_node() is not None:
                return
            tensor = _first_float(result)
            if tensor is None:
                return
            dtype = dtype_name(tensor.dtype)
            if dtype not in use.outputs:
                use.outputs[dtype] = 0
                use.sites.setdefault(dtype, user_site(2))
            use.outputs[dtype] += 1

        handle = register_module_forward_hook(after)
        try:
            yield
        finally:
            handle.remove()

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if not entering or event.optimizer is None:
            return
        size = GradientSize(event.call, event.optimizer, event.index)
        self.outline.gradients.append(size)
        grads = [p.grad for p in recorder.parameters(event.optimizer) if p.grad is not None]
        grads = [g._values() if g.layout is torch.sparse_coo else g for g in grads]
        if not grads or any(type(g) not in (torch.Tensor, torch.nn.Parameter) for g in grads):
            return  # a gradient of another class (a shard, for one) has its own idea of a norm
        with _disable_current_modes(), torch.no_grad(), contextlib.suppress(RuntimeError):
            found = [_sizes(g.detach()) for g in grads if g.numel()]
            scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer divides by it later
            self._sizes.append((size, found, scale.detach().clone() if isinstance(scale, torch.Tensor) else None))

    def call_done(self, recorder: Recorder, call: int) -> None:
        """Read the numbers of the call that has ended: one transfer a device and step."""
        with _disable_current_modes(), torch.no_grad():
            for size, found, scale in self._sizes:
                devices = {f.device for f in found}
                rows = [r for d in devices for r in torch.stack([f.float() for f in found if f.device == d]).tolist()]
                divisor = float(scale) if scale is not None else 1.0
                norm = math.sqrt(sum(n * n for n, _ in rows)) / divisor
                peak = max((p for _, p in rows), default=0.0) / divisor
                if math.isfinite(norm) and all(math.isfinite(p) for _, p in rows):
                    size.norm, size.peak = norm, peak
        self._sizes.clear()


def _sizes(gradient: torch.Tensor) -> torch.Tensor:
    """Norm and largest absolute value, in at least float32."""
    wide = gradient.abs() if gradient.is_complex() else gradient
    wide = wide.float() if wide.dtype in (torch.float16, torch.bfloat16) else wide
    return torch.stack([torch.linalg.vector_norm(wide), torch.linalg.vector_norm(wide, math.inf)])


def _first_float(value: Any, depth: int = 0) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else None
    if depth < 3 and isinstance(value, (list, tuple, Mapping)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            found = _first_float(inner, depth + 1)
            if found is not None:
                return found
    return None
