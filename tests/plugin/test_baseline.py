"""The baseline gate from outside: what is written, what is compared, what fails, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NAME = "ampcheck-baseline.json"
OK = "@ampcheck.contract\ndef mlp():\n    return {}\n"
PROFILE = """{"profile": {
    "modules": [{"module": "norm", "kind": "LayerNorm", "parameters": "%s", "forward": {"float16": 6}, "line": "model.py:7"}],
    "ops": [], "events": [["backward", "optimizer_step"]], "places": {}, "state": []}}"""


def contract(wishes: str, name: str = "mlp", **options: Any) -> str:
    given = ", ".join(f"{k}={v!r}" for k, v in options.items())
    return f"@ampcheck.contract({given})\ndef {name}():\n    return {wishes}\n"


def agreed(project: Any, text: str, *args: str) -> dict[str, Any]:
    """Write the project and its baseline; the baseline's entries."""
    project.write(text)
    project.run("--ampcheck", "--ampcheck-update-baseline", *args, process="-n2" in args, plugins="-n2" in args)
    return json.loads((project.path / NAME).read_text("utf-8"))["contracts"]


def changes(project: Any) -> list[str]:
    return [f"{c['verdict']}: {c['text']}" for c in project.report["changes"]]


def test_it_is_written_and_then_compared_with(project: Any) -> None:
    entries = agreed(project, OK)
    assert list(entries) == ["test_amp.py::mlp [cpu]"]
    assert not list(project.path.glob("*.part"))
    result = project.judge("-v")
    result.stdout.fnmatch_lines(["*mlp[[]cpu-baseline[]] PASSED*", "changes since ampcheck-baseline.json: none"])
    result.assert_outcomes(passed=5)
    assert project.report["baseline"] == {
        "path": NAME, "environment": entries["test_amp.py::mlp [cpu]"]["environment"], "reevaluated": None
    }  # fmt: skip
    assert project.report["changes"] == []
    assert {i["check"] for i in project.report["items"]} == {"AMP101", "AMP102", "AMP108", "AMP502"}


def test_without_a_file_there_is_no_item(project: Any) -> None:
    project.write(OK)
    project.judge().assert_outcomes(passed=4)
    assert project.report["baseline"] is None and project.report["changes"] == []


def test_writing_says_so_and_compares_nothing(project: Any) -> None:
    project.write(OK)
    result = project.judge("--ampcheck-update-baseline")
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["baseline written: ampcheck-baseline.json (1 contract)"])


def test_what_is_new_fails_in_lines_with_its_place(project: Any) -> None:
    agreed(project, contract(PROFILE % "float32"))
    project.write(contract(PROFILE % "bfloat16"))
    result = project.judge()
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        [
            "mlp[[]cpu-baseline[]]: changed since the baseline",
            "worse   norm: float32 -> bfloat16 (model.py:7)",
            "changes since ampcheck-baseline.json: 1 worse",
            "test_amp.py::mlp [[]cpu[]]",
            "  worse   norm: float32 -> bfloat16 (model.py:7)",
        ]
    )
    [change] = project.report["changes"]
    assert change == {
        "contract": "test_amp.py::mlp", "device": "cpu", "kind": "modules", "verdict": "worse",
        "text": "norm: float32 -> bfloat16", "location": {"file": "model.py", "line": 7, "function": ""},
    }  # fmt: skip


def test_a_new_finding_is_named_with_what_was_seen(project: Any) -> None:
    agreed(project, OK)
    project.write(contract('{"AMP102": "failed", "seen": "a clip"}'))
    project.judge().assert_outcomes(passed=3, failed=2)
    [change] = project.report["changes"]
    assert change["text"] == "AMP102 is new: a clip"
    assert change["location"]["line"] == 12


def test_a_known_failure_does_not_fail_again_and_its_end_is_told(project: Any) -> None:
    entries = agreed(project, contract('{"AMP102": "failed", "AMP101": "failed", "follows": {"AMP101": "AMP102"}}'))
    assert entries["test_amp.py::mlp [cpu]"]["findings"] == {"AMP102": "failed"}
    result = project.judge()
    assert result.ret == 0
    result.assert_outcomes(passed=3, xfailed=2)
    assert {i["reason"] for i in project.report["items"] if i["outcome"] == "xfailed"} == {"known: it is in the baseline"}
    assert [f["id"] for f in project.report["findings"]] == ["AMP102"]
    project.write(OK)
    assert project.judge().ret == 0
    assert changes(project) == ["better: AMP102 is mended"]


