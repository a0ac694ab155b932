"""What each optimizer keeps for each parameter, and in which precision: read from the live objects, left as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ampcheck.findings import Location
from ampcheck.optimizer_formulas import Slot, expected_slots, held_slots, known
from ampcheck.scenarios.drive import Built, Stage
from ampcheck.scenarios.masters import Masters, owned
from ampcheck.trace.digest import local
from ampcheck.trace.events import Event
from ampcheck.trace.precision import CastSites, dtype_name, is_low
from ampcheck.trace.reach import reach
from ampcheck.trace.recorder import Probe, Recorder

__all__ = ["Buffer", "Counter", "Held", "OptimizerState", "StateProbe", "States", "kept"]

#: Slots and group options that count steps.
COUNTERS = ("step", "steps", "step_count")


@dataclass
class Held:
    """One parameter and what is kept for it.

    Args:
        name, dtype, numel: of the parameter.
        trained: whether it had a gradient when its optimizer stepped, or after a backward where no step was reached.
        slots: slot -> what the optimizer holds; `expected`: what it should, by its class's formula (`None` if there is none).
        master: path of its FP32 master copy, or "".
        site: the line that gave a 16-bit parameter its dtype, where it is known.
        remainder: whether 16-bit integers beside it hold the rest of its bits.
    """

    name: str
    dtype: str
    numel: int
    trained: bool
    slots: dict[str, Slot] = field(default_factory=dict)
    expected: dict[str, Slot] | None = None
    master: str = ""
    site: Location | None = None
    low: bool = False
    remainder: bool = False


@dataclass(frozen=True)
class Counter:
    """A step after which a step counter had not advanced by one."""

    call: int
    site: Location | None
    slot: str
    advanced: float
    parameters: int


@dataclass
class OptimizerState:
    """One optimizer: class, whether its state has a formula, where it was made, its parameters, and state kept elsewhere in it.

    Args:
        extra: path -> tensors in attributes of the optimizer.
        eps: of its groups, or an attribute.
        counters: steps after which a counter had not advanced by one.
        steps: steps taken.
    """

    kind: str
    known: str | None = None
    site: Location | None = None
    parameters: list[Held] = field(default_factory=list)
    extra: dict[str, Slot] = field(default_factory=dict)
    eps: tuple[float, ...] = ()
    counters: list[Counter] = field(default_factory=list)
    steps: int = 0

    @property
    def trained(self) -> list[Held]:
        return [p for p in self.parameters if p.trained]


@dataclass(frozen=True)
class Buffer:
    """A 16-bit buffer that was cast with a whole module, in one that trains in FP32: path, dtype, and the line that cast it.

    `updated`: they are running statistics, and the run moved them.
    """

    name: str
    dtype: str
    site: Location | None
    updated: bool = False


@dataclass
class States:
    """All optimizers of a run by index; 16-bit parameters that have stale masters: `(name, path of the master, site)`; those
    whose masters are made anew from them between two steps, in the same way.
    """

    optimizers: dict[int, OptimizerState] = field(default_factory=dict)
    stale: list[tuple[str, str, Location | None]] = field(default_factory=list)
    remade: list[tuple[str, str, Location | None]] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)

    def low_parameters(self) -> list[Held]:
        """16-bit parameters that are trained and have no FP32 master."""
        return [p for o in self.optimizers.values() for p in o.trained if p.low and not p.master]

    def low_slots(self) -> list[tuple[int, int, str]]:
        """`(optimizer, parameter, slot)` of the state in fewer than 32 floating bits."""
        return [
            (i, j, slot)
            for i, o in self.optimizers.items()
            for j, p in enumerate(o.parameters)
            for slot, held in p.slots.items()
            if _low(held.dtype)
        ]  # fmt: skip

    def low_extra(self) -> list[str]:
        """State in fewer than 32 floating bits that optimizers keep in their attributes."""
        return [path for o in self.optimizers.values() for path, slot in o.extra.items() if _low(slot.dtype)]


def _low(dtype: str) -> bool:
    from ampcheck.trace.precision import LOW

    return any(part in LOW for part in dtype.split("+"))


class StateProbe(Probe, Stage):
    """Reads the state of every optimizer after its first step and when the run has ended.

    Args:
        sites: where parameters got their dtype.
        masters: whether FP32 masters of 16-bit parameters are looked for.
    """

    def __init__(self, sites: CastSites | None = None, masters: bool = True) -> None:
        self.states = States()
        self.sites = sites or CastSites()
        self.masters = Masters() if masters else None
        self._built: Built | None = None
        self._used: dict[int, torch.Tensor] = {}
        self._low: dict[int, torch.Tensor] = {}
        self._running: dict[str, torch.Tensor] = {}
        self._counts: dict[int, tuple[dict[Any, float], dict[int, int]]] = {}
        self._looked = -2

    # -- moments

    def built(self, built: Built) -> None:
        self._built = built
        self._running = {path: local(b).clone() for path, b in _buffers(built) if is_low(b) and "running_" in path}

    def backward_starts(self, recorder: Recorder) -> None:
        if self.masters is None or self._built is None or self._looked == recorder.call:
            return
        self._looked = recorder.call
        reached = None
        if recorder.call <= 0 or self._low:
            reached = self._built.reach()
            self._low = {id(t): t for m in reached.modules.values() for t in m.parameters() if is_low(t) and t.requires_grad}
            self._low.update((key, p) for key, p in owned(recorder).items() if is_low(p) and p.requires_grad)
        if self._low and reached is not None:
            self.masters.look(self._low, reached, recorder)

    def backward_done(self, recorder: Recorder, event: Event) -> None:
        self._used.update((key, p) for key, p in self._low.items() if p.grad is not None)

    def optimizer_step(self, recorder: Recorder, event: Event, optimizer: Any, entering: bool) -> None:
        index = event.optimizer
        if index is None:
            return
        if self.masters is not None and (entering or event.get("took")):
            self.masters.step(entering)
        if entering:
            used = [p for p in recorder.parameters(index) if p.grad is not None]
            self._used.update((id(p), p) for p in used)
            if known(optimizer) != "LBFGS":
                self._counts.setdefault(index, (_counts(optimizer, used), {id(p): _version(p) for p in used}))
            return
        counted = self._counts.pop(index, None)
        if not event.get("took"):
            return
        first = index not in self.states.optimizers
        state = self.states.optimizers.setdefault(index, OptimizerState(type(optimizer).__name__))
        state.steps += 1
        if first:
            self._read(recorder, index)
        if counted is not None and not state.counters:
            state.counters += _stuck(optimizer, counted, self._used, event)

    def finished(self, built: Built) -> None:
        recorder = built.recorder
        reached = built.reach()
        if self.masters is not None and self._low:
            self.masters.look(self._low, reached, recorder)
        names = reached.names()
        wrappers = {e.optimizer for e in recorder.trace.of("optimizer_wrapper")}
        for index, optimizer in enumerate(recorder.optimizers):
            if index in wrappers:
                self.states.optimizers.pop(index, None)
            elif index in self.states.optimizers or not recorder.trace.steps:
                self.states.optimizers.setdefault(index, OptimizerState(type(optimizer).__name__))
                self._read(recorder, index)
                for held, p in zip(self.states.optimizers[index].parameters, recorder.parameters(index), strict=True):
                    held.name = names.get(id(p), held.name)
        mine = owned(recorder)
        if self.masters is not None:
            for key, p in self._low.items():
                if key not in mine and key in self._used and self.masters.stale(p):
                    self.states.stale.append((names.get(key, "a parameter"), self.masters.stale(p), self.sites.of(p)))
            last = recorder.trace.steps[-1].site if recorder.trace.steps else None
            self.states.remade = [(names.get(key, "a parameter"), path, last) for key, path in self.masters.remade.items()]
        for path, m in ((p, m) for root, outer in reached.modules.items() for p, m in outer.named_modules(prefix=root)):
            inside = list(m.parameters())
            if any(id(p) in mine for p in inside) and not any(is_low(p) for p in inside):
                for name, b in m._buffers.items():
                    if b is not None and is_low(b) and self.sites.was_cast(b):
                        before = self._running.get(f"{path}.{name}")
                        updated = before is not None and not torch.equal(before, local(b))
                        self.states.buffers.append(Buffer(f"{path}.{name}", dtype_name(b.dtype), self.sites.of(b), updated))
        self._built, self._used, self._low, self._running = None, {}, {}, {}

    # -- reading

    def _read(self, recorder: Recorder, index: int) -> None:
        """Read an optimizer now; what an earlier reading saw of state that is gone now is kept."""
        optimizer, state = recorder.optimizers[index], self.states.optimizers[index]
        parameters = recorder.parameters(index)
        used = [p for p in parameters if id(p) in self._used]
        torch_like = isinstance(optimizer, torch.optim.Optimizer)
        expected = expected_slots(optimizer, used) if torch_like and state.steps else None
        held = _by_place(held_slots(optimizer) if isinstance(getattr(optimizer, "state", None), Mapping) else {})
        wanted = None if expected is None else _by_place(expected)
        state.known = known(optimizer) if torch_like else None
        state.site = recorder.trace.optimizers[index].site
        state.eps = tuple(
            sorted({e for options in [*optimizer.param_groups, getattr(optimizer, "__dict__", {})] for e in _epsilons(options)})
        )
        before = {i: p.slots for i, p in enumerate(state.parameters)}
        places = [(g, i, p) for g, group in enumerate(optimizer.param_groups) for i, p in enumerate(group["params"])]
        state.parameters = []
        for number, (group, position, p) in enumerate(e for e in places if isinstance(e[2], torch.Tensor)):
            one = Held(f"parameter {number}", dtype_name(p.dtype), p.numel(), id(p) in self._used)
            one.slots = held.get((group, position)) or before.get(number, {})
            one.expected = None if wanted is None else wanted.get((group, position), {})
            one.low = is_low(p) and p.requires_grad
            one.master = self.masters.of(p) if self.masters is not None and one.low else ""
            one.remainder = _remainder(optimizer, p)
            one.site = self.sites.of(p)
            state.parameters.append(one)
        if torch_like and state.steps and not optimizer.state:
            state.extra = _extra(optimizer, {id(t) for t in _parameters(self._built)}) or state.extra


def _by_place(slots: Mapping[tuple[int, int, str], Slot]) -> dict[tuple[int, int], dict[str, Slot]]:
    found: dict[tuple[int, int], dict[str, Slot]] = {}
    for (group, position, slot), value in slots.items():
        found.setdefault((group, position), {})[slot] = value
    return found


def _buffers(built: Built) -> Iterator[tuple[str, torch.Tensor]]:
    for root, outer in built.reach().modules.items():
        yield from outer.named_buffers(prefix=root)


def _parameters(built: Built | None) -> list[torch.Tensor]:
    modules = [] if built is None else list(built.reach().modules.values())
    return [t for m in modules for t in [*m.parameters(), *m.buffers()]]


def _extra(optimizer: Any, parameters: set[int]) -> dict[str, Slot]:
    """Tensors in the attributes of an optimizer that keeps no `state`: it has its own way."""
    own = {id(p) for group in optimizer.param_groups for p in group["params"]} | parameters
    parts = {k: v for k, v in vars(optimizer).items() if k not in ("param_groups", "defaults", "step") and "hook" not in k}
    return {
        path.removeprefix("optimizer."): Slot(dtype_name(t.dtype), t.numel(), t.numel() * t.element_size(), t.device.type)
        for path, t in reach(("optimizer", parts)).tensors.items()
        if id(t) not in own
    }


def _remainder(optimizer: Any, p: torch.Tensor) -> bool:
    integers = (torch.int16, getattr(torch, "uint16", torch.int16))
    values = kept(optimizer, p).values()
    return any(isinstance(t, torch.Tensor) and t.dtype in integers and t.shape == p.shape for t in values)


def kept(optimizer: Any, p: torch.Tensor) -> Mapping[str, Any]:
    """What the optimizer's `state` holds for a parameter; nothing where it has no such thing."""
    state = getattr(optimizer, "state", None)
    slots = state.get(p, {}) if isinstance(state, Mapping) else {}
    return slots if isinstance(slots, Mapping) else {}


