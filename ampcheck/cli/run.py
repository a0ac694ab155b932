"""`ampcheck run`: judge a function that builds a training step, as `ampcheck.check()` does, and print or write the report."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ampcheck.cli.report import FORMATS
from ampcheck.cli.style import complain, say
from ampcheck.config import DTYPES, Settings, merge
from ampcheck.contract import Contract, Options, bound
from ampcheck.errors import UsageError
from ampcheck.findings import Report
from ampcheck.report.text import one_line

EXAMPLE = """The function is imported from the current directory, and builds the step afresh at each call. It may be a contract; its one
parameter, if it has any, is the device type (amp_device). Contracts with other fixtures are for `pytest --ampcheck`.

examples:
  ampcheck run train:build_step
  ampcheck run tests/test_amp.py:resnet --device cpu --html report.html"""


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("target", metavar="MODULE:FUNCTION", help="a module, or the path of a file, and a function in it")
    parser.add_argument("--device", help="device type; CUDA where there is one, else the CPU")
    for name, meaning in (
        ("select", "report these checks only"),
        ("ignore", "leave these checks out"),
        ("strict", "count the warnings of these checks as errors; 'all' is all"),
    ):
        parser.add_argument(f"--{name}", metavar="IDS", type=_listed, help=f"{meaning}: ids or prefixes, separated by commas")
    parser.add_argument("--dtype", metavar="TYPES", type=_listed, help=f"dtypes to judge parity in: {', '.join(DTYPES)}")
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=300.0, help="for one scenario (default: %(default)g)"
    )
    parser.add_argument("--budget", metavar="SECONDS", type=float, help="for all of it")
    parser.add_argument("--evidence", metavar="DIR", type=Path, help="where a bundle goes if its numbers go wrong")
    for name in FORMATS:
        parser.add_argument(f"--{name}", type=Path, metavar="PATH", help=f"write the report as {name}")


def main(options: argparse.Namespace) -> int:
    """Judge, print, write.

    Returns:
        1 if a rule of level error is broken, or nothing could be judged, else 0.
    """
    settings = Settings(
        select=options.select,
        ignore=options.ignore or (),
        strict=True if options.strict and "all" in options.strict else options.strict or (),
        dtypes=options.dtype,
        timeout=options.timeout,
        budget=options.budget,
        evidence=None if options.evidence is None else options.evidence.absolute(),
    )
    merge(Options(), settings)  # refuses what is not known before anything is imported
    function, declared = load(options.target)
    os.environ.setdefault(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
    )  # cuBLAS is deterministic only if this is set before CUDA starts
    from ampcheck.session.devices import check_device, default_device, missing

    device = check_device(options.device or default_device(), "--device")
    if reason := missing(device):
        raise UsageError(reason)
    from ampcheck.runner import environment, judge
    from ampcheck.verdicts import narrow

    report = judge(bound(function, device), contract=options.target, device=device, options=declared, settings=settings)
    narrow(report, merge(declared, settings).select)
    judged = report.facts["judged"]
    whole = Report(environment(device), [report])
    _print(whole, device)
    if targets := {name: path for name in FORMATS if (path := getattr(options, name)) is not None}:
        from ampcheck.report.formats import write_all
        from ampcheck.report.json import document

        write_all(document(whole, Path.cwd()), targets)
    if not judged:
        complain("ampcheck run: no check of scaler order and scaling reached a verdict; --json says why for each")
    return 0 if report.ok and judged else 1


def _listed(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def load(target: str) -> tuple[Callable[..., object], Options]:
    """The function that a target names, and the options of the contract that it is, if it is one.

    Args:
        target: `package.module:function` or `path/to/file.py:function`, seen from the current directory.

    Raises:
        UsageError: if there is no such module or function, or its import fails.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise UsageError(f"{one_line(target)!r} names no function; write module:function, such as train:build_step")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # the user's own module, whatever it does
        raise UsageError(
            f"{one_line(place)} cannot be imported: {type(error).__name__}: {one_line(error)}{_elsewhere(error)}"
        ) from error
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        there = [n for n, v in vars(module).items() if isinstance(v, Contract)]
        hint = f"; its contracts are {', '.join(there)}" if there else ""
        raise UsageError(f"there is no function {one_line(name)!r} in {one_line(place)}{hint}")
    return (found.function, found.options) if isinstance(found, Contract) else (found, Options())


def _elsewhere(error: Exception) -> str:
    """A hint, if the module that was not found lies one directory further down (`src/`), where only pytest was told to look."""
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    folders = sorted(p for p in Path.cwd().iterdir() if p.is_dir()) if name.isidentifier() else []
    for folder in folders:
        if (folder / name / "__init__.py").is_file() or (folder / f"{name}.py").is_file():
            place = one_line(folder.name)
            return f"; it is in {place}/: install the project, or set PYTHONPATH={place}"
    return ""


def _file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    sys.path.insert(0, str(path.parent.absolute()))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _print(report: Any, device: str) -> None:
    from ampcheck.report.terminal import summary
    from ampcheck.report.text import verdict_text

    for line, style in summary(report, Path.cwd()):
        say(line, style)
    for verdict in report.verdicts:
        if verdict.outcome == "failed" and verdict.follows is None:
            say()
            say(verdict_text(verdict, device, Path.cwd()))
    for contract in report.contracts:
        if kept := contract.facts.get("evidence"):
            say()
            say(f"evidence  {one_line(kept)}")
        for note in contract.facts.get("notes", ()):
            if note.startswith("no evidence bundle: "):
                complain(one_line(note))
