"""`ampcheck list` and `ampcheck explain`: the catalogue of checks, for a person at a terminal. No torch."""

from __future__ import annotations

import argparse
import inspect
import textwrap
from collections.abc import Sequence

from ampcheck.cli.style import say, shade
from ampcheck.registry import Check, expand, load_checks

__all__ = ["explain", "listing"]

LIST = """examples:
  ampcheck list           all checks
  ampcheck list AMP1      those of the order of a training step"""
EXPLAIN = """example:
  ampcheck explain AMP102"""


def add_listing(parser: argparse.ArgumentParser) -> None:
    _ids(parser, "*", "only these: ids or prefixes, such as AMP1")


def add_explain(parser: argparse.ArgumentParser) -> None:
    _ids(parser, "+", "ids or prefixes, such as AMP102")


def _ids(parser: argparse.ArgumentParser, count: str, help: str) -> None:
    ids = parser.add_argument("ids", nargs=count, metavar="ID", help=help)
    ids.completer = _completions  # type: ignore[attr-defined]  # read by argcomplete


def _completions(prefix: str, **_: object) -> list[str]:
    return [id for id in load_checks() if id.startswith(prefix.upper())]


def listing(options: argparse.Namespace) -> int:
    """A line for each check."""
    checks = _checks(options)
    width = max((len(check.slug) for check in checks), default=0)
    for check in checks:
        level = shade(f"{check.level:<7}", "yellow" if check.level == "warning" else "")
        say(f"{shade(check.id, 'bold')}  {level}  {check.slug:<{width}}  {check.expected}")
    return 0


def explain(options: argparse.Namespace) -> int:
    """All that there is to say of each check."""
    say("\n\n".join(map(_explanation, _checks(options))))
    return 0


def _checks(options: argparse.Namespace) -> Sequence[Check]:
    known = load_checks()
    return [known[id] for id in (expand(options.ids, f"ampcheck {options.command}") if options.ids else known)]


def _explanation(check: Check) -> str:
    follows = (
        f"\n\nA fault here is not listed beside one of {', '.join(check.follows)}, which explains it." if check.follows else ""
    )
    dtypes = "\n\nThere is one item for each declared 16-bit dtype." if check.per_dtype else ""
    id = check.id
    strict = f'\n          @ampcheck.contract(strict=["{id}"]) makes it an error' if check.level == "warning" else ""
    return f"""{shade(f"{check.name} ({check.level})", "bold")}

{inspect.cleandoc(check.doc)}

{_beat("expected", check.expected)}
{_beat("fix", check.fix)}{follows}{dtypes}

silence   @ampcheck.contract(xfail={{"{id}": "why"}}) expects it, ignore=["{id}"] leaves it out;
          --ampcheck-xfail={id}:why and --ampcheck-ignore={id} for a whole session{strict}"""


def _beat(name: str, text: str) -> str:
    return textwrap.fill(text, 110, initial_indent=f"{name:<10}", subsequent_indent=" " * 10)
