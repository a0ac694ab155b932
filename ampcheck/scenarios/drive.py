"""One run: build the contract afresh under a policy, call its step, and leave a trace. Nothing of the run outlives it."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import signal
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck._compat import autocast_nesting
from ampcheck.contract import Training
from ampcheck.errors import ContractError, ScenarioTimeout
from ampcheck.policy import Policy, reseed, world
from ampcheck.trace.events import Trace
from ampcheck.trace.reach import Reached, reach
from ampcheck.trace.recorder import Probe, Recorder
from ampcheck.trace.sources import is_own, of_callable, of_exception

__all__ = ["Built", "Run", "SharedState", "Stage", "Together", "drive", "time_limit"]


@dataclass
class Run:
    """What a run left: the trace, and whatever its stage put into `notes`."""

    trace: Trace
    seconds: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict)
    #: optimizer index -> names of its parameters
    names: dict[int, list[str]] = field(default_factory=dict)


@dataclass
class Built:
    """The live objects of a run, while it lasts."""

    training: Training
    recorder: Recorder

    def reach(self) -> Reached:
        t = self.training
        roots = [("step", t.step), ("model", t.model), ("optimizers", t.optimizers), ("scheduler", t.scheduler)]
        return reach(*roots, ("scaler", t.scaler), ("state_dict", t.state_dict))


class SharedState:
    """Remembers the parameters of every build, weakly: a build must not meet those of another one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._known: list[weakref.ref[torch.Tensor]] = []

    def meet(self, built: Built) -> None:
        """Raise a `ContractError` if this build holds a parameter of an earlier one."""
        reached = built.reach()
        mine = {id(p): p for index in range(len(built.recorder.optimizers)) for p in built.recorder.parameters(index)}
        mine.update((id(p), p) for m in reached.modules.values() for p in m.parameters())
        for ref in self._known:
            old = ref()
            if old is not None and mine.get(id(old)) is old:
                what = reached.names().get(id(old), "a parameter")
                raise ContractError(
                    f"contract {self.name} shares state between builds: {what} was there before the build. Each build must be "
                    "afresh; make the model and the optimizer inside the contract function, not at module level or in a fixture"
                )
        self._known += [weakref.ref(p) for p in mine.values()]


class Stage:
    """How a run goes: what is done between the calls of `step`. The default calls it and does nothing else."""

    def built(self, built: Built) -> None:
        """The contract was built; no call was made yet."""

    def before_call(self, built: Built, call: int) -> None:
        """A call is about to be made."""

    def call(self, built: Built, step: Callable[[], object]) -> object:
        """Make the call; a place to put a dispatch mode around it."""
        return step()

    def after_call(self, built: Built, call: int) -> bool:
        """A call has ended; return True to stop here."""
        return False

    def finished(self, built: Built) -> None:
        """The last call has ended, or one has raised; the objects are still alive."""


class Together(Stage):
    """Several stages in one run, in order; the first is the innermost around a call. It stops where one of them does."""

    def __init__(self, *stages: Stage) -> None:
        self.stages = stages

    def built(self, built: Built) -> None:
        for stage in self.stages:
            stage.built(built)

    def before_call(self, built: Built, call: int) -> None:
        for stage in self.stages:
            stage.before_call(built, call)

    def call(self, built: Built, step: Callable[[], object]) -> object:
        for stage in self.stages:
            step = functools.partial(stage.call, built, step)
        return step()

    def after_call(self, built: Built, call: int) -> bool:
        stop = [stage.after_call(built, call) for stage in self.stages]  # all of them are told
        return any(stop)

    def finished(self, built: Built) -> None:
        for stage in self.stages:
            stage.finished(built)


def drive(
    make_step: Callable[[], object],
    policy: Policy,
    *,
    name: str,
    calls: int | None,
    probes: Sequence[Probe] = (),
    stage: Stage | None = None,
    inspect_graph: bool = False,
    timeout: float | None = None,
    shared: SharedState | None = None,
) -> Run:
    """Build and run a contract once.

    Args:
        make_step: builds; returns a step or a `Training`.
        policy: the precision and scale to run under.
        name: of the contract, for messages.
        calls: calls of `step`, at most what the `Training` declares; `None` is all of them.
        probes, inspect_graph: for the `Recorder`.
        stage: what happens between the calls.
        timeout: seconds for the whole run.
        shared: the parameters of earlier builds; meeting one of them again is an error.

    Returns:
        The run. An exception of the contract is in `trace.raised`, not raised here.

    Raises:
        ContractError: the contract returned something unusable.
        ScenarioTimeout: it took longer than `timeout`.
    """
    started = time.perf_counter()
    stage = stage or Stage()
    recorder = Recorder(probes, inspect_graph)
    run = Run(recorder.trace)
    built: Built | None = None
    with contextlib.ExitStack() as stack:
        provoked = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        stack.enter_context(time_limit(timeout, name))
        stack.enter_context(world(policy))
        stack.enter_context(recorder)
        try:
            training = Training.of(make_step(), name)
            built = Built(training, recorder)
            _adopt(built)
            if shared is not None:
                shared.meet(built)
            stage.built(built)
            reseed(policy.seed + 1)
            limit = training.most_calls if calls is None else min(calls, training.calls or max(calls, training.most_calls))
            run.notes["limit"] = training.most_calls
            for call in range(limit):
                recorder.call, recorder.trace.calls = call, call + 1
                stage.before_call(built, call)
                before = _autocast_state()
                try:
                    value = stage.call(built, training.step)
                finally:
                    _note_leaks(recorder, before, call, training.step)
                    for probe in recorder.probes:
                        probe.call_done(recorder, call)
                recorder.trace.returned.append(numbers(value))
                del value
                if stage.after_call(built, call):
                    break
        except StopIteration:
            recorder.trace.stopped = True
        except (ContractError, ScenarioTimeout):
            raise
        except Exception as error:  # the contract's own: it is what is being judged
            if is_own(error):
                raise
            recorder.trace.raised = recorder.raised(error, of_exception(error))
            error.__traceback__ = None
            del error
        if built is not None:
            stage.finished(built)
            _name_parameters(run, recorder, built)
    recorder.trace.warnings = [f"{w.category.__name__}: {str(w.message).splitlines()[0]}" for w in provoked if str(w.message)][
        :50
    ]
    recorder.finish()
    built = training = None  # type: ignore[assignment]  # nothing of the contract outlives the run
    run.seconds = time.perf_counter() - started
    return run


