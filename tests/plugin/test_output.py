"""What a person sees: the summary, progress, and hostile text that must not break either."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from ampcheck.errors import ours
from ampcheck.findings import ContractReport, Cost, Finding, Location, Report, Verdict
from ampcheck.report import json as json_report
from ampcheck.report import terminal
from ampcheck.report.plain import plain
from ampcheck.report.text import clean, finding_text, one_line, relative
from ampcheck.session.progress import PATIENCE, Progress

HOSTILE = "\x1b[31mred\x1b[0m\x07\nsecond line\r\u202eright to left\ud800" + "x" * 10_000


def test_the_summary_has_a_row_for_each_contract(project):
    project.write(
        """
@ampcheck.contract(devices="cpu")
def mixed():
    return {"AMP101": "inconclusive", "AMP102": "failed", "AMP108": "warned", "AMP502": "not-run", "reason": "so it is"}

@ampcheck.contract(devices="cpu")
def good():
    return {}
"""
    )
    result = project.judge()
    result.stdout.fnmatch_lines(
        [
            "*= ampcheck =*",
            "torch 0.0, device cpu",
            "contract   * passed  failed  warned  xfailed  inconclusive  not-run  builds  steps  seconds",
            "test_amp.py::good ?cpu?  * 4       0       0        0             0        0       3     10     0.75",
            "test_amp.py::mixed ?cpu? * 0       1       1        0             1        1       3     10     0.75",
            "error  AMP102 clip-scaled-gradients  test_amp.py::mixed ?cpu? at *:12 in train_one_step",
            "",
            "warning  AMP108 backward-in-autocast    test_amp.py::mixed ?cpu?",
            "  expected  what AMP108 expects",
            "  seen      what AMP108 saw",
        ]
    )


def test_verbose_ends_with_the_reasons_for_which_there_is_no_verdict(project):
    project.write(
        """
@ampcheck.contract(devices="cpu")
def mixed():
    return {"AMP101": "inconclusive", "AMP502": "not-run", "reason": "so it is"}
"""
    )
    result = project.judge("-v")
    result.stdout.fnmatch_lines(
        [
            "*= ampcheck =*",
            "ampcheck on cpu: 2 of 4 items judged, 2 not",
            "  inconclusive *1 x so it is  (AMP101)",
            "  not-run  *1 x so it is  (AMP502)",
        ]
    )
    project.judge().stdout.no_fnmatch_line("*items judged*")


def test_hostile_text_breaks_no_output(project):
    project.write(
        f"""
@pytest.mark.parametrize("name", ["\\x1b[31m", "a\\nb"])
@ampcheck.contract(devices="cpu")
def resnet(name):
    return {{"AMP102": "failed", "AMP108": "warned", "AMP101": "inconclusive", "seen": {HOSTILE!r}, "reason": {HOSTILE!r}}}
