"""Which ops a census counts, and what it reads from their arguments: families, FLOPs, sizes."""

from __future__ import annotations

import contextlib
import math
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ampcheck.trace.flow import MATMULS

__all__ = [
    "PASSING", "VIEWS", "Plan", "coarse_step", "dims_of", "exact_power", "floats", "flops_of", "in_rms_norm", "kind_of", "long_sum",
    "remarkable",
]  # fmt: skip

NORMS = frozenset(
    {
        "native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "cudnn_batch_norm",
        "miopen_batch_norm", "_batch_norm_impl_index", "batch_norm_stats", "native_layer_norm", "native_group_norm",
        "_fused_rms_norm",
    }
)  # fmt: skip
LOSSES = frozenset(
    {
        "mse_loss", "smooth_l1_loss", "huber_loss", "nll_loss_forward", "nll_loss2d_forward", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "soft_margin_loss", "multi_margin_loss", "multilabel_margin_loss_forward",
        "_ctc_loss", "_cudnn_ctc_loss",
    }
)  # fmt: skip
SENSITIVE = frozenset(
    {
        "_softmax", "_log_softmax", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "pow",
        "linalg_vector_norm", "norm", "cumsum", "cumprod", "logcumsumexp", "logsumexp", "prod", "tan", "acos", "asin",
        "erfinv", "cosh", "sinh",
    }
)  # fmt: skip
REDUCTIONS = frozenset({"mean", "sum"})
_FAMILIES = {"matmul": MATMULS, "norm": NORMS, "loss": LOSSES, "sensitive": SENSITIVE, "reduction": REDUCTIONS}
_FAMILY = {name: family for family, names in _FAMILIES.items() for name in names}
#: Ops that a tag is made by, or looked for at.
_TRACED = frozenset(
    {
        "_to_copy", "mul", "div", "add", "sub", "rsub", "square", "rsqrt", "sqrt", "reciprocal", "clamp", "clamp_min",
        "clamp_max", "maximum", "clone", "var", "var_mean", "std", "std_mean", "sigmoid", "sin", "cos", "gather",
        "index", "where", "addcdiv", "addcmul",
    }
)  # fmt: skip
#: Ops that leave a probability one: its logarithm is no better than it.
PASSING = frozenset({"clamp", "clamp_min", "clamp_max", "add", "sub", "rsub", "gather", "index", "clone", "_to_copy"})
#: Ops that only look at a tensor differently, or make an empty one: they say nothing about precision.
VIEWS = frozenset(
    {
        "view", "_unsafe_view", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "slice", "select",
        "detach", "alias", "as_strided", "split", "split_with_sizes", "unbind", "lift_fresh", "empty", "empty_like",
        "new_empty", "new_empty_strided", "empty_strided", "_reshape_alias", "is_same_size", "narrow", "diagonal",
        "unfold", "_local_scalar_dense",
    }
)  # fmt: skip
#: From this distance of neighbouring 16-bit numbers on, in radians, an angle is too coarse.
COARSE_ANGLE = 0.05
_MANTISSA = {"float16": 10, "bfloat16": 7}
#: Channels of a picture, at most: a property of the data.
PICTURE = 4
#: From this many terms on a sum counts as long.
LONG_SUM = 4096


class Plan:
    """What to do at an op: read from its name once."""

    __slots__ = ("arguments", "base", "family", "flops", "name", "traced")

    def __init__(self, func: Any) -> None:
        self.name = str(func._schema.name).rpartition("::")[2]
        self.base = self.name.removesuffix("_")
        self.family = _FAMILY.get(self.base, "")
        self.traced = self.base in _TRACED or self.base in (
            "pow",
            "mean",
            "sum",
            "log",
            "_softmax",
            "_log_softmax",
            "bmm",
            "dot",
        )
        self.flops: Callable[..., Any] | None = flop_registry.get(func._overloadpacket)
        self.arguments = [a.name for a in func._schema.arguments]


def floats(values: Sequence[Any]) -> list[torch.Tensor]:
    """The floating-point tensors among values and in lists of them; complex and integer ones are not counted."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [v for v in value if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return found


def flops_of(plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> float:
    """By torch's own formulas; for what they leave out, twice the product of the operands' sizes over the size they share."""
    if plan.flops is not None:
        with contextlib.suppress(Exception):  # a formula that does not know this shape
            return float(plan.flops(*args, **kwargs, out_val=result))
    sizes = [t.numel() for t in floats(args)]
    if len(sizes) < 2:
        return 0.0
    x = floats(args)[0]
    return 2.0 * sum(sizes[1:]) * max(1, sizes[0] // max(1, x.shape[-1] if x.dim() else 1))


def long_sum(plan: Plan, given: list[torch.Tensor], out: list[torch.Tensor]) -> int:
    """How many terms a long sum adds up; 0 for any other."""
    terms = given[0].numel() // max(1, out[0].numel()) if plan.base == "sum" and given else 0
    return terms if terms >= LONG_SUM else 0


def exact_power(plan: Plan, args: tuple[Any, ...]) -> bool:
    """Whether this is a square or a cube: as good as the product that it stands for, which is no sensitive op either."""
    return plan.base == "pow" and len(args) > 1 and isinstance(args[1], (int, float)) and args[1] in (2, 3)


def remarkable(plan: Plan, args: tuple[Any, ...], given: list[torch.Tensor], out: list[torch.Tensor], squares: bool) -> bool:
    """Whether an op that a graph goes through is counted; `squares`: a reduction is one of squares."""
    low = out[0].dtype in (torch.float16, torch.bfloat16)
    if plan.family == "reduction":  # the last reduction of a loss, a long one, or one of squares
        return low and (out[0].numel() == 1 or squares or bool(long_sum(plan, given, out)))
    if exact_power(plan, args):
        return False
    return plan.family == "loss" or low or plan.base.startswith("log")


def dims_of(name: str, args: tuple[Any, ...]) -> tuple[int, ...]:
    """(m, k, n) of a product, (batch, channels in, channels out) of a convolution; m and the batch may be anything.

    Pictures have three channels, whatever the layer: so few are left out.
    """
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if name in ("mm", "addmm", "_addmm_activation") and len(tensors) >= 2 and tensors[-1].dim() == 2:
        left, right = tensors[-2:]
        return left.shape[0], left.shape[-1], right.shape[-1]
    if name in ("convolution", "cudnn_convolution", "mkldnn_convolution") and len(tensors) >= 2:
        x, weight = tensors[:2]
        transposed = name == "convolution" and args[6]
        channels = (x.shape[1], weight.shape[1] * args[8] if transposed else weight.shape[0])
        return x.shape[0], *(c for c in channels if c > PICTURE)
    return ()


def in_rms_norm() -> bool:
    """Whether torch's own `rms_norm` is running, which some torch versions compose of small ops."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not torch.nn.functional.rms_norm.__code__:
        frame = frame.f_back
    return frame is not None


def kind_of(module: Any) -> str:
    return "" if module is None else type(module).__name__


def coarse_step(largest: float, dtype: str) -> float:
    """The distance of the numbers of a 16-bit dtype at an angle, where it is too coarse for one; 0 where it is not."""
    if not math.isfinite(largest) or largest == 0.0:
        return 0.0
    step: float = 2.0 ** (math.floor(math.log2(largest)) - _MANTISSA[dtype])
    return step if step >= COARSE_ANGLE else 0.0
