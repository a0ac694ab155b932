"""How a contract uses its scaler, and one trial of a copy of it that is driven the same way on toy parameters."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ampcheck.scaler.session import Session, plain

__all__ = ["WIDTH", "Discrepancy", "Iteration", "Trial", "Usage"]

#: Elements of the first vector; see `ampcheck.scaler.probe.HALF_LIMITS`.
WIDTH = 256
#: Scaled gradients above this might be an overflow for a scaler that copies them to float16.
LARGEST = 2.0**13


@dataclass(frozen=True)
class Usage:
    """How the natural run uses the scaler.

    Args:
        optimizers: how many optimizers are stepped between two updates.
        unscale_calls: explicit calls of `unscale_` for each optimizer and iteration.
        step_args, step_kwargs: what `step` is given beyond the optimizer.
        updates: `update()` is called; otherwise the end of `step` is the update.
        sparse: some gradients are sparse.
        unknown: why the usage cannot be repeated on toy parameters, or empty.
    """

    optimizers: int = 1
    unscale_calls: int = 0
    step_args: tuple[Any, ...] = ()
    step_kwargs: Mapping[str, Any] = field(default_factory=dict)
    updates: bool = True
    sparse: bool = False
    unknown: str = ""

    @classmethod
    def of_trace(cls, trace: Any, scaler: int | None = None) -> Usage:
        """Read it from the trace of a natural run, for one scaler or for all of them alike.

        `scaler_step` events may carry `args` and `kwargs` (what came after the optimizer); where they do not, but `extra`
        says that there were some, the usage is unknown.
        """
        steps = list(trace.of("scaler_step", scaler=scaler))
        updates = list(trace.of("update", scaler=scaler))
        by_hand = [e for e in trace.of("unscale", scaler=scaler) if not e.get("implicit")]
        together: set[Any] = set()
        most = 0
        for event in trace.of("scaler_step", "update", scaler=scaler):
            if event.kind == "update" or not updates:
                together = set()
            if event.kind == "scaler_step":
                together.add((event.scaler, event.optimizer))
                most = max(most, len(together))
        args, kwargs = (tuple(steps[0].get("args") or ()), dict(steps[0].get("kwargs") or {})) if steps else ((), {})
        unknown = ""
        if not steps:
            unknown = "the run made no step through the scaler"
        elif len(args) + len(kwargs) != (steps[0].get("extra") or 0) or not plain([*args, *kwargs.values()]):
            unknown = "step() is given something else than an optimizer and plain data"
        elif any(e.get("new_scale") is not None for e in updates):
            unknown = "the loop sets the scale itself, with update(new_scale)"
        return cls(
            optimizers=max(most, 1),
            unscale_calls=round(len(by_hand) / len(steps)) if steps else 0,
            step_args=args,
            step_kwargs=kwargs,
            updates=bool(updates),
            sparse=any(o.sparse for o in trace.optimizers),
            unknown=unknown,
        )


@dataclass(frozen=True)
class Discrepancy:
    """One contradiction: `check` is the id it belongs to, `script` the lines that show it."""

    kind: str
    check: str
    expected: str
    seen: str
    script: tuple[str, ...]


@dataclass(frozen=True)
class Iteration:
    """One iteration that ran: the scale in it and after it, and what happened to the planted parameter."""

    before: float
    after: float
    moves: list[float]

    @property
    def skipped(self) -> bool:
        return not any(self.moves)

    @property
    def corrupted(self) -> bool:
        return not all(map(math.isfinite, self.moves))


class Trial:
    """A fresh copy of the scaler in a session, driven as `usage` says."""

    def __init__(self, scaler: Any, usage: Usage, device: str, *, first: str = "a") -> None:
        build = ["scaler = build_scaler()  # the scaler of your contract"]
        arguments: dict[str, Any] = {"step_args": usage.step_args, "step_kwargs": usage.step_kwargs}
        self.session = Session(copy.deepcopy(scaler), build, device=device, width=WIDTH, **arguments)
        self.usage = usage
        self.optimizers = [first, "b"][: usage.optimizers]
        for optimizer in self.optimizers:
            self.session.prepare(optimizer)
        self.scale = self.session.effective_scale()
        # Scaled gradients of about 1, and small unscaled ones: nothing of theirs overflows in float16, no usual clip acts.
        self.slope = 2.0 ** min(-6, -math.ceil(math.log2(self.scale))) if 0.0 < self.scale <= 2.0**127 else 1.0

    def iterate(
        self, *, plant: tuple[str, int, float] | None = None, fill: float | None = None, slope: float | None = None
    ) -> Iteration:
        """One iteration; `plant` is (parameter, element, value), `fill` what every element of `a0` is, up to its sign.

        Whatever the scaler raises comes out.
        """
        session, slope = self.session, self.slope if slope is None else slope
        watched = session.parameters(self.optimizers[0])[0] if plant is None else plant[0]
        before, value = self.scale, session.parameter(watched)
        with session.block():
            for optimizer in self.optimizers:
                session.run(*session.backward_lines(optimizer, slope))
            if plant is not None:
                session.run(session.plant_line(*plant))
            if fill is not None:
                session.run(f"a0.grad.fill_({fill!r})", "a0.grad[::2] *= -1")
            for optimizer in self.optimizers:
                session.run(*[f"scaler.unscale_(optimizer_{optimizer})"] * self.usage.unscale_calls)
            for optimizer in self.optimizers:
                session.run(session.step_line(optimizer))
            if self.usage.updates:
                session.run("scaler.update()")
        self.scale = session.effective_scale()
        moves = [new - old for new, old in zip(session.parameter(watched), value, strict=True)]
        return Iteration(before, self.scale, moves)

    def clean(self, count: int) -> Iterator[Iteration]:
        """Clean iterations, while scaled gradients stay small; an exception ends them."""
        for _ in range(count):
            if not self.scale * self.slope <= LARGEST:
                return
            # What the user's scaler raises is not judged here.
            try:
                yield self.iterate()
            except Exception:
                return

    def overflows(self, count: int, plant: tuple[str, int, float] = ("a0", 0, math.inf)) -> Iterator[Iteration]:
        """Iterations with a planted overflow; an exception, such as a raise at the lowest scale, ends them."""
        for _ in range(count):
            try:
                yield self.iterate(plant=plant)
            except Exception:  # noqa: PERF203
                return

    def differs(self, kind: str, check: str, expected: str, seen: str) -> Discrepancy:
        ending = ("", f"print({self.session.effective_scale_source})", f"# expected: {expected}", f"# seen:     {seen}")
        return Discrepancy(kind, check, expected, seen, tuple(self.session.script(*ending)))