def test_only_the_known_failure_is_excused(project: Any) -> None:
    agreed(project, contract('{"AMP102": "failed"}'))
    project.write(contract('{"AMP102": "failed", "AMP502": "failed"}'))
    project.judge().assert_outcomes(passed=2, xfailed=1, failed=2)
    assert changes(project) == ["new: AMP502 float16 is new: what AMP502 saw"]


def test_a_warning_that_is_new_does_not_fail_unless_strict(project: Any) -> None:
    agreed(project, OK)
    project.write(contract('{"AMP108": "warned"}'))
    assert project.judge().ret == 0
    assert changes(project) == ["info: AMP108 is new, a warning"]


def test_a_stale_excuse_is_reported(project: Any) -> None:
    agreed(project, contract('{"AMP102": "failed"}', xfail={"AMP102": "known"}))
    project.write(contract("{}", xfail={"AMP102": "known"}))
    project.judge().assert_outcomes(passed=4, failed=1)  # XPASS(strict), and the baseline passes
    assert changes(project) == ["better: AMP102 is mended: remove its xfail"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ignore": ["AMP102"]}, "loosened: AMP102 is now ignored"),
        ({"xfail": {"AMP102": "later"}}, "loosened: AMP102 is now expected to fail (later)"),
        ({"select": ["AMP1"], "dtypes": ["float16"]}, "loosened: AMP502 is not selected any more"),
    ],
)
def test_a_gate_cannot_be_loosened_without_saying_so(project: Any, options: dict[str, Any], text: str) -> None:
    agreed(project, OK)
    project.write(contract('{"AMP102": "failed"}' if "xfail" in options else "{}", **options))
    assert project.judge().ret == 1
    assert f"worse: {text}" in changes(project)
    id = text.split()[1]
    result = project.judge(f"--ampcheck-accept={id}:see #12")
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"*accepted: {text} (see #12)"])
    assert f"info: accepted: {text} (see #12)" in changes(project)


def test_a_selection_on_the_command_line_is_no_loosening(project: Any) -> None:
    agreed(project, contract("{}", dtypes=["float16", "bfloat16"]))
    project.judge("--ampcheck-select=AMP5", "--ampcheck-dtype=float16").assert_outcomes(passed=2)
    assert changes(project) == []
    project.ini("ampcheck_select = AMP5")
    assert project.judge().ret == 1


def test_a_finding_outside_the_selection_of_a_command_line_does_not_fail(project: Any) -> None:
    agreed(project, OK)
    project.write(contract('{"AMP102": "failed"}'))
    project.judge("--ampcheck-select=AMP5").assert_outcomes(passed=2)
    assert changes(project) == ["info: AMP102 is new (not asked for)"]
    assert project.judge("--ampcheck-select=AMP1").ret == 1


def test_parameters_of_a_contract(project: Any) -> None:
    text = '@pytest.mark.parametrize("w", ["a-b", 2])\n' + contract("{}").replace("mlp()", "mlp(w)")
    assert sorted(agreed(project, text)) == ["test_amp.py::mlp[2] [cpu]", "test_amp.py::mlp[a-b] [cpu]"]
    project.judge("test_amp.py::mlp[a-b-cpu-baseline]").assert_outcomes(passed=1)
    project.judge("-n2", process=True, plugins=True).assert_outcomes(passed=10)


def test_an_ini_can_acknowledge(project: Any) -> None:
    agreed(project, OK)
    project.write(contract("{}", ignore=["AMP102"]))
    project.ini("ampcheck_accept =\n    settings: agreed in #3")
    assert project.judge().ret == 0
    assert changes(project) == ["info: accepted: loosened: AMP102 is now ignored (agreed in #3)"]


def test_a_contract_that_is_gone_is_reported(project: Any) -> None:
    agreed(project, contract("{}", "cnn", select=["AMP1"]) + contract('{"AMP108": "warned"}'))
    project.write(contract("{}", "cnn", select=["AMP1"]))
    result = project.judge()
    assert result.ret == 1
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["test_amp.py::mlp [[]cpu[]]", "  worse   the contract is gone"])
    assert project.judge("--ampcheck-accept=contract:moved away").ret == 0