def _adopt(built: Built) -> None:
    """Watch declared optimizers, and a declared scaler of the user's own unless it only wraps one of torch's."""
    declared = built.training.optimizers
    for optimizer in declared if isinstance(declared, (list, tuple)) else [declared]:
        if hasattr(optimizer, "param_groups"):
            built.recorder.optimizer_index(optimizer)
    scaler = built.training.scaler
    if scaler is None or isinstance(scaler, torch.amp.GradScaler):
        return
    if not any(isinstance(v, torch.amp.GradScaler) for v in getattr(scaler, "__dict__", {}).values()):
        for method in ("scale", "step"):
            if not callable(getattr(scaler, method, None)):
                raise ContractError(
                    f"Training(scaler=...) must have scale() and step(); {type(scaler).__name__} has no {method}()"
                )
        built.recorder.scaler_watch.watch_custom(scaler)


def _name_parameters(run: Run, recorder: Recorder, built: Built) -> None:
    names = built.reach().names()
    for index in range(len(recorder.optimizers)):
        parameters = recorder.parameters(index)
        run.names[index] = [names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)]
        info = recorder.trace.optimizers[index]
        info.parameters = run.names[index]
        info.sparse = any(p.grad is not None and p.grad.is_sparse for p in parameters)


def _autocast_state() -> tuple[Any, ...]:
    devices = [(d, torch.is_autocast_enabled(d), str(torch.get_autocast_dtype(d))) for d in ("cpu", "cuda")]
    return (*devices, torch.is_autocast_cache_enabled(), autocast_nesting())


def _note_leaks(recorder: Recorder, before: tuple[Any, ...], call: int, step: object) -> None:
    after = _autocast_state()
    if after == before:
        return
    regions = list(recorder.trace.of("autocast", call=call))
    site = regions[-1].site if regions else of_callable(step)
    names = ("autocast on the CPU", "autocast on CUDA", "the weight cache", "the nesting depth")
    for what, old, new in zip(names, before, after, strict=True):
        if old != new:
            shown = (f"{old[1]}, {old[2]}", f"{new[1]}, {new[2]}") if isinstance(old, tuple) else (old, new)
            recorder.trace.leaks.append((call, f"{what} was {shown[0]} before the call and is {shown[1]} after it", site))


def numbers(value: Any, path: str = "") -> dict[str, float]:
    """The numbers in what a step returned: scalars and one-element tensors, in tuples, lists and dicts too."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return {}
    if isinstance(value, (int, float)):
        return {path or "value": float(value)}
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and not value.is_complex():
            return {path or "value": float(value)}
        return {}
    if isinstance(value, dict):
        return {k: v for key, x in value.items() for k, v in numbers(x, f"{path}.{key}" if path else str(key)).items()}
    if isinstance(value, (list, tuple)):
        return {k: v for i, x in enumerate(value) for k, v in numbers(x, f"{path}[{i}]").items()}
    item = getattr(value, "item", None)  # a NumPy scalar
    if callable(item) and getattr(value, "ndim", None) == 0:
        number = item()
        if isinstance(number, (int, float)) and math.isfinite(number):
            return {path or "value": float(number)}
    return {}


@contextlib.contextmanager
def time_limit(seconds: float | None, name: str) -> Iterator[None]:
    """Interrupt the main thread after `seconds`; another timer that was running (pytest-timeout's) goes on afterwards.

    Where there are no interval timers (Windows) or outside the main thread it does nothing.
    """
    usable = seconds and hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not usable or not seconds:
        yield
        return

    def alarm(signum: int, frame: object) -> None:
        raise ScenarioTimeout(
            f"{name}: one scenario took longer than {seconds:g} s (ampcheck_timeout, or timeout= of the contract)"
        )

    remaining, interval = signal.getitimer(signal.ITIMER_REAL)
    if remaining and remaining < seconds:  # the outer limit strikes first
        yield
        return
    handler = signal.signal(signal.SIGALRM, alarm)
    began = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if remaining:
            signal.setitimer(signal.ITIMER_REAL, max(remaining - (time.monotonic() - began), 0.001), interval)


def release() -> None:
    """Collect what a run left in reference cycles, so that two builds are not in memory at once."""
    gc.collect()
