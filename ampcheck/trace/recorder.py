"""Watches one run: patches torch in one place, and turns what happens into events.

Nothing here judges. Probes (see `Probe`) are told of the moments that scenarios measure or act at: after a backward,
around `unscale_`, at the optimizer, after an update.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ampcheck.trace import graph
from ampcheck.trace.events import Event, OptimizerInfo, Raised, ScalerInfo, Trace
from ampcheck.trace.ledger import Ledger
from ampcheck.trace.patches import PatchSet
from ampcheck.trace.sources import user_site

__all__ = ["Probe", "Recorder"]


class Probe:
    """What a scenario may do at the moments that matter. Every method is optional; tensors must not be kept alive."""

    def backward_starts(self, recorder: Recorder) -> None:
        """The outermost backward (or autograd.grad) is about to run."""

    def backward_done(self, recorder: Recorder, event: Event) -> None:
        """The outermost backward (or autograd.grad) has returned."""

    def unscale(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        """`unscale_` of an optimizer begins or has ended, by hand or inside `scaler.step`."""

    def scaler_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        """`scaler.step` of an optimizer begins or has ended."""

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        """The optimizer is about to use its gradients (after its closure ran), or has."""

    def updated(self, recorder: Recorder, event: Event) -> None:
        """A scaler's `update` has ended."""

    def call_done(self, recorder: Recorder, call: int) -> None:
        """One call of `step` has returned or raised."""


