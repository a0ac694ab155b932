"""Sequences that every loss scaler must get right, played by a `Referee` before random search begins.

They come first because they are fast and small by themselves, and because some need a whole growth interval, or so many
iterations that random search would reach them too rarely.
"""

from __future__ import annotations

from collections.abc import Callable

from ampcheck.scaler.referee import Referee

__all__ = ["SEQUENCES"]

Sequence = Callable[[Referee], None]
#: Sequences with more iterations are left out, growth over torch's default interval of 2000 aside.
LONGEST = 1000
#: Doublings from 1 to the end of float32, and a few.
DOUBLINGS = 130
#: Below this scale no further overflow is planted: float32 gradients would underflow by themselves.
LOWEST = 2.0**-20
OVERFLOW = (0, 0, float("inf"))


def _clean(referee: Referee, count: int, *, slope: float = 0.5, longest: int = LONGEST) -> None:
    for _ in range(count if count <= longest else 0):
        referee.iteration("a", slope)


def _interval(referee: Referee) -> int:
    return referee.can.growth_interval or 4


def one_overflow(referee: Referee) -> None:
    """An overflow skips the step and backs off; the next step is taken with the new scale."""
    referee.iteration("a", 0.5, OVERFLOW)
    referee.iteration("a", 0.5)


def growth(referee: Referee) -> None:
    """The scale grows after the growth interval, not before."""
    _clean(referee, _interval(referee) + 1, longest=2 * LONGEST + 1)


def tracker_after_overflow(referee: Referee) -> None:
    """An overflow starts the growth interval again."""
    _clean(referee, _interval(referee) - 1)
    referee.iteration("a", 0.5, OVERFLOW)
    _clean(referee, _interval(referee))


def resumed_tracker(referee: Referee) -> None:
    """The growth tracker survives save and load."""
    if referee.can.saves and _interval(referee) > 1:
        _clean(referee, _interval(referee) - 1)
        referee.save_and_load()
        _clean(referee, 1)


def overflow_at(value: float, parameter: int, element: int) -> Sequence:
    """Any non-finite value, anywhere, is an overflow."""
    return lambda referee: referee.iteration("a", 0.5, (parameter, element, value))


def overflow_after_clean(referee: Referee) -> None:
    """Overflows with a clean step between them: what hysteresis forgives, and when it does again."""
    for _ in range(referee.can.hysteresis + 1):
        if referee.model.scale > LOWEST:
            referee.iteration("a", 0.5, OVERFLOW)
            referee.iteration("a", 0.5)


def unscaled_by_hand(referee: Referee) -> None:
    """An explicit `unscale_` divides, and `step` does not divide again."""
    if referee.can.unscale:
        referee.backward("a", 0.5)
        referee.unscale("a")
        referee.step("a")


def large_gradients(referee: Referee) -> None:
    """Finite gradients whose norm and sum of squares would not be finite in float16 are no overflow."""
    referee.backward("a", 0.5)
    referee.fill("a", 32768.0)
    referee.step("a")
    if referee.can.update:
        referee.update()


def two_optimizers(overflowing: str) -> Sequence:
    """An overflow skips the optimizers that have it, and backs off once, whichever has it and if both have."""

    def sequence(referee: Referee) -> None:
        if referee.can.optimizers < 2:
            return
        for optimizer in "ab":
            referee.backward(optimizer, 0.5)
            if optimizer in overflowing:
                referee.plant(optimizer, *OVERFLOW)
        for optimizer in "ab":
            referee.step(optimizer)
        referee.update()

    return sequence


def sparse_gradients(referee: Referee) -> None:
    """Sparse gradients are unscaled and looked at as dense ones are."""
    if referee.can.sparse:
        referee.iteration("table", 0.5)
        referee.iteration("table", 0.5, OVERFLOW)


def repeated_overflow(referee: Referee) -> None:
    """Overflow after overflow lowers the scale each time, or not below the floor."""
    for _ in range(20):
        if referee.model.scale > LOWEST:
            referee.iteration("a", 0.5, OVERFLOW)


def endless_growth(referee: Referee) -> None:
    """Gradients of zero never overflow, so that growth has to stop by itself before the scale is inf."""
    _clean(referee, (referee.can.growth_interval or 1) * DOUBLINGS, slope=0.0)


_VALUES = (float("inf"), float("-inf"), float("nan"))
SEQUENCES: tuple[Sequence, ...] = (
    one_overflow,
    overflow_after_clean,
    unscaled_by_hand,
    growth,
    tracker_after_overflow,
    resumed_tracker,
    *(overflow_at(value, parameter, element) for value in _VALUES for parameter in (0, 1) for element in (0, -1)),
    large_gradients,
    *map(two_optimizers, ("a", "b", "ab")),
    sparse_gradients,
    repeated_overflow,
    endless_growth,
)
