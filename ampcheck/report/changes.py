"""What has changed since the baseline, as lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ampcheck.report.text import one_line

__all__ = ["change_line", "changes_summary"]

STYLES = {"worse": "red", "new": "red", "better": "green"}


def change_line(change: Mapping[str, Any]) -> str:
    """`worse   encoder.norm: float32 -> bfloat16 (model.py:31)`."""
    where = change.get("location")
    place = f" ({where['file']}:{where['line']})" if where else ""
    return f"{change['verdict']:<7} {one_line(change['text'], 500)}{one_line(place, 200)}"


def changes_summary(changes: Iterable[Mapping[str, Any]], baseline: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """What changed, by contract, as lines with their styles; nothing where nothing was compared.

    Args:
        changes, baseline: the entries of the document.
    """
    if baseline is None:
        return
    changes = list(changes)
    counts = Counter(change["verdict"] for change in changes)
    told = ", ".join(f"{counts[v]} {v}" for v in ("worse", "new", "better", "info") if counts[v]) or "none"
    since = baseline.get("revision") or baseline.get("path")
    yield "", ""
    yield f"changes since {one_line(since, 200)}: {told}", "bold"
    last = None
    for change in changes:
        name = f"{one_line(change['contract'], 120)} [{one_line(change['device'], 20)}]"
        if name != last:
            yield name, ""
        last = name
        yield f"  {change_line(change)}", STYLES.get(change["verdict"], "")
