"""What a trace is made of: plain data about one run, without tensors and without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ampcheck.findings import Location

__all__ = ["Event", "OptimizerInfo", "Raised", "ScalerInfo", "Trace"]


@dataclass
class Event:
    """One thing that happened.

    Kinds: `autocast` (a region was entered), `scale`, `get_scale`, `backward` (autograd ran), `unscale`, `scaler_step`,
    `optimizer_step`, `update`, `load_state`, `zero_grad`, `scaler_made`.

    Args:
        kind: see above.
        call: index of the call of `step` it happened in; -1 while building.
        site: the user's line.
        scaler: index into `Trace.scalers`, or `None`.
        optimizer: index into `Trace.optimizers`, or `None`.
        data: what was seen; see the recorder's method for each kind.
        parent: index of the event that was running at the time, as `scaler_step` around `optimizer_step`.
    """

    kind: str
    call: int
    site: Location | None = None
    scaler: int | None = None
    optimizer: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    parent: int | None = None
    index: int = -1

    def get(self, key: str, default: Any = None) -> Any:
        return self.data.get(key, default)


@dataclass
class ScalerInfo:
    """A loss scaler that was seen: class name, whether it is enabled, its arguments, where it was made."""

    kind: str
    enabled: bool
    custom: bool = False
    asked_enabled: bool = True
    device: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    site: Location | None = None


@dataclass
class OptimizerInfo:
    """An optimizer that was seen: class name, its parameters' names, where it was made."""

    kind: str
    parameters: list[str] = field(default_factory=list)
    site: Location | None = None
    sparse: bool = False


@dataclass
class Raised:
    """An exception that came out of the contract.

    Args:
        call: index of the call of `step`; -1 while building.
        type: class name of the exception.
        message: its text.
        site: deepest line of user code.
        during: kind of the event it came out of, such as `unscale`, with its `scaler` and `optimizer`.
        function: the custom autograd Function it came out of, and "forward" or "backward"; or "" and "recompute".
    """

    call: int
    type: str
    message: str
    site: Location | None = None
    during: str | None = None
    scaler: int | None = None
    optimizer: int | None = None
    function: tuple[str, str] | None = None

    def __str__(self) -> str:
        first = self.message.strip().split("\n")[0]
        return f"{self.type}: {first}" if first else self.type


@dataclass
class Trace:
    """The record of one run.

    Args:
        events: in the order in which they began.
        calls: calls of `step` that were started.
        raised: the exception that ended the run, if one did.
        stopped: whether StopIteration ended it (quietly).
        scalers, optimizers: what was seen, by index.
        returned: for each finished call, the numbers it returned: path -> value.
        leaks: for each call, what of autocast's state was different after it.
        autocast: device type -> 16-bit dtypes of the enabled regions that were entered.
        warnings: first lines of the Python warnings that the run provoked.
    """

    events: list[Event] = field(default_factory=list)
    calls: int = 0
    raised: Raised | None = None
    stopped: bool = False
    scalers: list[ScalerInfo] = field(default_factory=list)
    optimizers: list[OptimizerInfo] = field(default_factory=list)
    returned: list[dict[str, float]] = field(default_factory=list)
    leaks: list[tuple[int, str, Location | None]] = field(default_factory=list)
    autocast: dict[str, set[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def of(
        self, *kinds: str, call: int | None = None, scaler: int | None = None, optimizer: int | None = None
    ) -> Iterator[Event]:
        """Events of these kinds, of one call, scaler or optimizer where asked."""
        for event in self.events:
            if kinds and event.kind not in kinds:
                continue
            if call is not None and event.call != call:
                continue
            if scaler is not None and event.scaler != scaler:
                continue
            if optimizer is not None and event.optimizer != optimizer:
                continue
            yield event

    def inside(self, event: Event, kind: str) -> Event | None:
        """The event of that kind around `event`, if there is one."""
        parent = event.parent
        while parent is not None:
            outer = self.events[parent]
            if outer.kind == kind:
                return outer
            parent = outer.parent
        return None

    @property
    def steps(self) -> list[Event]:
        """Optimizer steps that were taken (a fused optimizer that was called and skipped is not one)."""
        return [e for e in self.events if e.kind == "optimizer_step" and e.get("took")]

    def signature(self, call: int) -> tuple[Any, ...]:
        """What happened in one call, without numbers: two calls that did the same have the same signature."""
        return tuple((e.kind, e.scaler, e.optimizer) for e in self.of(call=call) if e.kind not in ("get_scale", "scaler_made"))

    def assert_order(self, *kinds: str, call: int | None = None) -> None:
        """Assert that events of these kinds happened in this order (others may lie between).

        Args:
            kinds: such as `"scale", "backward", "unscale", "scaler_step", "update"`.
            call: look at one call of `step` only.

        Raises:
            AssertionError: with the kind that was missing and what was seen instead.
        """
        seen = [e.kind for e in self.of(call=call)]
        at = 0
        for position, kind in enumerate(kinds):
            while at < len(seen) and seen[at] != kind:
                at += 1
            if at == len(seen):
                done = ", ".join(kinds[:position]) or "the beginning"
                raise AssertionError(f"no {kind!r} after {done}; the run did: {', '.join(seen) or 'nothing'}")
            at += 1
