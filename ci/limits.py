"""The table that the constants of parity stand on: correct against faulty steps, in multiples of the yardstick.

    python ci/seeds.py seeds.jsonl && python ci/zoo.py zoo.jsonl --faults
    python ci/limits.py seeds.jsonl zoo.jsonl [--write TABLE.md]

For each quantity and yardstick: the second-largest deviation over the judged steps (an excess must be seen twice) of the worst
series of a run, in multiples of what rounding explains; how it is distributed over correct and over faulty runs; and what the
limit in use lets through and finds. Then the same for limits half and twice as large: where the table is flat, the constant is
not delicate.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from judging import Rows

from ampcheck.trace.deviations import LIMITS

#: Shares of the correct runs that are shown: the median, all but a hundredth, all.
SHARES = (0.5, 0.99, 1.0)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: one line for each quantity and yardstick."""
    correct = [row for row in rows if not row["fault"] and row.get("ratios")]
    faults = sorted({row["fault"] for row in rows if row["fault"]})
    heads = " | ".join(f"{fault}: median, over the limit" for fault in faults)
    lines = [
        f"| quantity, yardstick | limit | correct: n | median | 99 % | largest | {heads} |",
        "|---" * (6 + len(faults)) + "|",
    ]
    for quantity, limits in LIMITS.items():
        for yardstick, limit in limits.items():
            name = f"{quantity}, {yardstick}"
            values = [row["ratios"][name][1] for row in correct if name in row["ratios"]]
            cells = [name, f"{limit:g}", str(len(values)), *(f"{quantile(values, share):.2f}" for share in SHARES)]
            for fault in faults:
                faulty = [row["ratios"][name][1] for row in rows if row["fault"] == fault and name in row.get("ratios", {})]
                cells.append(f"{quantile(faulty, 0.5):.1f}, {sum(v > limit for v in faulty)} of {len(faulty)}")
            lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "| all limits times | correct runs with an excess | " + " | ".join(faults) + " |",
        "|---" * (2 + len(faults)) + "|",
    ]
    for factor in (0.25, 0.5, 1.0, 2.0, 4.0):
        cells = [f"{factor:g}", _share(correct, factor)]
        cells += [_share([row for row in rows if row["fault"] == fault and row.get("ratios")], factor) for fault in faults]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _share(rows: list[dict[str, Any]], factor: float) -> str:
    over = 0
    for row in rows:
        limits = {f"{q}, {y}": limit for q, by in LIMITS.items() for y, limit in by.items()}
        over += any(values[1] > factor * limits[name] for name, values in row["ratios"].items() if name in limits)
    return f"{over} of {len(rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    text = table([row for path in options.rows for row in Rows(path)])
    if options.write is not None:
        options.write.write_text(text + "\n", "utf-8")
    print(text)


if __name__ == "__main__":
    main()
