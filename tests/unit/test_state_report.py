"""The table of optimizer state in the summary and in the JSON report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from ampcheck.findings import ContractReport, Report
from ampcheck.optimizer_formulas import expected_slots, totals
from ampcheck.report.json import document
from ampcheck.report.state import state_lines
from ampcheck.report.terminal import summary

ROW = {
    "optimizer": "AdamW",
    "optimizers": 2,
    "elements": 10,
    "slots": {
        "step": {"dtype": "float32", "tensors": 2, "elements": 2, "bytes": 8},
        "exp_avg": {"dtype": "float32", "tensors": 2, "elements": 10, "bytes": 40},
    },
}
CONTRACT = ContractReport("tests/test_amp.py::mixed", "cpu", facts={"optimizer state": [ROW]})


def test_the_table_has_a_line_for_each_slot() -> None:
    assert [line.split() for line in state_lines([CONTRACT])] == [
        ["optimizer", "state", "optimizer", "slot", "dtype", "tensors", "elements", "bytes", "a", "parameter"],
        ["tests/test_amp.py::mixed", "[cpu]", "AdamW", "x", "2", "step", "float32", "2", "2", "8", "0.8"],
        ["exp_avg", "float32", "2", "10", "40", "4"],
    ]


def test_the_summary_and_the_json_report_have_it() -> None:
    report = Report({}, [CONTRACT])
    assert any("exp_avg" in line for line, _ in summary(report, Path()))
    assert document(report, Path())["optimizer_state"] == [{"contract": CONTRACT.contract, "device": "cpu", **ROW}]


@pytest.mark.parametrize("facts", [{}, {"optimizer state": []}])
def test_there_is_no_table_without_state(facts: dict[str, object]) -> None:
    assert list(state_lines([ContractReport("c", "cpu", facts=facts)])) == []


def gpt2() -> nn.ParameterList:
    """Parameters of the shapes of GPT-2 (124 M), without memory."""
    d = 768
    block = [(d,), (d,), (d, 3 * d), (3 * d,), (d, d), (d,), (d,), (d,), (d, 4 * d), (4 * d,), (4 * d, d), (d,)]
    shapes = [(50257, d), (1024, d), *block * 12, (d,), (d,)]
    return nn.ParameterList(nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes)


def test_adamw_over_gpt2_takes_eight_bytes_a_parameter_and_the_counters() -> None:
    parameters = gpt2()
    slots = expected_slots(torch.optim.AdamW(parameters), list(parameters))
    assert slots is not None
    numel = sum(p.numel() for p in parameters)
    assert (numel, len(parameters)) == (124_439_808, 148)
    assert sum(total.nbytes for total in totals(slots).values()) == 8 * numel + 4 * len(parameters)