@pytest.mark.parametrize(
    "narrowed", [["-k", "cnn"], ["test_amp.py::cnn"], ["test_other.py"], ["--deselect", "test_amp.py::mlp"]]
)
def test_a_contract_that_was_not_asked_for_is_not_gone(project: Any, narrowed: list[str]) -> None:
    agreed(project, contract("{}") + contract("{}", "cnn"))
    project.write(contract("{}", "rnn"), "test_other.py")
    project.judge(*narrowed)
    assert not [c for c in project.report["changes"] if c["verdict"] == "worse"]


def test_a_contract_of_a_named_module_can_be_gone_too(project: Any) -> None:
    project.write(contract("{}", "cnn"), "lib/contracts_of_mine.py")
    project.ini("ampcheck_modules = contracts_of_mine\npythonpath = lib\ntestpaths = test_amp.py")
    assert len(agreed(project, OK)) == 2
    project.ini("testpaths = test_amp.py")
    assert project.judge().ret == 1
    assert changes(project) == ["worse: the contract is gone"]


def test_a_renamed_contract_is_told_as_one(project: Any) -> None:
    agreed(project, contract(PROFILE % "float32"))
    project.write(contract(PROFILE % "float32", "perceptron"))
    assert project.judge().ret == 0
    assert changes(project) == [
        "info: a new contract: there is nothing to compare it with",
        "info: the contract is gone; test_amp.py::perceptron [cpu] does the same",
    ]


def test_a_contract_that_is_skipped_now_is_reported(project: Any) -> None:
    agreed(project, OK)
    project.write('@pytest.mark.skip(reason="flaky")\n' + OK)
    assert project.judge().ret == 1
    assert changes(project) == ["worse: the contract was not judged: Skipped: flaky"]


def test_a_part_of_the_run_updates_a_part_of_the_file(project: Any) -> None:
    agreed(project, contract("{}", "cnn") + contract("{}"))
    project.write(contract('{"AMP108": "warned"}', "cnn") + contract('{"AMP108": "warned"}'))
    result = project.run("--ampcheck", "--ampcheck-update-baseline", "-k", "cnn")
    result.stdout.fnmatch_lines(["baseline written: * (1 contract, 1 kept as they were)"])
    entries = json.loads((project.path / NAME).read_text("utf-8"))["contracts"]
    assert {k: bool(v["findings"]) for k, v in entries.items()} == {
        "test_amp.py::mlp [cpu]": False,
        "test_amp.py::cnn [cpu]": True,
    }
    project.write(contract("{}", "cnn"))
    result = project.run("--ampcheck", "--ampcheck-update-baseline")
    result.stdout.fnmatch_lines(["baseline written: * (1 contract, 1 gone)"])


def test_a_contract_that_does_not_run_keeps_its_entry(project: Any) -> None:
    before = agreed(project, OK + contract("{}", "cnn"))
    project.write(
        OK + "@pytest.fixture\ndef broken():\n    raise OSError\n@ampcheck.contract\ndef cnn(broken):\n    return {}\n"
    )
    project.run("--ampcheck", "--ampcheck-update-baseline")
    assert json.loads((project.path / NAME).read_text("utf-8"))["contracts"] == before


def test_the_same_under_xdist(project: Any) -> None:
    agreed(project, contract(PROFILE % "float32") + contract("{}", "cnn"), "-n2")
    assert len(json.loads((project.path / NAME).read_text("utf-8"))["contracts"]) == 2
    project.write(contract(PROFILE % "bfloat16") + contract("{}", "cnn"))
    result = project.judge("-n2", process=True, plugins=True)
    result.assert_outcomes(passed=9, failed=1)
    assert changes(project) == ["worse: norm: float32 -> bfloat16"]


def test_the_item_alone_judges_its_contract(project: Any) -> None:
    agreed(project, OK)
    project.write(contract('{"AMP102": "failed"}'))
    project.judge("test_amp.py::mlp[cpu-baseline]").assert_outcomes(failed=1)
    assert changes(project) == ["new: AMP102 is new: what AMP102 saw"]
    result = project.judge("-k", "baseline", "--ampcheck-annotations=on")
    result.assert_outcomes(failed=1, deselected=4)
    assert "AMP102 is new: what AMP102 saw" in next(line for line in result.outlines if line.startswith("::error "))


