"""A census of the ops of a run, forward and backward: which op ran where in which dtypes, under which autocast.

One dispatch mode over the run as it is written. It adds up by op, dtypes and place, and keeps no tensor.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ampcheck.findings import Location
from ampcheck.trace import kernels
from ampcheck.trace.events import Event
from ampcheck.trace.kernels import Plan, floats, kind_of
from ampcheck.trace.ops import Angle, Census, HandNorm, NormUse, OpUse, Stale, WeightCasts
from ampcheck.trace.place import Place, place
from ampcheck.trace.provenance import LOW_DTYPES, Provenance, Tag, short
from ampcheck.trace.reach import named_modules
from ampcheck.trace.recorder import Probe, Recorder

__all__ = ["CensusTaker"]

#: Backward nodes that are linked to their forward op in one call.
_LINKS = 500_000
_CAST = Plan(torch.ops.aten._to_copy.default)
_CAST.family = "cast"


class CensusTaker(Probe):
    """Fills a `Census`: put `watch` around each call of a run, and give it to the recorder as a probe.

    Its own bookkeeping never gets in the way of the step: if that fails, the census says so and stops.
    """

    def __init__(self) -> None:
        self.census = Census()
        self._recorder: Recorder | None = None
        self._modules: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()
        self._parameters: dict[int, tuple[torch.Tensor, str]] = {}
        self._plans: dict[Any, Plan | None] = {}
        self._uses: dict[tuple[Any, ...], OpUse] = {}
        self._norms: dict[tuple[Any, ...], NormUse] = {}
        self._links: dict[int, OpUse] = {}
        self._epochs: dict[int, int] = {}
        self._casts: dict[tuple[int, int, bool], tuple[int, str, Location | None]] = {}
        self._once: set[tuple[Any, ...]] = set()
        self._passed: set[str] = set()
        self._unlinked: dict[int, Stale] = {}
        self._tags = Provenance()
        self._main = threading.get_ident()

    # -- the run --------------------------------------------------------------------------------------------------------

    def built(self, recorder: Recorder, modules: Mapping[str, torch.nn.Module], names: Mapping[int, str]) -> None:
        """The contract was built: learn the names of its modules, and its trainable weights."""
        self._recorder = recorder
        norms = (torch.nn.modules.batchnorm._NormBase, torch.nn.LayerNorm, torch.nn.GroupNorm)
        for name, module in named_modules(modules):
            self._modules.setdefault(module, name)
            for own in module.parameters(recurse=False):
                if not own.requires_grad or id(own) in self._parameters or is_lazy(own):
                    continue
                self._parameters[id(own)] = (own, names.get(id(own), "a weight"))
                if not isinstance(module, norms):
                    dtype = short(own.dtype)
                    self.census.weights[dtype] = self.census.weights.get(dtype, 0) + own.numel()
        for index in range(len(recorder.optimizers)):
            for p in recorder.parameters(index):
                self._parameters.setdefault(id(p), (p, names.get(id(p), "a weight")))

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Take the census of what runs inside: in this thread, in autograd's, and in modules that other threads call."""
        assert self._recorder is not None
        self._links.clear()
        self._unlinked.clear()
        self._recorder.regions.begin()
        entered: dict[int, tuple[torch.nn.Module, _Watch]] = {}

        def before(module: torch.nn.Module, args: Any) -> None:
            thread = threading.get_ident()
            if thread == self._main or thread in entered or torch._C._current_autograd_node() is not None:
                return
            entered[thread] = module, _Watch(self)  # dispatch modes do not follow into threads that the code starts
            entered[thread][1].__enter__()  # type: ignore[no-untyped-call]

        def after(module: torch.nn.Module, args: Any, result: Any) -> None:
            known = entered.get(threading.get_ident())
            if known is not None and known[0] is module:
                del entered[threading.get_ident()]
                known[1].__exit__(None, None, None)  # type: ignore[no-untyped-call]

        handles = [register_module_forward_pre_hook(before), register_module_forward_hook(after, always_call=True)]
        try:
            with _Watch(self):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def finish(self) -> Census:
        """What was found; everything of the contract is let go of."""
        census, recorder = self.census, self._recorder
        if recorder is not None:
            census.unused = [(device, site) for site, device in recorder.regions.never_entered().items()]
        census.uses, census.norms = list(self._uses.values()), list(self._norms.values())
        found: dict[str, WeightCasts] = {}
        for count, name, site in self._casts.values():
            if count > 1:
                entry = found.setdefault(name, WeightCasts(name, 0, 0, site))
                entry.most, entry.regions = max(entry.most, count), entry.regions + 1
        census.casts = sorted(found.values(), key=lambda c: -c.most)
        for held in (self._parameters, self._modules, self._uses, self._norms, self._links, self._plans, self._epochs):
            held.clear()
        self._tags.clear()
        self._recorder = None
        return census

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        for p in () if event.optimizer is None else recorder.parameters(event.optimizer):
            if not entering and event.get("took"):
                self._epochs[id(p)] = self._epochs.get(id(p), 0) + 1
            elif entering and p.grad is None and id(p) in self._unlinked:  # all that the forward had of a weight to be trained
                self.census.stale.append(self._unlinked.pop(id(p)))

    def scaled(self, recorder: Recorder, event: Event, value: Any) -> None:
        """Note the dtypes of the losses that a scaler is given: their product with the scale is FP32."""
        event.data["loss_dtypes"] = sorted({short(t.dtype) for t in floats([value]) if t.numel() == 1})

    def backward_starts(self, recorder: Recorder) -> None:
        self._passed.clear()

    def backward_done(self, recorder: Recorder, event: Event) -> None:
        if not event.get("dtypes"):  # nodes of the graph know their dtypes from torch 2.5 on only
            event.data["dtypes"] = sorted(self._passed)

    # -- one op ---------------------------------------------------------------------------------------------------------

    def plan(self, func: Any) -> Plan | None:
        """What to do at this op; `None` is nothing."""
        try:
            return self._plans[func]
        except KeyError:
            plan = Plan(func)
            self._plans[func] = known = None if plan.base in kernels.VIEWS or self.census.failed else plan
            return known

    def note(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        try:
            self._note(plan, args, kwargs, result)
        except Exception as error:
            self.census.failed = f"{plan.name}: {type(error).__name__}: {error}"
            self._plans = dict.fromkeys(self._plans)

    def _note(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        given = floats(args)
        out = floats(result if isinstance(result, (tuple, list)) else (result,))
        if not out:
            return
        node = torch._C._current_autograd_node()
        graph = torch.is_grad_enabled() and any(t.requires_grad for t in given)
        if node is not None:
            link = self._links.get(node._sequence_nr())
            if link is not None:
                link.trained = True
        low = next((t.dtype for t in out if t.dtype in LOW_DTYPES), None)
        if low is not None and node is not None:
            self.census.low_backward = True
            self._passed.add(short(low))
        self.census.low_forward |= low is not None and node is None and graph
        if plan.traced and (node is None or torch.is_grad_enabled()):
            self._trace(plan, args, out[0] if len(out) == 1 else result, graph)
        if plan.family == "norm":
            self._norm(plan, args, kwargs, out, result)
            return
        squares = plan.family == "reduction" and self._tags.holds_powers(args)
        if plan.family and (plan.family == "matmul" or (graph and kernels.remarkable(plan, args, given, out, squares))):
            use = self._use(plan, args, kwargs, given, out, result, graph)
            if (graph and node is None) or use.phase == "recompute":
                if len(self._links) < _LINKS:
                    self._links[torch._C._autograd._get_sequence_nr() - 1] = use
                if plan.family == "matmul":
                    self._operands(plan, given, use)
            elif plan.family == "matmul" and node is None and torch.is_grad_enabled():
                self._operands(plan, given, use, graph=False)

    def _place(self) -> Place:
        recorder = self._recorder
        assert recorder is not None
        in_engine = recorder.engine_depth > 0 and torch._C._current_autograd_node() is not None
        return place(in_engine, torch.is_grad_enabled() and not recorder.create_graph)

    def _use(
        self, plan: Plan, args: Any, kwargs: Any, given: list[torch.Tensor], out: list[torch.Tensor], result: Any, graph: bool
    ) -> OpUse:
        assert self._recorder is not None
        regions, thread = self._recorder.regions, threading.get_ident()
        where = self._place()
        plain = where.phase == "backward" and where.function is None
        forward = self._links.get(torch._C._current_autograd_node()._sequence_nr()) if plain else None
        device = out[0].device.type
        # autograd's own threads work under what the step has set
        state = regions.state(device, regions.main if where.phase != "forward" and not regions.inside(thread) else thread)
        lost = state.dtype == "off" and regions.state(device, regions.main).dtype != "off"
        worker = lost and thread != self._main and where.phase == "forward"
        inputs, outputs = tuple(short(t.dtype) for t in given), tuple(short(t.dtype) for t in out[:1])
        key = (plan.name, inputs, outputs, where.phase, id(where.module), where.line, id(forward), state, worker, graph)
        use = self._uses.get(key)
        if use is None:
            module, site = (forward.module, forward.site) if forward is not None else (self._name(where.module), where.site)
            kind = forward.kind if forward is not None else kind_of(where.module)
            use = OpUse(plan.base, plan.family, inputs, outputs, where.phase, module, kind, site, device, state.dtype)
            use.island, use.foreign, use.worker = state.island, state.foreign, worker
            use.grad, use.call = graph, self._recorder.call
            self._uses[key] = use
        use.count += 1
        if plan.family == "matmul":
            flops = kernels.flops_of(plan, args, kwargs, result)
            use.flops += flops
            dims = kernels.dims_of(plan.base, args)
            if any(d % 8 for d in dims[1:]):
                use.odd_flops, use.dims = use.odd_flops + flops, use.dims or dims
        elif plan.family == "reduction":
            use.long = max(use.long, kernels.long_sum(plan, given, out))
            use.squares |= self._tags.holds_powers(args)
        elif plan.family in ("loss", "sensitive"):
            tag = self._tags.of(args[0])
            if tag is not None and tag.kind in ("probability", "log-probability"):
                use.source = tag.dtype
        return use

    def _name(self, module: Any) -> str:
        return "" if module is None else self._modules.get(module, "") or type(module).__name__

    def _operands(self, plan: Plan, given: list[torch.Tensor], use: OpUse, graph: bool = True) -> None:
        """Does a matmul use a copy of weights that cannot stand for them? One outside of any graph may not be meant to."""
        for tensor in given:
            tag = self._tags.of(tensor)
            if tag is None or tag.kind != "weights" or tensor.dtype not in LOW_DTYPES:
                continue
            why = ""
            if not tag.grad and not tensor.requires_grad:
                why = "no-grad"
            elif graph and tag.epoch != self._epoch(tag.weights):
                why = "stepped"
            if why and (why, tag.name) not in self._once:
                stale = Stale(why, tag.name, short(tensor.dtype), plan.base, use.where, use.site, use.call)
                if graph:
                    self._once.add((why, tag.name))
                    self.census.stale.append(stale)
                else:
                    self._unlinked.update(dict.fromkeys(tag.weights, stale))

    # -- where tensors come from ----------------------------------------------------------------------------------------

    def _trace(self, plan: Plan, args: tuple[Any, ...], result: Any, graph: bool) -> None:
        name, out = plan.base, result[0] if isinstance(result, (tuple, list)) else result
        x = args[0] if args else None
        if name == "_to_copy" and isinstance(x, torch.Tensor):
            self._cast(x, out)
        elif name in ("sin", "cos") and isinstance(x, torch.Tensor):
            self._angle(name, x)
        elif name in ("sigmoid", "_softmax", "_log_softmax") and out.dtype in LOW_DTYPES and graph:
            self._tags.set(out, Tag("log-probability" if name == "_log_softmax" else "probability", short(out.dtype)))
        elif name in ("mul", "div", "add", "sub") and plan.name == name and self._parameters:
            self._derived(args, out)
        if self._tags and (name in kernels.PASSING or (name == "mul" and len(args) > 1)):
            tag = self._tags.of(x) or (None if name != "mul" else self._tags.of(args[1]))
            if name == "mul" and any(t.requires_grad and self._tags.of(t) != tag for t in floats(args)):
                tag = None  # weighed by what is not trained, such as labels, it is still one
            if tag is not None and tag.kind in ("probability", "log-probability"):
                self._tags.set(out, tag)
        for tag in self._tags.follow_moment(name, args, result):
            if graph and (tag.low or tag.epsilon is not None):
                self._handmade(tag)

    def _cast(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if x.dtype in LOW_DTYPES:
            if out.dtype not in LOW_DTYPES and out.is_floating_point() and self._tags.of(x) is None:
                self._tags.set(out, Tag("raised", short(x.dtype)))
            return
        if out.dtype not in LOW_DTYPES:
            return
        self._derived((x,), out)
        tag = self._tags.of(out)
        if tag is None or tag.kind != "weights":
            if torch._C._current_autograd_node() is None:
                self._use(_CAST, (x,), {}, [x], [out], out, torch.is_grad_enabled())
            return
        if id(x) not in self._parameters or x.dim() < 2:
            return
        assert self._recorder is not None
        region = self._recorder.regions.outermost(threading.get_ident())
        if region:
            key = (id(x), region, torch.is_grad_enabled())
            count, _, site = self._casts.get(key, (0, "", None))
            self._casts[key] = (count + 1, tag.name, site or self._place().site)

    def _derived(self, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """Tag what is computed from weights alone."""
        weights: list[int] = []
        names: list[str] = []
        grad, old = torch.is_grad_enabled(), False
        for value in args:
            if not isinstance(value, torch.Tensor):
                continue
            known = self._parameters.get(id(value))
            if known is not None and known[0] is value and value.requires_grad:
                weights.append(id(value))
                names.append(known[1])
                continue
            tag = self._tags.of(value) if self._tags else None
            if tag is None or tag.kind != "weights":
                return
            weights += tag.weights
            names.append(tag.name)
            grad &= tag.grad
            old |= tag.epoch != self._epoch(tag.weights)
        if weights and out.numel() > 1:
            epoch = -1 if old else self._epoch(weights)
            self._tags.set(out, Tag("weights", weights=tuple(weights), name=names[0], grad=grad, epoch=epoch))

    def _epoch(self, weights: Sequence[int]) -> int:
        """How many steps optimizers have taken with these weights."""
        return sum(self._epochs.get(i, 0) for i in weights)

    def _angle(self, name: str, x: torch.Tensor) -> None:
        tag = self._tags.of(x) if self._tags else None
        dtype = short(x.dtype) if x.dtype in LOW_DTYPES else tag.dtype if tag is not None and tag.kind == "raised" else ""
        if not dtype or not x.numel():
            return
        where = self._place()
        if ("angle", where.line) in self._once:
            return
        with _disable_current_modes():  # what is computed here is nobody's to watch
            largest = float(x.detach().abs().max())
        step = kernels.coarse_step(largest, dtype)
        if step:
            self._once.add(("angle", where.line))
            self.census.angles.append(Angle(name, dtype, largest, step, where.site))

    def _handmade(self, tag: Tag) -> None:
        where = self._place()
        key = ("handmade", id(where.module), where.line, tag.low, tag.epsilon)
        if key not in self._once:
            self._once.add(key)
            name, kind = self._name(where.module), kind_of(where.module)
            self.census.handmade.append(
                HandNorm(tag.low, tag.dtype, tag.epsilon, name, kind, where.site, kernels.in_rms_norm())
            )

    # -- norms ----------------------------------------------------------------------------------------------------------

    def _norm(self, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], out: list[torch.Tensor], result: Any) -> None:
        assert self._recorder is not None
        named = {**dict(zip(plan.arguments, args, strict=False)), **kwargs}
        x = named["input"]
        where = self._place()
        if where.phase not in ("forward", "recompute"):
            return
        state = self._recorder.regions.state(x.device.type, threading.get_ident())
        several = result[1:3] if isinstance(result, (tuple, list)) else ()
        saved = [t for t in several if isinstance(t, torch.Tensor) and t.numel()]
        weight, running = named.get("weight"), named.get("running_mean")
        training = bool(named.get("training", named.get("train", True)))
        read = [x, weight, running, out[0], saved[0] if saved else None]
        given, scale, buffers, output, kept = ("" if t is None else short(t.dtype) for t in read)
        key = (plan.name, id(where.module), where.line, given, scale, buffers, output, kept, training)
        use = self._norms.get(key)
        if use is None:
            name, kind = self._name(where.module), kind_of(where.module)
            use = self._norms[key] = NormUse(
                plan.base, name, kind, where.site, x.device.type, state.dtype, given, scale, buffers, output, kept, training
            )
            use.island = state.island
            use.trainable = any(isinstance(t, torch.Tensor) and t.requires_grad for t in (weight, named.get("bias")))
        use.count += 1


class _Watch(TorchDispatchMode):
    """Shows the ops of one thread to the census."""

    def __init__(self, taker: CensusTaker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._taker = taker

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        plan = self._taker.plan(func)
        if plan is not None:
            self._taker.note(plan, args, kwargs or {}, result)
        return result
