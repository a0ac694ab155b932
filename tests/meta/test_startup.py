"""Nobody who does not pass --ampcheck pays for the plugin: what a child pytest has loaded, read at its very exit."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def startup(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("startup")


def test_the_plugin_loads_nothing_heavy(startup: ModuleType, tmp_path: Path) -> None:
    modules, _ = startup.probe(tmp_path, *startup.PLUGIN)
    assert "ampcheck.plugin" in modules
    assert len(startup.of("ampcheck", modules)) <= startup.MOST
    for package in startup.HEAVY:
        assert startup.of(package, modules) == []


def test_the_probe_would_see_it(startup: ModuleType, tmp_path: Path) -> None:
    modules, _ = startup.probe(tmp_path, *startup.PLUGIN, "-p", "hypothesis")
    assert startup.of("hypothesis", modules)


def test_the_probe_loads_what_is_registered(startup: ModuleType) -> None:
    (entry,) = (entry for entry in importlib.metadata.entry_points(group="pytest11") if entry.name == "ampcheck")
    assert entry.value == startup.PLUGIN[1]