class Recorder:
    """Records a `Trace` between `__enter__` and `__exit__`.

    Args:
        probes: told of the moments above, in order.
        inspect_graph: whether the autograd graph is looked at before a backward (16-bit nodes, scalar factors); a walk
            over the graph, so only where the findings need it.
    """

    def __init__(self, probes: Sequence[Probe] = (), inspect_graph: bool = False) -> None:
        self.trace = Trace()
        self.ledger = Ledger()
        self.call = -1
        self.probes = list(probes)
        self.inspect_graph = inspect_graph
        self.scalers: list[Any] = []
        self.optimizers: list[Any] = []
        self.scaled_nodes: dict[int, tuple[Any, int, float]] = {}
        self._patches = PatchSet()
        self._handles: list[Any] = []
        self._open: list[int] = []
        self._inside: set[tuple[str, int]] = set()
        self._stepping: list[int] = []
        self._engine_depth = 0
        self._thread = threading.get_ident()

    # -- identities -------------------------------------------------------------------------------------------------

    def scaler_index(self, scaler: Any, custom: bool = False) -> int:
        for index, known in enumerate(self.scalers):
            if known is scaler:
                return index
        self.scalers.append(scaler)
        self.trace.scalers.append(_describe_scaler(scaler, custom))
        return len(self.scalers) - 1

    def optimizer_index(self, optimizer: Any) -> int:
        for index, known in enumerate(self.optimizers):
            if known is optimizer:
                return index
        self.optimizers.append(optimizer)
        self.trace.optimizers.append(OptimizerInfo(type(optimizer).__name__, site=user_site(2)))
        self.ledger.watch(optimizer)
        if not isinstance(optimizer, torch.optim.Optimizer):
            self._watch_foreign(optimizer)
        return len(self.optimizers) - 1

    def parameters(self, index: int) -> list[torch.Tensor]:
        return self.ledger.watch(self.optimizers[index])

    # -- events -----------------------------------------------------------------------------------------------------

    def emit(self, kind: str, **fields: Any) -> Event:
        data = {k: fields.pop(k) for k in list(fields) if k not in ("scaler", "optimizer", "site")}
        site = fields.pop("site", None) or user_site(2)
        event = Event(kind, self.call, site, data=data, parent=self._open[-1] if self._open else None, **fields)
        event.index = len(self.trace.events)
        self.trace.events.append(event)
        return event

    @contextlib.contextmanager
    def around(self, kind: str, **fields: Any) -> Iterator[Event]:
        event = self.emit(kind, **fields)
        self._open.append(event.index)
        try:
            yield event
        except Exception as error:
            if not hasattr(error, "__ampcheck_during__"):
                with contextlib.suppress(AttributeError, TypeError):
                    error.__ampcheck_during__ = (kind, event.scaler, event.optimizer)  # type: ignore[attr-defined]
            raise
        finally:
            del self._open[self._open.index(event.index) :]  # with whatever an exception left open inside

    def raised(self, error: BaseException, site: Any) -> Raised:
        """Describe an exception that came out of the contract."""
        during = getattr(error, "__ampcheck_during__", (None, None, None))
        return Raised(self.call, type(error).__name__, str(error), site, *during)

    # -- installing -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Recorder:
        try:
            self._patch_scaler_class(torch.amp.GradScaler)
            self._patch_engine()
            self._patch_autocast()
            self._patch_optimizer()
            self._handles.append(register_optimizer_step_pre_hook(self._before_step))
            self._handles.append(register_optimizer_step_post_hook(self._after_step))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._patches.close()

    def finish(self) -> Trace:
        """Forget every object of the contract; what is left is data."""
        self.scalers, self.optimizers, self.scaled_nodes = [], [], {}
        self.ledger = Ledger()
        return self.trace

    # -- the scaler -------------------------------------------------------------------------------------------------

    def _patch_scaler_class(self, cls: type) -> None:
        for name, method in SCALER_METHODS.items():
            if name in vars(cls) and getattr(vars(cls)[name], "__ampcheck__", None) is not self:
                self._patches.set(cls, name, self._wrapped(vars(cls)[name], method))
        for subclass in cls.__subclasses__():
            self._patch_scaler_class(subclass)

    def _wrapped(self, original: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
        name = getattr(original, "__name__", "")

        def wrapper(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            key = (name, id(scaler))
            if key in self._inside:  # a subclass calls super()
                return original(scaler, *args, **kwargs)
            if name == "__init__":  # a subclass may have been defined after the recorder began
                self._patch_scaler_class(type(scaler))
            self._inside.add(key)
            try:
                return method(self, scaler, lambda *a, **k: original(scaler, *a, **k), args, kwargs)
            finally:
                self._inside.discard(key)

        wrapper.__name__ = name
        wrapper.__wrapped__ = original  # type: ignore[attr-defined]
        wrapper.__ampcheck__ = self  # type: ignore[attr-defined]
        return wrapper

    def watch_custom_scaler(self, scaler: Any) -> None:
        """Watch a declared scaler that torch's class knows nothing of."""
        self.scaler_index(scaler, custom=True)
        for name, method in SCALER_METHODS.items():
            bound = getattr(scaler, name, None)
            if name == "__init__" or not callable(bound):
                continue
            wrapper = self._bound(bound, method, name, scaler)
            try:
                self._patches.set(scaler, name, wrapper)
            except AttributeError:  # __slots__: the class it is, then
                self._patches.set(type(scaler), name, self._wrapped(vars(type(scaler))[name], method))

    def _bound(self, bound: Callable[..., Any], method: Callable[..., Any], name: str, scaler: Any) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = (name, id(scaler))
            if key in self._inside:
                return bound(*args, **kwargs)
            self._inside.add(key)
            try:
                return method(self, scaler, bound, args, kwargs)
            finally:
                self._inside.discard(key)

        return wrapper

    def _scaler_init(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> None:
        original(*args, **kwargs)
        index = self.scaler_index(scaler)
        info = self.trace.scalers[index]
        named = dict(zip(("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"), args, strict=False))
        info.asked_enabled = bool({**named, **kwargs}.get("enabled", True))
        info.site = user_site(2)
        self.emit("scaler_made", scaler=index, site=info.site)

    def _scaler_scale(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        index = self.scaler_index(scaler)
        with self.around("scale", scaler=index, enabled=_enabled(scaler)) as event:
            result = original(*args, **kwargs)
        event.data["scale"] = scale = self.current_scale(scaler)
        outputs = result if isinstance(result, (list, tuple)) else [result]
        for output in outputs:
            if isinstance(output, torch.Tensor) and output.grad_fn is not None and _enabled(scaler):
                self.scaled_nodes[id(output.grad_fn)] = (output.grad_fn, index, scale)
        return result

    def _scaler_unscale(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        index, optimizer = self.scaler_index(scaler), args[0] if args else kwargs.get("optimizer")
        inside = bool(self._open) and self.trace.events[self._open[-1]].kind == "scaler_step"
        with self.around(
            "unscale", scaler=index, optimizer=self.optimizer_index(optimizer), implicit=inside, enabled=_enabled(scaler)
        ) as event:
            for probe in self.probes:
                probe.unscale(self, event, optimizer, True)
            result = original(*args, **kwargs)
        event.data["done"] = True
        for probe in self.probes:
            probe.unscale(self, event, optimizer, False)
        return result

    def _scaler_step(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        index, optimizer = self.scaler_index(scaler), args[0] if args else kwargs.get("optimizer")
        which = self.optimizer_index(optimizer)
        before = len(self.trace.events)
        with self.around("scaler_step", scaler=index, optimizer=which, enabled=_enabled(scaler), extra=len(args) + len(kwargs) - 1) as event:
            event.data.update(self.ledger.at_step(self.parameters(which), which, self._engine_depth > 0))
            scale_before = self.current_scale(scaler)
            for probe in self.probes:
                probe.scaler_step(self, event, optimizer, True)
            result = original(*args, **kwargs)
        inner = [e for e in self.trace.events[before + 1 :] if e.kind == "optimizer_step" and e.optimizer == which]
        event.data["took"] = any(e.get("took") for e in inner)
        event.data["done"] = True
        if self.trace.scalers[index].custom:
            event.data["before"], event.data["after"] = scale_before, self.current_scale(scaler)
        self.ledger.used(self.parameters(which), which)
        for probe in self.probes:
            probe.scaler_step(self, event, optimizer, False)
        if self.trace.scalers[index].custom and not self.has_update(scaler):
            self._updated(event, index)
        return result

    def _scaler_update(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        index = self.scaler_index(scaler)
        new = args[0] if args else kwargs.get("new_scale")
        facts = {"before": self.current_scale(scaler), "new_scale": _number(new), "found_inf": _found_inf(scaler), **_growth_rule(scaler)}
        with self.around("update", scaler=index, enabled=_enabled(scaler), **facts) as event:
            result = original(*args, **kwargs)
        event.data["after"] = self.current_scale(scaler)
        event.data["done"] = True
        self._updated(event, index)
        return result

    def _updated(self, event: Event, index: int) -> None:
        self.ledger.updated(index)
        self.scaled_nodes = {k: v for k, v in self.scaled_nodes.items() if v[1] != index}
        for probe in self.probes:
            probe.updated(self, event)

    def _scaler_get_scale(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        self.emit("get_scale", scaler=self.scaler_index(scaler))
        return result

    def _scaler_load(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with self.around("load_state", scaler=self.scaler_index(scaler)):
            return original(*args, **kwargs)

    def current_scale(self, scaler: Any) -> float:
        """The scale that is in force now, without leaving an event; 1 where there is none to be had."""
        if isinstance(scaler, torch.amp.GradScaler):
            if not scaler.is_enabled():
                return 1.0
            scale = scaler._scale
            return float(scaler._init_scale if scale is None else scale)
        inside = ("get_scale", id(scaler))
        held = inside in self._inside
        self._inside.add(inside)
        try:
            for name in ("get_scale", "loss_scale", "scale_value", "cur_scale", "_scale"):
                value = getattr(scaler, name, None)
                if name == "get_scale" and callable(value):
                    value = value()
                number = _number(value)
                if number is not None:
                    return number
            return 1.0
        finally:
            if not held:
                self._inside.discard(inside)

    @staticmethod
    def has_update(scaler: Any) -> bool:
        return callable(getattr(scaler, "update", None))

    # -- autograd ---------------------------------------------------------------------------------------------------

    def _patch_engine(self) -> None:
        import torch.autograd as autograd

        original = autograd._engine_run_backward

        def run(roots: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            # a nested run (reentrant checkpointing) belongs to the outer one
            if self._engine_depth or (threading.get_ident() != self._thread and self._open):
                return original(roots, *args, **kwargs)
            device = next((t.device.type for t in roots if isinstance(t, torch.Tensor)), "cpu")
            seeds = args[0] if args else kwargs.get("grad_tensors", ())
            accumulates = bool(kwargs.get("accumulate_grad", args[5] if len(args) > 5 else False))
            facts: dict[str, Any] = {"accumulates": accumulates, "in_autocast": torch.is_autocast_enabled(device)}
            if self.inspect_graph:
                facts.update(graph.inspect(roots, seeds, self.scaled_nodes))
            for optimizer in self.optimizers:
                self.ledger.watch(optimizer)
            facts["cleared"] = self.ledger.before_backward()
            for probe in self.probes:
                probe.backward_starts(self)
            with self.around("backward", **facts) as event:
                self._engine_depth += 1
                try:
                    result = original(roots, *args, **kwargs)
                finally:
                    self._engine_depth -= 1
            added = self.ledger.after_backward(event.site)
            ids = {id(p) for p in added}
            event.data["optimizers"] = [
                i for i, o in enumerate(self.optimizers) if any(id(p) in ids for g in o.param_groups for p in g["params"])
            ]
            event.data["done"] = True
            for probe in self.probes:
                probe.backward_done(self, event)
            return result

        self._patches.set(autograd, "_engine_run_backward", run)

    # -- autocast ---------------------------------------------------------------------------------------------------

    def _patch_autocast(self) -> None:
        cls = torch.amp.autocast_mode.autocast
        enter = cls.__enter__

        def entered(region: Any) -> Any:
            wanted = (region._enabled, str(region.fast_dtype).removeprefix("torch."))
            result = enter(region)
            self.emit("autocast", device=region.device, enabled=wanted[0], dtype=wanted[1])
            if wanted[0]:
                self.trace.autocast.setdefault(region.device, set()).add(wanted[1])
            return result

        self._patches.set(cls, "__enter__", entered)

    # -- the optimizer ----------------------------------------------------------------------------------------------

    def _patch_optimizer(self) -> None:
        cls = torch.optim.Optimizer
        init, zero_grad = cls.__init__, cls.zero_grad

        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self.optimizer_index(optimizer)

        def cleared(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self.emit("zero_grad", optimizer=self.optimizer_index(optimizer))
            return zero_grad(optimizer, *args, **kwargs)

        self._patches.set(cls, "__init__", made)
        self._patches.set(cls, "zero_grad", cleared)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        index = self.optimizer_index(optimizer)
        if index in self._stepping:  # step() of a subclass calls super().step()
            self._stepping.append(index)
            return None
        self._stepping.append(index)
        event = self.emit("optimizer_step", optimizer=index, took=None)
        self._open.append(event.index)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            self._use_gradients(event, optimizer)
            return None
        event.data["closure"] = True

        def watched() -> Any:
            result = closure()
            self._use_gradients(event, optimizer)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _use_gradients(self, event: Event, optimizer: Any) -> None:
        index = event.optimizer
        assert index is not None
        if "grads" not in event.data:
            event.data.update(self.ledger.at_step(self.parameters(index), index, self._engine_depth > 0))
        for probe in self.probes:
            probe.optimizer_step(self, event, optimizer, True)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        index = self.optimizer_index(optimizer)
        if index in self._stepping:
            self._stepping.remove(index)
        if index in self._stepping:
            return
        event = next(
            (self.trace.events[i] for i in reversed(self._open) if self.trace.events[i].kind == "optimizer_step"
             and self.trace.events[i].optimizer == index), None,
        )  # fmt: skip
        if event is None:
            return
        self._open.remove(event.index)
        found_inf = getattr(optimizer, "found_inf", None)
        event.data["took"] = not (isinstance(found_inf, torch.Tensor) and bool(found_inf.any()))
        if event.get("closure") and "grads" not in event.data:
            event.data.update(self.ledger.at_step(self.parameters(index), index, self._engine_depth > 0))
        self.ledger.used(self.parameters(index), index)
        for probe in self.probes:
            probe.optimizer_step(self, event, optimizer, False)

    def _watch_foreign(self, optimizer: Any) -> None:
        """An optimizer that is not torch's fires no hook: watch its `step` itself."""
        step = getattr(optimizer, "step", None)
        if not callable(step) or not hasattr(optimizer, "param_groups"):
            return

        def watched(*args: Any, **kwargs: Any) -> Any:
            before = len(self.trace.events)
            self._before_step(optimizer, (optimizer, *args), kwargs)
            result = step(*args, **kwargs)
            known = [e for e in self.trace.events[before:] if e.kind == "optimizer_step"]
            if len(known) > 1:  # it only wraps a torch optimizer, which has reported by itself
                known[0].kind = "optimizer_wrapper"
            self._after_step(optimizer, args, kwargs)
            return result

        with contextlib.suppress(AttributeError):
            self._patches.set(optimizer, "step", watched)


SCALER_METHODS: dict[str, Callable[..., Any]] = {
    "__init__": Recorder._scaler_init,
    "scale": Recorder._scaler_scale,
    "unscale_": Recorder._scaler_unscale,
    "step": Recorder._scaler_step,
    "update": Recorder._scaler_update,
    "get_scale": Recorder._scaler_get_scale,
    "load_state_dict": Recorder._scaler_load,
}


def _enabled(scaler: Any) -> bool:
    enabled = getattr(scaler, "is_enabled", None)
    return bool(enabled()) if callable(enabled) else True


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _found_inf(scaler: Any) -> bool | None:
    states = getattr(scaler, "_per_optimizer_states", None)
    if not isinstance(states, dict):
        return None
    return any(bool(f.any()) for s in states.values() for f in s.get("found_inf_per_device", {}).values())


def _growth_rule(scaler: Any) -> dict[str, Any]:
    """What torch's own update() is about to go by; nothing for a scaler whose update() is its own."""
    if not isinstance(scaler, torch.amp.GradScaler) or not scaler.is_enabled() or not _torch_update(type(scaler)):
        return {}
    return {
        "tracker": scaler._get_growth_tracker(),
        "interval": scaler.get_growth_interval(),
        "growth": scaler.get_growth_factor(),
        "backoff": scaler.get_backoff_factor(),
    }


def _torch_update(cls: type) -> bool:
    owner = next(c for c in cls.__mro__ if "update" in vars(c))
    return owner.__module__.startswith("torch.")


def _describe_scaler(scaler: Any, custom: bool) -> ScalerInfo:
    arguments = {
        name.lstrip("_"): _number(getattr(scaler, name, None))
        for name in ("_init_scale", "_growth_factor", "_backoff_factor", "_growth_interval")
        if hasattr(scaler, name)
    }
    return ScalerInfo(
        type(scaler).__name__, _enabled(scaler), custom, device=str(getattr(scaler, "_device", "")), arguments=arguments, site=user_site(3)
    )
