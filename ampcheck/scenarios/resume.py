"""Stop and resume: what a checkpoint of the contract keeps, against the run that goes on.

As written, on one device: a run is stopped after two calls, with the loss scale and the growth tracker at values that no new scaler
has; a fresh build loads its checkpoint and both go on for one call.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck.findings import Location
from ampcheck.policy import Policy
from ampcheck.scenarios.averages import candidates, moved
from ampcheck.scenarios.drive import Built, Run, Stage
from ampcheck.scenarios.natural import groups
from ampcheck.scenarios.spec import Spec
from ampcheck.trace.digest import digest
from ampcheck.trace.events import Event
from ampcheck.trace.recorder import Probe, Recorder
from ampcheck.trace.sources import user_site

__all__ = ["Resume", "State", "resume"]

CALLS_BEFORE = 2
#: Planted where no new scaler starts and no growth is near: far below the default, with two clean steps counted.
PLANTED_SCALE, PLANTED_TRACKER = 2.0**5, 2


@dataclass
class State:
    """What a training holds at one moment.

    Args:
        tensors, dtypes: bits and dtype of everything reachable, by path.
        trained: those paths that are parameters of an optimizer, or its state.
        groups: learning rates, momenta and betas of each optimizer.
        scalers: of each scaler in use the scale and the growth tracker.
        averages: paths of what moved towards a parameter in the call before, as an average does.
    """

    tensors: dict[str, Any] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    groups: list[Any] = field(default_factory=list)
    scalers: list[tuple[float, int | None]] = field(default_factory=list)
    averages: set[str] = field(default_factory=set)


@dataclass
class Resume:
    """The run that went on and the one that was resumed, at the stop, after loading, and after one more call.

    `saved_at` is the user's line that asked an optimizer for its state to save it, `None` where none did.
    """

    run: Run
    resumed: Run | None = None
    at_stop: State | None = None
    loaded: State | None = None
    went_on: State | None = None
    continued: State | None = None
    gradients: tuple[Any, Any] = (None, None)
    made_after_load: Any = None
    saved_at: Location | None = None


class FirstGradients(Probe):
    """Digests of the gradients of each optimizer's first step after `since`."""

    def __init__(self) -> None:
        self.since = 0
        self.seen: dict[int, Any] = {}

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        if entering and recorder.call >= self.since and event.optimizer is not None:
            self.seen.setdefault(event.optimizer, digest([p.grad for p in recorder.parameters(event.optimizer)]))


def state_of(built: Built, used_only: bool) -> State:
    reached, recorder = built.reach(), built.recorder
    state = State()
    paths = list(reached.tensors)
    for path, bits in zip(paths, digest([reached.tensors[p] for p in paths]), strict=True):
        state.tensors[path] = bits
        state.dtypes[path] = str(reached.tensors[path].dtype).removeprefix("torch.")
    own = {id(p) for i in range(len(recorder.optimizers)) for p in recorder.parameters(i)}
    state.trained = {path for path, t in reached.tensors.items() if id(t) in own or ".state." in path}
    state.groups = [groups(o) for o in recorder.optimizers]
    scalers = _scalers(recorder, used_only)
    if not used_only:  # one that was unpickled is not known before it is used
        scalers += [s for s in reached.scalers.values() if s.is_enabled() and all(s is not k for k in recorder.scalers)]
    for scaler in scalers:
        tracker = getattr(scaler, "_growth_tracker", None)
        if isinstance(scaler, torch.amp.GradScaler):
            tracker = scaler._get_growth_tracker()
        state.scalers.append((recorder.current_scale(scaler), None if tracker is None else int(tracker)))
    return state


def _scalers(recorder: Recorder, used_only: bool) -> list[Any]:
    """The enabled scalers, in the order of their last use; those that were replaced and are not used any more come away."""
    used = {e.scaler for e in recorder.trace.of("scale") if e.call >= recorder.call - 1}
    return [s for i, s in enumerate(recorder.scalers) if recorder.trace.scalers[i].enabled and (not used_only or i in used)]


class _GoOn(Stage):
    """Stops before call number two, plants, saves, and goes on."""

    def __init__(self, probe: FirstGradients) -> None:
        self.probe = probe
        self.saved: Any = None
        self.saved_at: Location | None = None
        self.copies: dict[str, torch.Tensor] = {}
        self.at_stop: State | None = None
        self.went_on: State | None = None

    def before_call(self, built: Built, call: int) -> None:
        if call != CALLS_BEFORE:
            return
        for rank, scaler in enumerate(_scalers(built.recorder, True)):  # each another, so that one cannot pass for the next
            if isinstance(scaler, torch.amp.GradScaler) and scaler._scale is not None:
                scaler._scale.fill_(PLANTED_SCALE * 2.0 ** -(rank % 4))
                scaler._growth_tracker.fill_(min(PLANTED_TRACKER, max(scaler._growth_interval - 2, 0)))  # type: ignore[union-attr]
        self._save(built)
        self.at_stop = state_of(built, True)
        self.copies = candidates(built)
        self.probe.since, self.probe.seen = call, {}

    def _save(self, built: Built) -> None:
        def asked(_: Any) -> None:
            self.saved_at = self.saved_at or user_site()

        assert built.training.state_dict is not None
        optimizers = [o for o in built.recorder.optimizers if isinstance(o, torch.optim.Optimizer)]
        with contextlib.ExitStack() as hooks:
            for optimizer in optimizers:
                hooks.callback(optimizer.register_state_dict_pre_hook(asked).remove)
            self.saved = copy.deepcopy(built.training.state_dict())

    def after_call(self, built: Built, call: int) -> bool:
        if call == CALLS_BEFORE:
            self.went_on = state_of(built, True)
            self.went_on.averages = moved(self.copies, built)
        return call >= CALLS_BEFORE


class _Resumed(Stage):
    """Loads what was saved into a fresh build, and goes on."""

    def __init__(self, saved: Any) -> None:
        self.saved = saved
        self.loaded: State | None = None
        self.continued: State | None = None
        self.made: Location | None = None

    def built(self, built: Built) -> None:
        assert built.training.load_state_dict is not None
        built.training.load_state_dict(copy.deepcopy(self.saved))
        self.loaded = state_of(built, False)

    def after_call(self, built: Built, call: int) -> bool:
        self.continued = state_of(built, True)
        trace = built.recorder.trace
        late = [e for e in trace.of("scaler_made") if e.call >= 0]
        self.made = late[-1].site if late else None
        return True


def resume(spec: Spec) -> Resume:
    """Run the contract to a stop and on, and resume a fresh build from the checkpoint."""
    ours, theirs = FirstGradients(), FirstGradients()
    going = _GoOn(ours)
    result = Resume(spec.run("resume", Policy(), calls=CALLS_BEFORE + 1, probes=[ours], stage=going))
    result.at_stop, result.went_on, result.saved_at = going.at_stop, going.went_on, going.saved_at
    if going.at_stop is None:
        return result
    resumed = _Resumed(going.saved)
    result.resumed = spec.run("resume", Policy(), calls=1, probes=[theirs], stage=resumed)
    result.loaded, result.continued, result.made_after_load = resumed.loaded, resumed.continued, resumed.made
    result.gradients = (list(ours.seen.values()), list(theirs.seen.values()))  # an optimizer may have been made anew
    return result
