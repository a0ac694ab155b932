"""Kernels that lose precision by themselves, whatever the code does: named, and not held against it."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parameter import is_lazy

from ampcheck.policy import LOW_PRECISION
from ampcheck.scenarios.drive import Built
from ampcheck.trace.randomness import DrawInFP32

__all__ = ["LossyKernels"]


class LossyKernels:
    """Parameters that kernels give 16-bit sums for gradients, whatever the code does: name -> why they are not judged."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def watch(self, built: Built) -> DrawInFP32:
        parameters = [one for root in built.reach().modules.values() for one in root.named_parameters()]
        named = {p.data_ptr(): name for name, p in parameters if not is_lazy(p) and p.layout is torch.strided}
        names = built.reach().names()
        # a sparse tensor has no storage of its own, and no norm takes one
        dense = [t for t in built.reach().tensors.values() if t.layout is torch.strided and t.numel()]
        named.update((t.data_ptr(), names[id(t)]) for t in dense if id(t) in names)
        return _NoticeKernels(self, named)


class _NoticeKernels(DrawInFP32):
    """On the CPU the backward of layer_norm sums the gradients of weight and bias in 16 bits: 15 to 40 times the unit
    roundoff.
    """

    def __init__(self, kernels: LossyKernels, named: dict[int, str]) -> None:
        super().__init__()
        self.kernels, self.named = kernels, named

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.native_layer_norm.default and args[0].device.type == "cpu" and args[0].dtype in LOW_PRECISION:
            for tensor in args[2:4]:
                name = self.named.get(tensor.data_ptr()) if isinstance(tensor, torch.Tensor) else None
                if name is not None:
                    self.kernels.names[name] = "layer_norm's own backward on the CPU sums its gradient in 16 bits"
        return super().__torch_dispatch__(func, types, args, kwargs)
