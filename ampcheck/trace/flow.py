"""How precision flows through custom Functions and recomputations, and whether anything in 16 bits stopped being finite.

One dispatch mode over the run as it is written. It keeps dtypes, lines and, for each op with a 16-bit result outside the
backward, one sum on the device; the sums are read once a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcheck.findings import Location
from ampcheck.trace.place import Place, called_from_python, place
from ampcheck.trace.recorder import Recorder

__all__ = ["MATMULS", "Flow", "FlowMode", "FunctionUse", "Recomputed", "Suspect", "op_name"]

LOW = (torch.float16, torch.bfloat16)
#: Matmul-class ops: what autocast casts for, on every device.
MATMULS = frozenset(
    {
        "mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "linear", "_addmm_activation", "_grouped_mm",
        "convolution", "convolution_backward", "_convolution", "cudnn_convolution", "mkldnn_convolution", "linear_backward",
        "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward", "_cudnn_rnn", "_cudnn_rnn_backward", "_thnn_fused_lstm_cell",
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward",
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
        "_scaled_dot_product_efficient_attention", "_scaled_dot_product_efficient_attention_backward",
        "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward",
    }
)  # fmt: skip
#: Ops that add many numbers up: what a Function that keeps FP32 keeps it for.
REDUCTIONS = frozenset(
    {"sum", "mean", "var", "var_mean", "std", "linalg_vector_norm", "logsumexp", "_softmax", "_log_softmax", "cumsum"}
)
#: Ops that put a value somewhere rather than compute one; -inf from them is a mask.
_FILLS = frozenset(
    {"masked_fill", "masked_fill_", "fill_", "full", "full_like", "new_full", "where", "copy_", "_to_copy", "scalar_tensor"}
)


@dataclass
class FunctionUse:
    """What one custom autograd Function computed in, over a call.

    Args:
        forward, backward: kind of op ("matmul", "reduction", or "any": what is neither a cast nor a view) -> dtypes.
        sites: (side, kind, dtype) -> line of the first such op.
        recomputes: whether the backward runs a forward again.
    """

    name: str
    call: int
    forward: dict[str, set[str]] = field(default_factory=dict)
    backward: dict[str, set[str]] = field(default_factory=dict)
    sites: dict[tuple[str, str, str], Location | None] = field(default_factory=dict)
    recomputes: bool = False


@dataclass(frozen=True)
class Recomputed:
    """A matmul-class op that was computed again in the backward, in another dtype than in the forward."""

    call: int
    op: str
    module: str
    forward: tuple[str, ...]
    dtype: str
    site: Location | None


@dataclass(frozen=True)
class Suspect:
    """An op outside the backward whose 16-bit result holds NaN or +inf, or -inf where it is no mask."""

    call: int
    op: str
    phase: str


@dataclass
class Flow:
    """What the mode found."""

    functions: list[FunctionUse] = field(default_factory=list)
    recomputed: list[Recomputed] = field(default_factory=list)
    recompute_ops: int = 0
    suspects: list[Suspect] = field(default_factory=list)


def op_name(func: Any) -> str:
    """`mm` for `aten.mm.default`."""
    return str(func._schema.name).rpartition("::")[2]


def tensors_of(*values: Any) -> Iterator[torch.Tensor]:
    """The plain, dense tensors in arguments or results."""
    return (t for t in tree_leaves(values) if isinstance(t, torch.Tensor) and t.layout is torch.strided)


def _computes(name: str, func: Any) -> bool:
    """Whether an op makes new numbers, and does not only cast or look at those it is given."""
    returned = [r.alias_info for r in func._schema.returns]
    return name not in ("_to_copy", "copy_", "clone") and not any(a is not None and not a.is_write for a in returned)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class FlowMode(TorchDispatchMode):
    """Fills a `Flow`; enter it around each call, and call `close_call` after it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.flow = Flow()
        self._uses: dict[Any, FunctionUse] = {}
        self._forward: dict[tuple[Any, ...], set[str]] = {}
        self._sums: dict[torch.device, list[torch.Tensor]] = {}
        self._seen: dict[torch.device, list[tuple[str, str]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name, recorder = op_name(func), self.recorder
        in_engine = recorder.engine_depth > 0
        if name in MATMULS or (called_from_python() if in_engine else not torch.is_grad_enabled()):
            self._note(name, func, args, result, in_engine)
        if not in_engine or torch.is_grad_enabled():
            self._add_up(name, result, in_engine)
        return result

    # -- dtypes -----------------------------------------------------------------------------------------------------

    def _note(self, name: str, func: Any, args: Any, result: Any, in_engine: bool) -> None:
        where = place(in_engine, torch.is_grad_enabled() and not self.recorder.create_graph)
        matmul = name in MATMULS
        tensor = next((t for t in tensors_of(args if matmul else result) if t.is_floating_point()), None)
        if tensor is None:
            return
        dtype = short(tensor.dtype)
        if where.function is not None:
            if matmul or name in REDUCTIONS:
                self._in_function(where, "matmul" if matmul else "reduction", dtype)
            for t in tensors_of(result) if _computes(name, func) else ():
                if t.is_floating_point():
                    self._in_function(where, "any", short(t.dtype))
        if matmul:
            key = (name, id(where.module) if where.module is not None else None, where.line)
            if where.phase == "forward":
                self._forward.setdefault(key, set()).add(dtype)
            elif where.phase == "recompute":
                self._again(name, key, dtype, where)

    def _in_function(self, where: Place, kind: str, dtype: str) -> None:
        use = self._uses.get(where.function)
        if use is None:
            use = self._uses[where.function] = FunctionUse(where.function.__name__, self.recorder.call)
            self.flow.functions.append(use)
        if where.in_backward and where.phase == "recompute":
            use.recomputes |= kind == "matmul"  # autocast's own casts record too
            return
        side, dtypes = ("backward", use.backward) if where.in_backward else ("forward", use.forward)
        dtypes.setdefault(kind, set()).add(dtype)
        use.sites.setdefault((side, kind, dtype), where.entry or where.site)

    def _again(self, name: str, key: tuple[Any, ...], dtype: str, where: Place) -> None:
        self.flow.recompute_ops += 1
        forward = self._forward.get(key)
        if forward is None and where.function in self._uses:
            forward = self._uses[where.function].forward.get("matmul")
        if forward and dtype not in forward and not any(r.call == self.recorder.call for r in self.flow.recomputed):
            module = type(where.module).__name__ if where.module is not None else ""
            site = where.entry if where.in_backward else where.site
            self.flow.recomputed.append(Recomputed(self.recorder.call, name, module, tuple(sorted(forward)), dtype, site))

    # -- finite or not ----------------------------------------------------------------------------------------------

    def _add_up(self, name: str, result: Any, in_engine: bool) -> None:
        phase = ""
        for t in tensors_of(result):
            if t.dtype not in LOW or not t.numel():
                continue
            if name.startswith("empty") or name == "new_empty" or t.device.type == "meta":
                return
            if not phase:
                trace = self.recorder.trace
                if any(trace.events[i].kind == "unscale" for i in self.recorder.open):
                    return
                phase = place(True, not self.recorder.create_graph).phase if in_engine else "forward"
                if phase == "backward":
                    return
            self._sums.setdefault(t.device, []).append(t.sum(dtype=torch.float32))
            self._seen.setdefault(t.device, []).append((name, phase))

    def close_call(self, call: int) -> None:
        """Read the sums of the call that has ended; nothing of it is kept."""
        for device, sums in self._sums.items():
            for (name, phase), total in zip(self._seen[device], torch.stack(sums).tolist(), strict=True):
                negative = total == float("-inf")
                finite = total - total == 0.0
                if finite or (negative and (name in _FILLS or name in ("add", "add_", "sub", "mul"))):
                    continue
                if name in _FILLS and total == total and name != "_to_copy":
                    continue
                if not any((s.op, s.phase) == (name, phase) for s in self.flow.suspects):
                    self.flow.suspects.append(Suspect(call, name, phase))
        self._sums, self._seen, self._uses, self._forward = {}, {}, {}, {}
