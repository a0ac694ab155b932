"""Text that is safe to print, and the five beats of a finding."""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import replace
from pathlib import Path

from ampcheck.findings import Finding, Verdict

__all__ = ["clean", "describe", "finding_text", "one_line", "place", "relative", "silence", "verdict_text"]

#: Messages of user code may hold whole tensors; this many characters of one are shown.
LONGEST = 2000
#: Control characters other than tab and newline (escape sequences among them), bidirectional marks, what no XML may hold,
#: characters that hide text, lone surrogates.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
#: What a CI runner takes for an order where it reads our output: `::command` at the start of a line, `##[command` anywhere.
COMMAND = re.compile(r"(?m)^([^\S\n]*)(?=::)|(?<=#)(?=#\[)")


def clean(text: object, longest: int = LONGEST) -> str:
    """The text without anything that moves a cursor, colours a terminal or fills a screen.

    Args:
        text: anything; a foreign message or name.
        longest: characters kept; the rest is counted.
    """
    shown = UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), str(text).replace("\r\n", "\n"))
    shown = COMMAND.sub(r"\1\\", shown)
    return shown if len(shown) <= longest else f"{shown[:longest]}... ({len(shown)} characters)"


def one_line(text: object, longest: int = 300) -> str:
    """`clean`, with line breaks shown as such."""
    return clean(clean(text).replace("\n", "\\n").replace("\t", " "), longest)


def describe(finding: Finding) -> str:
    """`AMP102 clip-scaled-gradients`."""
    return one_line(f"{finding.id} {finding.slug}")


def relative(file: str, root: Path) -> str:
    """The file seen from `root`, with `/`; outside it with `../`; unchanged where there is no way (another drive)."""
    if not Path(file).is_absolute():
        return Path(file).as_posix()
    try:
        return Path(os.path.relpath(file, root)).as_posix()
    except ValueError:
        return Path(file).as_posix()


def place(finding: Finding, root: Path | None) -> str:
    """`train.py:88 in train_one_step`; empty where no single line is to blame."""
    where = finding.location
    if where is None:
        return ""
    return one_line(where if root is None else replace(where, file=relative(where.file, root)))


def silence(id: str) -> str:
    """How to leave a check out, and where its reasoning stands."""
    return f'@ampcheck.contract(xfail={{"{id}": "why"}}), or ignore=["{id}"]; `ampcheck explain {id}`'


def finding_text(finding: Finding, device: str, root: Path | None = None) -> str:
    """A finding in five beats: id and contract; expected and seen; the line to blame; the fix; how to silence it.

    Args:
        finding: what was found.
        device: the device type it was found on.
        root: the directory that the path is shown relative to; absolute if None.
    """
    id = finding.id
    policy = "" if finding.policy == "as-written" else f", {finding.policy}"
    beats = [
        ("expected", finding.expected),
        ("seen", finding.seen),
        ("at", place(finding, root) or "no single line is to blame"),
        ("fix", finding.fix),
        ("silence", silence(id)),
        *(
            [("enforce", f'strict=["{id}"] there, or --ampcheck-strict={id}, makes it an error')]
            if finding.level == "warning"
            else []
        ),
    ]
    head = f"{describe(finding)}    {one_line(finding.contract)} [{one_line(device)}{policy}]"
    return "\n".join([head, *(_beat(name, text) for name, text in beats)])


def verdict_text(verdict: Verdict, device: str, root: Path | None = None, reproduce: str = "") -> str:
    """Why an item failed: its finding in five beats, or the check that it follows from.

    Args:
        verdict: of the item.
        device, root: as for `finding_text`.
        reproduce: the command that runs the item alone; a last line, as it is: whoever pastes it needs all of it.
    """
    text = _verdict_text(verdict, device, root)
    return f"{text}\n  {'reproduce':<10}{reproduce}" if reproduce else text


def _verdict_text(verdict: Verdict, device: str, root: Path | None) -> str:
    if verdict.follows is not None:
        return one_line(f"{verdict.check} {verdict.slug} follows from {verdict.follows}; see the finding there")
    if verdict.finding is None:
        head = one_line(f"{verdict.check} {verdict.slug}    {verdict.contract} [{device}]")
        return f"{head}\n{_beat('seen', verdict.reason)}"
    text = finding_text(verdict.finding, device, root)
    said = (verdict.finding.seen, verdict.finding.expected)
    return text if not verdict.reason or verdict.reason in said else f"{text}\n{_beat('because', verdict.reason)}"


def _beat(name: str, text: str) -> str:
    return textwrap.indent(clean(text), " " * 12).replace(" " * 12, f"  {name:<10}", 1)
