"""`ampcheck facts`: print the autocast table of this torch, save it, or show what moved between two of them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from ampcheck.errors import UsageError
from ampcheck.facts import load, read
from ampcheck.facts.table import Norm, Table

__all__ = ["add_arguments", "main"]

POLICIES = {
    "low": "cast to the region's 16-bit dtype",
    "fp32": "computed in FP32",
    "promote": "mixed inputs promoted to the widest",
    "refused": "refused under autocast",
    "unmeasured": "on autocast's list, not measured",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the subcommand."""
    parser.add_argument("--device", default="cpu", help="device type (default: cpu)")
    parser.add_argument("--torch", metavar="VERSION", help="torch version, such as 2.4 (default: the installed one)")
    parser.add_argument("--measure", action="store_true", help="measure on this machine, even if a table is shipped")
    parser.add_argument("--out", type=Path, metavar="FILE", help="save the table as JSON instead of printing it")
    parser.add_argument(
        "--diff", nargs=2, metavar=("A", "B"), help="what moved from table A to table B: files, or shipped tables as cpu:2.4"
    )


def main(args: argparse.Namespace) -> int:
    """Run the subcommand with parsed options.

    Returns:
        0; 1 if `--diff` found a difference; 2 for a wrong option.
    """
    try:
        if args.diff:
            return _diff(read(args.diff[0]), read(args.diff[1]))
        table = _table(args)
    except (UsageError, ValueError) as error:
        _say(f"ampcheck facts: {error}", sys.stderr)
        return 2
    if table.note:
        _say(f"note: {table.note}", sys.stderr)
    if args.out:
        table.save(args.out)
        _say(f"{args.out}: torch {table.torch} on {table.device_name} ({table.origin})")
    else:
        _say("\n".join(_text(table)))
    return 0


def _say(text: str, stream: TextIO | None = None) -> None:
    (stream or sys.stdout).write(f"{text}\n")


def _table(args: argparse.Namespace) -> Table:
    if not args.measure:
        return load(args.device, args.torch)
    if args.torch:
        raise UsageError("--measure measures the installed torch; leave --torch out")
    from ampcheck.facts.measure import available, measure

    if not available(args.device):
        raise UsageError(f"there is no {args.device} device here to measure on")
    return measure(args.device)


def _diff(before: Table, after: Table) -> int:
    changes = before.diff(after)
    _say(f"{_title(before)} -> {_title(after)}: {len(changes)} differences")
    for change in changes:
        _say(f"  {change}")
    return 1 if changes else 0


def _title(table: Table) -> str:
    return f"torch {table.torch} on {table.device_name}"


def _text(table: Table) -> Iterator[str]:
    yield f"{_title(table)} ({table.origin})"
    for policy, meaning in POLICIES.items():
        ops = sorted(op for op, found in table.policies.items() if found == policy)
        if ops:
            yield ""
            yield f"{meaning} ({len(ops)}):"
            yield from _wrapped(ops)
    yield ""
    yield "dtype returned, by region dtype and input dtype (- where the function cannot run):"
    columns = [(amp, given) for amp in ("float16", "bfloat16") for given in ("float32", amp, "mixed")]
    yield _line("", [f"{amp}({given})" for amp, given in columns])
    for function in dict.fromkeys(key[0] for key in table.rows):
        found = [table.row(function, *column) for column in columns]
        yield _line(function, ["" if row is None else row.output or "-" for row in found])
    yield ""
    yield "norms: dtype returned / of the saved statistics / bias gradient, in a float16 region, by input dtype (weight dtype):"
    cells = [(given, weight) for given in ("float32", "float16") for weight in ("float32", "float16", "none")]
    yield _line("", [f"{given}({weight})" for given, weight in cells])
    for name, mode in dict.fromkeys(key[:2] for key in table.norms):
        yield _line(f"{name} {mode}", [_cell(table.norms.get((name, mode, "float16", *cell))) for cell in cells])


def _cell(norm: Norm | None) -> str:
    if norm is None or norm.output is None:
        return "-"
    return "/".join(part for part in (norm.output, norm.statistics, norm.bias_gradient) if part is not None)


def _line(name: str, cells: list[str]) -> str:
    return f"{name:34s}" + " ".join(f"{cell:<22s}" for cell in cells).rstrip()


def _wrapped(words: list[str], width: int = 120) -> Iterator[str]:
    line = " "
    for word in words:
        if len(line) + len(word) >= width:
            yield line
            line = " "
        line += f" {word}"
    yield line
