"""What the pictures of a contract show, as data with a table beside it: nothing is drawn here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ampcheck.report.text import one_line
from ampcheck.report.view import Contract

__all__ = ["Bars", "Chart", "Lines", "Points", "Stack", "charts", "number", "size"]

LOW = ("float16", "bfloat16")
#: Rows that a bar chart shows; its table has as many, and says how many there are.
MOST = 15
Entry = Mapping[str, Any]
Rows = list[list[str]]


@dataclass
class Chart:
    """A picture: what it is, the sentence that it shows, and its numbers as a table."""

    title: str
    caption: str
    head: list[str]
    rows: Rows
    axis: str


@dataclass
class Points:
    """A line: its name, its points (`None` is not finite), and whether it is drawn as steps or dashed."""

    label: str
    points: list[tuple[int, float | None]]
    colour: str
    dashed: bool = False
    marked: list[tuple[int, float | None]] = field(default_factory=list)


@dataclass
class Lines(Chart):
    """Numbers over the calls of the step, on a logarithmic axis of base `base`; `marks` names what is marked."""

    lines: list[Points]
    base: int = 10
    steps: bool = False
    marks: str = ""


@dataclass
class Stack:
    """One part of each bar: its name, colour and lengths."""

    label: str
    colour: str
    values: list[float]


@dataclass
class Bars(Chart):
    """Horizontal bars; `ends` is what stands at their ends, `limit` a line that none should cross."""

    labels: list[str]
    stacks: list[Stack]
    ends: list[str]
    limit: float | None = None


def charts(contract: Contract) -> Iterator[Chart]:
    """The charts of one contract, as far as there are numbers for them."""
    profile = contract.profile
    yield from _scale(profile.get("scale") or [])
    yield from _gradients(profile.get("gradients") or [])
    yield from _ops(profile.get("ops") or [])
    for policy, layers in (profile.get("layers") or {}).items():
        yield from _headroom(policy, layers)
    yield from _state(contract.state)


def number(value: object) -> float | None:
    """A finite number of the document, where JSON may have text for one that is not finite."""
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None  # type: ignore[arg-type]


def size(count: float) -> str:
    """Bytes as people read them: `38.9 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"


def _figure(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def _power(value: float | None) -> str:
    exact = value is not None and value > 0 and math.frexp(value)[0] == 0.5
    return f"2^{math.frexp(value)[1] - 1}" if exact else _figure(value)  # type: ignore[arg-type]


def _of(entries: Iterable[Entry], key: str) -> dict[object, list[Entry]]:
    found: dict[object, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.get(key), []).append(entry)
    return found


def _scale(entries: Sequence[Entry]) -> Iterator[Lines]:
    if not entries:
        return
    skipped = [entry for entry in entries if entry["skipped"]]
    lines = []
    for index, (scaler, own) in enumerate(_of(entries, "scaler").items()):
        points = [(n, number(e["scale"])) for n, e in enumerate(own)]
        marked = [(n, number(e["scale"])) for n, e in enumerate(own) if e["skipped"]]
        lines.append(Points(f"scaler {one_line(scaler, 20)}", points, f"line{index % 4}", marked=marked))
    scales = [s for e in entries if (s := number(e["scale"])) is not None]
    spread = f"{_power(min(scales))} to {_power(max(scales))}" if scales else "never finite"
    spread = _power(scales[0]) if scales and min(scales) == max(scales) else spread
    said = f"{len(skipped)} of {len(entries)} updates skipped their step" if skipped else "no step was skipped"
    yield Lines(
        "Loss scale",
        f"{spread} over {len(entries)} updates; {said}.",
        ["update", "call", "scaler", "scale", "step"],
        [
            [str(n), str(e["call"]), one_line(e.get("scaler", 0), 20), _power(number(e["scale"])), "skipped" if e["skipped"] else "taken"]
            for n, e in enumerate(entries)
        ],
        "update of the scaler",
        lines,
        base=2,
        steps=True,
        marks="step skipped",
    )  # fmt: skip


def _gradients(entries: Sequence[Entry]) -> Iterator[Lines]:
    sizes = [s for e in entries if (s := number(e.get("norm"))) is not None]
    if not sizes:
        return
    lines = []
    for index, (optimizer, own) in enumerate(_of(entries, "optimizer").items()):
        name = f" of optimizer {one_line(optimizer, 20)}" if len(_of(entries, "optimizer")) > 1 else ""
        for label, key, dashed in (("norm", "norm", False), ("largest value", "peak", True)):
            points = [(n, number(e.get(key))) for n, e in enumerate(own)]
            lines.append(Points(f"{label}{name}", points, f"line{(2 * index + dashed) % 4}", dashed))
    lost = sum(number(e.get("norm")) is None for e in entries)
    yield Lines(
        "Gradient that enters the optimizer",
        f"Unscaled; its norm peaks at {max(sizes):.3g}"
        + (f"; {lost} of {len(entries)} steps had none that was finite, or were skipped." if lost else "."),
        ["step", "call", "optimizer", "norm", "largest value"],
        [
            [str(n), str(e["call"]), one_line(e.get("optimizer", 0), 20), _figure(number(e.get("norm"))), _figure(number(e.get("peak")))]
            for n, e in enumerate(entries)
        ],
        "step of the optimizer",
        lines,
    )  # fmt: skip


def _headroom(policy: str, layers: Sequence[Entry]) -> Iterator[Bars]:
    """Deviation from FP32 over what rounding allows, the worst first."""
    judged = []
    for entry in layers:
        measured, allowed = number(entry["measured"]), number(entry["allowed"])
        if allowed:
            judged.append(
                (one_line(entry["name"], 120), math.inf if measured is None else measured / allowed, measured, allowed)
            )
    judged.sort(key=lambda row: (-row[1], row[0]))
    if not judged:
        return
    shown = judged[:MOST]
    # As one bar each: how far a gradient may go is a ratio, and ratios above 3 need no exact length.
    ends = [f"{ratio:.1%}" if ratio < 10 else f"{ratio:.3g} times" for _, ratio, _, _ in shown]
    over = sum(ratio > 1 for _, ratio, _, _ in judged)
    where = "" if policy == "as-written" else f" in {one_line(policy, 20)}"
    part = f"; the worst {MOST} are shown" if len(judged) > MOST else ""
    yield Bars(
        f"Parity headroom by layer{where}",
        f"Deviation of each gradient from FP32, as part of what rounding explains: "
        f"{over or 'none'} of {len(judged)} over the limit{part}.",
        ["gradient of", "used", "deviation", "allowed"],
        [[name, end, _figure(m), _figure(a)] for (name, _, m, a), end in zip(shown, ends, strict=True)],
        "part of the allowed deviation",
        [name for name, *_ in shown],
        [
            Stack("within the limit", "used", [ratio if ratio <= 1 else 0.0 for _, ratio, _, _ in shown]),
            Stack("over the limit", "limit", [min(ratio, 3.0) if ratio > 1 else 0.0 for _, ratio, _, _ in shown]),
        ],
        ends,
        limit=1.0,
    )


def _ops(entries: Sequence[Entry]) -> Iterator[Bars]:
    """How many ops of each family ran in 16 bits, in FP32, or took both."""
    kinds = (("16 bits", "low"), ("both", "both"), ("FP32 or wider", "full"))
    found: dict[str, list[float]] = {}
    flops = [0.0, 0.0, 0.0]
    for entry in entries:
        low = sum(dtype in LOW for dtype in entry["dtypes"])
        kind = 0 if low and low == len(entry["dtypes"]) else 1 if low else 2
        row = found.setdefault(f"{one_line(entry['family'], 40)}, {one_line(entry['phase'], 20)}", [0.0, 0.0, 0.0])
        row[kind] += number(entry["count"]) or 0.0
        flops[kind] += number(entry.get("flops")) or 0.0
    if not found:
        return
    shown = sorted(found.items(), key=lambda item: (-sum(item[1]), item[0]))[:MOST]
    share = f"{flops[0] / sum(flops):.0%} of the counted FLOPs run in 16 bits" if sum(flops) else "no FLOPs were counted"
    yield Bars(
        "Ops by precision",
        f"{share}.",
        ["family", *(label for label, _ in kinds)],
        [[name, *(f"{count:.0f}" for count in row)] for name, row in shown],
        "ops",
        [name for name, _ in shown],
        [Stack(label, colour, [row[n] for _, row in shown]) for n, (label, colour) in enumerate(kinds)],
        [f"{sum(row):.0f}" for _, row in shown],
    )


def _state(rows: Sequence[Entry]) -> Iterator[Bars]:
    """Bytes of optimizer state by slot, coloured by dtype."""
    slots = [
        (f"{one_line(row['optimizer'], 40)}.{one_line(name, 40)}", one_line(slot["dtype"], 40), number(slot["bytes"]) or 0.0, slot, row)
        for row in rows
        for name, slot in row["slots"].items()
    ]  # fmt: skip
    if not slots:
        return
    shown = sorted(slots, key=lambda slot: (-slot[2], slot[0]))[:MOST]
    dtypes = sorted({dtype for _, dtype, *_ in shown})
    per = ", ".join(f"{one_line(row['optimizer'], 40)} {number(row.get('bytes per parameter')) or 0:.3g}" for row in rows)
    yield Bars(
        "Optimizer state",
        f"{size(sum(slot[2] for slot in slots))}; bytes a parameter: {per}.",
        ["slot", "dtype", "tensors", "elements", "bytes"],
        [[name, dtype, str(slot["tensors"]), str(slot["elements"]), str(slot["bytes"])] for name, dtype, _, slot, _ in shown],
        "bytes",
        [name for name, *_ in shown],
        [Stack(d, d if d in (*LOW, "float32") else "other", [b if dtype == d else 0.0 for _, dtype, b, *_ in shown]) for d in dtypes],
        [size(count) for _, _, count, *_ in shown],
    )  # fmt: skip
