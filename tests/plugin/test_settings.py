"""Options on the command line, in the ini and on the contract, and how they add up."""

from __future__ import annotations

import os

import pytest

from ampcheck import registry
from ampcheck.config import Settings, merge
from ampcheck.contract import Options
from ampcheck.errors import UsageError

CONTRACT = """
@ampcheck.contract({options})
def resnet():
    return {wishes}
"""


def write(project, options="devices='cpu'", **wishes):
    project.write(CONTRACT.format(options=options, wishes=wishes))


def checks(project):
    return sorted({item["check"] for item in project.report["items"]})


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--ampcheck-select=AMP1"], ["AMP101", "AMP102", "AMP108"]),
        (["--ampcheck-select=AMP101,amp502"], ["AMP101", "AMP502"]),
        (["--ampcheck-select=AMP101", "--ampcheck-select", "AMP102"], ["AMP101", "AMP102"]),
        (["--ampcheck-ignore=AMP10"], ["AMP502"]),
        (["--ampcheck-select=AMP1", "--ampcheck-ignore=AMP101"], ["AMP102", "AMP108"]),
    ],
)
def test_select_and_ignore(project, args, expected):
    write(project)
    project.judge(*args)
    assert checks(project) == expected


def test_the_ini_and_the_command_line_before_it(project):
    write(project)
    project.ini("ampcheck_select = AMP101 AMP102\nampcheck_ignore = AMP102\nampcheck_json = report.json")
    project.run("--ampcheck")
    assert checks(project) == ["AMP101"]
    project.run("--ampcheck", "--ampcheck-select=AMP1")
    assert checks(project) == ["AMP101", "AMP108"]


def test_expected_failures_of_the_session(project):
    write(project, AMP102="failed")
    project.judge("--ampcheck-xfail=AMP102:see the tracker").assert_outcomes(passed=3, xfailed=1)
    project.ini("ampcheck_xfail =\n    AMP102: see the tracker: there\n")
    project.judge().assert_outcomes(passed=3, xfailed=1)


def test_devices_and_dtypes_of_the_session(project, ids):
    write(project, options="")
    assert ids("--ampcheck-device=cpu", "--ampcheck-dtype=bf16", "--ampcheck-select=AMP5") == [
        "test_amp.py::resnet[cpu-AMP502-gradient-parity-bfloat16]"
    ]


def test_devices_narrow_and_a_contract_that_has_none_left_is_named(project):
    project.write(
        """
@ampcheck.contract(devices="cuda")
def gpu_only():
    return {}

@ampcheck.contract(devices=("cpu", "cuda"), select="AMP101")
def both():
    return {}
"""
    )
    result = project.judge("--ampcheck-device=cpu")
    result.assert_outcomes(passed=1)
    assert project.judged == ["test_amp.py::both cpu"]
    result.stdout.fnmatch_lines(["left out: test_amp.py::gpu_only declares no device that was asked for"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--ampcheck-select=AMP109"], "*--ampcheck-select: no check is called 'AMP109'; did you mean AMP10*"),
        (["--ampcheck-ignore=clip-scaled-gradient"], "*did you mean AMP102 (clip-scaled-gradients)*"),
        (["--ampcheck-strict=nonsense"], "*--ampcheck-strict: no check is called 'nonsense'*"),
        (["--ampcheck-xfail=AMP102"], "*--ampcheck-xfail: 'AMP102' has no reason; write ID:reason*"),
        (["--ampcheck-xfail=AMP10:all of them"], "*'AMP10' names several checks*"),
        (["--ampcheck-dtype=bfloat8"], "*--ampcheck-dtype: 'bfloat8' is not a 16-bit float dtype*did you mean bfloat16*"),
        (["--ampcheck-device=cda"], "*there is no device type 'cda' to train on; did you mean 'cuda'*"),
        (["--ampcheck-device=cuda:1"], "*give a device type, 'cuda', without an index*"),
        (["--ampcheck-device=meta"], "*there is no device type 'meta' to train on*"),
        (["--ampcheck-timeout=soon"], "*--ampcheck-timeout: 'soon' is not a number of seconds greater than 0*"),
        (["--ampcheck-budget=0"], "*--ampcheck-budget: '0' is not a number*"),
        (["--ampcheck-require=everything"], "*'everything' is not 'judged'*"),
    ],
)
def test_a_wrong_setting_is_a_usage_error(project, args, message):
    write(project)
    result = project.judge(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([message])
    assert "Traceback" not in result.stderr.str()


def test_a_wrong_ini_is_a_usage_error_that_names_it(project):
    write(project)
    project.ini("ampcheck_select = AMP999")
    result = project.judge()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*ampcheck_select: no check is called 'AMP999'*"])
    project.run().assert_outcomes()  # nobody asked: nobody is told


def test_an_option_without_the_main_one_is_an_error(project):
    write(project)
    result = project.run("--ampcheck-json=report.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--ampcheck-json does nothing without --ampcheck*"])


