"""The rule of parity on numbers alone: what is an excess, a flip, blind, or lost."""

from __future__ import annotations

import math

import pytest

from ampcheck.trace.deviations import (
    JUDGED,
    LIMITS,
    Deviation,
    Parity,
    Scalar,
    Series,
    Step,
    headroom,
    judge,
    losses,
    series,
)

UNIT = 2.0**-11


def one(seen: list[float], every: list[float], matmul: list[float] | None = None) -> Series:
    draws = {"every op": every} | ({} if matmul is None else {"matmul": matmul})
    return Series("gradient", "", dict(enumerate(seen)), draws)


@pytest.mark.parametrize(
    ("seen", "every", "matmul", "state"),
    [
        ([0.001, 0.001], [0.001, 0.002], [0.001], "within"),
        ([0.009, 0.009], [0.001, 0.002], [0.001], "excess"),
        ([0.009, 0.001], [0.001, 0.002], [0.001], "once"),
        ([0.009, 0.009], [0.001, 0.003], None, "within"),
        ([0.02, 0.02], [0.01], [0.001], "excess"),
        ([9.0, 9.0], [0.4], [0.5], "blind"),
        ([9.0, 9.0], [0.4], [0.1], "excess"),
        ([9.0, 9.0], [], [], "blind"),
        ([math.inf, math.inf], [0.01], [0.01], "excess"),
        ([3 * UNIT, 3 * UNIT], [1e-9], [1e-9], "within"),
    ],
)
def test_an_excess_is_seen_twice_and_beyond_what_rounding_explains(
    seen: list[float], every: list[float], matmul: list[float] | None, state: str
) -> None:
    assert judge(one(seen, every, matmul), UNIT).state == state


def test_headroom_is_measured_over_allowed() -> None:
    found = judge(one([0.006, 0.002], [0.002], [0.002]), UNIT)
    assert found.headroom == pytest.approx(0.006 / (LIMITS["gradient"]["every op"] * 0.002))
    assert found.yardstick == "every op"


def step(unit: int, errors: list[float | None], draws: list[float | None], **more: object) -> Step:
    sizes: list[float | None] = [1.0, 0.5, 1e-6]
    lost: list[float | None] = [0.0] * 3
    deviation = Deviation(errors, more.pop("lost", lost), more.pop("update", [0.0] * 3))  # type: ignore[arg-type]
    runs = {
        JUDGED: [deviation],
        "every op": [Deviation(draws, lost, [1e-3] * 3)],
        "matmul": [Deviation(draws, lost, [1e-3] * 3)],
    }
    return Step(unit, 0, 0, ["a", "b", "c"], sizes, [10.0, 5.0, 1.0], [1.0, 1.0, 1.0], [0.0] * 3, runs)


def parity(*steps: Step, **more: object) -> Parity:
    return Parity("as-written", "float16", units=len(steps), steps=list(steps), **more)  # type: ignore[arg-type]


def states(found: Parity, quantity: str) -> dict[str, str]:
    return {s.label: judge(s, UNIT).state for s in series(found, quantity)}  # type: ignore[arg-type]


def test_a_tensor_is_judged_by_itself_unless_it_holds_next_to_nothing() -> None:
    errors: list[float | None] = [1e-3, 0.3, 1e-6]
    found = parity(step(0, errors, [1e-3, 1e-3, 1e-6]), step(1, errors, [1e-3, 1e-3, 1e-6]))
    assert states(found, "tensor") == {"a": "within", "b": "excess"}
    found.left_out["b"] = "its kernel"
    assert states(found, "tensor") == {"a": "within"}
    assert states(found, "gradient") == {"": "within"}


def test_a_tensor_whose_gradient_is_noise_is_blind() -> None:
    errors: list[float | None] = [1e-3, 0.4, 0.0]
    assert states(parity(step(0, errors, [1e-3, 0.4, 0.0]), step(1, errors, [1e-3, 0.4, 0.0])), "tensor")["b"] == "blind"


