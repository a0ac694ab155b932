"""Contracts become pytest items: one for each device, check and policy."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ampcheck.contract import Contract, declared_at
from ampcheck.errors import UsageError
from ampcheck.session.group import Slot
from ampcheck.session.items import ContractItem
from ampcheck.session.judging import Judging

__all__ = ["Collection", "Found"]

#: Name of the parameter that carries a `Slot`.
SLOT = "_ampcheck"
REFERENCE = "ampcheck.reference"
NONE_FOUND = """no contract found. A contract is a function that builds one training step, in a test module, a conftest.py, or
a module that the ini names in `ampcheck_modules`:

    # tests/test_amp.py
    import ampcheck

    @ampcheck.contract
    def resnet(amp_device):                # parameters are fixtures; the name is free
        model, optimizer, scaler, batch = build(amp_device)

        def step():                        # one optimizer step of your own code
            train_one_step(model, optimizer, scaler, batch)

        return step

`pytest --ampcheck-reference` judges the built-in contracts instead."""


class ContractModule(pytest.Module):
    """A module of which only the contracts are collected: a conftest.py, or one that the ini names."""

    imported: str | None = None

    def _getobj(self) -> Any:
        if self.imported is not None:
            return _import(self.imported)
        # A conftest.py is already loaded; importing it again would run it twice.
        return self.config.pluginmanager.get_plugin(str(self.path)) or super()._getobj()  # type: ignore[no-untyped-call]

    def istestfunction(self, obj: object, name: str) -> bool:
        return False

    def istestclass(self, obj: object, name: str) -> bool:
        return False


class Found:
    """How many contracts were seen, whatever became of them, and which ones the settings left without a device."""

    def __init__(self) -> None:
        self.contracts = 0
        self.left_out: list[str] = []


class Collection:
    """What a session collects."""

    def __init__(self, judging: Judging) -> None:
        self.judging = judging
        self.found = Found()
        config = judging.config
        self.reference = bool(config.getoption("ampcheck_reference"))
        if self.reference and config.args_source is not pytest.Config.ArgsSource.ARGS:
            # The built-in contracts stand for themselves; whoever wants more names it.
            config.args = []

    def conftest(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """A collector for the contracts of a conftest.py that pytest itself does not take for a test module."""
        if path.name != "conftest.py" or parent.session.isinitpath(path):
            return None
        if any(path.match(pattern) for pattern in parent.config.getini("python_files")):
            return None
        collector: pytest.Collector = ContractModule.from_parent(parent, path=path)
        return collector

    def items(self, collector: Any, name: str, obj: object) -> list[pytest.Item] | None:
        """The items of a contract; None for everything else.

        Raises:
            pytest.Collector.CollectError: for a contract that cannot be collected as it is declared.
        """
        if isinstance(obj, staticmethod):
            obj = obj.__func__
        if not isinstance(obj, Contract):
            if problem := _hidden(obj, name):
                raise pytest.Collector.CollectError(problem)
            return None
        self.found.contracts += 1
        if problem := _problem(obj, name):
            raise pytest.Collector.CollectError(problem)
        try:
            devices, slots = self.judging.plan(obj)
        except UsageError as error:
            raise pytest.Collector.CollectError(f"contract {name}: {error}") from None
        if not devices:
            self.found.left_out.append(f"{collector.nodeid}::{name}")
        if not devices or not slots:
            return []
        # There is no public way to make the parametrized items of a function whose name is no test's.
        functions: Iterable[pytest.Function] = collector._genfunctions(name, obj)
        return [self._item(function, obj, slots) for function in functions]

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Add the device and the check to the parameters of a contract, after its own: this makes the ids."""
        declared = metafunc.definition.obj
        if not isinstance(declared, Contract):
            return
        devices, slots = self.judging.plan(declared)
        for name in ("amp_device", SLOT):
            if name not in metafunc.fixturenames:
                metafunc.fixturenames.append(name)
        metafunc.parametrize("amp_device", devices, ids=devices, scope="session")
        metafunc.parametrize(SLOT, slots, ids=[slot.id for slot in slots])

    def complete(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the contracts of named modules, leave ordinary tests out if asked, and see that there is a contract at all.

        Raises:
            pytest.UsageError: if there is none.
        """
        config = session.config
        if self.reference:
            items += self._module(session, REFERENCE, "ampcheck/reference.py")
        by_id = any("::" in arg for arg in config.args)
        seen = {item.path for item in items if isinstance(item, ContractItem)}
        for name in () if by_id else config.getini("ampcheck_modules"):
            items += self._module(session, name, None, seen)
        if config.getoption("ampcheck_only"):
            others = [item for item in items if not isinstance(item, ContractItem)]
            items[:] = [item for item in items if isinstance(item, ContractItem)]
            config.hook.pytest_deselected(items=others)
        # Where the user named single tests, or asked for the last failures, contracts may rightly be out of sight.
        partial = by_id or config.getoption("lf", False) or session.testsfailed
        if not self.found.contracts and not partial and not hasattr(config, "workerinput"):
            raise pytest.UsageError(NONE_FOUND)

    def _module(self, session: pytest.Session, name: str, nodeid: str | None, seen: Iterable[Path] = ()) -> list[pytest.Item]:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError) as error:
            raise pytest.UsageError(f"ampcheck_modules: {name!r} cannot be found: {error}") from None
        if spec is None or spec.origin is None:
            raise pytest.UsageError(f"ampcheck_modules: there is no module {name!r} (is its folder in `pythonpath`?)")
        if Path(spec.origin) in seen:
            return []
        extra: dict[str, Any] = {} if nodeid is None else {"nodeid": nodeid}
        module = ContractModule.from_parent(session, path=Path(spec.origin), **extra)
        module.imported = name
        return list(session.genitems(module))

    def _item(self, function: pytest.Function, declared: Contract, slots: tuple[Slot, ...]) -> ContractItem:
        callspec = function.callspec
        parent: Any = function.parent
        slot: Any = callspec.params[SLOT]
        device = str(callspec.params["amp_device"])
        item: ContractItem = ContractItem.from_parent(
            parent,
            name=function.name,
            callspec=callspec,
            fixtureinfo=function._fixtureinfo,
            keywords={callspec.id: True},
            originalname=function.originalname,
        )
        params = callspec.id.removesuffix(f"{device}-{slot.id}").removesuffix("-")
        contract = f"{parent.nodeid}::{item.originalname}" + (f"[{params}]" if params else "")
        item.slot = slot
        item.judging = self.judging
        item.group = self.judging.group(contract, device, declared, slots)
        return item


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise pytest.Collector.CollectError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error


def _hidden(obj: object, name: str) -> str | None:
    """Why a contract inside this object is not collected; None if there is none."""
    if isinstance(obj, classmethod):
        found = isinstance(obj.__func__, Contract)
        return f"{name}: a contract cannot be a class method; make it a method or a static method" if found else None
    if isinstance(inspect.getattr_static(obj, "__wrapped__", None), Contract):
        return (
            f"{name}: @ampcheck.contract must be the outermost decorator, marks aside; what stands above it hides the contract "
            "(a contract cannot be a fixture either)"
        )
    return None


def _problem(contract: Contract, name: str) -> str | None:
    """Why a contract cannot be collected, or None."""
    function = contract.function
    if any(inspect.getattr_static(function, mark, None) for mark in ("_fixture_function_marker", "_pytestfixturefunction")):
        return f"{name} is declared as a fixture and as a contract; a contract is called, not requested: remove @pytest.fixture"
    if isinstance(function, (staticmethod, classmethod)):
        return f"{name}: put @{type(function).__name__} above @ampcheck.contract, not below it"
    if len(lines := declared_at(contract)) > 1:
        where = " and ".join(map(str, lines))
        return f"{len(lines)} contracts are called {contract.name} (lines {where}); the last hides the others: rename them"
    if isinstance(function, type):
        return f"{name}: @ampcheck.contract takes a function that builds a training step, not a class"
    return None
