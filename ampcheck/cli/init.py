"""`ampcheck init`: write a contract for the project in the current directory, from what its source says."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from ampcheck.cli.discover import Project, discover
from ampcheck.cli.style import say
from ampcheck.cli.template import render
from ampcheck.errors import UsageError
from ampcheck.report.text import one_line

EXAMPLE = """It reads the source for functions that call backward(), for models, optimizers and loss functions; it imports and runs nothing
of it. What it cannot tell is a TODO, and until that is done the contract fails and says so.

examples:
  ampcheck init                  writes tests/test_amp.py, where there is none
  ampcheck init --stdout"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--path", type=Path, default=Path("tests/test_amp.py"), help="where it goes (default: %(default)s)")
    parser.add_argument("--stdout", action="store_true", help="print it instead")
    parser.add_argument("--force", action="store_true", help="replace the file that is there")


def main(options: argparse.Namespace) -> int:
    """Read, write, and say what was found."""
    here = Path.cwd()
    target: Path = options.path
    if not options.stdout and target.exists() and not options.force:
        raise UsageError(
            f"{target} is there already; --force replaces it, --stdout prints the new one, --path puts it elsewhere"
        )
    project = discover(here)
    text = render(project, here / target, _installed(project))
    compile(text, str(target), "exec")  # a fault of ours must not reach the project
    if options.stdout:
        sys.stdout.write(text)
        return 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{target} cannot be written: {one_line(error)}") from None
    for line in _told(project):
        say(line)
    todo = sum("TODO" in line for line in text.splitlines()) - 1
    say(f"wrote    {target}, with {todo} TODO to look at", "bold")
    say(f"next     pytest --ampcheck {target}")
    return 0


def _installed(project: Project) -> frozenset[Path]:
    """Directories whose modules are found without help: the project is installed in this environment, as it stands."""
    without = [p for p in sys.path if p and Path(p).resolve() != project.root.resolve()]
    roots = {f.root for f in project.functions} | {m.root for m in project.models}
    names = {f.module.partition(".")[0] for f in project.functions} | {m.module.partition(".")[0] for m in project.models}
    before, sys.path[:] = list(sys.path), without
    try:
        found = {name: importlib.util.find_spec(name) for name in names if name and name not in sys.modules}
    except (ImportError, ValueError, AttributeError):
        return frozenset()
    finally:
        sys.path[:] = before
    origins = [Path(spec.origin).resolve() for spec in found.values() if spec is not None and spec.origin]
    return frozenset(root for root in roots if any(root.resolve() in origin.parents for origin in origins))


def _told(project: Project) -> list[str]:
    lines = []
    for function in project.functions[:1]:
        place = function.file.relative_to(project.root).as_posix()
        lines.append(f"found    {one_line(function.name)} in {one_line(place)}:{function.line}")
    if project.functions[1:]:
        lines.append(f"         and {len(project.functions) - 1} other functions that train")
    if not project.functions:
        lines.append("found    no function with a backward()")
    lines.append(f"models   {one_line(', '.join(m.name for m in project.models[:8]) or 'none')}")
    if project.unread:
        lines.append(f"skipped  {len(project.unread)} files that are no Python of this version, or very large")
    return lines