def test_the_seconds_reach_the_runner(project):
    project.write(
        """
import sys

@ampcheck.contract(devices="cpu", timeout=7, select="AMP102")
def resnet():
    return {"AMP102": "failed", "seen": sys.modules["ampcheck.runner"].seen}

@pytest.fixture(autouse=True)
def look(monkeypatch):
    runner = sys.modules["ampcheck.runner"]
    judge = runner.judge

    def looking(*args, settings, options, **kwargs):
        runner.seen = f"{settings.timeout} {settings.budget} {options.timeout}"
        return judge(*args, settings=settings, options=options, **kwargs)

    monkeypatch.setattr(runner, "judge", looking)
"""
    )
    project.judge("--ampcheck-timeout=60", "--ampcheck-budget=9.5")
    assert project.report["findings"][0]["seen"] == "60.0 9.5 7"


def test_cublas_is_told_for_the_session_alone(project, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    project.write(
        "import os\n\n@ampcheck.contract(devices='cpu')\ndef resnet():\n    return {}\n\n"
        "def test_set():\n    assert os.environ['CUBLAS_WORKSPACE_CONFIG'] == ':4096:8'\n"
    )
    project.judge().assert_outcomes(passed=5)
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_cublas_is_left_as_the_user_set_it(project, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    project.write(
        "import os\n\n@ampcheck.contract(devices='cpu')\ndef resnet():\n    return {}\n\n"
        "def test_set():\n    assert os.environ['CUBLAS_WORKSPACE_CONFIG'] == ':16:8'\n"
    )
    project.judge().assert_outcomes(passed=5)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


@pytest.fixture
def catalogue(monkeypatch):
    from ampcheck.registry import Check

    found = {id: Check(id, id.lower(), "error", "", "", (), lambda e: iter(())) for id in ("AMP101", "AMP102", "AMP201")}
    monkeypatch.setattr(registry, "load_checks", lambda: found)


@pytest.mark.parametrize(
    ("own", "asked", "merged"),
    [
        ({}, {}, {"timeout": 300.0}),
        ({"select": ("AMP1",)}, {}, {"select": ("AMP101", "AMP102")}),
        ({"select": ("AMP1",)}, {"select": ("AMP102", "AMP2")}, {"select": ("AMP102",)}),
        ({"select": ("AMP101",)}, {"select": ("AMP2",)}, {"select": ()}),
        ({"ignore": ("AMP101",)}, {"ignore": ("AMP1",)}, {"ignore": ("AMP101", "AMP102")}),
        (
            {"xfail": {"amp101": "mine"}},
            {"xfail": {"AMP101": "theirs", "AMP201": "b"}},
            {"xfail": {"AMP101": "mine", "AMP201": "b"}},
        ),
        ({"strict": ("AMP2",)}, {"strict": ("AMP101",)}, {"strict": ("AMP201", "AMP101")}),
        ({"strict": ("AMP2",)}, {"strict": True}, {"strict": True}),
        ({"devices": ("cpu", "cuda")}, {"devices": ("cuda",)}, {"devices": ("cuda",)}),
        ({"devices": ("cpu",)}, {"devices": ("cuda",)}, {"devices": ()}),
        ({}, {"devices": ("cuda",)}, {"devices": ("cuda",)}),
        ({"dtypes": ("torch.float16", "bf16")}, {"dtypes": ("bfloat16",)}, {"dtypes": ("bfloat16",)}),
        ({"timeout": 5.0}, {"timeout": 60.0}, {"timeout": 5.0}),
        ({}, {"timeout": 60.0}, {"timeout": 60.0}),
    ],
)
@pytest.mark.usefixtures("catalogue")
def test_merging(own, asked, merged):
    expected = {"timeout": 300.0, **merged}
    result = merge(Options(**own), Settings(**asked))
    assert {name: getattr(result, name) for name in expected} == expected
    untouched = Options()
    for name in ("devices", "dtypes", "select", "ignore", "xfail", "strict"):
        if name not in merged:
            assert getattr(result, name) == getattr(untouched, name)


@pytest.mark.parametrize("own", [{"ignore": ("AMP9",)}, {"xfail": {"AMP1": "r"}}, {"dtypes": ("int8",)}, {"select": ("",)}])
@pytest.mark.usefixtures("catalogue")
def test_a_contracts_options_are_checked(own):
    with pytest.raises(UsageError, match=r"@ampcheck\.contract"):
        merge(Options(**own), Settings())
