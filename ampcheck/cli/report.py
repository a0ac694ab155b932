"""`ampcheck report`: any format from a JSON report, without running anything."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ampcheck.cli.style import say
from ampcheck.errors import UsageError
from ampcheck.findings import SCHEMA_VERSION
from ampcheck.report.text import one_line

FORMATS = ("html", "markdown", "sarif", "junit", "json")
EXAMPLE = """example:
  ampcheck report ampcheck.json --html ampcheck.html --markdown summary.md"""
#: Bytes of a report that are read; those of a thousand contracts have a tenth of it.
LARGEST = 256 << 20


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("report", type=Path, metavar="IN.json", help="a report that --ampcheck-json wrote")
    for name in FORMATS:
        parser.add_argument(
            f"--{name}", type=Path, metavar="PATH", help=f"write it as {name.upper() if name != 'markdown' else 'Markdown'}"
        )


def main(options: argparse.Namespace) -> int:
    """Write the formats that were asked for."""
    targets = {name: path for name in FORMATS if (path := getattr(options, name)) is not None}
    if not targets:
        raise UsageError(f"nothing to write; name a format: {', '.join(f'--{name} PATH' for name in FORMATS)}")
    document = read(options.report)
    from ampcheck.report.formats import write_all

    write_all(document, targets)
    for path in targets.values():
        say(one_line(path))
    return 0


def read(path: Path) -> dict[str, Any]:
    """A JSON report.

    Raises:
        UsageError: says why the file is refused: it is not there, no JSON, no report, or one of a newer version.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path}: refused: more than {LARGEST} bytes")
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: refused: it is not JSON, or was cut short ({error})") from None
    version = document.get("version") if isinstance(document, dict) else None
    lists = ("findings", "items")
    if not isinstance(document, dict) or not isinstance(version, int) or any(not _rows(document.get(k)) for k in lists):
        raise UsageError(f"{path}: refused: it is JSON, and not a report of ampcheck (--ampcheck-json writes them)")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"{path}: refused: it was written by a newer ampcheck (version {version}; this one reads {SCHEMA_VERSION}); update ampcheck"
        )
    from ampcheck.report.schema import check

    check(document, one_line(path))
    return document


def _rows(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)
