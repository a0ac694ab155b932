"""How far runs deviate from an FP32 reference, as numbers, and whether that is more than rounding explains. No tensors, no
torch.

The constants here are the whole of what parity is judged by; `ci/limits.py` measures the table that they stand on
(`ci/limits.md`: at half of them no correct seed has an excess, at four times as much every clip and every underflow still has).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "BLIND",
    "LIMITS",
    "Deviation",
    "Judgement",
    "Parity",
    "Quantity",
    "Series",
    "Step",
    "headroom",
    "judge",
    "losses",
    "series",
]

#: The run that is judged, among the runs of a step.
JUDGED = "16 bits"
YARDSTICKS = ("every op", "matmul")
Quantity = Literal["gradient", "tensor", "update", "number", "statistics"]

#: How many times the yardstick a deviation may be.
LIMITS: dict[Quantity, dict[str, float]] = {
    "gradient": {"every op": 4.0, "matmul": 12.0},
    "tensor": {"every op": 12.0, "matmul": 36.0},
    "update": {"every op": 20.0},
    "number": {"every op": 8.0, "matmul": 24.0},
    "statistics": {"every op": 8.0, "matmul": 24.0},
}
#: Where rounding alone moves a quantity by more than this part of it, faults drown in it.
BLIND = 0.3
#: A tensor that holds less than this part of the gradient's norm is not judged by itself.
NEGLIGIBLE = 1e-3
#: Where rounding blinds the whole gradient it is judged by the tensors that it does not, if they are this part of all.
CLEAR = 0.25
#: Above this part of a limit a deviation is suspicious: more is drawn before anything is said.
SUSPICIOUS = 0.5
#: Part of the gradient's sum of absolute values that may be lost to zero beyond what rounding loses; and of one tensor's.
LOST, LOST_TENSOR = 0.05, 0.5
#: Judged steps in which an excess must be seen: in one alone, a decision (a ReLU, a maximum, a route) may have flipped.
REPEATS = 2


@dataclass
class Deviation:
    """One run at one optimizer step, against the reference: one number for each parameter, `None` where there is none.

    Args:
        gradient: norm of the difference of the gradients that enter the optimizer.
        lost: sum of the reference's absolute values over the elements that are zero here.
        update: norm of the difference of the updates; `None` for a 16-bit parameter, which cannot hold its update.
    """

    gradient: list[float | None]
    lost: list[float | None]
    update: list[float | None] = field(default_factory=list)


@dataclass
class Step:
    """One optimizer step of the reference and the deviations of other runs.

    Args:
        unit: number of the judged stretch of calls it belongs to; each starts from the reference's state.
        optimizer, ordinal: which optimizer, and which of its steps in the unit.
        sizes, mass, moves: for each parameter the norm of its gradient, its sum of absolute values, and the norm of its update.
        grains: norm of the last place of each FP32 weight: no update is more exact.
        runs: `JUDGED` -> one deviation for each repeat; yardstick -> one for each draw.
    """

    unit: int
    optimizer: int
    ordinal: int
    names: list[str]
    sizes: list[float | None]
    mass: list[float | None]
    moves: list[float | None]
    grains: list[float | None] = field(default_factory=list)
    runs: dict[str, list[Deviation]] = field(default_factory=dict)


@dataclass
class Scalar:
    """A number, or the statistics of a norm: its size in the reference and the differences in other runs."""

    label: str
    unit: int
    size: float
    runs: dict[str, list[float]] = field(default_factory=dict)
    value: float = math.nan
    seen: float = math.nan


@dataclass
class Parity:
    """All that was measured of one contract in one dtype.

    Args:
        policy: "as-written", or the dtype that was forced.
        dtype: the 16-bit dtype whose rounding is the yardstick.
        status: "judged", "not-run", "identical" (to the reference, to the bit) or "nothing" (to compare).
        reason: for the last three.
        units: how many stretches of calls were judged.
        left_out: parameters that are not judged -> why.
        site: the line of the backward; `part` where the runs part, in words, `part_site` the line.
        reordered: whether random numbers are drawn in another order than in FP32, which is looked at where there is an excess.
        not_numbers: labels of returned numbers that are the scale, or come from a gradient.
        costs: calls made for it, by kind of run.
    """

    policy: str
    dtype: str
    status: str = "judged"
    reason: str = ""
    units: int = 0
    steps: list[Step] = field(default_factory=list)
    numbers: list[Scalar] = field(default_factory=list)
    statistics: list[Scalar] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    site: Any = None
    part: str = ""
    part_site: Any = None
    reordered: bool = False
    not_numbers: set[str] = field(default_factory=set)
    scale: float | None = None

    @property
    def unit_roundoff(self) -> float:
        return 2.0**-11 if self.dtype == "float16" else 2.0**-8


@dataclass
class Series:
    """One quantity over the judged units: relative deviations of the run in 16 bits, and of the draws of each yardstick."""

    quantity: Quantity
    label: str
    seen: dict[int, float] = field(default_factory=dict)
    draws: dict[str, list[float]] = field(default_factory=dict)

    def add(self, unit: int, size: float, runs: dict[str, list[float]]) -> None:
        for run, errors in runs.items():
            relative = [_relative(e, size) for e in errors]
            if run == JUDGED:
                self.seen[unit] = min(relative, default=0.0)  # a fault is there in every repeat, a flipped decision is not
            else:
                self.draws.setdefault(run, []).extend(relative)


@dataclass
class Judgement:
    """What a series says.

    Args:
        state: "within", "excess" (in enough units), "once" (in a single one), or "blind" (rounding alone moves it too much).
        unit, yardstick, deviation, allowed: of the largest excess, or of the place with the least headroom.
    """

    series: Series
    state: str
    unit: int = 0
    yardstick: str = ""
    deviation: float = 0.0
    rounding: float = 0.0
    allowed: float = math.inf

    @property
    def headroom(self) -> float:
        """Measured over allowed: 1 is the limit."""
        return self.deviation / self.allowed if self.allowed > 0 else 0.0


def _relative(error: float, size: float) -> float:
    if not math.isfinite(error):
        return math.inf
    return error / size if size > 0.0 else (0.0 if error == 0.0 else math.inf)


def judge(one: Series, unit_roundoff: float) -> Judgement:
    """Compare the deviation in 16 bits with the yardsticks.

    Args:
        one: the quantity.
        unit_roundoff: of the 16-bit dtype: no yardstick is smaller.
    """
    found: list[Judgement] = []
    for yardstick, limit in LIMITS[one.quantity].items():
        draws = one.draws.get(yardstick)
        rounding = max(draws, default=math.inf) if draws else math.inf
        if rounding > BLIND:
            continue
        allowed = limit * max(rounding, unit_roundoff)
        over = {unit: d for unit, d in one.seen.items() if d > allowed}
        unit = max(one.seen, key=lambda u: one.seen[u], default=0)
        state = "excess" if len(over) >= REPEATS else "once" if over else "within"
        found.append(Judgement(one, state, unit, yardstick, one.seen.get(unit, 0.0), rounding, allowed))
    if not found:
        return Judgement(one, "blind", rounding=min((max(d) for d in one.draws.values() if d), default=math.inf))
    order = ("excess", "once", "within")
    return min(found, key=lambda j: (order.index(j.state), -j.headroom))


# -- series from what was measured ----------------------------------------------------------------------------------


def series(parity: Parity, quantity: Quantity) -> list[Series]:
    """Every series of one quantity."""
    if quantity == "number":
        numbers = [n for n in parity.numbers if n.label not in parity.not_numbers]
        # a number that no rounding moves is a count, or the outcome of a decision
        return [s for s in _scalars(quantity, numbers) if any(d > 0.0 for ds in s.draws.values() for d in ds)]
    if quantity == "statistics":
        return _scalars(quantity, parity.statistics)
    if quantity == "tensor":
        return list(_tensors(parity))
    return list(_whole(parity, quantity))


def _scalars(quantity: Quantity, scalars: Iterable[Scalar]) -> list[Series]:
    found: dict[str, Series] = {}
    for one in scalars:
        if JUDGED in one.runs:
            found.setdefault(one.label, Series(quantity, one.label)).add(one.unit, one.size, one.runs)
    return list(found.values())


def _norm(values: Iterable[float | None]) -> float:
    return math.sqrt(sum(v * v for v in values if v is not None))


def judged_parameters(parity: Parity, step: Step) -> list[int]:
    return [i for i, name in enumerate(step.names) if name not in parity.left_out]


def _whole(parity: Parity, quantity: Quantity) -> Iterator[Series]:
    """The gradient, or the update, of all optimizers together: the first steps of a unit, the second, ..."""
    groups: dict[int, dict[int, list[Step]]] = {}
    for step in parity.steps:
        if JUDGED in step.runs:
            groups.setdefault(step.ordinal, {}).setdefault(step.unit, []).append(step)
    for ordinal, units in sorted(groups.items()):
        label = f"step {ordinal + 1} of the call" if len(groups) > 1 else ""
        one = _together(parity, quantity, label, units)
        if quantity == "gradient" and _blind(one):
            clear, among = _clear(parity, units)
            if clear and len(clear) >= CLEAR * among:
                part = f"of the {len(clear)} of {among} parameters that rounding leaves clear"
                one = _together(parity, quantity, f"{label} {part}".strip(), units, clear)
        if one.seen:
            yield one


def _together(
    parity: Parity, quantity: Quantity, label: str, units: dict[int, list[Step]], only: set[tuple[int, int]] | None = None
) -> Series:
    """The norm over all parameters, or over those of `only`: pairs of optimizer and position."""
    one = Series(quantity, label)
    for unit, steps in units.items():
        chosen = {id(s): [i for i in _present(parity, s, quantity) if only is None or (s.optimizer, i) in only] for s in steps}
        sizes = [(s.sizes if quantity == "gradient" else s.moves)[i] for s in steps for i in chosen[id(s)]]
        runs: dict[str, list[float]] = {}
        for run in steps[0].runs:
            draws = min(len(s.runs.get(run, ())) for s in steps)
            runs[run] = [_norm(_of(s.runs[run][k], quantity)[i] for s in steps for i in chosen[id(s)]) for k in range(draws)]
        if sizes and quantity == "update":
            grain = _norm(s.grains[i] for s in steps for i in chosen[id(s)])
            runs[JUDGED] = [max(0.0, error - grain) for error in runs[JUDGED]]
        if sizes:
            one.add(unit, _norm(sizes), runs)
    return one


def _blind(one: Series) -> bool:
    return bool(one.draws) and all(max(draws, default=math.inf) > BLIND for draws in one.draws.values())


def _clear(parity: Parity, units: dict[int, list[Step]]) -> tuple[set[tuple[int, int]], int]:
    """The parameters whose gradient no draw moves by more than `BLIND`, and how many there are that hold anything."""
    found: dict[tuple[int, int], bool] = {}
    for steps in units.values():
        whole = _norm(size for s in steps for size in s.sizes)
        for s in steps:
            for i in _present(parity, s, "gradient"):
                size = s.sizes[i] or 0.0
                if size < NEGLIGIBLE * whole or size == 0.0:
                    continue
                moved = [d.gradient[i] for run in YARDSTICKS for d in s.runs.get(run, ())]
                clear = all(error is not None and error <= BLIND * size for error in moved)
                found[s.optimizer, i] = found.get((s.optimizer, i), True) and clear
    return {key for key, clear in found.items() if clear}, len(found)


def _present(parity: Parity, step: Step, quantity: Quantity) -> list[int]:
    judged = step.runs[JUDGED][0]
    return [
        i for i in judged_parameters(parity, step) if i < len(_of(judged, quantity)) and _of(judged, quantity)[i] is not None
    ]


def _of(deviation: Deviation, quantity: Quantity) -> list[float | None]:
    return deviation.update if quantity == "update" else deviation.gradient


def _tensors(parity: Parity) -> Iterator[Series]:
    whole = {(s.unit, s.ordinal): 0.0 for s in parity.steps}
    for step in parity.steps:
        key = (step.unit, step.ordinal)
        whole[key] = math.hypot(whole[key], _norm(step.sizes))
    found: dict[tuple[int, int, int], Series] = {}
    for step in parity.steps:
        if JUDGED not in step.runs:
            continue
        for i in judged_parameters(parity, step):
            size = step.sizes[i]
            if size is None or size < NEGLIGIBLE * whole[step.unit, step.ordinal] or step.runs[JUDGED][0].gradient[i] is None:
                continue
            one = found.setdefault((step.optimizer, step.ordinal, i), Series("tensor", step.names[i]))
            one.add(step.unit, size, {run: [d.gradient[i] or 0.0 for d in ds] for run, ds in step.runs.items()})
    yield from found.values()


# -- underflow ------------------------------------------------------------------------------------------------------


def _in_part(step: Step) -> bool:
    """Whether part of some tensor is lost: what is zero as a whole has no path in 16 bits, and did not underflow."""
    judged = step.runs.get(JUDGED, ())
    return any(lost and mass and lost < 0.999 * mass for d in judged for lost, mass in zip(d.lost, step.mass, strict=True))


@dataclass
class Loss:
    """Share of the gradient (or of one tensor's) that is zero in 16 bits and not in FP32, in the units where it is too much."""

    label: str
    units: dict[int, float]
    rounding: float
    limit: float


def losses(parity: Parity) -> list[Loss]:
    """Where too much of the gradient is lost to zero: all of it first, then tensor by tensor."""
    found: list[Loss] = []
    if not any(_in_part(s) for s in parity.steps):
        return found
    names = sorted({(s.optimizer, i) for s in parity.steps for i in judged_parameters(parity, s)})
    first = [s for s in parity.steps if s.ordinal == 0 and JUDGED in s.runs]

    def share(steps: list[Step], pick: Callable[[Step], list[int]], run: str, k: int) -> float:
        mass = sum(s.mass[i] or 0.0 for s in steps for i in pick(s))
        lost = sum(s.runs[run][k].lost[i] or 0.0 for s in steps if k < len(s.runs.get(run, ())) for i in pick(s))
        return lost / mass if mass > 0.0 else 0.0

    def look(label: str, pick: Callable[[Step], list[int]], limit: float) -> None:
        units: dict[int, float] = {}
        rounding = 0.0
        for unit in sorted({s.unit for s in first}):
            steps = [s for s in first if s.unit == unit]
            repeats = min(len(s.runs[JUDGED]) for s in steps)
            units[unit] = min(share(steps, pick, JUDGED, k) for k in range(repeats))
            for run in YARDSTICKS:
                draws = min((len(s.runs.get(run, ())) for s in steps), default=0)
                rounding = max([rounding, *(share(steps, pick, run, k) for k in range(draws))])
        over = {u: x for u, x in units.items() if x > limit + 2.0 * rounding}
        if over:
            found.append(Loss(label, over, rounding, limit))

    look("", lambda s: judged_parameters(parity, s), LOST)
    for optimizer, i in names:
        if any(s.optimizer == optimizer and (s.sizes[i] or 0.0) >= NEGLIGIBLE * _norm(s.sizes) for s in first):
            label = next(s.names[i] for s in parity.steps if s.optimizer == optimizer)
            look(label, lambda s, o=optimizer, j=i: [j] if s.optimizer == o else [], LOST_TENSOR)  # type: ignore[misc]
    return found


def headroom(parity: Parity) -> dict[str, float]:
    """For each quantity the largest deviation over what is allowed (1 is the limit), where it could be judged."""
    found: dict[str, float] = {}
    for quantity in LIMITS:
        judged = [judge(one, parity.unit_roundoff) for one in series(parity, quantity)]
        ratios = [j.headroom for j in judged if j.state != "blind"]
        if ratios:
            found[quantity] = max(ratios)
    return found
