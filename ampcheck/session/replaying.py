"""A pytest session that finds one contract, with its fixtures and parameters, and replays a bundle instead of judging it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
from pathlib import Path
from typing import Any

import pytest

from ampcheck.config import REPORTS
from ampcheck.errors import UsageError
from ampcheck.report.text import clean, one_line
from ampcheck.session.items import ContractItem

__all__ = ["run"]

REFERENCE = "ampcheck/reference.py"
#: Settings of the project that would write something.
_WRITES = (*REPORTS, "evidence", "evidence_batch")


class _Session:
    """The plugin: leaves the one item, and runs `work` in place of it."""

    def __init__(self, contract: str, device: str, work: Any) -> None:
        self.contract, self.device, self.work = contract, device, work
        self.known: list[str] = []
        self.result: Any = None
        self.error: Exception | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        found: dict[str, ContractItem] = {}
        for item in items:
            if isinstance(item, ContractItem) and item.group.device == self.device:
                found.setdefault(item.group.contract, item)
        self.known = list(found)
        name = self.contract
        matching = [id for id in found if id == name or ("[" not in name and id.startswith(f"{name}["))]
        chosen = found[matching[0]] if len(matching) == 1 else None
        items[:] = [] if chosen is None else [chosen]
        if chosen is not None:
            vars(chosen)["runtest"] = functools.partial(self._run, chosen)
        # Nothing is judged: there is nothing to report, and no report of an earlier session to replace.
        config.pluginmanager.unregister(name="ampcheck-session")

    def _run(self, item: ContractItem) -> None:
        arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
        try:
            self.result = self.work(item.judging.builder(item.group, item.obj.function, arguments), item.group.contract)
        except Exception as error:
            self.error = error


def run(contract: str, device: str, work: Any) -> Any:
    """Collect one contract of the project in the current directory and hand it over.

    Args:
        contract: node id of the function, `path::name` or `path::name[params]`, seen from the current directory.
        device: device type.
        work: called with (a function that builds the contract, its node id).

    Returns:
        What `work` returned.

    Raises:
        UsageError: if there is no such contract, or it cannot be collected or set up; the message has what pytest said.
    """
    session = _Session(contract, device, work)
    output = io.StringIO()
    arguments = ["-p", "ampcheck.plugin", "-p", "no:cacheprovider", "-q", "--no-header", f"--ampcheck-device={device}"]
    arguments += [part for name in _WRITES for part in ("-o", f"ampcheck_{name}=")]
    if importlib.util.find_spec("xdist") is not None and not os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        arguments.append("-n0")
    arguments += _chosen(contract)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        pytest.main(arguments, plugins=[session])
    if session.error is not None:
        raise session.error
    if session.result is None:
        known = [one_line(name, 200) for name in session.known]
        if session.known and contract not in session.known:
            raise UsageError(f"there is no contract {one_line(contract)} on {one_line(device)}; there are: {', '.join(known)}")
        raise UsageError(
            f"the contract {one_line(contract)} cannot be run here; pytest says:\n{clean(output.getvalue(), 4000)}"
        )
    return session.result


def _chosen(contract: str) -> list[str]:
    """Arguments of pytest for a contract whose name may come from a file of somebody else's: a path in this project only."""
    path, _, name = contract.partition("::")
    if path == REFERENCE:
        return ["--ampcheck-reference"]
    here = Path.cwd().resolve()
    file = Path(path)
    if not name or file.is_absolute() or not (here / file).resolve().is_relative_to(here) or not (here / file).is_file():
        raise UsageError(
            f"the contract {one_line(contract)} is not in a file under the current directory; start in the root of the project, "
            "or name it with --contract path::name"
        )
    return ["--ampcheck", f"./{file.as_posix()}::{name.partition('[')[0]}"]
