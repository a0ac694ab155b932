"""What becomes of verdicts: pytest outcomes, messages, the JSON report."""

from __future__ import annotations

import pytest

CONTRACT = """
@ampcheck.contract(devices="cpu", {options})
def resnet():
    return {wishes}
"""

EVIDENCE = '{"scale": float("inf"), "what": object, "share": 0.5}'


def contract(project, options="", **wishes):
    return project.write(CONTRACT.format(options=options, wishes=repr(wishes).replace("'EVIDENCE'", EVIDENCE)))


def test_a_clean_contract_passes_and_is_judged_once(project):
    contract(project)
    project.judge().assert_outcomes(passed=4)
    assert project.judged == ["test_amp.py::resnet cpu"]
    assert set(project.outcomes().values()) == {"passed"}
    assert project.report["findings"] == []


def test_a_failure_shows_the_five_beats_and_nothing_of_our_inside(project):
    path = contract(project, AMP102="failed")
    result = project.judge()
    result.assert_outcomes(passed=3, failed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        [
            "AMP102 clip-scaled-gradients    test_amp.py::resnet ?cpu?",
            "  expected  what AMP102 expects",
            "  seen      what AMP102 saw",
            "  at        *:12 in train_one_step",
            "  fix       how to mend AMP102",
            '  silence   @ampcheck.contract(xfail={"AMP102": "why"})*ampcheck explain AMP102*',
        ],
        consecutive=True,
    )
    failures = result.stdout.str().partition("= FAILURES =")[2].partition("= ampcheck =")[0]
    assert "session/items.py" not in failures
    assert "raceback" not in failures
    assert path.exists()


def test_a_warning_passes_and_is_shown_in_full_in_the_summary(project):
    contract(project, AMP108="warned")
    result = project.judge("-v")
    result.assert_outcomes(passed=4)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*backward-in-autocast? WARNED*", "*= ampcheck =*", "warning  AMP108*", "  fix  *AMP108"])
    assert project.report["findings"][0]["level"] == "warning"


@pytest.mark.parametrize("outcome", ["inconclusive", "not-run"])
def test_no_verdict_is_a_skip_whose_reason_begins_so(project, outcome):
    contract(project, AMP101=outcome, reason="the batch cannot tell")
    result = project.judge("-rs")
    result.assert_outcomes(passed=3, skipped=1)
    result.stdout.fnmatch_lines([f"SKIPPED ?1? test_amp.py:*: {outcome}: the batch cannot tell"])
    assert project.outcomes()["test_amp.py::resnet AMP101 as-written"] == outcome


def test_an_expected_failure_is_an_xfail(project):
    contract(project, 'xfail={"AMP102": "see the tracker"}', AMP102="failed")
    project.judge().assert_outcomes(passed=3, xfailed=1)
    assert project.outcomes()["test_amp.py::resnet AMP102 as-written"] == "xfailed"


def test_a_stale_expected_failure_fails_as_xpass(project):
    contract(project, 'xfail={"AMP102": "see the tracker"}')
    result = project.judge()
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*XPASS(strict)*"])


def test_pytests_own_xfail_mark_is_kept(project):
    project.write(
        """
@pytest.mark.xfail(reason="known", strict=False)
@ampcheck.contract(devices="cpu", select="AMP102")
def resnet():
    return {"AMP102": "failed"}
"""
    )
    project.judge().assert_outcomes(xfailed=1)
    assert list(project.outcomes().values()) == ["xfailed"]


def test_what_follows_from_another_finding_says_so_and_shows_that_finding(project):
    contract(project, AMP101="failed", AMP102="failed", follows={"AMP101": "AMP102"})
    result = project.judge("-k", "AMP101")
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["AMP101 scale-invariance follows from AMP102*"])
    assert project.report["items"][0]["follows"] == "AMP102"
    assert [f["id"] for f in project.report["findings"]] == ["AMP102"]


def test_findings_stand_primary_first_and_carry_relative_paths(project):
    contract(project, AMP101="failed", AMP108="warned", AMP102="failed", primary=["AMP102"])
    project.judge()
    assert [f["id"] for f in project.report["findings"]] == ["AMP102", "AMP101", "AMP108"]
    location = project.report["findings"][0]["location"]
    assert location["line"] == 12
    assert location["file"].startswith("../")


