"""A widened shadow of a run: beside every op in 16 bits the same op in FP32, on inputs that never were in 16 bits.

The step itself goes on as it is written: the same branches, the same draws, the same number of ops. So the two never have to be
aligned, and where a value is NaN or inf while its shadow is finite, 16 bits did it: a range that ended, or an epsilon that was
lost several ops before.

A shadow belongs to a storage, not to a tensor: views, in-place writes and what autograd saved find it again by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from ampcheck.findings import Location
from ampcheck.trace.flow import LOW, op_name, short
from ampcheck.trace.place import Place, place
from ampcheck.trace.recorder import Recorder

__all__ = ["Origin", "ShadowMode"]

#: Results that differ by more than this share of the largest one are different: 16 bits round to 2^-8 at worst.
_DIFFERENT = 2.0**-5
#: Entries after which shadows of storages that are gone are dropped.
_SWEEP = 256
#: Ops that only ask whether a value is finite: `isinf(x)` is `abs(x) == inf`.
_PREDICATES = frozenset({"eq", "ne", "isnan", "isinf", "isposinf", "isneginf", "isfinite"})
#: Ops that read no number of their input, only its shape and dtype.
_SHAPE_ONLY = frozenset({"ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full"})
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"
#: Ops that write to running statistics without saying so in their schema.
_WRITES_STATISTICS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_impl_index"})


@dataclass
class Origin:
    """The first op of a chain that turned finite values into NaN or inf although its shadow is finite.

    Args:
        call: index of the call of `step`.
        op: such as "mm"; `module` its module's name, "" where it is in none; `site` the user's line; in the backward, of the forward.
        phase: "forward", "recompute", "backward", "gradients" (work on gradients, hooks included) or "scale".
        dtype: of the result.
        kind: "NaN", "inf" or "-inf", of the first such element.
        count, total: elements that are so, of how many.
        widened: the shadow's largest magnitude at those elements.
        fits: whether all of them would fit into the dtype: then it is no matter of range, or of the scale.
        scale: the loss scale last used.
        effect: what it led to; "" where it was absorbed so far.
    """

    call: int
    op: str
    phase: str
    dtype: str
    kind: str
    count: int
    total: int
    widened: float
    fits: bool
    module: str = ""
    site: Location | None = None
    scale: float | None = None
    effect: str = ""


@dataclass
class _Entry:
    """What is known of a storage: its shadow as one row of numbers, which origin is in it, whether it holds gradients."""

    ref: Any
    dtype: torch.dtype
    base: torch.Tensor | None = None
    origin: Origin | None = None
    gradient: bool = False


@dataclass
class _Call:
    """One op on its way: what it reads and writes."""

    name: str
    func: Any
    args: Any
    kwargs: Any
    tensors: list[torch.Tensor]
    writes: list[torch.Tensor]
    tainted: list[Origin] = field(default_factory=list)
    mixed: Any = None


def _plain(value: Any) -> bool:
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        return False
    return not value._is_zerotensor()  # forward-mode AD's zeros have no memory


def _widen(dtype: Any) -> Any:
    return torch.float32 if dtype in LOW else dtype


class ShadowMode(TorchDispatchMode):
    """Finds origins; enter it around each call of the step.

    Args:
        recorder: of the run.
        modules: id of a module -> its name.
    """

    def __init__(self, recorder: Recorder, modules: dict[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self.modules = modules
        self.origins: list[Origin] = []
        self._entries: dict[int, _Entry] = {}
        self._pending: dict[int, Origin] = {}
        self._sweep_at = _SWEEP
        self._records = False
        self._forwards: dict[int, Place] = {}

    # -- storages ---------------------------------------------------------------------------------------------------

    def _entry(self, t: torch.Tensor) -> _Entry | None:
        entry = self._entries.get(t.untyped_storage()._cdata)
        return entry if entry is not None and entry.dtype is t.dtype else None

    def _made(self, t: torch.Tensor) -> _Entry:
        storage = t.untyped_storage()
        entry = self._entries.get(storage._cdata)
        if entry is None or entry.dtype is not t.dtype:
            if len(self._entries) >= self._sweep_at:
                self._entries = {k: e for k, e in self._entries.items() if not e.ref.expired()}
                self._sweep_at = len(self._entries) + _SWEEP
            entry = self._entries[storage._cdata] = _Entry(StorageWeakRef(storage), t.dtype)
        return entry

    def _shadow(self, t: torch.Tensor) -> torch.Tensor | None:
        entry = self._entry(t)
        if entry is None or entry.base is None:
            return None
        return entry.base.as_strided(t.shape, t.stride(), t.storage_offset())

    def _put(self, t: torch.Tensor, value: torch.Tensor) -> None:
        entry = self._made(t)
        if entry.base is None:
            count = t.untyped_storage().nbytes() // t.element_size()
            if count == t.numel():
                entry.base = torch.empty(count, dtype=_widen(t.dtype), device=t.device)
            else:
                entry.base = t.as_strided((count,), (1,), 0).to(_widen(t.dtype), copy=True)
        entry.base.as_strided(t.shape, t.stride(), t.storage_offset()).copy_(value)

    def _forget(self, t: torch.Tensor) -> None:
        entry = self._entry(t)
        if entry is not None:
            entry.base = entry.origin = None

    def clear(self) -> None:
        """Forget all shadows, between two calls."""
        self._entries, self._pending, self._forwards = {}, {}, {}

    def mark_gradients(self) -> None:
        """What parameters hold as gradients now is gradient work from here on."""
        for index in range(len(self.recorder.optimizers)):
            for p in self.recorder.parameters(index):
                if p.grad is not None and _plain(p.grad):
                    self._made(p.grad).gradient = True

    # -- one op -----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op_name(func) in _SHAPE_ONLY:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        tensors = [t for t in leaves if _plain(t)]
        relevant = any(d in LOW for d in leaves if isinstance(d, torch.dtype)) or any(
            t.dtype in LOW or t.untyped_storage()._cdata in self._entries for t in tensors
        )
        if not relevant:
            return func(*args, **kwargs)
        self._records = torch.is_grad_enabled() and not self.recorder.create_graph
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            self._forwards[torch._C._autograd._get_sequence_nr() - 1] = self._place()
        call = _Call(op_name(func), func, args, kwargs, tensors, self._writes(func, args, kwargs))
        with torch._C._DisableAutocast(), torch.no_grad():
            call.tainted = [e.origin for e in map(self._entry, tensors) if e is not None and e.origin is not None]
            if call.tainted:
                call.mixed = self._widened(call, self._mixed), self._widened(call, self._real)
            pairs = self._beside(call)
            copies = {id(t): s for t, s in pairs[1]}
        result = func(*args, **kwargs)
        with torch._C._DisableAutocast(), torch.no_grad():
            self._look(call, result, pairs[0], copies)
        return result

    @staticmethod
    def _writes(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
        schema, found = func._schema, []
        for position, argument in enumerate(schema.arguments):
            written = argument.alias_info is not None and argument.alias_info.is_write
            if op_name(func) in _WRITES_STATISTICS and argument.name in ("running_mean", "running_var"):
                written = True
            if written:
                value = args[position] if position < len(args) else kwargs.get(argument.name)
                found += [t for t in tree_leaves(value) if _plain(t)]
        return found

    def _beside(self, call: _Call) -> tuple[list[Any] | None, list[tuple[torch.Tensor, torch.Tensor]]]:
        """Run the op on shadows: its results (`None` where that is not possible), and what it wrote to, as copies."""
        if any(e is not None and e.origin is not None and e.base is None for e in map(self._entry, call.tensors)):
            return None, []  # what it should have been is not known any more
        if call.name == _UNSCALE:
            return None, [(g, s * call.args[2].to(s.device)) for g in call.args[0] if (s := self._shadow(g)) is not None]
        return self._widened(call, self._own)

    def _own(self, t: torch.Tensor) -> torch.Tensor:
        shadow = self._shadow(t)
        return shadow if shadow is not None else self._real(t)

    @staticmethod
    def _real(t: torch.Tensor) -> torch.Tensor:
        return t.float() if t.dtype in LOW else t

    def _mixed(self, t: torch.Tensor) -> torch.Tensor:
        """The real values, but the shadow's where they alone are not finite."""
        entry, real = self._entry(t), self._real(t)
        shadow = self._shadow(t) if entry is not None and entry.origin is not None else None
        return real if shadow is None else torch.where(real.isfinite(), real, shadow)

    def _widened(self, call: _Call, value: Any) -> tuple[list[Any] | None, list[tuple[torch.Tensor, torch.Tensor]]]:
        """The op in FP32 on other values. What it writes to are copies: nothing of the run is touched."""
        func = call.func
        if func.namespace != "aten" or torch.Tag.nondeterministic_seeded in func.tags or call.name.startswith("empty"):
            return None, []
        written: list[tuple[torch.Tensor, torch.Tensor]] = []
        ids = {id(t) for t in call.writes}

        def swap(x: Any) -> Any:
            if isinstance(x, torch.dtype):
                return _widen(x)
            if not _plain(x):
                return x
            other = value(x)
            if id(x) in ids:
                other = other.clone()
                written.append((x, other))
            return other

        try:
            results = func(*tree_map(swap, call.args), **tree_map(swap, call.kwargs))
        except Exception:  # no such kernel in FP32: the chain is cut here
            return None, []
        return tree_flatten(results)[0], written

    # -- what came out ----------------------------------------------------------------------------------------------

    def _look(self, call: _Call, result: Any, beside: list[Any] | None, copies: dict[int, torch.Tensor]) -> None:
        reals = tree_leaves(result)
        storages = {t.untyped_storage()._cdata for t in call.tensors}
        written = {id(t) for t in call.writes}
        fresh = [
            (t, beside[i] if beside is not None and i < len(beside) else None)
            for i, t in enumerate(reals)
            if _plain(t) and id(t) not in written and t.untyped_storage()._cdata not in storages
        ]
        if not fresh and not call.writes:
            return  # a view
        gradient = self._is_gradient(call)
        bad = False
        for t, shadow in [*fresh, *((t, copies.get(id(t))) for t in call.writes)]:
            if not t.is_floating_point():
                continue
            if not isinstance(t, torch.nn.Parameter) and gradient:
                self._made(t).gradient = True
            if not isinstance(shadow, torch.Tensor) or shadow.shape != t.shape:
                self._forget(t)
                bad |= self._carry_on(call, t)
                continue
            self._put(t, shadow)
            bad |= self._judge(call, t, shadow, gradient)
        for t in call.tensors:
            self._pending.pop(t.untyped_storage()._cdata, None) if id(t) not in written else None
        if call.tainted and not bad and call.name not in _PREDICATES and call.name != _UNSCALE:
            self._absorbed(call)

    def _is_gradient(self, call: _Call) -> bool:
        if self.recorder.engine_depth > 0:
            return not self._records
        return any(e is not None and e.gradient for e in map(self._entry, call.tensors))

    def _judge(self, call: _Call, t: torch.Tensor, shadow: torch.Tensor, gradient: bool) -> bool:
        """Whether the result holds what is not finite in its shadow; then its storage is tainted."""
        entry = self._made(t)
        if not t.numel() or bool(torch.isfinite(t.sum(dtype=_widen(t.dtype)))):
            bad = None
        else:
            bad = ~t.isfinite() & shadow.isfinite()
        if bad is None or not bool(bad.any()):
            if t.untyped_storage().nbytes() == t.numel() * t.element_size():
                entry.origin = None
            return False
        entry.origin = call.tainted[0] if call.tainted else self._origin(call, t, shadow, bad, gradient)
        self._pending[t.untyped_storage()._cdata] = entry.origin
        return True

    def _carry_on(self, call: _Call, t: torch.Tensor) -> bool:
        """There is no shadow of the result; what is not finite in it is taken to come from what was not finite before."""
        if not call.tainted or bool(t.isfinite().all()):
            return False
        entry = self._made(t)
        entry.origin = self._pending[t.untyped_storage()._cdata] = call.tainted[0]
        return True

    def _place(self) -> Place:
        """Where an op runs; one that autograd runs by itself belongs to the line and module of its forward."""
        where = place(self.recorder.engine_depth > 0, self._records)
        node = torch._C._current_autograd_node()
        forward = self._forwards.get(node._sequence_nr()) if where.phase == "backward" and node is not None else None
        return where if forward is None else replace(where, module=forward.module, site=forward.site)

    def _origin(self, call: _Call, t: torch.Tensor, shadow: torch.Tensor, bad: torch.Tensor, gradient: bool) -> Origin:
        where = self._place()
        first, widened = float(t[bad][0]), float(shadow[bad].abs().max())
        kind = "NaN" if first != first else "inf" if first > 0 else "-inf"
        scales = [e.get("scale") for e in self.recorder.trace.of("scale", call=self.recorder.call) if e.get("scale")]
        limit = min(torch.finfo(x.dtype).max for x in (t, *call.tensors) if x.is_floating_point())
        origin = Origin(
            self.recorder.call,
            call.name,
            self._phase(where, gradient),
            short(t.dtype),
            kind,
            int(bad.sum()),
            t.numel(),
            widened,
            widened <= limit,
            self.modules.get(id(where.module), type(where.module).__name__) if where.module is not None else "",
            where.site or self.recorder.backward_site(),
            scales[-1] if scales else None,
        )
        self.origins.append(origin)
        return origin

    def _phase(self, where: Place, gradient: bool) -> str:
        trace = self.recorder.trace
        if any(trace.events[i].kind == "scale" for i in self.recorder.open):
            return "scale"
        if where.phase == "hook" or (where.phase == "forward" and gradient):
            return "gradients"
        return where.phase

    # -- what became of it ------------------------------------------------------------------------------------------

    def _absorbed(self, call: _Call) -> None:
        """All is finite again. Would it be the same if the 16 bits had held the value?"""
        (mixed, mixed_written), (real, real_written) = call.mixed
        if mixed is None or real is None:
            return
        written = [(m, r) for (_, m), (_, r) in zip(mixed_written, real_written, strict=False)]
        for m, r in [*zip(mixed, real, strict=False), *written]:
            if isinstance(m, torch.Tensor) and isinstance(r, torch.Tensor) and m.shape == r.shape and _differ(m, r):
                origin = call.tainted[0]
                if origin.phase in ("forward", "recompute", "gradients"):
                    origin.effect = origin.effect or f"{call.name} makes a finite value of it that is not the one FP32 gives"
                return

    def pending(self) -> Iterator[Origin]:
        """Origins whose values nothing has taken up yet: they are in the loss, in a buffer, or in what the step returns."""
        return iter(list(self._pending.values()))

    def in_tensor(self, t: torch.Tensor) -> tuple[Origin | None, bool]:
        """The origin that made a tensor non-finite, and whether its shadow would fit into 16 bits there."""
        entry = self._entry(t) if _plain(t) else None
        if entry is None or entry.origin is None:
            return None, False
        shadow = self._shadow(t)
        if shadow is None:
            return (None if bool(t.isfinite().all()) else entry.origin), False
        bad = ~t.isfinite() & shadow.isfinite()
        if not bool(bad.any()):
            return None, False
        return entry.origin, float(shadow[bad].abs().max()) <= torch.finfo(torch.float16).max


def _differ(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.numel():
        return False
    if not a.is_floating_point():
        return bool((a != b).any())
    both = a.isfinite() & b.isfinite()
    largest = float(torch.where(both, a, 0.0).abs().max())
    return float(torch.where(both, a - b, 0.0).abs().max()) > _DIFFERENT * largest
