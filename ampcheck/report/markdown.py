"""A summary in Markdown for pull requests: what a reviewer reads before anything else. Foreign text cannot leave its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ampcheck.report.text import LONGEST, clean, one_line
from ampcheck.report.view import COUNTS, Change, Fault, Reason, View, view

__all__ = ["MOST", "block", "inline", "render"]

#: Bytes that GitHub takes for a job's summary.
MOST = 1024 * 1024
NOTE = (
    "\n\n> The rest is left out: the summary would be longer than its place allows. The JSON and HTML reports have all of it.\n"
)
#: Punctuation that starts something in Markdown, HTML or mathematics between dollars; `_` does at the edge of a word only.
SPECIAL = re.compile(r"[\\`*{\[<>#|~@&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
#: What becomes a link without any of it: an invisible space takes its sense away.
LINK = re.compile(r"(?i)(?<=:)(?=//)|(?<=www)(?=\.)|(?<=mailto:)|(?<=xmpp:)")
#: What code hosts make mentions and references of; not in the font of code.
MENTION = re.compile(r"(?i)(?<=[@#!~%$&])(?=[\w/])|(?<=\bGH)(?=-\d)")
MARKS = {"failed": "❌", "warned": "⚠️", "unjudged": "❔", "passed": "✅"}
#: Contracts named beside a fault; the rest is counted.
NAMED = 5


def inline(text: object, longest: int = 600) -> str:
    """Foreign text as one line that shows as it is: no markup, no link, no mention, no cell border."""
    return _plain(MENTION.sub("\u200b", one_line(text, longest)))


def block(text: object) -> str:
    """Foreign text of several lines, within a list entry or a cell."""
    return "<br>".join(inline(line) for line in clean(text).split("\n"))


def code(text: object) -> str:
    """A name or a command in the font of code."""
    return f"<code>{_plain(one_line(text, LONGEST))}</code>"


def _plain(line: str) -> str:
    return SPECIAL.sub(lambda match: f"&#{ord(match[0])};", LINK.sub("\u200b", line))


def render(document: Mapping[str, Any], most: int = MOST) -> str:
    """The summary.

    Args:
        document: as `ampcheck.report.json.document` makes it.
        most: bytes of UTF-8 that it may have; what does not fit is left out, and said so.
    """
    text, size = "", 0
    for part in _parts(view(document)):
        size += len(part.encode("utf-8"))
        if size > most - len(NOTE):
            return (text.rstrip("\n") + NOTE) if most > len(NOTE) else ""
        text += part
    return text


def _parts(shown: View) -> Iterator[str]:
    """Parts that stand or fall whole, most important first."""
    yield f"## {MARKS[shown.state]} ampcheck: {inline(shown.verdict)}\n\n{inline(shown.tally)}.\n"
    if shown.baseline is not None or shown.changes:
        yield from _changes(shown)
    for title, faults in (("Errors", shown.errors), ("Warnings", shown.warnings)):
        if faults:
            yield f"\n### {title}\n"
            yield from map(_fault, faults)
    yield "\n### Contracts\n\n"
    yield from _table(["contract", *COUNTS], ([f"{MARKS[c.verdict]} {code(c.name)}", *map(str, c.counts.values())] for c in shown.contracts))  # fmt: skip
    for title, reasons in (
        ("Inconclusive", shown.inconclusive),
        ("Expected failures", shown.expected),
        ("Not run", shown.not_run),
    ):
        if reasons:
            table = "".join(_table(["reason", "checks", "contracts"], map(_reason, reasons)))
            yield f"\n<details><summary>{title}: {sum(r.count for r in reasons)}</summary>\n\n{table}\n</details>\n"
    if shown.environment:
        yield f"\n<sub>{', '.join(f'{inline(k)} {inline(v, 80)}' for k, v in shown.environment.items())}</sub>\n"


def _changes(shown: View) -> Iterator[str]:
    yield "\n### Against the baseline\n\n"
    if shown.baseline:
        yield f"{inline(shown.baseline)}.\n\n"
    if not shown.changes:
        yield "Nothing changed.\n"
        return
    yield from _table(["", "what", "contract", "where"], map(_change, shown.changes))


def _change(change: Change) -> list[str]:
    verdict = f"**{inline(change.verdict)}**" if change.blocks else inline(change.verdict)
    return [verdict, block(change.text), code(change.contract), code(change.place) if change.place else ""]


def _fault(fault: Fault) -> str:
    names = [code(name) for name in fault.contracts[:NAMED]]
    rest = f" and {len(fault.contracts) - NAMED} more" if len(fault.contracts) > NAMED else ""
    seen = [*map(block, fault.seen), *([f"and {fault.more_seen} more"] if fault.more_seen else [])]
    beats = [
        ("expected", block(fault.expected)),
        ("seen", "<br>".join(seen)),
        ("at", code(fault.place) if fault.place else "no single line is to blame"),
        ("fix", block(fault.fix)),
        ("reproduce", code(fault.reproduce) if fault.reproduce else ""),
        ("silence", code(fault.silence)),
        ("follow from it", ", ".join(map(inline, fault.followers))),
    ]
    lines = [f"  - **{name}** {text}\n" for name, text in beats if text]
    return f"\n- **{inline(fault.name)}** in {', '.join(names)}{rest}\n{''.join(lines)}"


def _reason(entry: Reason) -> list[str]:
    names = ", ".join(code(name) for name in entry.contracts[:NAMED])
    rest = f" and {len(entry.contracts) - NAMED} more" if len(entry.contracts) > NAMED else ""
    return [block(entry.reason), ", ".join(map(inline, entry.checks)), names + rest]


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n"
    for row in rows:
        yield f"| {' | '.join(row)} |\n"
