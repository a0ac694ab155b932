"""The README's tables, generated from what they describe: the checks, the options of the plugin, and what moved in autocast.

python ci/readme.py [NAME ...] prints them, or those named: catalogue, options, drift
python ci/readme.py --write    puts each between its two marks in README.md
"""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from ampcheck import config, facts
from ampcheck.registry import load_checks

README = Path(__file__).parent.parent / "README.md"
MARKED = re.compile(
    r"(?P<start><!-- (?P<name>\w+): written by ci/readme.py -->\n)(?P<shown>.*?)(?P<end><!-- end -->)", re.DOTALL
)


def catalogue() -> str:
    """One row a check: id, slug, level and what must hold."""
    rows = [f"| {c.id} | {c.slug} | {c.level} | {_capital(c.expected)} |" for c in load_checks().values()]
    return "\n".join(["| id | name | level | what must hold |", "|---|---|---|---|", *rows, ""])


class _Options:
    """Takes the place of pytest's parser and keeps what it is told."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, str, str]] = {}

    def getgroup(self, *_: str) -> _Options:
        return self

    def addoption(self, name: str, *, help: str, metavar: str = "", **_: Any) -> None:
        self.rows[name.removeprefix("--").replace("-", "_")] = (f"`{' '.join(filter(None, [name, metavar]))}`", "", help)

    def addini(self, name: str, help: str, **_: Any) -> None:
        option, _ini, described = self.rows.get(name, ("", "", help))
        self.rows[name] = (option, f"`{name}`", described)


def _declared() -> dict[str, tuple[str, str, str]]:
    parser = _Options()
    config.add_options(cast("pytest.Parser", parser))
    return parser.rows


def option_names() -> set[str]:
    """The options of the command line, as they are written there."""
    return {option.strip("`").split()[0] for option, _, _ in _declared().values() if option}


def options() -> str:
    """One row an option: its name on the command line, in pytest's configuration, and its help."""
    rows = [f"| {option} | {ini} | {_capital(help)} |" for option, ini, help in _declared().values()]
    return "\n".join(["| command line | configuration | |", "|---|---|---|", *rows, ""])


def _capital(text: str) -> str:
    """A capital at the start, unless the first word is a name from code."""
    return text[:1].upper() + text[1:] if text.split()[0].isalpha() else text


def drift(device: str = "cpu") -> str:
    """One row for each thing that autocast, or an op by itself, does differently in one of the shipped tables of a device."""
    tables = [facts.read(f"{device}:{major}.{minor}") for name, (major, minor) in sorted(facts.shipped()) if name == device]
    moved: dict[str, list[str]] = {}
    for place, (before, after) in enumerate(itertools.pairwise(tables), 1):
        for change in before.diff(after):
            # A row holds from one table to the next until a difference says otherwise.
            cells = moved.setdefault(change.what, [change.before] * len(tables))
            cells[place:] = [change.after] * (len(tables) - place)
    versions = [".".join(map(str, facts.release(table.torch))) for table in tables]
    rows = [" | ".join(["", what, *map(_brief, cells), ""]).strip() for what, cells in sorted(moved.items())]
    return "\n".join(
        [f"| on the {device.upper()} | " + " | ".join(versions) + " |", "|---" * (1 + len(tables)) + "|", *rows, ""]
    )


def _brief(cell: str) -> str:
    return "not measured" if "not measured" in cell else "raises" if cell.startswith("none (") else cell


TABLES = {"catalogue": catalogue, "options": options, "drift": drift}


def shown(readme: str) -> dict[str, str]:
    """The text between each pair of marks, by name."""
    return {match["name"]: match["shown"] for match in MARKED.finditer(readme)}


def written(readme: str) -> str:
    """The README with all of its tables up to date."""
    return MARKED.sub(lambda match: f"{match['start']}{TABLES[match['name']]()}{match['end']}", readme)


def main() -> None:
    if "--write" in sys.argv:
        README.write_text(written(README.read_text("utf-8")), "utf-8")
    else:
        print(*(TABLES[name]() for name in sys.argv[1:] or TABLES), sep="\n")


if __name__ == "__main__":
    main()
