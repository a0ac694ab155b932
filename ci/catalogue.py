"""The README's catalogue table, generated from the checks themselves.

python ci/catalogue.py            prints the table
python ci/catalogue.py --write    puts it between the two marks in README.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from ampcheck.registry import load_checks

README = Path(__file__).parent.parent / "README.md"
START = "<!-- catalogue: written by ci/catalogue.py -->"
END = "<!-- end of catalogue -->"


def table() -> str:
    """One row a check: id, slug, level and what must hold."""
    rows = [f"| {c.id} | {c.slug} | {c.level} | {c.expected[:1].upper()}{c.expected[1:]} |" for c in load_checks().values()]
    return "\n".join(["| id | name | level | what must hold |", "|---|---|---|---|", *rows])


def split(readme: str) -> tuple[str, str, str]:
    """The README before, between and after the marks."""
    before, rest = readme.split(START)
    between, after = rest.split(END)
    return before, between.strip(), after


def main() -> None:
    if "--write" in sys.argv:
        before, _, after = split(README.read_text("utf-8"))
        README.write_text(f"{before}{START}\n{table()}\n{END}{after}", "utf-8")
    else:
        print(table())


if __name__ == "__main__":
    main()
