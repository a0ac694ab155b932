"""Reports as plain data, for crossing processes: what one worker concludes is written by another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ampcheck.findings import ContractReport, Cost, Finding, Location, Verdict

__all__ = ["cost_of", "finding_of", "plain", "verdict_of", "verdict_to_plain"]

#: Nesting below this is shown as text; evidence is flat, so deeper data are somebody's object.
DEEPEST = 8


def plain(value: Any, depth: int = 0) -> Any:
    """The value as JSON data: numbers that JSON lacks, and foreign objects, become text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else repr(float(value))
    if isinstance(value, str):
        # A lone surrogate can be in a Python string and in no file.
        return str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    if depth < DEEPEST:
        if isinstance(value, Mapping):
            return {plain(str(key)): plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple, set, frozenset)):
            return [plain(item, depth + 1) for item in value]
    return plain(str(value))


def verdict_to_plain(verdict: Verdict) -> dict[str, Any]:
    """Everything of a verdict but its finding, which travels beside it."""
    return dict(plain({**verdict.to_json(), "slug": verdict.slug, "follows": verdict.follows}))


def verdict_of(data: Mapping[str, Any]) -> Verdict:
    """The inverse of `verdict_to_plain`."""
    return Verdict(**data)


def finding_of(data: Mapping[str, Any]) -> Finding:
    """The inverse of `Finding.to_json`."""
    where = data["location"]
    return Finding(**{**data, "location": None if where is None else Location(**where)})


def cost_of(data: Mapping[str, Any]) -> Cost:
    """The inverse of `Cost.to_json`."""
    return Cost(**data)


def contract_to_plain(report: ContractReport) -> dict[str, Any]:
    """What is known of a contract as a whole, without its verdicts and findings."""
    return dict(
        plain(
            {
                "contract": report.contract,
                "device": report.device,
                "costs": [cost.to_json() for cost in report.costs],
                "facts": {"judged": report.judged, **report.facts},
            }
        )
    )
