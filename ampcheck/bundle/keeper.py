"""Watches a run for what goes wrong in it, and holds on to the states of the call in which it did."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import _disable_current_modes

from ampcheck.bundle.inputs import Inputs
from ampcheck.bundle.snapshot import generators, known, states
from ampcheck.scenarios.drive import Built, Stage
from ampcheck.scenarios.origin import _module_names, unsettled_skips
from ampcheck.trace.digest import local
from ampcheck.trace.events import Event
from ampcheck.trace.recorder import Probe, Recorder

__all__ = ["Keeper", "Watch"]

LEFT_OUT = (
    "left out: data of the training stay here unless --ampcheck-evidence-batch says how much of them may go into a bundle"
)


class Watch(Stage, Probe):
    """Notes the size of each gradient, the loss, and the first module that returns what is not finite.

    A stage and a probe in one. Nothing that fails in here gets in the way of the step: `failed` says what it was.

    `steps` has one row for each gradient that was unscaled, or used: `call`, `optimizer`, `scale`, `scaled_peak`, `norm` and `peak`
    of the unscaled gradient (float32; NaN or inf as they are), `taken`.
    """

    def __init__(self) -> None:
        self.failed = ""
        self.forget()

    def forget(self) -> None:
        """A run begins."""
        self.steps: list[dict[str, Any]] = []
        self.not_finite: dict[int, list[str]] = {}
        self.module: dict[str, Any] | None = None
        self._open: dict[int, dict[str, Any]] = {}
        self._names: dict[int, str] = {}
        self._recorder: Recorder | None = None

    # -- the run ----------------------------------------------------------------------------------------------------

    def built(self, built: Built) -> None:
        self.forget()
        self._recorder = built.recorder

    def before_call(self, built: Built, call: int) -> None:
        with self._guarded():
            self._names, self.module = _module_names(built), None

    def call(self, built: Built, step: Callable[[], object]) -> object:
        with self._hooked():
            return step()

    def after_call(self, built: Built, call: int) -> bool:
        with self._guarded():
            trace = built.recorder.trace
            lost = [name for name, value in trace.returned[-1].items() if not math.isfinite(value)]
            if lost:
                self._note(
                    call, f"the returned number {lost[0]} is not finite" if lost != ["value"] else "the loss is not finite"
                )
            if trace.steps and call in unsettled_skips(trace):
                self._note(call, "the step was skipped at a loss scale that had been good enough")
        return False

    def finished(self, built: Built) -> None:
        with self._guarded():
            raised = built.recorder.trace.raised
            if raised is not None:
                self._note(raised.call, f"the step raised {raised}")
            # The scale of a loop that never takes a step does not settle, it is lost.
            elif not built.recorder.trace.steps and (skipped := unsettled_skips(built.recorder.trace)):
                self._note(skipped[0], "every step was skipped")
        self._recorder = None

    # -- gradients and losses ----------------------------------------------------------------------------------------

    def scaled(self, recorder: Recorder, event: Event, value: Any) -> None:
        with self._guarded(), _disable_current_modes():
            if isinstance(value, torch.Tensor) and not bool(value.detach().isfinite().all()):
                self._note(event.call, "the loss is not finite")

    def unscale(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        with self._guarded(), _disable_current_modes(), torch.no_grad():
            index = event.optimizer
            if index is None or not event.get("enabled"):
                return
            if entering:
                self._row(recorder, event, index, recorder.current_scale(recorder.scalers[event.scaler or 0]))
                self._open[index]["scaled_peak"] = _size(recorder, index)[1]
            elif index in self._open:
                self._open[index]["norm"], self._open[index]["peak"] = _size(recorder, index)

    def scaler_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if not entering and event.optimizer is not None and not event.get("took"):
            self._close(event.optimizer, taken=False)

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        with self._guarded(), _disable_current_modes(), torch.no_grad():
            index = event.optimizer
            if index is None or (not entering and event.kind == "step_asked"):
                return
            if not entering:
                self._close(index, taken=bool(event.get("took")))
            elif index not in self._open:
                scale = getattr(optimizer, "grad_scale", None)  # a fused optimizer divides inside its kernel
                self._row(recorder, event, index, float(scale) if isinstance(scale, torch.Tensor) else 1.0)
                row = self._open[index]
                norm, row["scaled_peak"] = _size(recorder, index)
                row["norm"], row["peak"] = norm / row["scale"], row["scaled_peak"] / row["scale"]

    def _row(self, recorder: Recorder, event: Event, index: int, scale: float) -> None:
        nothing = {"scaled_peak": None, "norm": None, "peak": None, "taken": None}
        self._open[index] = {"call": event.call, "optimizer": index, "scale": scale, **nothing}
        self.steps.append(self._open[index])

    def _close(self, index: int, taken: bool) -> None:
        row = self._open.pop(index, None)
        if row is None:
            return
        row["taken"] = taken
        if taken and row["norm"] is not None and not math.isfinite(row["norm"]):
            self._note(row["call"], "an optimizer used a gradient that is not finite")

    # -- modules ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _hooked(self) -> Iterator[None]:
        thread = threading.get_ident()

        def returned(module: torch.nn.Module, arguments: Any, output: Any) -> None:
            if self.module is None and threading.get_ident() == thread:
                with self._guarded(), _disable_current_modes(), torch.no_grad():
                    self._look(module, arguments, output)

        handle = register_module_forward_hook(returned)
        try:
            yield
        finally:
            handle.remove()

    def _look(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        out = _lost(output)
        if out is None:
            return
        recorder = self._recorder
        self.module = {
            "call": recorder.call if recorder is not None else -1,
            "module": self._names.get(id(module), type(module).__name__),
            "kind": type(module).__name__,
            "phase": "backward" if recorder is not None and recorder.engine_depth else "forward",
            "dtype": str(out.dtype).removeprefix("torch."),
            "input": "finite" if _lost(arguments) is None else "not finite either",
        }

    # -- failures of our own ------------------------------------------------------------------------------------------

    def _note(self, call: int, what: str) -> None:
        known = self.not_finite.setdefault(call, [])
        if what not in known:
            known.append(what)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the step goes on, whatever becomes of the evidence
            self.failed = self.failed or f"{type(error).__name__}: {error}"


def _size(recorder: Recorder, index: int) -> tuple[float, float]:
    """Norm and largest absolute value of an optimizer's gradients, in float32."""
    gradients = [local(p.grad).float() for p in recorder.parameters(index) if p.grad is not None and p.grad.numel()]
    if not gradients:
        return 0.0, 0.0
    device = gradients[0].device
    norms = torch.stack([torch.linalg.vector_norm(g).to(device) for g in gradients])
    peaks = torch.stack([g.abs().max().to(device) for g in gradients])
    return float(torch.linalg.vector_norm(norms)), float(peaks.max())


