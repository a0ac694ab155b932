"""With the real runner and catalogue: from a user's file to the report."""

from __future__ import annotations

import json

import pytest

STEPS = """
import ampcheck
import torch


def build(device, clip_first):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12)
    inputs, targets = torch.randn(16, 8, device=device), torch.randn(16, 4, device=device)

    def step():
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            outputs = model(inputs)
        loss = torch.nn.functional.mse_loss(outputs.float(), targets)
        scaler.scale(loss).backward()
        if not clip_first:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


@ampcheck.contract(devices="cpu", select=("AMP1", "AMP2"))
def good(amp_device):
    return build(amp_device, clip_first=False)


@ampcheck.contract(devices="cpu", select=("AMP1", "AMP2"))
def bad(amp_device):
    return build(amp_device, clip_first=True)


@ampcheck.contract(devices="cpu", select=("AMP1", "AMP2"))
def unbuilt(amp_device):
    raise FileNotFoundError("no data here")


@ampcheck.contract(devices="cpu", select=("AMP1", "AMP2"))
def nothing():
    pass
"""


def run(pytester, *args):
    # A process of its own: torch cannot be imported twice, and the runner sets process-wide state.
    return pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:xdist", "-p", "no:cacheprovider", *args)


def test_a_fault_is_named_at_its_line_and_correct_code_is_not(pytester):
    path = pytester.makepyfile(test_amp=STEPS)
    result = run(pytester, "--ampcheck", "--ampcheck-json=report.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    report = json.loads((pytester.path / "report.json").read_text())
    first = {}
    for finding in report["findings"]:
        first.setdefault(finding["contract"].partition("::")[2], finding)
    assert {name: finding["id"] for name, finding in first.items()} == {
        "bad": "AMP102",
        "nothing": "AMP111",
        "unbuilt": "AMP111",
    }
    lines = path.read_text().splitlines()
    location = first["bad"]["location"]
    assert location["file"] == "test_amp.py"
    assert lines[location["line"] - 1].endswith("# here")
    assert "no data here" in first["unbuilt"]["seen"]
    assert first["nothing"]["location"]["function"] == "nothing"
    failures = result.stdout.str().partition("= FAILURES =")[2].partition("= ampcheck =")[0]
    assert "Traceback" not in failures
    assert "runner.py" not in failures
    outcomes = {}
    for item in report["items"]:
        outcomes.setdefault(item["contract"].partition("::")[2], set()).add(item["outcome"])
    assert outcomes["good"] <= {"passed", "not-run", "inconclusive"}
    assert outcomes["unbuilt"] == outcomes["nothing"] == {"failed", "not-run"}


def test_the_reference_contracts_alone_unless_paths_are_given(pytester):
    pytester.makepyfile(test_ordinary="def test_ordinary():\n    pass\n")
    args = ("--ampcheck-reference", "--ampcheck-device=cpu", "-k", "AMP102 or ordinary")
    alone = run(pytester, *args, "--collect-only", "-q")
    assert all("ampcheck/reference.py::" in line for line in alone.outlines if "::" in line)
    assert any("AMP102" in line for line in alone.outlines)
    result = run(pytester, *args, "test_ordinary.py")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["test_ordinary.py .*", "ampcheck/reference.py::*cpu*"])
