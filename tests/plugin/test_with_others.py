"""Beside pytest's own switches and other plugins: every contract is still judged once, and every report is whole."""

from __future__ import annotations

import json
import re

import pytest

from ampcheck.session.scheduling import group_of, parts_of

TWO = """
@ampcheck.contract(devices="cpu")
def good():
    return {}

@ampcheck.contract(devices="cpu")
def bad():
    return {"AMP102": "failed", "AMP108": "warned"}

def test_ordinary():
    pass
"""
PLAIN = ("-p", "no:randomly", "-p", "no:timeout")


def test_exit_first_stops_and_the_report_has_what_ran(project):
    project.write(TWO)
    result = project.judge("-x")
    result.assert_outcomes(passed=5, failed=1)
    assert len(project.report["items"]) == 6


def test_last_failed_runs_only_what_failed(project):
    project.write(TWO)
    project.write(TWO.replace("{", "{}; {", 1), "test_more.py")
    project.judge().assert_outcomes(passed=16, failed=2)
    result = project.judge("--lf")
    result.assert_outcomes(failed=2)
    assert {i["check"] for i in project.report["items"]} == {"AMP102"}


def test_last_failed_without_a_contract_in_sight_is_no_usage_error(project):
    project.write("@ampcheck.contract(devices='cpu')\ndef good():\n    return {}\n")
    project.write("def test_fails():\n    assert 0\n", "test_ordinary.py")
    project.judge().assert_outcomes(passed=4, failed=1)
    result = project.judge("--lf")
    result.assert_outcomes(failed=1)
    assert result.ret == 1


def test_collect_only_judges_and_writes_nothing(project):
    project.write(TWO)
    project.judge("--collect-only")
    assert project.judged == []
    assert not (project.path / "report.json").exists()


@pytest.mark.parametrize("args", [("-p", "no:cacheprovider"), ("-q",), ("-qq",), ("-p", "no:terminal"), ("-s",), ("-vv",)])
def test_switches_of_pytest(project, args):
    project.write(TWO)
    result = project.judge(*args)
    assert result.ret == 1
    assert len(project.report["items"]) == 8
    assert project.judged == ["test_amp.py::good cpu", "test_amp.py::bad cpu"]


def test_both_names_of_the_plugin_may_be_given(project):
    project.write(TWO)
    project.judge("-p", "ampcheck.plugin").assert_outcomes(passed=8, failed=1)
    project.judge("-p", "ampcheck").assert_outcomes(passed=8, failed=1)


def test_the_plugin_may_be_named_by_a_conftest(project):
    project.write("pytest_plugins = ['ampcheck.plugin']\n", "conftest.py")
    project.write(TWO)
    project.judge().assert_outcomes(passed=8, failed=1)


@pytest.mark.parametrize("dist", ["load", "loadscope", "loadfile", "loadgroup", "worksteal"])
def test_xdist_judges_each_contract_once_and_the_controller_reports(project, dist):
    names = [f"net{i}" for i in range(5)]
    text = "".join(
        f"""
@pytest.mark.parametrize("width", [1, 2])
@ampcheck.contract(devices="cpu")
def {name}(width):
    return {{"AMP102": "failed"}}
"""
        for name in names
    )
    project.write(text + "\n@pytest.mark.parametrize('x', range(8))\ndef test_ordinary(x):\n    pass\n")
    result = project.judge("-n", "2", "--dist", dist, *PLAIN, process=True, plugins=True)
    result.assert_outcomes(passed=38, failed=10)
    expected = sorted(f"test_amp.py::{name}[{width}]" for name in names for width in (1, 2))
    assert sorted(project.judged) == [f"{name} cpu" for name in expected]
    report = project.report
    assert [f["contract"] for f in report["findings"]] == expected
    assert len(report["items"]) == 40
    assert report["environment"] == {"torch": "0.0", "device": "cpu"}
    assert len(report["costs"]) == 20
    result.stdout.fnmatch_lines(["test_amp.py::net0?1? ?cpu? *", "error  AMP102 clip-scaled-gradients  test_amp.py::net0*"])


