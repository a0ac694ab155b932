"""The `ampcheck` command: the catalogue, for a person at a terminal. Contracts are judged by `pytest --ampcheck`."""

from __future__ import annotations

import argparse
import inspect
import sys
import textwrap
from collections.abc import Sequence

import ampcheck
from ampcheck.errors import UsageError
from ampcheck.facts import cli as facts
from ampcheck.registry import Check, expand, load_checks

__all__ = ["main"]

EXIT_CODES = (
    "exit codes: 0 all is well, 1 `facts --diff` found differences, 2 the command line is wrong (an unknown check, for one)"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: those of the command line without the program's name; the process's own if None.

    Returns:
        0, or 2 if the command line is wrong.
    """
    parser = argparse.ArgumentParser(prog="ampcheck", description=__doc__, epilog=EXIT_CODES)
    parser.add_argument("--version", action="version", version=f"ampcheck {ampcheck.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="all checks: id, level, name, and what must hold", epilog=EXIT_CODES)
    listing.add_argument("ids", nargs="*", metavar="ID", help="only these: ids or prefixes, such as AMP1")
    explain = commands.add_parser("explain", help="why a check exists, and how to mend or silence it", epilog=EXIT_CODES)
    explain.add_argument("ids", nargs="+", metavar="ID", help="ids or prefixes, such as AMP102")
    facts.add_arguments(
        commands.add_parser("facts", help="the autocast table of a device and torch version, and what moved between two")
    )
    options = parser.parse_args(arguments)
    if options.command == "facts":
        return facts.main(options)
    try:
        found = expand(options.ids, f"ampcheck {options.command}") if options.ids else list(load_checks())
    except UsageError as error:
        print(f"ampcheck: {error}", file=sys.stderr)
        return 2
    checks = [load_checks()[id] for id in found]
    print(_table(checks) if options.command == "list" else "\n\n".join(map(_explanation, checks)))
    return 0


def _table(checks: Sequence[Check]) -> str:
    width = max((len(check.slug) for check in checks), default=0)
    return "\n".join(f"{check.id}  {check.level:<7}  {check.slug:<{width}}  {check.expected}" for check in checks)


def _explanation(check: Check) -> str:
    follows = (
        f"\n\nA fault here is not listed beside one of {', '.join(check.follows)}, which explains it." if check.follows else ""
    )
    dtypes = "\n\nThere is one item for each declared 16-bit dtype." if check.per_dtype else ""
    id = check.id
    strict = f'\n          @ampcheck.contract(strict=["{id}"]) makes it an error' if check.level == "warning" else ""
    return f"""{check.name} ({check.level})

{inspect.cleandoc(check.doc)}

{_beat("expected", check.expected)}
{_beat("fix", check.fix)}{follows}{dtypes}

silence   @ampcheck.contract(xfail={{"{id}": "why"}}) expects it, ignore=["{id}"] leaves it out;
          --ampcheck-xfail={id}:why and --ampcheck-ignore={id} for a whole session{strict}"""


def _beat(name: str, text: str) -> str:
    return textwrap.fill(text, 110, initial_indent=f"{name:<10}", subsequent_indent=" " * 10)