def test_a_gradient_that_is_noise_as_a_whole_is_judged_by_what_rounding_leaves_clear() -> None:
    draws: list[float | None] = [0.9, 1e-3, 0.0]
    part = "of the 1 of 2 parameters that rounding leaves clear"
    right, wrong = ([0.9, 1e-3, 0.0], [0.9, 0.3, 0.0])
    assert states(parity(step(0, right, draws), step(1, right, draws)), "gradient") == {part: "within"}
    assert states(parity(step(0, wrong, draws), step(1, wrong, draws)), "gradient") == {part: "excess"}
    # it must be clear in every step
    assert states(parity(step(0, wrong, draws), step(1, wrong, [0.9, 0.2, 0.0])), "gradient") == {"": "blind"}


def test_a_few_clear_parameters_among_many_do_not_judge_the_gradient() -> None:
    steps = [step(u, [0.9, 1e-3, 0.0], [0.9, 1e-3, 0.0]) for u in (0, 1)]
    for s in steps:
        s.names += [f"d{i}" for i in range(5)]
        for values in (s.sizes, s.mass, s.moves, s.grains):
            values += [1.0] * 5
        for deviation in (d for ds in s.runs.values() for d in ds):
            deviation.gradient, deviation.lost, deviation.update = (
                [*deviation.gradient, *[0.9] * 5], [*deviation.lost[:3], *[0.0] * 5], [*deviation.update[:3], *[0.0] * 5],
            )  # fmt: skip
    assert states(parity(*steps), "gradient") == {"": "blind"}


def test_no_update_is_more_exact_than_the_last_place_of_its_weight() -> None:
    both = [step(u, [0.0] * 3, [0.0] * 3, update=[0.1, 0.1, 0.1]) for u in (0, 1)]
    assert states(parity(*both), "update") == {"": "excess"}
    for s in both:
        s.grains = [0.1, 0.1, 0.1]
    assert states(parity(*both), "update") == {"": "within"}


def test_a_16_bit_parameter_has_no_update_to_judge() -> None:
    both = [step(u, [0.0] * 3, [0.0] * 3, update=[None, None, None]) for u in (0, 1)]
    assert states(parity(*both), "update") == {}


def test_what_is_lost_is_counted_by_mass_and_not_where_a_path_is_missing() -> None:
    lost: list[float | None] = [4.0, 0.0, 0.0]
    found = losses(parity(*(step(u, [0.1] * 3, [0.1] * 3, lost=lost) for u in (0, 1))))
    assert [loss.label for loss in found] == [""]
    assert found[0].units == pytest.approx({0: 0.25, 1: 0.25})
    whole: list[float | None] = [10.0, 0.0, 0.0]
    assert losses(parity(*(step(u, [0.1] * 3, [0.1] * 3, lost=whole) for u in (0, 1)))) == []
    few: list[float | None] = [0.2, 0.0, 0.0]
    assert losses(parity(*(step(u, [0.1] * 3, [0.1] * 3, lost=few) for u in (0, 1)))) == []


def test_numbers_that_rounding_does_not_move_or_that_come_from_gradients_are_left_out() -> None:
    def number(label: str, unit: int, error: float, rounding: float) -> Scalar:
        return Scalar(label, unit, 1.0, {JUDGED: [error], "every op": [rounding], "matmul": [rounding]})

    numbers = [
        number(n, u, e, r) for u in (0, 1) for n, e, r in (("loss", 0.5, 1e-3), ("count", 3.0, 0.0), ("norm", 9.0, 1e-3))
    ]
    found = parity(numbers=numbers, not_numbers={"norm"})
    assert states(found, "number") == {"loss": "excess"}
    assert set(headroom(found)) == {"number"}


def test_a_flip_is_not_in_every_repeat_and_a_fault_is() -> None:
    def repeated(*errors: float) -> Parity:
        steps = [step(unit, [0.0] * 3, [1e-3, 1e-3, 1e-6]) for unit in (0, 1)]
        for s in steps:
            s.runs[JUDGED] = [Deviation([error, 0.0, 0.0], [0.0] * 3, [0.0] * 3) for error in errors]
        return parity(*steps)

    assert states(repeated(0.5, 0.5, 0.5), "gradient") == {"": "excess"}
    assert states(repeated(0.5, 1e-3, 0.5), "gradient") == {"": "within"}