def _lost(value: Any) -> torch.Tensor | None:
    """The first floating-point tensor in a value that holds NaN or inf."""
    if isinstance(value, torch.Tensor):
        usable = value.is_floating_point() and value.layout is torch.strided and value.device.type != "meta"
        return value if usable and not bool(value.detach().isfinite().all()) else None
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return next((found for inner in value if (found := _lost(inner)) is not None), None)
    return None


class Keeper(Watch):
    """Also holds the generators and states at the start of the first call, and of the first in which something was not finite.

    Args:
        batch: bytes of the batch that may be kept; `None` is none of it.
    """

    def __init__(self, batch: int | None = None) -> None:
        self.batch = batch
        super().__init__()

    def forget(self) -> None:
        super().forget()
        self.snapshots: dict[int, dict[str, Any]] = {}
        self.modules: dict[int, dict[str, Any] | None] = {}
        self._inputs: Inputs | None = None

    @property
    def judged(self) -> int | None:
        """The call that the bundle is about: the first in which something was not finite, else the first; `None` if there is none."""
        return next((call for call in sorted(self.snapshots) if self.not_finite.get(call)), min(self.snapshots, default=None))

    def before_call(self, built: Built, call: int) -> None:
        super().before_call(built, call)
        with self._guarded():
            # The calls between the first and the one that went wrong are of no interest.
            self.snapshots = {c: s for c, s in self.snapshots.items() if c == 0 or self.not_finite.get(c)}
            if any(self.not_finite.get(c) for c in self.snapshots):
                return
            self.snapshots[call] = {"rng": generators(), "states": states(built), "batch": _without_batch()}

    def call(self, built: Built, step: Callable[[], object]) -> object:
        call = built.recorder.call
        self._inputs = None
        if self.batch is not None and call in self.snapshots:
            with self._guarded():
                self._inputs = Inputs(built.recorder, known(built), self.batch)
        with self._inputs or contextlib.nullcontext():
            return super().call(built, step)

    def after_call(self, built: Built, call: int) -> bool:
        super().after_call(built, call)
        self._end_call(call)
        return False

    def finished(self, built: Built) -> None:
        super().finished(built)
        raised = built.recorder.trace.raised
        if raised is not None and raised.call >= 0:
            self._end_call(raised.call)
        self._inputs = None

    def _end_call(self, call: int) -> None:
        self.modules[call] = self.module
        if self._inputs is not None and call in self.snapshots:
            self.snapshots[call]["batch"] = self._inputs.report()


def _without_batch() -> dict[str, Any]:
    return {"kept": False, "reason": LEFT_OUT, "bytes": 0, "tensors": []}
