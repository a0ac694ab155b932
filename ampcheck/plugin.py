"""The pytest plugin. Standard library and pytest only at import: nobody who does not pass --ampcheck pays for us.

The options and two fixtures are always there; all other hooks are in `ampcheck.session.hooks`, which a session that asks
for contracts registers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ampcheck.config import add_options, wanted
from ampcheck.errors import UsageError

if TYPE_CHECKING:
    from ampcheck.trace import Trace

#: The names that this plugin can be loaded under: its entry point, and `-p ampcheck.plugin`.
NAMES = ("ampcheck", __name__)


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    # pluggy refuses the same module under a second name; whoever names it twice means it once.
    if plugin is sys.modules[__name__]:
        for name in NAMES:
            if manager.get_name(plugin) != name:
                manager.set_blocked(name)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    try:
        if wanted(config):
            from ampcheck.session.hooks import Hooks

            config.pluginmanager.register(Hooks(config), "ampcheck-session")
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.fixture(scope="session")
def amp_device() -> str:
    """The device type that a contract is judged on, such as `"cpu"`; in an ordinary test the default one."""
    from ampcheck.session.devices import default_device

    return default_device()


@pytest.fixture
def amp_trace() -> Iterator[Trace]:
    """A trace that records the test it is used in."""
    from ampcheck.trace import trace

    with trace() as recorded:
        yield recorded
