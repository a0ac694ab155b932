"""Fixtures are configuration: set up once a contract and device, never carrying training state."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ampcheck.session.arguments import refusal


def test_fixtures_are_set_up_once_an_item_group(project):
    project.write(
        """
@pytest.fixture
def width(tmp_path):
    print("set up")
    yield 3
    print("torn down")

@ampcheck.contract(devices="cpu")
def resnet(width):
    assert width == 3
    return {}
"""
    )
    result = project.judge("-s")
    result.assert_outcomes(passed=4)
    assert (result.stdout.str().count("set up"), result.stdout.str().count("torn down")) == (1, 1)


def test_the_device_is_the_items(project):
    project.write(
        """
@pytest.fixture(scope="session")
def place(amp_device):
    return f"on {amp_device}"

@ampcheck.contract(devices=("cpu", "cuda"), select="AMP102")
def resnet(amp_device, place):
    return {"AMP102": "failed", "seen": f"{amp_device} {place}"}

@pytest.fixture(autouse=True)
def pretend(monkeypatch):
    monkeypatch.setattr("ampcheck.session.judging.missing", lambda device: None)
"""
    )
    project.write("import ampcheck.session.judging as j\n\nj.missing = lambda device: None\n", "conftest.py")
    project.judge(process=True).assert_outcomes(failed=2)
    assert [(f["device"], f["seen"]) for f in project.report["findings"]] == [("cpu", "cpu on cpu"), ("cuda", "cuda on cuda")]
    assert project.judged == ["test_amp.py::resnet cpu", "test_amp.py::resnet cuda"]
    assert set(project.report["environment"]["devices"]) == {"cpu", "cuda"}


def test_a_fixture_that_fails_fails_one_item_and_the_rest_say_why(project):
    project.write(
        """
@pytest.fixture
def data():
    print("tried")
    raise FileNotFoundError("no data here")

@ampcheck.contract(devices="cpu")
def resnet(data):
    return {}
"""
    )
    result = project.judge("-rs")
    result.assert_outcomes(errors=1, skipped=3)
    result.stdout.fnmatch_lines(["SKIPPED ?3? *: not-run: the setup failed in a fixture: no data here"])
    assert result.outlines.count("tried") == 1
    assert list(project.outcomes().values()) == ["failed", "not-run", "not-run", "not-run"]


def test_a_fixture_that_skips_skips_all(project):
    project.write(
        """
@pytest.fixture
def data():
    pytest.skip("no data here")

@ampcheck.contract(devices="cpu")
def resnet(data):
    return {}

@pytest.mark.skip(reason="later")
@ampcheck.contract(devices="cpu")
def other():
    return {}
"""
    )
    result = project.judge("-rs")
    result.assert_outcomes(skipped=8)
    assert set(project.outcomes().values()) == {"not-run"}
    assert {"skipped by a fixture: no data here", "Skipped: later"} <= {i["reason"] for i in project.report["items"]}


def test_an_unknown_fixture_is_pytests_message(project):
    project.write("@ampcheck.contract(devices='cpu')\ndef resnet(nothing_of_that_name):\n    return {}\n")
    result = project.judge()
    result.assert_outcomes(errors=1, skipped=3)
    result.stdout.fnmatch_lines(["*fixture 'nothing_of_that_name' not found"])


def test_training_state_in_a_fixture_is_refused_with_the_fix(project):
    project.write(
        """
import torch

@pytest.fixture
def model():
    return torch.nn.Linear(2, 2)

@ampcheck.contract(devices="cpu", select="AMP102")
def resnet(model):
    raise AssertionError("built with a shared model")
"""
    )
    project.judge(process=True).assert_outcomes(failed=1)
    (finding,) = project.report["findings"]
    assert "contract test_amp.py::resnet: fixture 'model' is or holds a module (Linear)" in finding["seen"]
    assert "return a factory" in finding["seen"]


class Loop:
    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration


def holder(value):
    return SimpleNamespace(inside=[{"deeper": value}])


LINEAR = nn.Linear(2, 2)
OPTIMIZER = torch.optim.SGD(LINEAR.parameters(), 0.1)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (LINEAR, "a module (Linear)"),
        (LINEAR.weight, "a parameter"),
        (OPTIMIZER, "an optimizer (SGD)"),
        (torch.optim.lr_scheduler.StepLR(OPTIMIZER, 1), "a learning-rate schedule (StepLR)"),
        (torch.amp.GradScaler("cpu"), "a loss scaler (GradScaler)"),
        (iter([1]), "an iterator (list_iterator)"),
        (Loop(), "an iterator (Loop)"),
        ((x for x in [1]), "an iterator (generator)"),
        (LINEAR.forward, "a module (Linear)"),
        (functools.partial(print, LINEAR), "a module (Linear)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("wrap", [lambda value: value, holder, lambda value: (value,)], ids=["bare", "held", "tuple"])
def test_what_is_refused(value, kind, wrap):
    assert f"fixture 'thing' is or holds {kind}" in refusal({"fine": 1, "thing": wrap(value)})


def nested(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


class Config:
    def __init__(self):
        self.myself = self
        self.make = lambda: LINEAR


@pytest.mark.parametrize(
    "value",
    [
        None,
        "cpu",
        3,
        {"lr": 0.1, "betas": (0.9, 0.99)},
        torch.ones(3),
        list(range(30_000)),
        nested(20_000),
        Config(),
        nn.Linear,
        lambda: LINEAR,
        functools.partial(nn.Linear, 2, 2),
        range(3),
        torch.utils.data.DataLoader([1, 2, 3]),
        torch.utils.data.TensorDataset(torch.ones(3)),
        functools,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_configuration(value):
    assert refusal({"thing": value}) is None


def test_fixtures_of_pytest_itself_are_fine(project):
    project.write(
        """
@ampcheck.contract(devices="cpu", select="AMP102")
def resnet(request, tmp_path, tmp_path_factory, monkeypatch, caplog, capsys, recwarn, pytestconfig):
    return {}
"""
    )
    project.judge(process=True).assert_outcomes(passed=1)


def test_the_trace_fixture_records_an_ordinary_test(project):
    project.write(
        """
import torch

def test_order(amp_trace):
    layer = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert type(amp_trace).__name__ == "Trace"
"""
    )
    project.run(process=True).assert_outcomes(passed=1)
