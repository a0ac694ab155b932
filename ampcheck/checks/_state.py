"""Reading what was recorded of parameters and optimizer state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ampcheck.evidence import Evidence
from ampcheck.registry import Inconclusive, NotRun

if TYPE_CHECKING:
    from ampcheck.optimizer_formulas import Slot
    from ampcheck.scenarios.precision import Precision
    from ampcheck.scenarios.state import Held, OptimizerState

__all__ = ["LOW", "listed", "lost_share", "table", "unkept", "without"]

LOW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")


def without(evidence: Evidence) -> Iterator[NotRun]:
    """Why there is nothing to read, if there is nothing."""
    if evidence.precision is None:
        yield NotRun("the natural run left no state")
    elif not any(o.steps for o in evidence.precision.natural.optimizers.values()):
        yield NotRun("no optimizer step was taken")


def listed(names: Iterable[str]) -> str:
    """The first three names, and how many there are besides."""
    names = list(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def unkept(found: Precision) -> Iterator[tuple[int, OptimizerState, list[Held]] | Inconclusive]:
    """Optimizers that train 16-bit parameters whose lost bits nothing keeps: no FP32 master, remainder or compensation.

    Inconclusive where an optimizer could compensate and could not be compared with an FP32 run.
    """
    for index, optimizer in found.natural.optimizers.items():
        low = [p for p in optimizer.trained if p.low and not p.master and not p.remainder]
        if not low:
            continue
        lost = found.lost.get(index)
        if lost is not None and lost.compensated:
            continue
        if lost is None and optimizer.known is None and optimizer.steps:
            yield Inconclusive(f"whether {optimizer.kind} keeps what rounding takes from its 16-bit weights could not be seen: "
                               f"{found.reason or 'the runs for it were not made'}")  # fmt: skip
            continue
        yield index, optimizer, low


def lost_share(found: Precision, index: int) -> str:
    """A sentence on the updates that vanished, if they were measured."""
    lost = found.lost.get(index)
    if lost is None or lost.share < 0.01:
        return ""
    return f"; {lost.share:.0%} of the updates of its first step change no bit of the weight"


def table(found: Precision) -> list[dict[str, Any]]:
    """Bytes by slot for each class of optimizer: what `ContractReport.facts["optimizer state"]` shows."""
    rows: dict[str, dict[str, Any]] = {}
    for optimizer in found.natural.optimizers.values():
        if not optimizer.steps:
            continue
        empty = {"optimizers": 0, "parameters": 0, "elements": 0, "dtypes": [], "slots": {}}
        row = rows.setdefault(optimizer.kind, {"optimizer": optimizer.kind, **empty})
        row["optimizers"] += 1
        row["parameters"] += len(optimizer.trained)
        row["elements"] += sum(p.numel for p in optimizer.trained)
        row["dtypes"] = sorted({*row["dtypes"], *(p.dtype for p in optimizer.trained)})
        for p in optimizer.parameters:
            for name, slot in p.slots.items():
                _add(row["slots"], name, slot)
        for slot in optimizer.extra.values():
            _add(row["slots"], "(attributes)", slot)
    for row in rows.values():
        row["bytes"] = sum(slot["bytes"] for slot in row["slots"].values())
        # a slot of one element a tensor counts steps
        row["bytes of counters"] = sum(s["bytes"] for s in row["slots"].values() if s["elements"] == s["tensors"])
        held = row["bytes"] - row["bytes of counters"]
        row["bytes per parameter"] = round(held / row["elements"], 4) if row["elements"] else 0.0
    return list(rows.values())


def _add(slots: dict[str, dict[str, Any]], name: str, slot: Slot) -> None:
    row = slots.setdefault(name, {"dtype": slot.dtype, "tensors": 0, "elements": 0, "bytes": 0})
    if slot.dtype not in row["dtype"].split("+"):
        row["dtype"] = "+".join(sorted([*row["dtype"].split("+"), slot.dtype]))
    row["tensors"] += 1
    row["elements"] += slot.numel
    row["bytes"] += slot.nbytes
