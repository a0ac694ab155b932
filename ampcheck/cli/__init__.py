"""The `ampcheck` command, at a terminal. In CI contracts are judged by `pytest --ampcheck`; everything around them is here."""

# PYTHON_ARGCOMPLETE_OK

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ampcheck
from ampcheck.cli import catalogue, doctor, init, replay, report, run
from ampcheck.cli.style import complain
from ampcheck.errors import AmpcheckError
from ampcheck.facts import cli as facts
from ampcheck.report.text import clean

__all__ = ["main", "parser"]

#: The one place where they are documented.
EXIT_CODES = """exit codes:
  0  all is well
  1  something was found: `run` a broken rule, `facts --diff` a difference, `replay` the failure again,
     `doctor` something that is broken here
  2  nothing could be done: a wrong command line, an unknown check, a file that is refused, a contract that is not there"""
#: Characters of an error that are shown; what pytest says of a project that it cannot collect is among them.
LONGEST = 6000
COMPLETION = """shell completion (with `pip install ampcheck[completion]`):
  eval "$(register-python-argcomplete ampcheck)\""""


class Command(NamedTuple):
    """A subcommand: one line of help, an example, its options, and what it does."""

    help: str
    example: str
    declare: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


COMMANDS = {
    "init": Command("write a contract for the project in the current directory", init.EXAMPLE, init.declare, init.main),
    "list": Command(
        "all checks: id, level, name, and what must hold", catalogue.LIST, catalogue.add_listing, catalogue.listing
    ),
    "explain": Command(
        "why a check exists, and how to mend or silence it", catalogue.EXPLAIN, catalogue.add_explain, catalogue.explain
    ),
    "run": Command("judge a function that builds a training step, without pytest", run.EXAMPLE, run.declare, run.main),
    "replay": Command(
        "run the step of an evidence bundle again, or look into one", replay.EXAMPLE, replay.declare, replay.main
    ),
    "report": Command("rewrite a JSON report in other formats", report.EXAMPLE, report.declare, report.main),
    "facts": Command(
        "the autocast table of a device and torch version, and what moved between two",
        "examples:\n  ampcheck facts --device cuda\n  ampcheck facts --diff cpu:2.4 cpu:2.13",
        facts.add_arguments,
        facts.main,
    ),
    "doctor": Command("what can be judged on this machine, and why not the rest", doctor.EXAMPLE, doctor.declare, doctor.main),
}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    raw = argparse.RawDescriptionHelpFormatter
    whole = argparse.ArgumentParser(
        prog="ampcheck", description=__doc__, epilog=f"{EXIT_CODES}\n\n{COMPLETION}", formatter_class=raw
    )
    whole.add_argument("--version", action="version", version=f"ampcheck {ampcheck.__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        one = commands.add_parser(
            name,
            help=command.help,
            description=f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=f"{command.example}\n\n{EXIT_CODES}",
            formatter_class=raw,
        )
        command.declare(one)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: those of the command line without the program's name; the process's own if None.

    Returns:
        An exit code; see `EXIT_CODES`.
    """
    whole = parser()
    if "_ARGCOMPLETE" in os.environ:
        _complete(whole)
    options = whole.parse_args(arguments)
    try:
        return COMMANDS[options.command].run(options)
    except AmpcheckError as error:
        said = str(error).removeprefix(f"ampcheck {options.command}: ")
        complain(clean(f"ampcheck {options.command}: {said}", LONGEST))
        return 2
    except BrokenPipeError:  # `ampcheck list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0


def _complete(whole: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions; without the library it gets none."""
    try:
        library: Any = importlib.import_module("argcomplete")
    except ImportError:
        return
    library.autocomplete(whole)
