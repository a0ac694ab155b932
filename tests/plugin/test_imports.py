"""Nobody who does not pass --ampcheck pays: read from `sys.modules` of a child pytest, when it exits."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "numpy", "hypothesis"}
#: Runs at the very end of the child, after every hook and every other exit function.
SPY = """
import atexit, json, sys

def tell():
    with open("modules.json", "w") as file:
        json.dump(sorted(sys.modules), file)

atexit.register(tell)
"""
ORDINARY = "def test_ordinary():\n    assert 1 + 1 == 2\n"
CONTRACT = """
import ampcheck

@ampcheck.contract
def resnet(amp_device):
    import torch
    return torch
"""


def modules(tmp_path, *args, conftest="", **files):
    """Names of all modules that a child pytest has loaded when it exits."""
    (tmp_path / "conftest.py").write_text(SPY + conftest)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    # Without autoload: what other plugins load is not our doing.
    command = [sys.executable, "-m", "pytest", "-p", "ampcheck.plugin", "-p", "no:cacheprovider", *args]
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(json.loads((tmp_path / "modules.json").read_text()))


def top(names):
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize(
    "args", [(), ("-v", "-rA", "--junit-xml=junit.xml"), ("--collect-only",), ("--help",), ("--fixtures",)]
)
def test_an_ordinary_session_loads_nothing_heavy(tmp_path, args):
    loaded = modules(tmp_path, *args, test_ordinary=ORDINARY, test_amp=ORDINARY + CONTRACT)
    assert not HEAVY & top(loaded)


def test_an_ordinary_session_loads_few_of_our_modules(tmp_path):
    ours = {name for name in modules(tmp_path, test_ordinary=ORDINARY) if name.partition(".")[0] == "ampcheck"}
    assert ours == {"ampcheck", "ampcheck.plugin", "ampcheck.config", "ampcheck.errors"}


@pytest.mark.parametrize("heavy", sorted(HEAVY))
def test_the_proof_can_fail(tmp_path, heavy):
    """A hook at the end of the session that imports something heavy is seen."""
    late = f"\ndef pytest_unconfigure():\n    import {heavy}\n"
    assert heavy in top(modules(tmp_path, conftest=late, test_ordinary=ORDINARY))


def test_settings_in_the_ini_load_nothing_either(tmp_path):
    ini = "[pytest]\nampcheck_select = AMP1\nampcheck_modules = nowhere\n"
    (tmp_path / "tox.ini").write_text(ini)
    assert not HEAVY & top(modules(tmp_path, "-c", "tox.ini", test_ordinary=ORDINARY))
