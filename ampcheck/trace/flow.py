"""How precision flows through custom Functions and recomputations, and whether anything in 16 bits stopped being finite.

One dispatch mode over the run as it is written. It keeps dtypes, lines and, for each op with a 16-bit result outside the
backward, one sum on the device; the sums are read once a call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.findings import Location
from ampcheck.trace.place import Place, called_from_python, place
from ampcheck.trace.recorder import Recorder
from ampcheck.trace.sources import user_site

__all__ = ["MATMULS", "Flow", "FlowMode", "FunctionUse", "Recomputed", "Suspect", "Write", "op_name"]

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


@dataclass(frozen=True)
class Write:
    """The first op, since event number `after - 1`, that wrote to a gradient outside autograd, the scaler and the optimizer."""

    after: int
    op: str
    site: Location | None


@dataclass
class Flow:
    """What the mode found."""

    functions: list[FunctionUse] = field(default_factory=list)
    recomputed: list[Recomputed] = field(default_factory=list)
    recompute_ops: int = 0
    suspects: list[Suspect] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)


def op_name(func: Any) -> str:
    """`mm` for `aten.mm.default`."""
    return str(func._schema.name).rpartition("::")[2]


class _Op:
    """What matters of an op, read from its schema once: its class, and whether it makes new numbers."""

    __slots__ = ("computes", "kind", "name", "view", "writes")

    def __init__(self, func: Any) -> None:
        self.name = op_name(func)
        self.kind = "matmul" if self.name in MATMULS else "reduction" if self.name in REDUCTIONS else ""
        returned = [r.alias_info for r in func._schema.returns]
        self.view = any(a is not None and not a.is_write for a in returned)
        self.writes = bool(func._schema.is_mutable)
        self.computes = not self.view and self.name not in ("_to_copy", "copy_", "clone")


def floats_of(value: Any) -> list[torch.Tensor]:
    """The plain floating-point tensors in a result or in arguments, in lists of them too."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() and value.layout is torch.strided else []
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in floats_of(v)]
    return []


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class FlowMode(TorchDispatchMode):
    """Fills a `Flow`; enter it around each call, and call `close_call` after it."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.flow = Flow()
        self._ops: dict[Any, _Op] = {}
        self._uses: dict[Any, FunctionUse] = {}
        self._forward: dict[tuple[Any, ...], set[str]] = {}
        self._sums: dict[torch.device, list[torch.Tensor]] = {}
        self._seen: dict[torch.device, list[tuple[str, str]]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled while a contract is judged, and the guard against it costs as much as the op

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            result = func(*args, **(kwargs or {}))
        except Exception as error:
            if self.recorder.engine_depth and place(True, torch.is_grad_enabled()).phase == "recompute":
                self.recorder.failed[str(error)] = ("", "recompute")
            raise
        op = self._ops.get(func) or self._ops.setdefault(func, _Op(func))
        if op.view:
            return result
        in_engine, records = self.recorder.engine_depth > 0, torch.is_grad_enabled()
        python = in_engine and called_from_python()
        if op.kind == "matmul" or python or not (in_engine or records or self._stepping()):
            self._note(op, args, result, in_engine, records)
        if records or python or not in_engine:
            self._add_up(op.name, result, in_engine, records)
        if op.writes and not in_engine:
            self._wrote(op.name, args)
        return result

    def _wrote(self, name: str, args: Any) -> None:
        """An op outside autograd wrote in place: to a gradient?"""
        ledger, after = self.recorder.ledger, len(self.recorder.trace.events)
        tensors = floats_of(args[:1])
        if not tensors or tensors[0].requires_grad or name in ("zero_", "_foreach_zero_") or self._stepping():
            return
        if (not self.flow.writes or self.flow.writes[-1].after != after) and ledger.holds(tensors[0].data_ptr()):
            self.flow.writes.append(Write(after, name, user_site(3)))

    def _stepping(self) -> bool:
        trace = self.recorder.trace
        return any(trace.events[i].kind in ("optimizer_step", "unscale") for i in self.recorder.open)

    # -- dtypes -----------------------------------------------------------------------------------------------------

    def _note(self, op: _Op, args: Any, result: Any, in_engine: bool, records: bool) -> None:
        matmul = op.kind == "matmul"
        tensors = floats_of(args if matmul else result)
        if not tensors:
            return
        where = place(in_engine, records and not self.recorder.create_graph)
        dtype = short(tensors[0].dtype)
        if where.function is not None:
            if op.kind:
                self._in_function(where, op.kind, dtype)
            for t in floats_of(result) if op.computes else ():
                self._in_function(where, "any", short(t.dtype))
        if matmul:
            key = (op.name, id(where.module) if where.module is not None else None, where.line)
            if where.phase == "forward":
                self._forward.setdefault(key, set()).add(dtype)
            elif where.phase == "recompute":
                self._again(op.name, key, dtype, where)

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
        use.sites.setdefault((side, kind, dtype), where.entry or where.site or self.recorder.backward_site())

    def _again(self, name: str, key: tuple[Any, ...], dtype: str, where: Place) -> None:
        self.flow.recompute_ops += 1
        forward = self._forward.get(key)
        if forward is None and where.function in self._uses:
            forward = self._uses[where.function].forward.get("matmul")
        if forward and dtype not in forward and not any(r.call == self.recorder.call for r in self.flow.recomputed):
            module = type(where.module).__name__ if where.module is not None else ""
            site = (where.entry if where.in_backward else where.site) or self.recorder.backward_site()
            self.flow.recomputed.append(Recomputed(self.recorder.call, name, module, tuple(sorted(forward)), dtype, site))

    # -- finite or not ----------------------------------------------------------------------------------------------

    def _add_up(self, name: str, result: Any, in_engine: bool, records: bool) -> None:
        phase = ""
        for t in floats_of(result):
            if t.dtype not in LOW or not t.numel():
                continue
            if not phase:
                if name.startswith(("empty", "new_empty")) or t.device.type == "meta":
                    return
                phase = place(True, records and not self.recorder.create_graph).phase if in_engine else "forward"
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