"""
    )
    result = project.judge("-rs", "--junit-xml=junit.xml", process=True)
    result.assert_outcomes(passed=4, failed=2, skipped=2)
    shown = result.stdout.str()
    assert "\x1b" not in shown
    assert "\\x1b[31mred" in shown
    assert max(map(len, shown.splitlines())) < 2500
    assert project.report["findings"][0]["seen"].startswith("\x1b[31mred")
    assert "\\x1b[31mred" in (project.path / "junit.xml").read_text("utf-8")


@pytest.mark.parametrize("plain", [True, False], ids=["here", "worker"])
def test_on_a_ci_server_the_short_summary_has_a_line_for_a_failure(project, monkeypatch, plain):
    # There pytest shortens no message; ours has seven lines, which stand above already.
    monkeypatch.setenv("CI", "true")
    project.write("@ampcheck.contract(devices='cpu', select='AMP102')\ndef bad():\n    return {'AMP102': 'failed'}\n")
    alone = () if plain else ("-n", "1", "-p", "no:randomly", "-p", "no:timeout")
    shown = project.judge("--junit-xml=junit.xml", *alone, process=True, plugins=not plain).stdout.str()
    summary = shown.partition("short test summary info")[2].splitlines()[1:-1]
    (line,) = summary
    node = "test_amp.py::bad[cpu-AMP102-clip-scaled-gradients]"
    assert line == f"FAILED {node} - Failed: AMP102 clip-scaled-gradients    test_amp.py::bad [cpu]"
    assert shown.count("  reproduce ") == 1
    (failure,) = ET.parse(project.path / "junit.xml").iter("failure")
    assert "\n" not in failure.attrib["message"]
    assert "reproduce" in (failure.text or "")


def test_a_line_for_a_failure_names_the_contract_and_its_place(project):
    project.write("@ampcheck.contract(devices='cpu', select='AMP102')\ndef bad():\n    return {'AMP102': 'failed'}\n")
    project.judge("--tb=line").stdout.fnmatch_lines(["*test_amp.py:[45]: Failed: AMP102 clip-scaled-gradients*"])


def test_hostile_text_crosses_to_the_controller(project):
    project.write(
        f"@ampcheck.contract(devices='cpu')\ndef resnet():\n    return {{'AMP102': 'failed', 'seen': {HOSTILE!r}, 'evidence': "
        "{'x': object(), 'big': 2**200, 3: float('nan')}}\n"
    )
    result = project.judge("-n", "1", "-p", "no:randomly", "-p", "no:timeout", process=True, plugins=True)
    result.assert_outcomes(passed=3, failed=1)
    (finding,) = project.report["findings"]
    assert finding["seen"].startswith("\x1b[31mred")
    assert finding["evidence"]["3"] == "nan"
    assert finding["evidence"]["big"] == 2**200


def test_a_report_that_cannot_be_written_is_an_error_before_the_run(project):
    project.write("@ampcheck.contract(devices='cpu')\ndef resnet():\n    return {}\n")
    (project.path / "file").write_text("")
    result = project.run("--ampcheck", "--ampcheck-json=file/report.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: the JSON report cannot be written: *"])
    assert project.judged == []


def test_a_report_that_can_no_longer_be_written_is_an_error_after_it(project):
    project.write("import os\n\n@ampcheck.contract(devices='cpu')\ndef resnet():\n    os.mkdir('report.json')\n    return {}\n")
    result = project.judge()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["ERROR: the JSON report cannot be written: *"])


def test_the_report_may_go_to_a_new_folder(project):
    project.write("@ampcheck.contract(devices='cpu')\ndef resnet():\n    return {}\n")
    project.run("--ampcheck", "--ampcheck-json=new/folder/report.json").assert_outcomes(passed=4)
    assert len(json.loads((project.path / "new/folder/report.json").read_text())["items"]) == 4


def test_an_old_report_never_passes_for_a_new_one(project):
    project.write("@ampcheck.contract(devices='cpu')\ndef resnet():\n    import os\n    os._exit(3)\n")
    (project.path / "report.json").write_text("{}")
    project.judge(process=True)
    assert not (project.path / "report.json").exists()


def test_progress_is_shown_with_v_and_not_without(project):
    project.write("@ampcheck.contract(devices='cpu')\ndef resnet():\n    print('own output')\n    return {}\n")
    assert "scaled" not in project.judge().stdout.str()
    result = project.judge("-v")
    result.stdout.fnmatch_lines(["ampcheck: test_amp.py::resnet ?cpu?: natural", "ampcheck: test_amp.py::resnet ?cpu?: scaled"])
    assert "own output" not in result.stdout.str()


class Terminal:
    def __init__(self, isatty):
        self.isatty = isatty
        self.lines = []

    def ensure_newline(self):
        pass

    def write_line(self, line):
        self.lines.append(line)


class Session:
    """As much of a `pytest.Config` as progress asks for."""

    def __init__(self, verbosity, isatty):
        self.reporter = Terminal(isatty)
        self.verbosity = verbosity
        self.pluginmanager = self

    def get_plugin(self, name):
        return {"terminalreporter": self.reporter}.get(name)

    def getoption(self, name, default):
        return self.verbosity if name == "verbose" else default


@pytest.mark.parametrize(
    ("verbosity", "isatty", "expected"),
    [(0, True, ["second", "fourth"]), (1, False, ["first", "second", "third", "fourth"]), (0, False, []), (-1, True, [])],
)
def test_a_terminal_is_told_of_long_runs_only(verbosity, isatty, expected):
    now = 0.0
    session = Session(verbosity, isatty)
    tell = Progress(session, clock=lambda: now).of("test_amp.py::resnet", "cpu")
    for seconds, scenario in [(0, "first"), (PATIENCE, "second"), (1, "third"), (PATIENCE, "fourth")]:
        now += seconds
        if tell:
            tell(scenario)
    assert [line.rpartition(": ")[2] for line in session.reporter.lines] == expected


def finding(**change):
    values = {
        "id": "AMP102",
        "slug": "clip",
        "level": "error",
        "contract": "t.py::net",
        "expected": "unscale, then clip",
        "seen": "clip",
        "fix": "call unscale_ first",
    }
    return Finding(**{**values, **change})


def test_each_beat_of_a_finding_is_there():
    text = finding_text(finding(policy="float16", location=Location("/a/b/train.py", 88, "step")), "cuda")
    assert text.splitlines() == [
        "AMP102 clip    t.py::net [cuda, float16]",
        "  expected  unscale, then clip",
        "  seen      clip",
        "  at        /a/b/train.py:88 in step",
        "  fix       call unscale_ first",
        '  silence   @ampcheck.contract(xfail={"AMP102": "why"}), or ignore=["AMP102"]; `ampcheck explain AMP102`',
    ]


def test_several_lines_stay_under_their_beat():
    assert "  seen      one\n            two\n" in finding_text(finding(seen="one\ntwo"), "cpu")


def test_clean_text_is_printable_and_short():
    text = clean(HOSTILE)
    assert len(text) < 2100
    assert text.endswith("characters)")
    assert "\x1b" not in text
    assert "\n" in text
    assert text.isprintable() is False
    assert one_line(HOSTILE).isprintable()


@pytest.mark.parametrize(
    ("file", "root", "expected"),
    [
        ("/a/b/c.py", "/a", "b/c.py"),
        ("/a/c.py", "/a/b", "../c.py"),
        ("b/c.py", "/a", "b/c.py"),
        ("<string>", "/a", "<string>"),
    ],
)
def test_paths_are_relative_to_the_root(file, root, expected, pytestconfig):
    assert relative(file, type(pytestconfig.rootpath)(root)) == expected


def test_plain_data_is_json():
    data = plain({1: (float("nan"), float("-inf"), 0.5, True, None), "s": {3}, "o": object, "deep": [[[[[[[[[[1]]]]]]]]]]})
    assert data["1"] == ["nan", "-inf", 0.5, True, None]
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def report():
    verdicts = [Verdict("t.py::net", "AMP102", "clip", "xfailed", finding=finding())]
    return Report({"torch": "1"}, [ContractReport("t.py::net", "cpu", verdicts, [finding()], [Cost("natural", 1, 6, 0.5)])])


def test_the_writers_take_any_report(tmp_path):
    lines = [line for line, _ in terminal.summary(report(), tmp_path)]
    assert lines[-1] == "xfailed  AMP102 clip  t.py::net [cpu]"
    json_report.write(report(), tmp_path / "r.json", tmp_path)
    assert json.loads((tmp_path / "r.json").read_text())["items"][0]["outcome"] == "xfailed"
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_a_bug_of_our_own_is_told_without_being_asked_for(tmp_path):
    missing = [Verdict("t.py::net", id, "slug", "not-run", reason=ours(KeyError("x"))) for id in ("AMP701", "AMP702")]
    seen = Report({}, [ContractReport("t.py::net", "cpu", [Verdict("t.py::net", "AMP102", "clip", "passed"), *missing])])
    [line] = [line for line, _ in terminal.summary(seen, tmp_path) if "own" in line]
    assert line == "NOT JUDGED: t.py::net [cpu]: AMP701, AMP702: an error of ampcheck's own, please report it: KeyError: 'x'"


def test_an_unjudged_contract_is_named(tmp_path):
    empty = Report({}, [ContractReport("t.py::net", "cpu", [Verdict("t.py::net", "AMP102", "clip", "not-run", reason="no")])])
    assert [line for line, _ in terminal.summary(empty, tmp_path)][-1].startswith("NOT JUDGED: t.py::net [cpu]")
