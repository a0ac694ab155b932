"""Where a tensor came from, as far as a check needs it: a cast of weights, a second moment, a probability in 16 bits.

A tag belongs to a storage, so that views share it, and goes with it. It is a few words: no tensor is kept alive.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

__all__ = ["LOW_DTYPES", "Provenance", "Tag", "short"]

LOW_DTYPES = (torch.float16, torch.bfloat16)
#: Tags that are dropped when so many have gathered and their storages are gone.
_SWEEP = 2048


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Tag:
    """What is known of a storage.

    Args:
        kind: "weights" (a copy of weights, or computed from nothing else), "square", "moment" (a mean of squares or a
            variance), "root" (of one, or its inverse), "probability", "log-probability", "raised" (cast up from 16 bits).
        dtype: a 16-bit dtype, or "".
        low: for moments and roots: the ops on the way that ran in 16 bits.
        shape: for these: shape of the tensor whose moment it is.
        epsilon: for these: what was added.
        weights: for "weights": ids of the parameters; `name` is for messages.
        grad: whether gradients were on when it was made.
        epoch: optimizer steps that these parameters had taken then.
    """

    kind: str
    dtype: str = ""
    low: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    epsilon: float | None = None
    weights: tuple[int, ...] = ()
    name: str = ""
    grad: bool = True
    epoch: int = 0


class Provenance:
    """The tags of the storages that live."""

    def __init__(self) -> None:
        self._tags: dict[int, tuple[StorageWeakRef, Tag]] = {}
        self._sweep = _SWEEP

    def __bool__(self) -> bool:
        return bool(self._tags)

    def of(self, tensor: object) -> Tag | None:
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return None
        found = self._tags.get(tensor.untyped_storage()._cdata)
        return found[1] if found is not None and not found[0].expired() else None

    def set(self, tensor: object, tag: Tag | None) -> None:
        """Tag a tensor's storage, or clear it."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        if tag is None:
            self._tags.pop(storage._cdata, None)
            return
        # the weak reference keeps the address from being used again, so that it identifies the storage
        self._tags[storage._cdata] = (StorageWeakRef(storage), tag)
        if len(self._tags) > self._sweep:
            self._tags = {key: entry for key, entry in self._tags.items() if not entry[0].expired()}
            self._sweep = max(_SWEEP, 2 * len(self._tags))

    def holds_powers(self, args: tuple[Any, ...]) -> bool:
        """Whether what an op is given are squares that `pow` took in 16 bits."""
        tag = self.of(args[0]) if self._tags and args else None
        return tag is not None and tag.kind == "square" and "pow" in tag.low

    def clear(self) -> None:
        self._tags.clear()

    # -- second moments -------------------------------------------------------------------------------------------------

    def follow_moment(self, name: str, args: tuple[Any, ...], result: Any) -> Iterator[Tag]:
        """Carry square -> moment -> root through an op; yields the root's tag where the op divides the tensor by it.

        Args:
            name: of the op, without a trailing underscore.
            args, result: of the op; only its first result counts.
        """
        out = result[0] if isinstance(result, (tuple, list)) else result
        if not isinstance(out, torch.Tensor) or not args or not isinstance(args[0], torch.Tensor):
            return
        x = args[0]
        if name in ("var", "var_mean", "std", "std_mean"):
            tag = _low(Tag("root" if name.startswith("std") else "moment", shape=tuple(x.shape)), name, x, out)
            self.set(out, tag if out.numel() < x.numel() else None)
        elif (
            name == "square"
            or (name == "pow" and len(args) > 1 and args[1] == 2)
            or (name == "mul" and len(args) > 1 and args[1] is x)
        ):
            if x.requires_grad:
                self.set(out, _low(Tag("square", shape=tuple(x.shape)), name, x, out))
        elif name in ("bmm", "dot") and len(args) > 1 and out.numel() < x.numel() and _with_itself(x, args[1], out):
            if x.requires_grad:
                self.set(out, _low(Tag("moment", shape=tuple(x.shape)), name, x, out))
        elif name in ("mul", "div") and len(args) > 1:
            yield from self._applied(x, args[1], out)
        elif name == "addcdiv" and len(args) > 2:
            yield from self._applied(args[1], args[2], out)
        elif name == "where" and len(args) > 1 and isinstance(args[1], torch.Tensor):
            self._carry(name, args, args[1], out)
        else:
            self._carry(name, args, x, out)

    def _applied(self, x: torch.Tensor, other: Any, out: torch.Tensor) -> Iterator[Tag]:
        for tensor, tagged in ((x, other), (other, x)):
            tag = self.of(tagged)
            if tag is None or tag.kind not in ("root", "moment"):
                continue
            if tag.kind == "root" and isinstance(tensor, torch.Tensor) and tensor.numel() == math.prod(tag.shape):
                yield tag
                return
            if isinstance(tensor, (int, float)) or (isinstance(tensor, torch.Tensor) and tensor.numel() == 1):
                self.set(out, _low(tag, "mul", tagged, out))  # a sum of squares over n
                return
            if tag.kind == "root" and isinstance(tensor, torch.Tensor) and tensor.numel() < math.prod(tag.shape):
                self.set(out, tag)  # the gain first
                return

    def _carry(self, name: str, args: tuple[Any, ...], x: torch.Tensor, out: torch.Tensor) -> None:
        tag = self.of(x)
        if tag is None or tag.kind not in ("square", "moment", "root"):
            return
        if tag.kind == "square" and name in ("mean", "sum"):
            tag = replace(tag, kind="moment") if out.numel() < x.numel() else None
        elif tag.kind == "moment" and name in ("sub", "addcmul"):
            pass  # E[x^2] - E[x]^2
        elif name in ("add", "clamp", "clamp_min", "maximum"):
            tag = replace(tag, epsilon=_scalar(args[1]) if len(args) > 1 else None)
        elif tag.kind == "moment" and (
            name in ("rsqrt", "sqrt") or (name == "pow" and len(args) > 1 and args[1] in (0.5, -0.5))
        ):
            tag = replace(tag, kind="root")
        elif name not in ("_to_copy", "reciprocal", "clone", "where"):
            return
        self.set(out, tag if tag is None or name == "_to_copy" else _low(tag, name, x, out))


def _low(tag: Tag, name: str, x: Any, out: torch.Tensor) -> Tag:
    """The tag with `name` among the ops that ran in 16 bits, if it did."""
    if not isinstance(x, torch.Tensor) or x.dtype not in LOW_DTYPES or out.dtype not in LOW_DTYPES:
        return tag
    return replace(tag, low=tag.low if name in tag.low else (*tag.low, name), dtype=short(x.dtype))


def _with_itself(x: torch.Tensor, other: Any, out: torch.Tensor) -> bool:
    """Whether a product is that of vectors with themselves: of two views of one storage, with one number for each."""
    return (
        isinstance(other, torch.Tensor)
        and other.untyped_storage()._cdata == x.untyped_storage()._cdata
        and other.numel() == x.numel()
        and out.shape[-2:].numel() == 1
    )


def _scalar(value: Any) -> float | None:
    if isinstance(value, (int, float)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.requires_grad and value.device.type == "cpu":
        return float(value)
    return None
