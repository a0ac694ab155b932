"""What is printed, and in which colours: none where nobody looks, and none where NO_COLOR is set."""

from __future__ import annotations

import os
import sys
from typing import TextIO

__all__ = ["complain", "say", "shade"]

CODES = {"red": "31", "yellow": "33", "green": "32", "bold": "1"}


def shade(text: str, style: str, stream: TextIO | None = None) -> str:
    """The text in a style, if it goes to a terminal; "" is plain. See https://no-color.org.

    Args:
        text: without escape sequences.
        style: "red", "yellow", "green", "bold" or "".
        stream: where it goes; standard output if None.
    """
    looked_at = (stream or sys.stdout).isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[{CODES[style]}m{text}\x1b[0m" if style and looked_at else text


def say(text: str = "", style: str = "") -> None:
    """Print to standard output; what its encoding cannot show is escaped."""
    _write(shade(text, style), sys.stdout)


def complain(text: str) -> None:
    """Print to standard error."""
    _write(shade(text, "red", sys.stderr), sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
