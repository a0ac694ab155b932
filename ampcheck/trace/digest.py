"""Bits and differences of tensors: what two runs are compared by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["Digest", "digest", "local", "plain", "relative_difference"]

#: Bit digest of a list of tensors: one pair of integers (or `None`) for each.
Digest = tuple[tuple[int, ...] | None, ...]

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The dense, real, local values of a tensor: sparse gradients coalesced, complex as pairs, shards as they lie here."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.to_dense()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor under the wrappers of `torch.func` (grad, vmap), inside which a value cannot be read; a batch has one dimension more."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def digest(tensors: Sequence[torch.Tensor | None], divide_by: torch.Tensor | None = None) -> Digest:
    """A digest of the bits of each tensor, equal for equal bits.

    The bits are summed as integers: independent of the order in which a device adds, without a copy of the tensor.

    Args:
        tensors: any shapes, dtypes and layouts; `None` stays `None`.
        divide_by: the loss scale that a fused optimizer divides by inside its kernel; divided out first (exact for a
            power of two).
    """
    sums: list[torch.Tensor] = []
    shapes: list[tuple[int, ...] | None] = []
    with torch.no_grad():
        for tensor in tensors:
            if tensor is None:
                shapes.append(None)
                continue
            values = local(tensor)
            if divide_by is not None:
                values = values / divide_by.to(values.device)
            bits = values.view(_INTEGER_OF_SIZE[values.element_size()]) if values.dtype is not torch.bool else values
            shapes.append((values.element_size(), *values.shape))
            sums.append(bits.sum(dtype=torch.int64))
        by_device: dict[torch.device, list[int]] = {}
        for i, total in enumerate(sums):
            by_device.setdefault(total.device, []).append(i)
        values_of: dict[int, int] = {}
        for indices in by_device.values():  # one transfer a device
            values_of.update(zip(indices, torch.stack([sums[i] for i in indices]).tolist(), strict=True))
    found: list[tuple[int, ...] | None] = []
    position = 0
    for shape in shapes:
        if shape is None:
            found.append(None)
        else:
            found.append((values_of[position], *shape))
            position += 1
    return tuple(found)


#: Below this, float32 numbers are subnormal and lose bits when they are divided by a power of two.
SMALLEST_NORMAL = 2.0**-126


def relative_difference(seen: Any, expected: Any) -> tuple[float, float]:
    """How far `seen` is from `expected`, and how it is scaled.

    Args:
        seen, expected: tensors of one shape; compared in float64. Elements that are subnormal in both are left out.

    Returns:
        `(difference, ratio)`: norm of the difference over the norm of `expected` (inf where one is not finite), and the
        factor by which `seen` is `expected` in the least-squares sense (NaN where `expected` is zero).
    """
    a, b = local(seen).double().flatten(), local(expected).double().flatten()
    if a.shape != b.shape:
        return float("inf"), float("nan")
    tiny = (a.abs() < SMALLEST_NORMAL) & (b.abs() < SMALLEST_NORMAL)
    a, b = a.masked_fill(tiny, 0.0), b.masked_fill(tiny, 0.0)
    if bool(a.isfinite().all()) != bool(b.isfinite().all()):
        return float("inf"), float("nan")
    if not bool(b.isfinite().all()):
        same = bool((a.isnan() == b.isnan()).all()) and bool((a.nan_to_num() == b.nan_to_num()).all())
        return (0.0 if same else float("inf")), float("nan")
    norm, difference = float(b.norm()), float((a - b).norm())
    if norm == 0.0:
        return (0.0 if float(a.norm()) == 0.0 else float("inf")), float("nan")
    return difference / norm, float(a @ b) / (norm * norm)
