"""The one command that runs an item alone, under the settings of the session that saw it fail."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampcheck.report.text import UNPRINTABLE

if TYPE_CHECKING:
    import pytest

__all__ = ["command"]

#: Settings that decide what an item says; the others only write something.
DECIDES = ("ignore", "strict", "xfail", "device", "dtype", "timeout", "budget", "require")
#: Those that decide what the item says that compares with a baseline.
COMPARES = ("baseline", "accept", "against")
#: Options of pytest that decide what is loaded, and from where; each takes a value.
LOADS = ("-p", "-c", "-o", "--config-file", "--override-ini", "--rootdir", "--confcutdir", "--import-mode")
JOINED = tuple(f"{option}=" if option.startswith("--") else option for option in LOADS)
SWITCHES = ("--noconftest", "--disable-plugin-autoload")


def command(config: pytest.Config, nodeid: str) -> str:
    """A shell command that runs one item alone, from the directory that pytest was started in.

    Args:
        config: of the session, or of an xdist worker.
        nodeid: of the item.

    Returns:
        One line, quoted for a POSIX shell (on Windows for its own); "" where the id has characters that no line can show.
    """
    arguments = _program(config)
    reference = nodeid.startswith("ampcheck/reference.py::")
    arguments += ["--ampcheck-reference" if reference else "--ampcheck", *_settings(config, nodeid), *_loading(config, nodeid)]
    if reference:  # these are no file of the project: they are chosen by name
        arguments += ["-k", nodeid.partition("::")[2]]
    else:
        arguments.append(_path(config, nodeid))
    line = subprocess.list2cmdline(arguments) if os.name == "nt" else shlex.join(arguments)
    return "" if UNPRINTABLE.search(line) or "\n" in line or "\r" in line else line


def _command_line(config: pytest.Config) -> tuple[str, Sequence[str]]:
    """The program and its arguments, as they were typed; a worker was told those of its controller."""
    told: Sequence[str] | None = getattr(config, "workerinput", {}).get("mainargv")
    if told:
        return told[0], told[1:]
    return sys.argv[0] if sys.argv else "", [str(a) for a in config.invocation_params.args]


def _program(config: pytest.Config) -> list[str]:
    # `python -m pytest` puts the current directory on the path, and `pytest` does not.
    started = Path(_command_line(config)[0])
    return ["python", "-m", "pytest"] if started.name == "__main__.py" and started.parent.name == "pytest" else ["pytest"]


def _settings(config: pytest.Config, nodeid: str) -> Iterator[str]:
    # A selection is of no interest to an item that is named, unless it stands against one in the configuration.
    selects = ("select",) if config.getini("ampcheck_select") else ()
    for name in selects + DECIDES + (COMPARES if nodeid.endswith("-baseline]") else ()):
        given: Any = config.getoption(f"ampcheck_{name}")
        for value in [] if given is None else given if isinstance(given, list) else [given]:
            yield f"--ampcheck-{name}={value}"


def _loading(config: pytest.Config, nodeid: str) -> Iterator[str]:
    kept = list(_kept(_command_line(config)[1]))
    yield from kept
    plugin = sys.modules["ampcheck.plugin"]
    if config.pluginmanager.get_name(plugin) == "ampcheck.plugin" and "ampcheck.plugin" not in kept:
        yield from ("-p", "ampcheck.plugin")
    # Without a configuration file the root is what the directory and all arguments have in common; there is one of them now.
    root, directory = config.rootpath, config.invocation_params.dir
    if config.inipath is None and not any(a.startswith("--rootdir") for a in kept):
        own = (root / nodeid.partition("::")[0]).parent
        if os.path.commonpath([own, directory]) != str(root):
            yield f"--rootdir={_from(root, directory)}"


def _kept(typed: Sequence[str]) -> Iterator[str]:
    """Of what was typed, the options that decide what is loaded."""
    waiting = iter(typed)
    for argument in waiting:
        if argument in LOADS:
            value = next(waiting, None)
            if value is not None:
                yield from (argument, value)
        elif argument in SWITCHES or argument.startswith(JOINED):
            yield argument


def _path(config: pytest.Config, nodeid: str) -> str:
    """The id, with its path seen from the directory that pytest was started in."""
    path, separator, name = nodeid.partition("::")
    seen = _from(config.rootpath / path, config.invocation_params.dir)
    # pytest takes what begins so for an option, or for a file of arguments
    return f"{'./' if seen.startswith(('-', '@')) else ''}{seen}{separator}{name}"


def _from(path: Path, base: Path) -> str:
    try:
        return Path(os.path.relpath(path, base)).as_posix()
    except ValueError:  # another drive
        return path.as_posix()