def test_the_report_has_the_declared_shape(project):
    contract(project, AMP102="failed", evidence="EVIDENCE")
    project.judge()
    report = project.report
    assert report["version"] == 1
    assert report["environment"] == {"torch": "0.0", "device": "cpu"}
    (finding,) = report["findings"]
    assert "pytest --ampcheck -p fake_runner" in finding.pop("reproduce")
    assert finding | {"location": None, "evidence": {}} == {
        "id": "AMP102",
        "slug": "clip-scaled-gradients",
        "level": "error",
        "contract": "test_amp.py::resnet",
        "policy": "as-written",
        "expected": "what AMP102 expects",
        "seen": "what AMP102 saw",
        "fix": "how to mend AMP102",
        "location": None,
        "evidence": {},
        "device": "cpu",
    }
    assert finding["evidence"] == {"scale": "inf", "what": str(object), "share": 0.5}
    assert report["items"][0] == {
        "contract": "test_amp.py::resnet",
        "check": "AMP101",
        "slug": "scale-invariance",
        "policy": "as-written",
        "outcome": "passed",
        "reason": "",
        "seconds": 0.125,
        "device": "cpu",
    }
    assert report["costs"][0] == {
        "contract": "test_amp.py::resnet",
        "device": "cpu",
        "scenario": "natural",
        "builds": 1,
        "calls": 6,
        "seconds": 0.25,
    }


def test_selection_filters_what_is_reported_not_what_is_judged(project):
    contract(project, AMP101="failed", AMP102="failed")
    project.judge("-k", "AMP102")
    assert [i["check"] for i in project.report["items"]] == ["AMP102"]
    assert [f["id"] for f in project.report["findings"]] == ["AMP102"]


def test_a_device_that_is_not_there_is_not_run(project):
    project.write(
        """
@pytest.fixture
def never():
    raise AssertionError("set up for a device that is not there")

@ampcheck.contract(devices="xpu")
def resnet(never):
    return {}
"""
    )
    result = project.judge("-rs", process=True)
    result.assert_outcomes(skipped=4)
    result.stdout.fnmatch_lines(["SKIPPED ?4? test_amp.py:*: not-run: there is no xpu device*"])
    assert project.judged == []
    assert result.ret == 0


@pytest.mark.parametrize(("require", "failed"), [((), 0), (("--ampcheck-require=judged",), 1)])
def test_a_contract_that_was_not_judged_fails_once_where_that_is_required(project, require, failed):
    contract(project, AMP101="not-run", AMP102="inconclusive", AMP108="not-run", reason="no luck")
    result = project.judge(*require)
    result.assert_outcomes(passed=1, skipped=3 - failed, failed=failed)
    result.stdout.fnmatch_lines(["NOT JUDGED: test_amp.py::resnet ?cpu?*"])
    assert list(project.outcomes().values()).count("failed") == failed


def test_a_judged_contract_meets_the_requirement(project):
    contract(project, AMP101="not-run", AMP102="inconclusive", reason="no luck")
    project.judge("--ampcheck-require=judged").assert_outcomes(passed=2, skipped=2)


def test_a_dtype_has_its_own_outcome_and_finding(project):
    contract(
        project, 'dtypes=("float16", "bfloat16"), select="AMP502"', **{"AMP502 float16": "failed", "AMP502 bfloat16": "warned"}
    )
    project.judge("-k", "bfloat16").assert_outcomes(passed=1, deselected=1)
    assert project.outcomes() == {"test_amp.py::resnet AMP502 bfloat16": "warned"}
    assert [f["policy"] for f in project.report["findings"]] == ["bfloat16"]


def test_without_declared_dtypes_the_worst_of_those_entered_counts(project):
    contract(project, 'select="AMP502"', entered=["float16", "bfloat16"], **{"AMP502 bfloat16": "failed"})
    project.judge().assert_outcomes(failed=1)
    assert project.outcomes() == {"test_amp.py::resnet AMP502 bfloat16": "failed"}


def test_a_missing_verdict_is_no_pass(project):
    project.write(
        """
import sys

@ampcheck.contract(devices="cpu")
def resnet():
    return {}

@pytest.fixture(autouse=True)
def lose_one(monkeypatch):
    runner = sys.modules["ampcheck.runner"]
    judge = runner.judge

    def forgetful(*args, **kwargs):
        report = judge(*args, **kwargs)
        del report.verdicts[0]
        return report

    monkeypatch.setattr(runner, "judge", forgetful)
"""
    )
    result = project.judge()
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*no verdict for AMP101-scale-invariance; this is a fault of ampcheck*"])


def test_a_fault_of_ours_fails_one_item_and_the_rest_say_why(project):
    project.write(
        """
import sys

@ampcheck.contract(devices="cpu")
def broken():
    return {}

@ampcheck.contract(devices="cpu")
def whole():
    return {}

@pytest.fixture(autouse=True)
def crash(monkeypatch, request):
    runner = sys.modules["ampcheck.runner"]
    judge = runner.judge

    def crashing(*args, **kwargs):
        if "broken" in kwargs["contract"]:
            raise ZeroDivisionError("inside")
        return judge(*args, **kwargs)

    monkeypatch.setattr(runner, "judge", crashing)
"""
    )
    result = project.judge("-rs")
    result.assert_outcomes(passed=4, failed=1, skipped=3)
    result.stdout.fnmatch_lines(["*ZeroDivisionError: inside*", "*not-run: the run was cut short in AMP101-scale-invariance"])
    assert project.outcomes()["test_amp.py::broken AMP101 as-written"] == "failed"
