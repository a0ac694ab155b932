"""Reports of a run in every format, and what a CI service is told: by pytest from outside."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import pytest

from ampcheck.report import markdown, pictures
from ampcheck.report.annotations import commands
from ampcheck.report.formats import FORMATS
from ampcheck.report.schema import faults

ALL = ("--ampcheck-html=r/a.html", "--ampcheck-markdown=r/a.md", "--ampcheck-sarif=r/a.sarif")
MIXED = """
@ampcheck.contract(devices="cpu")
def mixed():
    return {"AMP101": "failed", "follows": {"AMP101": "AMP102"}, "AMP102": "failed", "AMP108": "warned", "AMP502": "not-run", "reason": "so it is"}
"""
GOOD = "@ampcheck.contract(devices='cpu')\ndef resnet():\n    return {}\n"
HOSTILE = (
    "<b>&\"'`|\n::error file=x::y\n  ::stop-commands::z\n##[error]w\x1b[31m\x00\u202e\ud800%0A@octocat {{ 7 * 7 }}"
    + "x" * 10_000
)


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    """They would be most of the time that a run takes."""
    monkeypatch.setattr(pictures, "available", lambda: False)


def test_every_format_is_written_and_says_the_same(project):
    project.write(MIXED)
    project.judge(*ALL).assert_outcomes(passed=1, failed=2, skipped=1)
    folder = project.path / "r"
    page = (folder / "a.html").read_text("utf-8")
    assert "Blocked: 1 error, in 1 of 1 contract." in page
    assert page.count('<article class="fault') == 2
    assert "Blocked: 1 error, in 1 of 1 contract." in (folder / "a.md").read_text("utf-8")
    (run,) = json.loads((folder / "a.sarif").read_text("utf-8"))["runs"]
    assert [(r["ruleId"], r["level"]) for r in run["results"]] == [("AMP102", "error"), ("AMP108", "warning")]
    assert [path.name for path in sorted(folder.iterdir())] == ["a.html", "a.md", "a.sarif"]
    assert list(faults(project.report)) == []


def test_they_may_be_asked_for_in_the_ini(project):
    project.ini("ampcheck_html = a.html\nampcheck_annotations = on")
    project.write(GOOD)
    project.judge()
    assert "Passed: no error in 1 contract." in (project.path / "a.html").read_text("utf-8")


@pytest.mark.parametrize("name", ["html", "markdown", "sarif"])
def test_what_cannot_be_written_is_an_error_before_the_run(project, name):
    project.write(GOOD)
    (project.path / "file").write_text("")
    result = project.run("--ampcheck", f"--ampcheck-{name}=file/report")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: the {FORMATS[name][1]} report cannot be written: *"])
    assert project.judged == []


def test_what_can_no_longer_be_written_keeps_no_other_report(project):
    project.write("import os\n\n@ampcheck.contract(devices='cpu')\ndef resnet():\n    os.mkdir('r/a.md')\n    return {}\n")
    result = project.judge(*ALL)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(["ERROR: the Markdown report cannot be written: *"])
    assert (project.path / "r" / "a.html").is_file()
    assert not list((project.path / "r").glob("*.part"))


def test_an_old_report_never_passes_for_a_new_one(project):
    project.write("@ampcheck.contract(devices='cpu')\ndef resnet():\n    import os\n    os._exit(3)\n")
    (project.path / "r").mkdir()
    for name in ("a.html", "a.md", "a.sarif"):
        (project.path / "r" / name).write_text("old")
    project.judge(*ALL, process=True)
    assert list((project.path / "r").iterdir()) == []


def test_collecting_leaves_reports_alone(project):
    project.write(GOOD)
    (project.path / "report.json").write_text("old")
    project.judge("--collect-only")
    assert (project.path / "report.json").read_text() == "old"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ampcheck-annotations=maybe"], "--ampcheck-annotations: 'maybe' is not one of auto, on, off"),
        (["--ampcheck-html=a", "--ampcheck-markdown=a"], "two reports go to the same file: *a, *a"),
    ],
)
def test_settings_that_make_no_sense_are_refused(project, arguments, said):
    project.write(GOOD)
    result = project.run("--ampcheck", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {said}"])


@pytest.mark.parametrize(
    ("on", "variable", "expected"),
    [("auto", "true", True), ("auto", "", False), ("off", "true", False), ("on", "", True)],
)
def test_annotations_are_for_github(project, monkeypatch, on, variable, expected):
    monkeypatch.setenv("GITHUB_ACTIONS", variable)
    project.write(MIXED)
    lines = project.judge(f"--ampcheck-annotations={on}").outlines
    told = [line for line in lines if line.startswith("::")]
    assert bool(told) is expected
    if expected:
        assert told == list(commands(project.report))
        assert [line.partition(" ")[0] for line in told] == ["::error", "::warning"]


def test_places_are_below_the_root_of_the_repository(project):
    (project.path / ".git").mkdir()
    package = project.path / "packages" / "a"
    package.mkdir(parents=True)
    (package / "pytest.ini").write_text("[pytest]\n")
    project.write(MIXED.replace('"reason"', '"location": ampcheck.findings.Location(__file__, 7, "step"), "reason"').replace("@ampcheck", "import ampcheck.findings\n\n@ampcheck"), "packages/a/test_amp.py")  # fmt: skip
    result = project.run("--ampcheck", f"--rootdir={package}", "--ampcheck-annotations=on", "--ampcheck-sarif=a.sarif", str(package), "-c", str(package / "pytest.ini"))  # fmt: skip
    assert [line for line in result.outlines if line.startswith("::error file=packages/a/test_amp.py,line=7,title=AMP102")]
    (run,) = json.loads((project.path / "a.sarif").read_text("utf-8"))["runs"]
    physical = run["results"][0]["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"]["uri"] == "packages/a/test_amp.py"


def test_the_summary_of_a_job_is_added_to(project, monkeypatch):
    summary = project.path / "summary.md"
    summary.write_text("# What came before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    project.write(MIXED)
    project.judge()
    before, _, ours = summary.read_text("utf-8").partition("\n")
    assert before == "# What came before"
    assert ours == markdown.render(project.report) + "\n"


def test_the_summary_of_a_job_stays_below_its_limit(project, monkeypatch):
    summary = project.path / "summary.md"
    summary.write_text("x" * (markdown.MOST - 700))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    project.write(MIXED)
    project.judge()
    assert summary.read_text("utf-8").endswith(markdown.NOTE + "\n")
    assert summary.stat().st_size <= markdown.MOST


def test_a_summary_that_cannot_be_written_is_told_and_fails_nothing(project, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path))
    project.write(GOOD)
    result = project.judge()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["the summary cannot be written to $GITHUB_STEP_SUMMARY: *"])


def test_without_contracts_there_is_no_summary(project, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md"))
    project.write("def test_nothing():\n    pass\n")
    project.run("--ampcheck")
    project.run()
    assert not (project.path / "summary.md").exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_junit_has_what_a_dashboard_filters_by(project, workers):
    project.write(MIXED)
    spread = ["-n1", "-p", "no:randomly", "-p", "no:timeout"] if workers else []
    project.judge("--junit-xml=junit.xml", *spread, process=bool(workers), plugins=bool(workers))
    cases = {case.get("name"): case for case in ET.parse(project.path / "junit.xml").iter("testcase")}
    assert len(cases) == 4
    told = {
        name: {p.get("name").removeprefix("ampcheck_"): p.get("value") for p in case.iter("property")}
        for name, case in cases.items()
    }
    common = {"policy": "as-written", "device": "cpu"}
    location = told["mixed[cpu-AMP102-clip-scaled-gradients]"].pop("location")
    assert re.fullmatch(r".+\.py:12", location)
    assert told["mixed[cpu-AMP102-clip-scaled-gradients]"] == {**common, "id": "AMP102", "outcome": "failed", "level": "error"}
    follows = {**common, "id": "AMP101", "outcome": "failed", "follows": "AMP102", "level": "error", "location": location}
    assert told["mixed[cpu-AMP101-scale-invariance]"] == follows
    not_run = {**common, "policy": "float16", "id": "AMP502", "outcome": "not-run"}
    assert told["mixed[cpu-AMP502-gradient-parity]"] == not_run
    for case in cases.values():  # once each, although pytest reports an item in three phases
        names = [p.get("name") for p in case.iter("property")]
        assert len(names) == len(set(names))


def test_hostile_text_gives_no_orders_to_the_runner(project, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md"))
    project.write(
        f"""
