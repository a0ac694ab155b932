"""What autocast really does to each op, as data: one measured table for each device type and torch version.

`load` gives the table of the torch that is running: a shipped one, else one measured on the spot. Nothing here imports
torch until something has to be measured, so tables can be read and compared anywhere.
"""

from __future__ import annotations

import functools
import re
import sys
from importlib import metadata
from pathlib import Path

from ampcheck.errors import UsageError
from ampcheck.facts.table import Change, Kernel, Norm, Row, Table

__all__ = ["Change", "Kernel", "Norm", "Row", "Table", "load", "read", "shipped"]

HERE = Path(__file__).parent


def release(version: str) -> tuple[int, int]:
    """`(2, 13)` of `"2.13.0+cpu"`: autocast's op lists move with minor releases only.

    Raises:
        UsageError: for something that does not begin with two numbers.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise UsageError(f"{version!r} is no torch version; write it as 2.13")
    return int(found[1]), int(found[2])


def shipped() -> dict[tuple[str, tuple[int, int]], Path]:
    """The tables that come with the package: `(device type, (major, minor))` -> file."""
    tables = {}
    for path in sorted(HERE.glob("autocast_*_torch*.json")):
        _, device, version = path.stem.split("_")
        tables[device, release(version.removeprefix("torch"))] = path
    return tables


def running_version() -> str:
    """The version of the installed torch, without importing it."""
    torch = sys.modules.get("torch")
    return str(torch.__version__) if torch is not None else metadata.version("torch")


def read(source: str | Path) -> Table:
    """A table by file, or by name as `cpu:2.13` (a shipped table, exactly).

    Raises:
        UsageError: if there is neither such a file nor such a table.
    """
    device, colon, version = str(source).partition(":")
    known = shipped()
    if colon and re.fullmatch(r"\d+\.\d+.*", version) and (device, release(version)) in known:
        return Table.read(known[device, release(version)], "shipped")
    if not Path(source).is_file():
        names = ", ".join(f"{name}:{major}.{minor}" for name, (major, minor) in known)
        raise UsageError(f"{source} is neither a file nor a shipped table; the shipped ones are {names}")
    return Table.read(Path(source), "file")


def load(device: str = "cpu", torch_version: str | None = None, *, measure: bool = True) -> Table:
    """The table to judge by.

    Args:
        device: device type, such as `"cpu"` or `"cuda"`; an index (`"cuda:0"`) is ignored.
        torch_version: as `torch.__version__` prints it; `None` is the torch that is installed.
        measure: whether a table that is not shipped may be measured on this machine (one to three seconds, once a
            process; only for the installed torch). Call it outside of any patch or forced precision.

    Returns:
        The shipped table of that minor release; else a measured one; else the nearest shipped one of that device type,
        whose `note` says so.

    Raises:
        UsageError: if there is no table at all for that device type and none can be measured.
    """
    device = device.partition(":")[0]
    try:
        running: str | None = running_version()
    except metadata.PackageNotFoundError:
        running = None
    wanted = torch_version or running
    if wanted is None:
        raise UsageError("torch is not installed; name a version, such as 2.13")
    return _load(device, wanted, measure and running is not None and release(wanted) == release(running))


@functools.cache
def _load(device: str, version: str, measurable: bool) -> Table:
    known = shipped()
    exact = known.get((device, release(version)))
    if exact is not None:
        return Table.read(exact, "shipped")
    if measurable:
        from ampcheck.facts.measure import available, measure

        if available(device):
            return measure(device)
    others = [candidate for name, candidate in known if name == device]
    if not others:
        raise UsageError(f"no autocast table for device type {device!r}, and none can be measured here")
    major, minor = release(version)
    # A tie goes to the newer release: autocast's lists have grown, hardly ever shrunk.
    near = min(others, key=lambda other: (abs(100 * (other[0] - major) + other[1] - minor), -other[0], -other[1]))
    note = f"no table for {device} torch {major}.{minor}; this is the nearest shipped one, torch {near[0]}.{near[1]}"
    return Table.read(known[device, near], "nearest", note)