def _epsilons(group: Mapping[str, Any]) -> list[float]:
    found = []
    for key in ("eps", "epsilon"):
        value = group.get(key)
        found += [float(v) for v in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(v, (int, float))]
    return [e for e in found if e > 0]


def _version(p: torch.Tensor) -> int:
    try:
        return p._version
    except RuntimeError:  # an inference tensor
        return -1


def _counts(optimizer: Any, used: list[torch.Tensor]) -> dict[Any, float]:
    """The step counters of these parameters and of the groups, with one transfer a device."""
    found: dict[Any, Any] = {}
    for p in used:
        slots = kept(optimizer, p)
        found.update({(id(p), name): slots[name] for name in COUNTERS if name in slots})
    for number, group in enumerate(optimizer.param_groups):
        if any(p is q for p in group["params"] for q in used):
            found.update({(-1 - number, name): group[name] for name in COUNTERS if name in group})
    numbers = {k: float(v) for k, v in found.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    by_device: dict[torch.device, list[tuple[Any, torch.Tensor]]] = {}
    for key, value in found.items():
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            by_device.setdefault(value.device, []).append((key, value.detach().double().flatten()))
    for entries in by_device.values():
        numbers.update(zip([k for k, _ in entries], torch.cat([v for _, v in entries]).tolist(), strict=True))
    return numbers


def _stuck(
    optimizer: Any, before: tuple[dict[Any, float], dict[int, int]], used: dict[int, torch.Tensor], event: Event
) -> list[Counter]:
    counts, versions = before
    after = _counts(optimizer, [used[key] for key in versions if key in used])
    wrong: dict[tuple[str, float], int] = {}
    for (key, name), value in after.items():
        advanced = value - counts.get((key, name), 0.0)
        # an optimizer may gather gradients over several calls: without a write to the weights no step was made
        moved = any(_version(used[k]) != v for k, v in versions.items()) if key < 0 else _version(used[key]) != versions[key]
        if advanced != 1.0 and (advanced > 1.0 or moved):
            wrong[name, advanced] = wrong.get((name, advanced), 0) + 1
    return [Counter(event.call, event.site, name, advanced, n) for (name, advanced), n in wrong.items()]
