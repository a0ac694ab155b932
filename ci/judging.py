"""What the scripts that measure parity over many models share: judging one step, and stopping and going on by JSON lines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ampcheck import facts, registry
from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, Inconclusive
from ampcheck.scenarios.natural import natural
from ampcheck.scenarios.parity import parity
from ampcheck.scenarios.precision import precision
from ampcheck.scenarios.spec import Spec
from ampcheck.trace.deviations import JUDGED, LIMITS, YARDSTICKS, headroom, series

__all__ = ["Rows", "numeric"]

#: The families that are judged by what runs in which precision and by what comes of it.
NUMERIC = ("AMP3", "AMP4", "AMP5")


class Rows:
    """A file of JSON lines, one for each thing that was judged; what is there already is not judged again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text("utf-8").splitlines():
                row = json.loads(line)
                self.rows[row["key"]] = row

    def __contains__(self, key: str) -> bool:
        return key in self.rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows.values())

    def add(self, key: str, row: Mapping[str, Any]) -> dict[str, Any]:
        whole = self.rows[key] = {"key": key, **row}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(whole) + "\n")
        return whole


def numeric(make_step: Callable[[], Any], device: str, name: str) -> dict[str, Any]:
    """Judge one step by the numeric families alone: a natural run, and what parity needs.

    Returns:
        `errors`: ids of error-level faults and what was seen; `inconclusive`: ids and reasons; `status`: of parity; `headroom`:
        quantity -> largest deviation over what is allowed; `ratios`: quantity and yardstick -> largest and second-largest
        deviation, over all series, in multiples of the yardstick; `yardsticks`: deviation of the gradient by rounding;
        `seconds`.
    """
    began = time.perf_counter()
    spec = Spec(make_step, name, device)
    evidence = Evidence(name, device, natural(spec))
    evidence.precision, evidence.facts = evidence.natural.notes.pop("precision", None), facts.load(device)
    raised = evidence.trace.raised
    if raised is not None and raised.call < 1:
        return {
            "raised": str(raised),
            "errors": {},
            "inconclusive": {},
            "status": "raised",
            "seconds": time.perf_counter() - began,
        }
    state = evidence.precision
    if state is not None and state.suspicious():
        precision(spec, state, evidence.trace.calls)
    parity(spec, evidence, None)
    measured = evidence.parity["as-written"]
    errors: dict[str, str] = {}
    inconclusive: dict[str, str] = {}
    for id, check in registry.load_checks().items():
        if not id.startswith(NUMERIC):
            continue
        for result in check.function(evidence):
            if isinstance(result, Fault) and (result.level or check.level) == "error":
                errors.setdefault(id, result.seen)
            elif isinstance(result, Inconclusive):
                inconclusive.setdefault(id, result.reason)
    return {
        "errors": errors,
        "inconclusive": {id: reason for id, reason in inconclusive.items() if id not in errors},
        "status": measured.status,
        "reason": measured.reason,
        "dtype": measured.dtype,
        "units": measured.units,
        "headroom": headroom(measured),
        "ratios": _ratios(measured),
        "yardsticks": _yardsticks(measured),
        "calls": {name: cost.calls for name, cost in spec.costs.items()},
        "seconds": round(time.perf_counter() - began, 3),
    }


def _ratios(measured: Any) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for quantity in LIMITS:
        for one in series(measured, quantity):
            for yardstick in YARDSTICKS:
                rounding = max(one.draws.get(yardstick, [float("inf")]))
                if rounding > 0.3 or not one.seen:
                    continue
                values = sorted((d / max(rounding, measured.unit_roundoff) for d in one.seen.values()), reverse=True)
                best = found.setdefault(f"{quantity}, {yardstick}", [0.0, 0.0])
                best[0] = max(best[0], values[0])
                best[1] = max(best[1], values[1] if len(values) > 1 else 0.0)
    return found


def _yardsticks(measured: Any) -> dict[str, float]:
    whole = series(measured, "gradient")[:1]
    return {name: max(draws) for one in whole for name, draws in one.draws.items() if name != JUDGED and draws}
