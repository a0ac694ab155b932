"""Random draws that do not depend on the dtype: the same masks, noise and samples in FP32 and in 16 bits.

A generator hands out other numbers, and other amounts of them, to a 16-bit tensor than to an FP32 one (on CUDA even for
`nn.Dropout`). So every random op runs in FP32 and its result is cast: the streams of two worlds then stay in step by
themselves, activation checkpointing and generators of the user's own included. Dropout inside fused attention and
recurrent kernels cannot be had that way; it is switched off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from ampcheck.trace.patches import PatchSet

__all__ = ["DrawInFP32", "is_random", "without_fused_dropout"]

_LOW = (torch.float16, torch.bfloat16)
_KNOWN: dict[Any, bool] = {}


def is_random(op: Any) -> bool:
    """Whether a dispatched op draws from a generator; kernels that can drop out inside do not, see `without_fused_dropout`."""
    known = _KNOWN.get(op)
    if known is None:
        fused = any(part in op._schema.name for part in ("attention", "rnn", "lstm", "gru"))
        known = _KNOWN[op] = torch.Tag.nondeterministic_seeded in op.tags and not fused
    return known


class DrawInFP32(TorchDispatchMode):
    """Runs every random op in FP32 and casts what comes out; counts them in `seen`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_random(func):
            return func(*args, **kwargs)
        self.seen += 1
        return _draw(func, args, kwargs)


def _draw(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    wanted = kwargs.get("dtype")
    if wanted is None:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        takes_dtype = any(a.name == "dtype" for a in func._schema.arguments)
        wanted = next((t.dtype for t in tensors if t.dtype in _LOW), None)
        if not tensors and takes_dtype and "int" not in func._schema.name and "perm" not in func._schema.name:
            wanted = torch.get_default_dtype()
    if wanted not in _LOW:
        return func(*args, **kwargs)
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    wide = {name: _wide(value) for name, value in named.items()}
    if any(a.name == "dtype" for a in func._schema.arguments) and not any(isinstance(v, torch.Tensor) for v in wide.values()):
        wide["dtype"] = torch.float32
    result = func(**wide)
    written: dict[int, torch.Tensor] = {}
    for argument in func._schema.arguments:
        target, source = named.get(argument.name), wide.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        if writes and target is not source and isinstance(target, torch.Tensor) and isinstance(source, torch.Tensor):
            target.copy_(_below_one(func, source.to(target.dtype)))
            written[id(source)] = target

    def narrow(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in written:
            return written[id(value)]
        return _below_one(func, value.to(wanted)) if value.dtype is torch.float32 else value

    return tree_map(narrow, result)


def _below_one(func: Any, value: torch.Tensor) -> torch.Tensor:
    """Uniform numbers stay below 1 in 16 bits too, as a generator's own do; their rounding alone may not: log(1 - u)."""
    if func._schema.name.rpartition("::")[2] not in ("rand", "rand_like") or value.dtype not in _LOW:
        return value
    return value.clamp(max=1.0 - torch.finfo(value.dtype).eps / 2)


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in _LOW:
        return value.float()
    return torch.float32 if value in _LOW else value


class _NoFusedDropout(TorchFunctionMode):
    """Calls fused attention and recurrent layers with a dropout probability of 0."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention":
            args, kwargs = _plain_attention(args, kwargs)
        elif name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            args = tuple(0.0 if type(a) is float else a for a in args)  # the one float among them is the dropout
        return func(*args, **kwargs)


def _plain_attention(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (*args[:4], *(0.0 for _ in args[4:5]), *args[5:]), kwargs | ({"dropout_p": 0.0} if "dropout_p" in kwargs else {})


@contextmanager
def without_fused_dropout() -> Iterator[None]:
    """Attention and recurrent layers drop nothing inside their kernels, where it could not be made independent of the dtype."""
    functional: Any = torch.nn.functional
    attention = functional.scaled_dot_product_attention

    def plain(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _plain_attention(args, kwargs)
        return attention(*args, **kwargs)

    # a function mode does not see what torch's own Python functions, such as multi_head_attention_forward, call inside
    with PatchSet() as patches, _NoFusedDropout():
        patches.set(functional, "scaled_dot_product_attention", plain)
        yield