@pytest.mark.parametrize("name", ["::error::a", "##[error]b", "<script>", "\\n::debug::c"])
@ampcheck.contract(devices="cpu")
def resnet(name):
    return {{"AMP102": "failed", "AMP108": "warned", "AMP101": "inconclusive", "AMP502": "not-run", "seen": {HOSTILE!r}, "reason": {HOSTILE!r}}}
"""
    )
    result = project.judge("-v", "-rA", "--junit-xml=junit.xml", *ALL, process=True)
    result.assert_outcomes(passed=4, failed=4, skipped=8)
    told = [line for line in result.outlines if line.strip().startswith("::")]
    assert told == list(commands(project.report))
    # Names of items are pytest's to print, and in a command that is to be pasted they stay what they are.
    ours = [line for line in result.outlines if "::resnet[" not in line and "resnet[#" not in line]
    assert not any("##[" in line for line in ours)
    assert not {"\x1b", "\x00", "\u202e"} & set(result.stdout.str())
    ET.parse(project.path / "junit.xml")
    page = (project.path / "r" / "a.html").read_text("utf-8")
    assert "<b>&" not in page and "<script" not in page and "&lt;b&gt;" in page and "{{ 7 * 7 }}" in page
    assert "@octocat" not in (project.path / "summary.md").read_text("utf-8")


def test_an_error_of_our_own_keeps_no_other_report(project, monkeypatch):
    def broken(_):
        raise KeyError("slug")

    monkeypatch.setattr(markdown, "render", broken)
    project.write(GOOD)
    result = project.judge(*ALL)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(
        ["ERROR: the Markdown report failed by an error of ampcheck's own, please report it: KeyError: 'slug'"]
    )
    assert [path.name for path in sorted((project.path / "r").iterdir())] == ["a.html", "a.sarif"]
    assert project.report
