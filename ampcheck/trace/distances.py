"""How far the gradients and updates of a run are from those of a reference in host memory, with one transfer in all."""

from __future__ import annotations

import torch

from ampcheck.trace.digest import local

__all__ = ["difference", "host", "measure", "numbers", "plain"]


def host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Dense, real, local and detached; sparse gradients filled in, so that indices do not matter."""
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.detach().to_dense()
    return local(tensor)


def difference(seen: torch.Tensor | None, expected: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Norm of the difference, and the sum of the expected absolute values over what is zero in `seen`; both on its device.

    Less what is there where zero is expected: that went elsewhere, to another row of a table for one, and did not underflow.
    """
    if seen is None and expected is None:
        return None
    if seen is None or expected is None:
        there = seen if expected is None else expected
        assert there is not None
        norm = _norm(there.float())
        return norm, torch.zeros_like(norm)  # a gradient that is not there did not underflow
    b = expected.to(seen.device)
    if b.shape != seen.shape:
        return torch.tensor(float("inf")), torch.tensor(0.0)
    lost = b.abs().masked_fill_(seen != 0, 0.0).sum(dtype=torch.float64)
    astray = seen.abs().masked_fill_(b != 0, 0.0).sum(dtype=torch.float64)
    lost = torch.clamp(lost - astray, min=0.0)
    return _norm(b.sub_(seen) if b is not expected else seen.float() - b), lost


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm


def numbers(values: list[torch.Tensor | None]) -> list[float | None]:
    """0-dim tensors as numbers, with one transfer a device."""
    by_device: dict[torch.device, list[int]] = {}
    for i, value in enumerate(values):
        if value is not None:
            by_device.setdefault(value.device, []).append(i)
    found: list[float | None] = [None] * len(values)
    for indices in by_device.values():
        stacked = torch.stack([values[i].double() for i in indices])  # type: ignore[union-attr]
        for i, number in zip(indices, stacked.tolist(), strict=True):
            found[i] = number
    return found


def measure(values: list[torch.Tensor | None]) -> tuple[list[float | None], list[float | None]]:
    """Norm and sum of absolute values of each tensor."""
    norms = [None if v is None else _norm(v.float()) for v in values]
    sums = [None if v is None else v.float().abs().sum(dtype=torch.float64) for v in values]
    return numbers(norms), numbers(sums)
