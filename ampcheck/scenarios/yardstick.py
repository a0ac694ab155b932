"""The yardstick: FP32 steps in which results are rounded to the mantissa of a 16-bit dtype, and to nothing else of it.

The range stays FP32's, so overflow and underflow are not part of it: what such steps deviate by is what honest rounding does to
this loss, these gradients and this update. Rounding is to the nearest point of a grid that is scaled at random for each result,
so equal values get equal errors (independent noise would average out where rounding does not: mean pooling, bias gradients) and
zeros stay zero.

"every op" rounds each floating-point result, and the weights. "matmul" rounds inputs, weights and results of the matmul class
alone, in forward only inside regions that the code itself enables: tighter, it does not forgive 16 bits where correct code
keeps FP32.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.trace.randomness import is_random
from ampcheck.trace.recorder import Recorder

__all__ = ["Grid", "Rounding", "Yardstick", "moves_only"]

Yardstick = Literal["every op", "matmul"]
#: Mantissa bits of FP32 that the dtype does not have.
_DROPPED = {"float16": 13, "bfloat16": 16}

#: They only move, choose or make values: nothing new to round.
_MOVES = frozenset(
    """
    _unsafe_view _reshape_copy view_copy clone contiguous _to_copy cat stack concat hstack vstack repeat repeat_interleave
    flip roll tile gather index index_select take take_along_dim masked_select masked_fill where embedding constant_pad_nd
    reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d scatter
    index_put select_scatter slice_scatter diagonal_scatter as_strided_scatter index_fill index_copy masked_scatter sort
    topk kthvalue max min amax amin aminmax maximum minimum fmax fmin median mode cummax cummin relu threshold hardtanh
    clamp clamp_min clamp_max threshold_backward hardtanh_backward max_pool2d_with_indices max_pool3d_with_indices
    adaptive_max_pool2d max_pool2d_with_indices_backward max_pool3d_with_indices_backward abs neg sign sgn round floor ceil
    trunc tril triu one_hot full full_like zeros zeros_like ones ones_like new_zeros new_ones new_full empty empty_like
    new_empty arange linspace eye scalar_tensor lift_fresh lift_fresh_copy copy resize set_data im2col col2im pixel_shuffle
    pixel_unshuffle channel_shuffle unfold_backward slice_backward select_backward diagonal_backward _pack_padded_sequence
    isnan isinf isfinite nan_to_num upsample_nearest2d item _local_scalar_dense
    """.split()  # noqa: SIM905  (as a list it would fill pages)
)
_MATMUL = ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "addbmm", "linear", "dot", "matmul", "_grouped_mm")
_MATMUL_PARTS = (
    "convolution",
    "_conv",
    "conv_",
    "scaled_dot_product",
    "_attention_forward",
    "_attention_backward",
    "rnn",
    "lstm",
    "gru",
    "_linear",
)
#: Their first result is of the activation's dtype; the others are statistics, which the kernels keep in FP32.
_FIRST_ONLY = ("norm", "attention", "rnn", "lstm", "gru", "var_mean", "std_mean", "dropout")


@functools.cache
def _scales(dtype: str) -> list[float]:
    """Scales of the grids to choose from."""
    draws = random.Random(2)  # noqa: S311
    candidates = [draws.uniform(0.5, 1.0) for _ in range(256)]
    # The largest FP32 number masks attention scores: it must not be rounded up to infinity.
    largest = torch.full((1,), torch.finfo(torch.float32).max)
    return [s for s in candidates if bool(_round_(largest.clone(), s, _DROPPED[dtype]).isfinite().all())]


def _round_(x: torch.Tensor, scale: float, drop: int) -> torch.Tensor:
    x.mul_(scale)
    x.view(torch.int32).add_(1 << (drop - 1)).bitwise_and_(-(1 << drop))  # to the nearest; zero and infinity to themselves
    return x.mul_(1.0 / scale)


class Grid:
    """A reproducible sequence of randomly scaled grids.

    Args:
        dtype: "float16" or "bfloat16".
        seed: two grids of one seed round alike.
    """

    def __init__(self, dtype: str, seed: int) -> None:
        self._drop, self._scales = _DROPPED[dtype], _scales(dtype)
        self._random, self._seed = random.Random(seed), seed  # noqa: S311

    def round_(self, x: torch.Tensor, own: int | None = None) -> torch.Tensor:
        """Round in place: an FP32 tensor that shares its memory with nothing that must stay.

        Args:
            x: the tensor.
            own: rounds on a grid of this number, the same each time, instead of the next one.
        """
        pick = self._random.randrange(1 << 30) if own is None else (own + 1) * 2654435761 + self._seed * 40503
        return _round_(x, self._scales[pick % len(self._scales)], self._drop)


def _rounds(x: Any) -> bool:
    return (
        type(x) in (torch.Tensor, torch.nn.Parameter)
        and x.dtype is torch.float32
        and x.layout is torch.strided
        and x.numel() > 0
        and not x._is_zerotensor()  # forward-mode AD's zeros have no memory
    )


def moves_only(func: Any) -> bool:
    """Whether an op only moves, chooses or makes values."""
    return func._schema.name.partition("::")[2] in _MOVES or any(r.alias_info is not None for r in func._schema.returns)


class Rounding(TorchDispatchMode):
    """Rounds what runs inside it, where it is `on`.

    Args:
        dtype: whose mantissa.
        yardstick: what is rounded.
        draw: number of the draw: the same one gives the same grids.
        recorder: of the run; knows which autocast regions are entered.
    """

    def __init__(self, dtype: str, yardstick: Yardstick, draw: int, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.grid = Grid(dtype, 7919 * draw + (yardstick == "matmul"))
        self.yardstick, self.recorder = yardstick, recorder
        self.off = False
        #: autograd nodes of matmuls outside any enabled region: their backward is not rounded either
        self._islands: set[int] = set()
        self._weights: dict[int, int] = {}
        self._how: dict[Any, Callable[..., Any] | None] = {}

    def pause(self, stepping: bool) -> None:
        """Round nothing while an optimizer steps: its arithmetic is FP32's in both worlds."""
        self.off = stepping

    def weights(self, parameters: Iterable[torch.Tensor]) -> None:
        """Round weights: at once for "every op"; for "matmul" where they are used, each always on its own grid."""
        for index, p in enumerate(parameters):
            if not _rounds(p):
                continue
            if self.yardstick == "every op":
                self.grid.round_(p.data)
            else:
                self._weights[p.untyped_storage().data_ptr()] = index

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.off:
            return func(*args, **kwargs)
        if func not in self._how:
            self._how[func] = self._decide(func)
        how = self._how[func]
        return func(*args, **kwargs) if how is None else how(func, args, kwargs)

    def _decide(self, func: Any) -> Callable[..., Any] | None:
        name = func._schema.name.partition("::")[2]
        multiplies = name in _MATMUL or any(part in name for part in _MATMUL_PARTS)
        if self.yardstick == "matmul":
            return self._matmul if multiplies and not func._schema.is_mutable else None
        changes = func._schema.is_mutable or any(r.alias_info is not None for r in func._schema.returns)
        first = any(part in name for part in _FIRST_ONLY) and "backward" not in name
        if name in _MOVES or is_random(func) or name.startswith(("_foreach", "_fused_", "_amp")) or (changes and not first):
            return None
        return self._first if first else self._all

    def _first(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        value = result[0] if isinstance(result, (tuple, list)) and result else result
        if _rounds(value) and not any(value is a for a in args):
            self.grid.round_(value)
        return result

    def _all(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            if _rounds(result) and not any(result is a for a in args):
                self.grid.round_(result)
        elif isinstance(result, (tuple, list)):
            for value in result:
                if _rounds(value):
                    self.grid.round_(value)
        return result

    def _matmul(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not self._inside(args):
            return func(*args, **kwargs)
        args = tuple([self._input(x) for x in a] if isinstance(a, (list, tuple)) else self._input(a) for a in args)
        return self._first(func, args, kwargs) if "backward" not in func._schema.name else self._all(func, args, kwargs)

    def _inside(self, args: Any) -> bool:
        device = next((a.device.type for a in args if isinstance(a, torch.Tensor)), "cpu")
        if self.recorder.regions.state(device, threading.get_ident()).dtype != "off":
            return True
        node = torch._C._current_autograd_node()
        if node is None:
            # autograd has made the node of this op already, and counts on from it
            self._islands.add(torch._C._autograd._get_sequence_nr() - 1)
            return False
        return node._sequence_nr() not in self._islands

    def _input(self, x: Any) -> Any:
        if not _rounds(x):
            return x
        weight = self._weights.get(x.untyped_storage().data_ptr())
        return self.grid.round_(x.clone(), own=weight)
