"""A commit of the repository in a folder of its own, made without running anything that the repository or its clone brings."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ampcheck.errors import UsageError

__all__ = ["commit_of", "top_of", "worktree"]

#: Seconds that one git command may take.
PATIENCE = 600
#: Nothing that git would run by itself: hooks, a file system monitor, submodules. Filters are added by name.
QUIET = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "submodule.recurse=false", "advice.detachedHead=false")


def _git(folder: Path, arguments: Sequence[str], settings: Sequence[str] = QUIET) -> str:
    """The output of a git command.

    Raises:
        UsageError: if there is no git, or it fails, with what it said.
    """
    given = [part for setting in settings for part in ("-c", setting)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(("GIT_CONFIG", "GIT_SSL"))}
    environment |= {"GIT_LFS_SKIP_SMUDGE": "1", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(  # noqa: S603 - a revision is checked before, and no shell reads it
            ["git", *given, *arguments],  # noqa: S607 - the user's own git
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE,
            check=False,
        )
    except FileNotFoundError:
        raise UsageError("--ampcheck-against needs git, and there is none on the PATH") from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"--ampcheck-against: `git {arguments[0]}` took longer than {PATIENCE} s") from None
    if done.returncode:
        raise UsageError(
            f"--ampcheck-against: `git {' '.join(arguments[:2])}` failed: {done.stderr.strip() or done.returncode}"
        )
    return done.stdout


def top_of(folder: Path) -> Path:
    """The root of the repository that a folder lies in.

    Raises:
        UsageError: if it lies in none.
    """
    try:
        return Path(_git(folder, ["rev-parse", "--show-toplevel"]).rstrip("\n"))
    except UsageError as error:
        if "not a git repository" in str(error):
            raise UsageError(
                f"--ampcheck-against: {folder} is in no git repository, so there is no commit to compare with"
            ) from None
        raise


def commit_of(top: Path, revision: str) -> str:
    """The full id of a commit.

    Raises:
        UsageError: if there is no such revision.
    """
    if not revision or revision.startswith("-"):
        raise UsageError(f"--ampcheck-against: {revision!r} is no revision")
    try:
        return _git(top, ["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"]).strip()
    except UsageError:
        raise UsageError(
            f"--ampcheck-against: there is no commit {revision!r} here; a shallow clone has to fetch it first "
            f"(git fetch --depth=1 origin <branch>, or fetch-depth: 0 in actions/checkout)"
        ) from None


#: Programs that a configuration can name for git to run.
_PROGRAMS = r"^(filter\..*\.(clean|smudge|process)|hook\..*\.command)$"
_OFF = {"filter": ("clean=", "smudge=", "process=", "required=false"), "hook": ("enabled=false",)}


def _without_programs(top: Path) -> list[str]:
    """Settings that switch off each clean and smudge filter, and each hook, that the clone's configuration names."""
    try:
        names = _git(top, ["config", "--name-only", "--null", "--get-regexp", _PROGRAMS]).split("\0")
    except UsageError:  # there is none
        return []
    drivers = sorted({name.rpartition(".")[0] for name in names if name})
    if odd := next((d for d in drivers if "=" in d or "\n" in d), None):
        raise UsageError(f"--ampcheck-against: {odd!r} of git's configuration cannot be switched off")
    return [f"{d}.{key}" for d in drivers for key in _OFF[d.partition(".")[0].lower()]]


@contextlib.contextmanager
def worktree(top: Path, commit: str) -> Iterator[Path]:
    """A checkout of a commit outside the repository, gone when this ends, however it ends.

    No hook, filter or submodule of the repository runs. Large files stay the pointers that are committed.

    Raises:
        UsageError: if git cannot make it.
    """
    parent = Path(tempfile.mkdtemp(prefix="ampcheck-base-")).resolve()
    folder = parent / "base"
    try:
        _git(top, ["worktree", "add", "--detach", "--no-guess-remote", str(folder), commit], [*QUIET, *_without_programs(top)])
        yield folder
    finally:
        with contextlib.suppress(UsageError):
            _git(top, ["worktree", "remove", "--force", "--force", str(folder)])
        shutil.rmtree(parent, ignore_errors=True)
        with contextlib.suppress(UsageError):
            _git(top, ["worktree", "prune"])
