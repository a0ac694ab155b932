"""What the autograd graph says before a backward runs: which loss scale is in it, scalar factors, 16-bit nodes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ampcheck.trace.digest import plain

__all__ = ["inspect"]

#: Nodes that are looked at in one backward; a graph that is larger is judged by its first nodes from the loss.
NODE_LIMIT = 20_000
#: A multiplication by at least this much right at the root of a graph is taken for a loss scale that is kept by hand.
HAND_SCALE = 8.0
_PASS_THROUGH = ("ToCopyBackward0", "AliasBackward0", "CloneBackward0", "ViewBackward0", "SqueezeBackward0", "SelectBackward0")


def inspect(
    roots: Sequence[torch.Tensor], seeds: Sequence[torch.Tensor | None], scaled: Mapping[int, tuple[Any, int, float]]
) -> dict[str, Any]:
    """Read the graph of a backward.

    Args:
        roots: what backward was called on.
        seeds: their `gradient` arguments.
        scaled: grad_fn id -> (grad_fn, scaler index, scale) of what scalers returned since their last update.

    Returns:
        `scaled_by`: indices of the scalers whose output is in the scalar part of the graph; `divisor`: the constant that
        the loss was divided by (1 if none); `hand_scale`: a large constant factor or seed; `dtypes`: 16-bit dtypes that
        gradients pass through; `loss_dtypes`: dtypes of the scalars that the loss is put together from.
    """
    scaled_by: set[int] = set()
    divisor, hand_scale = 1.0, 1.0
    for root in roots:
        if not isinstance(root, torch.Tensor):
            continue
        d, h, found = _scalar_chain(root.grad_fn, scaled)
        scaled_by |= found
        divisor, hand_scale = d, max(hand_scale, h)
    for seed in seeds or ():
        if isinstance(seed, torch.Tensor) and seed.numel() and seed.device.type != "meta":
            largest = float(plain(seed).detach().abs().max())
            if math.isfinite(largest):
                hand_scale = max(hand_scale, largest)
    dtypes = _low_precision(roots)
    return {
        "scaled_by": sorted(scaled_by),
        "divisor": divisor,
        "hand_scale": hand_scale if hand_scale >= HAND_SCALE else None,
        "dtypes": sorted(dtypes),
        "loss_dtypes": sorted(_scalar_dtypes(roots)),
    }


def _scalar_chain(node: Any, scaled: Mapping[int, tuple[Any, int, float]]) -> tuple[float, float, set[int]]:
    """Follow multiplications and divisions by constants from the root; sums of such terms are followed for the scale only."""
    divisor, hand = 1.0, 1.0
    found: set[int] = set()
    while node is not None:
        name = type(node).__name__
        ours = scaled.get(id(node))
        if ours is not None:
            found.add(ours[1])
        if name in ("MulBackward0", "DivBackward0"):
            value = _constant(node, "_saved_other")
            if value is None and name == "MulBackward0":
                value = _constant(node, "_saved_self")
            if ours is None and value is not None:
                if name == "DivBackward0":
                    divisor *= value
                elif abs(value) >= HAND_SCALE:
                    hand *= abs(value)
                elif value != 0.0:
                    divisor /= value
        elif name not in _PASS_THROUGH:
            if name.startswith(("Add", "Sum", "Stack", "Mean")):
                for branch, _ in node.next_functions[:16]:
                    if branch is not None:
                        found |= _scalar_chain(branch, scaled)[2] if id(branch) in scaled else set()
            break
        following = [branch for branch, _ in node.next_functions if branch is not None]
        if len(following) != 1:
            break
        node = following[0]
    return divisor, hand, found


def _constant(node: Any, attribute: str) -> float | None:
    try:
        value = getattr(node, attribute)
    except (AttributeError, RuntimeError):
        return None
    if isinstance(value, torch.Tensor):
        value = plain(value)
        return None if value.numel() != 1 or value.requires_grad else float(value)
    return float(value) if isinstance(value, (int, float)) else None


def _low_precision(roots: Sequence[torch.Tensor]) -> set[str]:
    found: set[str] = set()
    queue = deque(r.grad_fn for r in roots if isinstance(r, torch.Tensor) and r.grad_fn is not None)
    seen: set[Any] = set()
    while queue and len(seen) < NODE_LIMIT and len(found) < 2:
        node = queue.popleft()
        if node in seen:
            continue
        seen.add(node)
        for meta in getattr(node, "_input_metadata", ()):
            dtype = getattr(meta, "dtype", None)
            if dtype in (torch.float16, torch.bfloat16):
                found.add(str(dtype).removeprefix("torch."))
        queue.extend(branch for branch, _ in node.next_functions if branch is not None)
    return found


def _scalar_dtypes(roots: Sequence[torch.Tensor]) -> set[str]:
    """Dtypes of the scalars (no dimensions) between the root and the first tensor that is none, on each branch."""
    scalars = [r for r in roots if isinstance(r, torch.Tensor) and r.numel() == 1]
    found = {str(r.dtype).removeprefix("torch.") for r in scalars}
    queue = deque(r.grad_fn for r in scalars if r.grad_fn is not None)
    seen: set[Any] = set()
    while queue and len(seen) < NODE_LIMIT:
        node = queue.popleft()
        if node in seen:
            continue
        seen.add(node)
        outputs = getattr(node, "_input_metadata", ())
        if not outputs or any(len(meta.shape) for meta in outputs):
            continue
        found.update(str(meta.dtype).removeprefix("torch.") for meta in outputs)
        queue.extend(branch for branch, _ in node.next_functions if branch is not None)
    return found
