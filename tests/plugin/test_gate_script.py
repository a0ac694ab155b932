"""`ci/gate.sh`, run for real on a small project whose contracts are judged by the stand-in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

GATE = Path(__file__).parents[2] / "ci" / "gate.sh"
CONTRACTS = """
@ampcheck.contract(devices=("cpu", "cuda"))
def good():
    return {"AMP502": "inconclusive", "AMP108": "not-run", "reason": "there is no GPU"}

@ampcheck.contract(devices="cpu")
def bad():
    return {"AMP102": "failed"}
"""


@pytest.fixture
def gate(project):
    """Run the script in a project; what it printed, its exit code."""
    project.write(CONTRACTS)

    def run(*arguments, **variables):
        variables = {
            "PYTHON": sys.executable,
            "PYTEST_ADDOPTS": "-p fake_runner -p no:xdist -p no:randomly -p no:timeout -p no:hypothesispytest",
            "GITHUB_STEP_SUMMARY": "",
            "GITHUB_ACTIONS": "",
            **variables,
        }
        settings = [f"{name}={value}" for name, value in variables.items()]
        return project.pytester.run("env", *settings, "sh", GATE, *arguments)

    return run


def test_a_good_contract_passes_and_what_was_not_judged_is_said(gate, project):
    result = gate("-k", "good")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "ampcheck on cpu: 2 of 4 items judged, 2 not",
            "  inconclusive *1 x there is no GPU  (AMP502)",
            "  not-run  *1 x there is no GPU  (AMP108)",
        ]
    )
    assert {item["device"] for item in json.loads((project.path / "ampcheck-reports/cpu.json").read_text())["items"]} == {"cpu"}


def test_every_report_is_there_and_a_fault_fails(gate, project):
    result = gate(AMPCHECK_REPORTS="made here/reports")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["ampcheck on cpu: * of 8 items judged, *"])  # after a failure too
    made = project.path / "made here" / "reports"
    assert {path.name for path in made.iterdir()} == {f"cpu.{kind}" for kind in ("json", "html", "md", "sarif", "xml")}
    assert all(path.stat().st_size > 100 for path in made.iterdir())
    assert "AMP102" in (made / "cpu.sarif").read_text()


def test_no_contract_is_no_success(gate, project):
    assert gate("-k", "nothing_of_that_name").ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_a_gate_against_the_base_lets_known_faults_pass(gate, project):
    """The base commit has the same fault: nothing got worse."""
    git = ["git", "-C", str(project.path), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "base"], check=True)
    assert gate(AMPCHECK_AGAINST="main").ret == 0
    project.write(CONTRACTS.replace('"AMP108": "not-run"', '"AMP101": "failed"'))
    result = gate(AMPCHECK_AGAINST="main")
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*AMP101*"])


def test_an_unknown_base_is_an_error(gate, project):
    subprocess.run(["git", "init", "-q"], cwd=project.path, check=True)
    result = gate("-k", "good", AMPCHECK_AGAINST="no-such-branch; touch pwned")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --ampcheck-against: *no-such-branch*"])
    assert not (project.path / "pwned").exists()
