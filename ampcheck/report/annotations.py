"""GitHub's workflow commands: errors and warnings at the line of the user's code, in the diff of a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ampcheck.report.text import one_line
from ampcheck.report.view import Change, Fault, Spot, view

__all__ = ["MOST", "command", "commands"]

#: GitHub shows so many of each level for one step; what comes after them would be dropped in silence.
MOST = 10
#: Contracts named in a message; the rest is counted.
NAMED = 3


def commands(document: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Lines to print where GitHub Actions reads them: each stands at the start of its line.

    Args:
        document: as `ampcheck.report.json.document` makes it.
        prefix: the folder of pytest's rootdir seen from the root of the repository, with `/`; empty if they are the same.
    """
    shown = view(document)
    changes = [_change(change, prefix) for change in shown.untold]
    errors = [*changes, *(_fault(fault, prefix) for fault in shown.errors)]
    warnings = [_fault(fault, prefix) for fault in shown.warnings]
    yield from errors[:MOST]
    yield from warnings[:MOST]
    left = [(len(errors) - MOST, "error"), (len(warnings) - MOST, "warning")]
    more = " and ".join(f"{n} more {level}{'s' if n > 1 else ''}" for n, level in left if n > 0)
    if more:
        yield command("notice", f"{more}: GitHub shows {MOST} of each level; the report has all of them", title="ampcheck")


def command(level: str, message: str, *, title: str, spot: Spot | None = None, prefix: str = "") -> str:
    """One workflow command, `::error file=train.py,line=9,title=AMP102::...`, in which foreign text cannot end a value."""
    values: dict[str, object] = {}
    if spot is not None:
        values["file"] = f"{prefix}/{spot.file}" if prefix else spot.file
        values |= {} if spot.line is None else {"line": spot.line}
    values["title"] = title
    return f"::{level} {','.join(f'{name}={_property(value)}' for name, value in values.items())}::{_data(message)}"


def _fault(fault: Fault, prefix: str) -> str:
    names = ", ".join(fault.contracts[:NAMED])
    rest = f" and {len(fault.contracts) - NAMED} more" if len(fault.contracts) > NAMED else ""
    at = [f"at {fault.place}"] if fault.place and (fault.spot is None or fault.spot.line is None) else []
    message = "\n".join([fault.seen[0], *at, *([f"fix: {fault.fix}"] if fault.fix else []), f"in {names}{rest}"])
    return command(fault.level, message, title=fault.name, spot=fault.spot, prefix=prefix)


def _change(change: Change, prefix: str) -> str:
    message = f"{change.text}\nin {change.contract}"
    return command("error", message, title=f"{change.verdict} than the baseline" if change.verdict == "worse" else "new since the baseline", spot=change.spot, prefix=prefix)  # fmt: skip


def _data(text: object) -> str:
    return str(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: object) -> str:
    return _data(one_line(text)).replace(":", "%3A").replace(",", "%2C")
