"""Every failure prints the one command that runs it alone; the tests do what a person does with it: paste it into a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ampcheck.session.reproduce import command

BAD = """
@ampcheck.contract(devices="cpu")
def good():
    return {}

@ampcheck.contract(devices="cpu")
def bad():
    return {"AMP102": "failed", "AMP101": "failed", "follows": {"AMP101": "AMP102"}}
"""
PARAMETRISED = """
IDS = ["plain", "a b", "it's", "$(touch pwned)", "`touch pwned`", "x::y", "[z]", "50%", '"q"', "new\\nline", "\\x1b[31m", "*", "é"]

@pytest.mark.parametrize("name", IDS, ids=IDS)
@ampcheck.contract(devices="cpu", select="AMP102")
def bad(name):
    return {"AMP102": "failed", "seen": "saw " + ascii(name)}
"""


def printed(text: str) -> list[str]:
    return re.findall(r"^(?:E\s+)?\s*reproduce (.+)$", text, re.MULTILINE)


def paste(line: str, directory: Path, project) -> subprocess.CompletedProcess[str]:
    """Run a printed line as it is in a shell."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(project.path),  # where the stand-in runner is
        "PYTEST_ADDOPTS": "-p no:randomly -p no:cacheprovider",
    }
    return subprocess.run(line, shell=True, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def failures(text: str) -> list[str]:
    return re.findall(r"^FAILED (\S.*?)(?: - .*)?$", text, re.MULTILINE)


def test_the_printed_command_fails_in_the_same_way_and_runs_only_that(project):
    project.write(BAD)
    lines = printed(project.judge().stdout.str())
    assert [line.partition(" --ampcheck ")[2].rpartition(" ")[2] for line in lines] == [
        "'test_amp.py::bad[cpu-AMP101-scale-invariance]'",
        "'test_amp.py::bad[cpu-AMP102-clip-scaled-gradients]'",
    ]
    done = paste(lines[1], project.path, project)
    assert done.returncode == 1
    assert "1 failed" in done.stdout
    assert "passed" not in done.stdout.partition("short test summary")[2]
    assert "what AMP102 saw" in done.stdout
    assert printed(done.stdout) == [lines[1]]


def test_every_id_survives_the_shell(project):
    project.write(PARAMETRISED)
    result = project.judge()
    result.assert_outcomes(failed=13)
    lines = printed(result.stdout.str())
    assert len(lines) == 13
    for line in lines:
        before = len(project.judged)
        done = paste(line, project.path, project)
        assert "1 failed" in done.stdout, (line, done.stdout, done.stderr)
        assert printed(done.stdout) == [line]
        assert len(project.judged) == before + 1
    assert not (project.path / "pwned").exists()


@pytest.mark.parametrize("where", ["tests", "other/deep"])
def test_it_is_meant_for_the_directory_that_pytest_was_started_in(project, monkeypatch, where):
    project.write(BAD, "tests/test_amp.py")
    directory = project.path / where
    directory.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(directory)
    (line, *_) = printed(project.judge(str(project.path / "tests")).stdout.str())
    assert str(project.path) not in line
    assert "1 failed" in paste(line, directory, project).stdout


def test_without_a_configuration_file_the_root_is_named(project, monkeypatch):
    """It is what all arguments and the directory have in common, and one argument may have more."""
    (project.path / "tox.ini").unlink()
    for name in ("x/a", "y/b"):
        project.write(BAD, f"{name}/test_{name[2:]}.py")
    monkeypatch.chdir(project.path / "x")
    result = project.run("--ampcheck", "a", "../y/b")
    lines = printed(result.stdout.str())
    assert ["--rootdir=.." in line for line in lines] == [True, True, False, False]
    for line, failed in zip(lines, failures(result.stdout.str()), strict=True):
        done = paste(line, project.path / "x", project)
        assert failures(done.stdout) == [failed]


def test_settings_that_decide_go_with_it_and_files_do_not(project):
    project.write("@ampcheck.contract\ndef bad():\n    return {'AMP108': 'warned', 'AMP502': 'failed'}\n")
    result = project.judge(
        "--ampcheck-strict=AMP108", "--ampcheck-xfail", "AMP502:it's known", "--ampcheck-device=cpu", "--ampcheck-dtype=bf16",
        "--ampcheck-budget=60", "-m", "not slow", "-v",
    )  # fmt: skip
    (finding, other) = project.report["findings"]
    assert finding["id"] == "AMP108"
    line = finding["reproduce"]
    for kept in (
        "--ampcheck-strict=AMP108",
        "'--ampcheck-xfail=AMP502:it'\"'\"'s known'",
        "--ampcheck-device=cpu",
        "-dtype=bf16",
    ):
        assert kept in line
    assert "json" not in line
    assert " -v" not in line
    assert other["reproduce"].endswith("gradient-parity-bfloat16]'")
    assert result.ret == 0 or "AMP108" in result.stdout.str()
    project.ini("ampcheck_select = AMP5")
    project.judge("--ampcheck-select=AMP1", "--ampcheck-device=cpu", "--ampcheck-strict=all")
    assert "--ampcheck-select=AMP1" in project.report["findings"][0]["reproduce"]


def test_how_the_plugin_and_the_configuration_were_loaded_goes_with_it(project, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    project.write(BAD)
    (project.path / "own.ini").write_text("[pytest]\npython_files = test_*.py\n")
    arguments = ("--ampcheck", "-c", "own.ini", "-o", "console_output_style=classic", "--import-mode=importlib")
    plugins = ("-p", "fake_runner", "-p", "ampcheck.plugin")
    child = project.pytester.runpytest_subprocess(*plugins, *arguments)
    (line, *_) = printed(child.stdout.str())
    # started as `python -m pytest`, which puts the directory on the path
    assert line.startswith("python -m pytest --ampcheck -p fake_runner -p ampcheck.plugin -c own.ini -o console_output_style")
    done = paste(line, project.path, project)
    assert "1 failed" in done.stdout, done.stderr


def test_a_plugin_that_something_else_loaded_is_named(project, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    project.write(BAD)
    (project.path / "conftest.py").write_text('pytest_plugins = ["fake_runner", "ampcheck.plugin"]\n')
    child = project.pytester.runpytest_subprocess("--ampcheck", ".")
    if child.ret == pytest.ExitCode.USAGE_ERROR:  # a conftest.py comes too late for an option
        pytest.skip("this pytest reads the options first")
    assert "-p ampcheck.plugin" in printed(child.stdout.str())[0]


def test_workers_tell_what_the_controller_was_told(project):
    project.write(BAD)
    result = project.run("--ampcheck", "-n1", "-p", "no:randomly", plugins=True, process=True)
    lines = printed(result.stdout.str())
    assert len(lines) == 2
    assert " -n" not in lines[0]
    assert "1 failed" in paste(lines[1], project.path, project).stdout


def test_a_failure_in_a_fixture_has_it_too(project):
    project.write(
        """
@pytest.fixture
def data():
    raise FileNotFoundError("no data here")

@ampcheck.contract(devices="cpu", select="AMP102")
def bad(data):
    return {}
"""
    )
    result = project.judge()
    (line,) = printed(result.stdout.str())
    done = paste(line, project.path, project)
    assert "no data here" in done.stdout
    assert done.returncode == 1


def test_the_built_in_contracts_are_chosen_by_name(project):
    line = command(project.pytester.parseconfig("--ampcheck-reference"), "ampcheck/reference.py::batchnorm_cnn[cpu-AMP101-x]")
    assert line.endswith("--ampcheck-reference -k 'batchnorm_cnn[cpu-AMP101-x]'")


def test_an_id_that_no_line_can_show_has_none(project):
    config = project.pytester.parseconfig("--ampcheck")
    assert command(config, "a\nb/test_amp.py::bad[cpu-AMP102-clip]") == ""
    assert command(config, "\x1b[2J/test_amp.py::bad[cpu-AMP102-clip]") == ""


@pytest.mark.parametrize("folder", ["-x", "@args"])
def test_a_path_that_looks_like_an_option_is_none(project, folder):
    project.write(BAD, f"{folder}/test_amp.py")
    (line, *_) = printed(project.judge().stdout.str())
    assert f"./{folder}/test_amp.py" in line
    assert "1 failed" in paste(line, project.path, project).stdout


def test_a_change_since_the_baseline_is_reproduced_against_the_same_baseline(project):
    project.write("@ampcheck.contract(devices='cpu')\ndef net():\n    return {}\n")
    project.run("--ampcheck", "--ampcheck-update-baseline", "--ampcheck-baseline=agreed.json")
    project.write("@ampcheck.contract(devices='cpu')\ndef net():\n    return {'AMP102': 'failed'}\n")
    lines = printed(project.judge("--ampcheck-baseline=agreed.json").stdout.str())
    (line,) = (line for line in lines if "baseline]" in line)
    assert "--ampcheck-baseline=agreed.json" in line
    done = paste(line, project.path, project)
    assert "net[cpu-baseline]: changed since the baseline" in done.stdout
    assert "1 failed" in done.stdout


def test_a_contract_that_crashes_its_worker_has_it_too(project):
    project.write("import os\n\n@ampcheck.contract(devices='cpu')\ndef crashes():\n    os._exit(7)\n")
    result = project.judge("-n1", "-p", "no:randomly", "-p", "no:timeout", plugins=True, process=True)
    (line,) = printed(result.stdout.str())
    assert "test_amp.py::crashes[cpu-AMP101-scale-invariance]" in line
    assert paste(line, project.path, project).returncode == 7
