"""What a lane could not judge, in a few lines: `python -m ampcheck.report.unjudged REPORT.json`.

A lane on the CPU that is green has judged only what a CPU can. A CI log says so at its end, by check and reason.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ampcheck.report.text import one_line

__all__ = ["lines", "main"]

#: Outcomes without a verdict.
WITHOUT = ("inconclusive", "not-run")


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """A line that counts, then one for each outcome and reason with the checks that it kept from a verdict.

    Args:
        document: a report, as `ampcheck.report.json.document` makes it.
    """
    items = document.get("items", [])
    device = document.get("environment", {}).get("device", "this device")
    left = [item for item in items if item["outcome"] in WITHOUT]
    yield f"ampcheck on {one_line(device, 20)}: {len(items) - len(left)} of {len(items)} items judged, {len(left)} not"
    reasons = Counter((item["outcome"], item["reason"]) for item in left)
    for (outcome, reason), count in sorted(reasons.items(), key=lambda entry: (entry[0][0], -entry[1], entry[0][1])):
        checks = sorted({item["check"] for item in left if (item["outcome"], item["reason"]) == (outcome, reason)})
        yield f"  {outcome:<12}  {count:>4} x {one_line(reason, 120)}  ({one_line(', '.join(checks))})"


def main(arguments: Sequence[str]) -> int:
    """Print what a report leaves without a verdict.

    Args:
        arguments: the path of one JSON report.

    Returns:
        0; 2 if it is no report.
    """
    try:
        (path,) = arguments
        shown = list(lines(json.loads(Path(path).read_text("utf-8"))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.stderr.write(f"ampcheck: give one JSON report of --ampcheck-json ({one_line(error)})\n")
        return 2
    sys.stdout.write("\n".join(["", *shown, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