def test_xdist_uses_several_workers(project):
    project.write("".join(f"@ampcheck.contract(devices='cpu')\ndef net{i}():\n    return {{}}\n\n" for i in range(6)))
    project.judge("-n", "2", *PLAIN, process=True, plugins=True).assert_outcomes(passed=24)
    workers = {line.rsplit(" ", 1)[1] for line in (project.path / "judged.txt").read_text().splitlines()}
    assert len(workers) == 2


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("a.py::net[cpu-AMP101-scale-invariance]", "a.py::net[cpu"),
        ("a.py::C::net[x-1-cuda-AMP502-gradient-parity-float16]", "a.py::C::net[x-1-cuda"),
        ("a.py::test_ordinary[cpu-AMP1]", None),
        ("a.py::test_ordinary", None),
        # xdist's own groups stay as they are
        ("a.py::net[cpu-AMP101-scale-invariance]@mine", None),
    ],
)
def test_the_group_of_an_item(nodeid, group):
    assert group_of(nodeid) == group


def test_the_parts_of_an_item():
    assert parts_of("a.py::net[cpu-AMP101-scale-invariance]") == ("a.py::net", "cpu", "AMP101", "scale-invariance")
    assert parts_of("a.py::net[x-1-cuda-AMP502-g-p-float16]") == ("a.py::net[x-1]", "cuda", "AMP502", "g-p-float16")


def test_no_contract_is_an_error_under_xdist_too(project):
    project.write("def test_ordinary():\n    pass\n")
    result = project.judge("-n", "2", *PLAIN, process=True, plugins=True)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["ERROR: no contract found*"])


def test_a_crashed_worker_costs_its_contract_alone(project):
    project.write(
        """
import os

@ampcheck.contract(devices="cpu")
def crashes():
    os._exit(7)

@ampcheck.contract(devices="cpu")
def whole():
    return {}
"""
    )
    result = project.judge("-n", "2", *PLAIN, process=True, plugins=True)
    assert result.ret == 1
    outcomes = project.outcomes()
    assert [o for name, o in outcomes.items() if "::whole" in name] == ["passed"] * 4
    assert project.judged.count("test_amp.py::crashes cpu") == 1
    assert [o for name, o in outcomes.items() if "::crashes" in name] == ["failed", "not-run", "not-run", "not-run"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_order_changes_no_report(project, seed):
    project.write(TWO)
    project.write(TWO, "test_more.py")
    project.judge().assert_outcomes(passed=16, failed=2)
    orderly = without_commands(project.report)
    (project.path / "judged.txt").unlink()
    project.judge(f"--randomly-seed={seed}", "-p", "no:xdist", plugins=True)
    assert sorted(project.judged) == [f"test_{module}.py::{name} cpu" for module in ("amp", "more") for name in ("bad", "good")]
    assert without_commands(project.report) == orderly


def without_commands(report):
    """A report as text, in its order, without how the sessions were started, in which they do differ."""
    for finding in report["findings"]:
        finding.pop("reproduce")
    return json.dumps(report)


def test_a_timeout_of_pytest_timeout_ends_the_contract_and_not_the_session(project):
    project.write(
        """
import time

@ampcheck.contract(devices="cpu")
def hangs():
    while True:
        time.sleep(0.01)

@ampcheck.contract(devices="cpu")
def whole():
    return {}
"""
    )
    result = project.judge("--timeout", "0.5", "-p", "no:randomly", "-p", "no:xdist", "-rs", process=True, plugins=True)
    result.assert_outcomes(passed=4, failed=1, skipped=3)
    result.stdout.fnmatch_lines(["*not-run: the run was cut short in AMP101-scale-invariance"])
    assert project.judged.count("test_amp.py::hangs cpu") == 1


def test_junit_carries_the_ids(project):
    project.write(TWO)
    project.judge("--junit-xml=junit.xml")
    xml = (project.path / "junit.xml").read_text()
    names = re.findall(r'testcase [^>]*name="([^"]*)"', xml)
    assert "bad[cpu-AMP102-clip-scaled-gradients]" in names
    assert xml.count("<failure") == 1
    assert "what AMP102 saw" in xml


def test_the_user_code_may_exit(project):
    project.write(
        """
@ampcheck.contract(devices="cpu")
def leaves():
    raise KeyboardInterrupt
"""
    )
    result = project.judge(process=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert project.report["items"] == []
