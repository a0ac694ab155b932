"""`--ampcheck-against REV`: another commit judged in the same job on the same machine, by a pytest of its own.

The child runs in a worktree of that commit with the base's own configuration and the same arguments, and writes a baseline.
Paths of the base come before those of this checkout; whether its modules really were imported from there is looked at.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ampcheck.errors import UsageError
from ampcheck.session.worktree import commit_of, top_of, worktree

__all__ = ["CHILD", "Base", "measure", "note_foreign"]

#: Set for the child: the folder that it leaves its notes in.
CHILD = "_AMPCHECK_MEASURES_A_BASE_INTO"
_HEAD = "_AMPCHECK_HEAD_OF_THE_BASE"
#: Seconds that the base may take as a whole.
PATIENCE = 3600
#: What only writes, or would make the child measure a base of its own: options with a value, and without.
_WRITING = ("json", "html", "markdown", "sarif", "annotations", "evidence", "evidence-batch", "baseline", "accept", "against")
_VALUED = (*(f"--ampcheck-{name}" for name in _WRITING), "--junitxml", "--junit-xml", "--log-file", "--report-log", "--rootdir")
_SWITCHES = ("--ampcheck-update-baseline", "--pdb", "--trace", "-x", "--exitfirst", "--lf", "--last-failed", "--ff", "--sw")
#: Reports that the base's ini may ask for.
_SILENT = ("json", "html", "markdown", "sarif", "evidence", "evidence_batch", "accept")
#: The last lines of what the child said, where it could not run.
_TAIL = 25


@dataclass(frozen=True)
class Base:
    """What was measured: the baseline file that the child wrote (or did not, where the base has no contract), and of what."""

    path: str
    revision: str
    note: str = ""


def measure(config: pytest.Config, revision: str, folder: Path, tell: Callable[[str], None]) -> Base:
    """Judge another commit.

    Args:
        config: of this session.
        revision: as the user wrote it.
        folder: a temporary folder, for the baseline.
        tell: is given lines for the person who waits.

    Raises:
        UsageError: if there is no such commit, its contracts cannot be run, or it ran code of this checkout.
    """
    top = top_of(config.rootpath)
    commit = commit_of(top, revision)
    named = f"{revision} ({commit[:12]})" if not commit.startswith(revision) else commit[:12]
    target = folder / "base.json"
    with worktree(top, commit) as tree:
        arguments = _arguments(config, top, tree)
        if arguments is None:
            return Base(str(target), named, "none of the files that were asked for is in it")
        start = _moved(config.invocation_params.dir, top, tree)
        if not start.is_dir():
            return Base(str(target), named, "the folder that pytest was started in is not in it")
        tell(f"ampcheck: measuring {named} first")
        said = _run([*arguments, f"--ampcheck-baseline={target}"], start, top, tree, folder)
        foreign = sorted({line for note in folder.glob("foreign-*") for line in note.read_text("utf-8").splitlines()})
        if foreign:
            more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
            raise UsageError(
                f"--ampcheck-against: the base imported code of this checkout, so that nothing would be compared: "
                f"{', '.join(foreign[:3])}{more}. Put the folders that hold it on pytest's `pythonpath`, or install it "
                "without a path of this checkout"
            )
        if target.exists():
            return Base(str(target), named)
        if "no contract found." in said or "no contract was judged" in said:
            return Base(str(target), named, "it has no contract that runs")
        tail = "\n".join(said.rstrip().splitlines()[-_TAIL:])
        raise UsageError(f"--ampcheck-against: the contracts of {named} could not be run; its pytest said:\n{tail}")


def _moved(path: Path, top: Path, tree: Path) -> Path:
    """The same path in the worktree; unchanged outside of the repository."""
    try:
        return tree / path.resolve().relative_to(top.resolve())
    except ValueError:
        return path


def _arguments(config: pytest.Config, top: Path, tree: Path) -> list[str] | None:
    """The child's arguments: those of this run, less what writes and the files that the base does not have.

    `None` if it has none of the files that were asked for.
    """
    kept: list[str] = []
    files: list[str] = []
    asked = False
    # what pytest itself took for files: the value of an option may look like one
    typed = config.args if config.args_source is pytest.Config.ArgsSource.ARGS else ()
    given = iter([str(a) for a in config.invocation_params.args])
    here = config.invocation_params.dir
    for argument in given:
        if argument in _VALUED:
            next(given, None)
        elif argument in _SWITCHES or argument.startswith((*(f"{option}=" for option in _VALUED), "--maxfail")):
            continue
        elif argument in typed and (kept[-1:] or [""])[0] not in _TAKES:
            asked = True
            path = _moved(here / argument.partition("::")[0], top, tree)
            if path.exists() and str(path) not in files:
                files.append(str(path))
        else:
            name, equals, value = argument.partition("=")
            absolute = value if equals else argument
            inside = Path(absolute).is_absolute() and top.resolve() in Path(absolute.partition("::")[0]).resolve().parents
            moved = str(_moved(Path(absolute), top, tree)) if inside else absolute
            kept.append(f"{name}={moved}" if equals else moved)
    if asked and not files:
        return None
    if config.inipath is not None and top.resolve() not in config.inipath.resolve().parents:
        kept += ["-c", str(config.inipath)]
    silent = [part for name in _SILENT for part in ("-o", f"ampcheck_{name}=")]
    kept += [
        "--rootdir",
        str(_moved(config.rootpath, top, tree)),
        *silent,
        "-o",
        f"cache_dir={tree.parent / 'cache'}",
        "--maxfail=0",
    ]
    return [*kept, "--ampcheck-only", "--ampcheck-update-baseline", "--ampcheck-annotations=off", *files]


#: Options of pytest whose value is the next argument and may look like a file.
_TAKES = (
    "-k",
    "-m",
    "-p",
    "-c",
    "-o",
    "-n",
    "-W",
    "-r",
    "--ignore",
    "--deselect",
    "--import-mode",
    "--confcutdir",
    "--basetemp",
    "--dist",
    "--tb",
)


def _run(arguments: Sequence[str], start: Path, top: Path, tree: Path, folder: Path) -> str:
    """Run pytest in the worktree; what it said. It is gone when this ends, Ctrl-C included."""
    environment = {k: v for k, v in os.environ.items() if k not in ("GITHUB_STEP_SUMMARY", "PYTEST_CURRENT_TEST")}
    environment |= {
        CHILD: str(folder),
        _HEAD: str(top.resolve()),
        "PYTHONPATH": os.pathsep.join(_paths(top, tree)),
        "COVERAGE_FILE": str(folder / "coverage"),
    }
    log = folder / "base.log"
    with log.open("w", encoding="utf-8") as out:
        child = subprocess.Popen(  # noqa: S603 - pytest, with the arguments of the user's own
            [sys.executable, "-m", "pytest", *arguments],
            cwd=start,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        try:
            child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise UsageError(f"--ampcheck-against: the base took longer than {PATIENCE} s") from None
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
    return log.read_text("utf-8", "replace")


def _paths(top: Path, tree: Path) -> list[str]:
    """Where the child looks for modules first: all that this process looks at, as it is in the base.

    That covers a `src` layout and editable installs, whose folders are on the path, or in the finder that such an install
    leaves.
    """
    known = [Path(p) for p in sys.path if p]
    known += [top / "src"] * (top / "src").is_dir()
    for name, module in list(sys.modules.items()):
        if name.startswith("__editable__"):
            known += [Path(p).parent for p in getattr(module, "MAPPING", {}).values()]
    own = Path(__file__).resolve().parent.parent.parent
    known = [p for p in known if p.resolve() != own]  # whoever judges stays the same
    inside = [p for p in known if (p.resolve() == top.resolve() or top.resolve() in p.resolve().parents) and not _installed(p)]
    moved = [str(_moved(p, top, tree)) for p in inside]
    given = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    return list(dict.fromkeys([*moved, *(p for p in given if Path(p) not in inside)]))


def _installed(path: Path) -> bool:
    return bool({"site-packages", "dist-packages"} & set(path.parts))


def note_foreign(folder: str) -> None:
    """In the child: note the modules that came from the other checkout, for the parent to read."""
    head = os.environ.get(_HEAD)
    if not head:
        return
    top, found = Path(head), []
    own = Path(__file__).resolve().parent.parent
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or _installed(Path(file)):
            continue
        path = Path(file).resolve()
        if top in path.parents and own not in path.parents:
            found.append(f"{name} from {path}")
    if found:
        (Path(folder) / f"foreign-{os.getpid()}").write_text("\n".join(found), "utf-8")


def temporary() -> Path:
    """A folder for what the child leaves."""
    return Path(tempfile.mkdtemp(prefix="ampcheck-against-"))


def discard(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
