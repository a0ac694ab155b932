"""Watches one run: patches torch in one place, and turns what happens into events.

Nothing here judges. Probes (see `Probe`) are told of the moments that scenarios measure or act at: after a backward,
around `unscale_`, at the optimizer, after an update.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import _disable_current_modes

from ampcheck._compat import outside_transforms
from ampcheck.findings import Location
from ampcheck.trace import graph
from ampcheck.trace.digest import Digest, digest
from ampcheck.trace.events import Event, OptimizerInfo, Raised, Trace
from ampcheck.trace.ledger import Ledger
from ampcheck.trace.patches import PatchSet
from ampcheck.trace.place import function_of
from ampcheck.trace.regions import Regions
from ampcheck.trace.scaler_watch import ScalerWatch, describe
from ampcheck.trace.sources import user_site

__all__ = ["Probe", "Recorder"]


class Probe:
    """What a scenario may do at the moments that matter. Every method is optional; tensors must not be kept alive."""

    def backward_starts(self, recorder: Recorder) -> None:
        """The outermost backward (or autograd.grad) is about to run."""

    def backward_done(self, recorder: Recorder, event: Event) -> None:
        """The outermost backward (or autograd.grad) has returned."""

    def scaled(self, recorder: Recorder, event: Event, value: Any) -> None:
        """An enabled scaler has scaled `value`: a tensor or a collection of them, as it was before."""

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
        self.patches = PatchSet()
        self._handles: list[Any] = []
        self.open: list[int] = []
        self.scaler_watch = ScalerWatch(self)
        self.regions = Regions()
        self._stepping: list[int] = []
        self.nested = 0
        self._wrappers: list[tuple[Any, int]] = []
        self.engine_depth = 0
        self.create_graph = False
        self.failed: dict[str, tuple[str, str]] = {}  # what an op said -> where it was, for autograd drops the traceback
        self._thread = threading.get_ident()

    # -- identities -------------------------------------------------------------------------------------------------

    def scaler_index(self, scaler: Any, custom: bool = False) -> int:
        for index, known in enumerate(self.scalers):
            if known is scaler:
                return index
        self.scalers.append(scaler)
        self.trace.scalers.append(describe(scaler, custom))
        return len(self.scalers) - 1

    def optimizer_index(self, optimizer: Any) -> int:
        for index, known in enumerate(self.optimizers):
            if known is optimizer:
                return index
        for wrapper, index in self._wrappers:
            if wrapper is optimizer:
                return index
        groups = getattr(optimizer, "param_groups", None)
        for index, known in enumerate(self.optimizers):
            if groups is not None and known.param_groups is groups:  # a wrapper or proxy around one that is known
                self._wrappers.append((optimizer, index))
                if not isinstance(optimizer, torch.optim.Optimizer):
                    self._watch_foreign(optimizer)
                return index
        self.optimizers.append(optimizer)
        self.trace.optimizers.append(OptimizerInfo(type(optimizer).__name__, site=user_site(2)))
        self.ledger.watch(optimizer)
        if not isinstance(optimizer, torch.optim.Optimizer):
            self._watch_foreign(optimizer)
        return len(self.optimizers) - 1

    def parameters(self, index: int) -> list[torch.Tensor]:
        return self.ledger.watch(self.optimizers[index])

    def _bits(self, index: int) -> Digest:
        with _disable_current_modes():
            return digest(self.parameters(index))

    # -- events -----------------------------------------------------------------------------------------------------

    def emit(self, kind: str, **fields: Any) -> Event:
        data = {k: fields.pop(k) for k in list(fields) if k not in ("scaler", "optimizer", "site")}
        site = fields.pop("site", None) or user_site(2)
        event = Event(kind, self.call, site, data=data, parent=self.open[-1] if self.open else None, **fields)
        event.index = len(self.trace.events)
        self.trace.events.append(event)
        return event

    @contextlib.contextmanager
    def around(self, kind: str, **fields: Any) -> Iterator[Event]:
        event = self.emit(kind, **fields)
        self.open.append(event.index)
        try:
            yield event
        except Exception as error:
            if not hasattr(error, "__ampcheck_during__"):
                with contextlib.suppress(AttributeError, TypeError):
                    error.__ampcheck_during__ = (kind, event.scaler, event.optimizer)  # type: ignore[attr-defined]
            raise
        finally:
            del self.open[self.open.index(event.index) :]  # with whatever an exception left open inside

    def raised(self, error: BaseException, site: Any) -> Raised:
        """Describe an exception that came out of the contract."""
        during, scaler, optimizer = getattr(error, "__ampcheck_during__", (None, None, None))
        return Raised(
            self.call,
            type(error).__name__,
            str(error),
            site,
            during,
            scaler,
            optimizer,
            function_of(error) or self.failed.get(str(error)),
        )

    def backward_site(self) -> Location | None:
        """The line of the backward that is running; on a GPU autograd's own thread has no frame of the user's."""
        running = [self.trace.events[i] for i in self.open if self.trace.events[i].kind == "backward"]
        return running[-1].site if running else None

    def current_scale(self, scaler: Any) -> float:
        """The scale that is in force now, without leaving an event; 1 where there is none to be had."""
        return self.scaler_watch.current_scale(scaler)

    # -- installing -------------------------------------------------------------------------------------------------

    def __enter__(self) -> Recorder:
        try:
            self.scaler_watch.patch_class(torch.amp.GradScaler)
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
        self.patches.close()

    def finish(self) -> Trace:
        """Forget every object of the contract; what is left is data."""
        self.scalers, self.optimizers, self.scaled_nodes, self._wrappers = [], [], {}, []
        self.ledger = Ledger()
        return self.trace

    # -- autograd ---------------------------------------------------------------------------------------------------

    def _patch_engine(self) -> None:
        autograd: Any = torch.autograd
        original = autograd._engine_run_backward  # what backward() and grad() call, however early they were imported

        def run(roots: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
            # a nested run (reentrant checkpointing) belongs to the outer one
            if self.engine_depth or (threading.get_ident() != self._thread and self.open):
                return original(roots, *args, **kwargs)
            device = next((t.device.type for t in roots if isinstance(t, torch.Tensor)), "cpu")
            seeds = args[0] if args else kwargs.get("grad_tensors", ())
            accumulates = bool(kwargs.get("accumulate_grad", args[5] if len(args) > 5 else False))
            facts: dict[str, Any] = {"accumulates": accumulates, "in_autocast": torch.is_autocast_enabled(device)}
            if self.inspect_graph:
                with _disable_current_modes():  # autograd hands out saved constants that a dispatch mode cannot pass on
                    facts.update(graph.inspect(roots, seeds, self.scaled_nodes))
            for optimizer in self.optimizers:
                self.ledger.watch(optimizer)
            facts["cleared"] = self.ledger.before_backward()
            with outside_transforms():
                for probe in self.probes:
                    probe.backward_starts(self)
            with self.around("backward", **facts) as event:
                self.engine_depth += 1
                self.create_graph = bool(kwargs.get("create_graph", args[2] if len(args) > 2 else False))
                try:
                    result = original(roots, *args, **kwargs)
                finally:
                    self.engine_depth -= 1
            added = self.ledger.after_backward(event.site)
            ids = {id(p) for p in added}
            event.data["optimizers"] = [
                i for i, o in enumerate(self.optimizers) if any(id(p) in ids for g in o.param_groups for p in g["params"])
            ]
            event.data["done"] = True
            with outside_transforms():
                for probe in self.probes:
                    probe.backward_done(self, event)
            return result

        self.patches.set(autograd, "_engine_run_backward", run)

    # -- autocast ---------------------------------------------------------------------------------------------------

    def _patch_autocast(self) -> None:
        def entered(region: Any, asked: bool, site: Location | None) -> None:
            dtype = str(region.fast_dtype).removeprefix("torch.")
            self.emit("autocast", device=region.device, enabled=region._enabled, asked=asked, dtype=dtype, site=site)
            if region._enabled:
                self.trace.autocast.setdefault(region.device, set()).add(dtype)

        self.regions.install(self.patches, entered)

    # -- the optimizer ----------------------------------------------------------------------------------------------

    def _patch_optimizer(self) -> None:
        cls, module = torch.optim.Optimizer, torch.nn.Module
        init, zero_grad, module_zero_grad = cls.__init__, cls.zero_grad, module.zero_grad

        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self.optimizer_index(optimizer)

        def cleared(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            index = self.optimizer_index(optimizer)
            self.emit("zero_grad", optimizer=index)
            self.ledger.zeroed.update(id(p) for p in self.parameters(index))
            return zero_grad(optimizer, *args, **kwargs)

        def module_cleared(owner: Any, *args: Any, **kwargs: Any) -> Any:
            self.emit("zero_grad")
            self.ledger.zeroed.update(id(p) for p in owner.parameters())
            return module_zero_grad(owner, *args, **kwargs)

        self.patches.set(cls, "__init__", made)
        self.patches.set(cls, "zero_grad", cleared)
        self.patches.set(module, "zero_grad", module_cleared)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        index = self.optimizer_index(optimizer)
        if index in self._stepping:  # step() of a subclass calls super().step(), or a wrapper's the one of what it wraps
            self._stepping.append(index)
            self.nested += 1
            return None
        self._stepping.append(index)
        event = self.emit("optimizer_step", optimizer=index, took=None)
        self.open.append(event.index)
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
            event.data["written"] = self.ledger.written(self.parameters(index))
            event.data.update(self.ledger.at_step(self.parameters(index), index, self.engine_depth > 0))
        for probe in self.probes:
            probe.optimizer_step(self, event, optimizer, True)

    def unscaled(self, index: int, optimizer: Any) -> None:
        """A scaler has divided the gradients; where the optimizer's own step asked for it, these are the ones that it uses."""
        around = next((e for e in map(self.trace.events.__getitem__, self.open) if _steps(e, index)), None)
        if around is not None:
            around.data["unscaled"] = self._bits(index)
            self._use_gradients(around, optimizer)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        index = self.optimizer_index(optimizer)
        if index in self._stepping:
            self._stepping.remove(index)
        if index in self._stepping:
            return
        event = next(
            (self.trace.events[i] for i in reversed(self.open) if _steps(self.trace.events[i], index)),
            None,
        )
        if event is None:
            return
        self.open.remove(event.index)
        if event.kind == "step_asked":
            event.data["took"] = False
            for probe in self.probes:
                probe.optimizer_step(self, event, optimizer, False)
            return
        found_inf = getattr(optimizer, "found_inf", None)
        skipped = isinstance(found_inf, torch.Tensor) and bool(found_inf.any())
        before = event.data.pop("unscaled", None)  # a step that unscales by itself may skip by itself
        event.data["took"] = not skipped and (before is None or before != self._bits(index))
        if event.get("closure") and "grads" not in event.data:
            event.data.update(self.ledger.at_step(self.parameters(index), index, self.engine_depth > 0))
        self.ledger.used(self.parameters(index), index)
        for probe in self.probes:
            probe.optimizer_step(self, event, optimizer, False)

    def _watch_foreign(self, optimizer: Any) -> None:
        """An optimizer that is not torch's fires no hook: watch its `step` itself."""
        step = getattr(optimizer, "step", None)
        if not callable(step) or not hasattr(optimizer, "param_groups"):
            return

        def watched(*args: Any, **kwargs: Any) -> Any:
            before, nested = len(self.trace.events), self.nested
            stands_in = [index for wrapper, index in self._wrappers if wrapper is optimizer]
            old = self._bits(stands_in[0]) if stands_in else ()
            self._before_step(optimizer, (optimizer, *args), kwargs)
            result = step(*args, **kwargs)
            known = [e for e in self.trace.events[before:] if e.kind == "optimizer_step"]
            if len(known) > 1:  # it only wraps a torch optimizer, which has reported by itself
                known[0].kind = "optimizer_wrapper"
            elif stands_in and self.nested == nested and self._bits(stands_in[0]) == old:
                known[0].kind = "step_asked"  # it notes that the scaler found no inf; the one it stands for steps later
            self._after_step(optimizer, args, kwargs)
            return result

        watched.__wrapped__ = step  # type: ignore[attr-defined]
        with contextlib.suppress(AttributeError):
            self.patches.set(optimizer, "step", watched)


def _steps(event: Event, optimizer: int) -> bool:
    return event.kind in ("optimizer_step", "step_asked") and event.optimizer == optimizer