def test_junit_has_the_lines(project: Any) -> None:
    agreed(project, contract(PROFILE % "float32"))
    project.write(contract(PROFILE % "bfloat16"))
    project.judge("--junitxml=j.xml")
    assert "norm: float32 -&gt; bfloat16" in (project.path / "j.xml").read_text("utf-8")


def test_a_file_of_its_own(project: Any) -> None:
    agreed(project, OK)
    (project.path / "ci").mkdir()
    (project.path / NAME).rename(project.path / "ci" / "b.json")
    project.ini("ampcheck_baseline = ci/b.json")
    project.judge().assert_outcomes(passed=5)
    assert project.report["baseline"]["path"] == "ci/b.json"
    project.judge("--ampcheck-baseline", "ci/b.json").assert_outcomes(passed=5)


def test_a_card_that_changed_measures_anew(project: Any) -> None:
    agreed(project, contract(PROFILE % "float32"))
    path = project.path / NAME
    path.write_text(path.read_text("utf-8").replace('"card": ""', '"card": "H100"'), "utf-8")
    project.write(contract(PROFILE % "bfloat16"))
    assert project.judge().ret == 0
    assert project.report["baseline"]["reevaluated"] == "card H100 -> none"
    assert changes(project)[1] == "info: norm: float32 -> bfloat16 (measured anew)"


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda text: text[:-50], "it is not whole, or was edited by hand"),
        (lambda text: text.replace('"version": 1', '"version": 9'), "version: 9 is newer than 1"),
        (lambda text: text.replace('"ops"', '"opps"'), "'opps'"),
        (lambda text: "<<<<<<< ours\n" + text, "conflict markers of a merge"),
    ],
)
def test_a_file_that_was_not_written_so_is_refused(project: Any, edit: Any, says: str) -> None:
    agreed(project, OK)
    path = project.path / NAME
    path.write_text(edit(path.read_text("utf-8")), "utf-8")
    result = project.run("--ampcheck")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{NAME}: *{says.replace('[', '[[]')}*"])
    assert "Traceback" not in result.stderr.str()


def test_a_damaged_file_is_written_anew_by_a_whole_run_only(project: Any) -> None:
    agreed(project, OK + contract("{}", "cnn"))
    path = project.path / NAME
    path.write_text("<<<<<<< ours", "utf-8")
    result = project.run("--ampcheck", "--ampcheck-update-baseline", "-k", "cnn")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert path.read_text("utf-8") == "<<<<<<< ours"
    assert project.run("--ampcheck", "--ampcheck-update-baseline").ret == 0
    path.write_text(path.read_text("utf-8").replace('"version": 1', '"version": 9'), "utf-8")
    assert project.run("--ampcheck", "--ampcheck-update-baseline").ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--ampcheck-update-baseline"], "--ampcheck-update-baseline does nothing without --ampcheck"),
        (["--ampcheck-against", "main"], "--ampcheck-against does nothing without --ampcheck"),
        (["--ampcheck", "--ampcheck-update-baseline", "--ampcheck-against", "main"], "exclude each other"),
        (["--ampcheck", "--ampcheck-baseline", "none.json"], "none.json: there is no such baseline; write one"),
        (["--ampcheck", "--ampcheck-accept", "AMP101"], "has no reason"),
        (["--ampcheck", "--ampcheck-accept", "AMP999:x"], "AMP999"),
        (["--ampcheck", "--ampcheck-accept", "modlues:x"], "neither the id of a check nor a kind of change"),
        (["--ampcheck", "--ampcheck-against", "main"], "is in no git repository"),
    ],
)
def test_what_makes_no_sense_is_refused(project: Any, args: list[str], says: str) -> None:
    project.write(OK)
    result = project.run(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert says in result.stderr.str()


def test_hostile_names_are_shown_in_one_line(project: Any) -> None:
    agreed(project, contract(PROFILE % "float32"))
    hostile = (PROFILE % "bfloat16").replace('"norm"', '"norm\\x1b[31m::error::\\n%0A"')
    project.write(contract(hostile))
    result = project.judge()
    assert "\x1b[31m" not in result.stdout.str()
    assert Path(project.path / "report.json").exists()
