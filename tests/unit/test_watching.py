"""Watching a step does not decide what happens in it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

import ampcheck
from ampcheck.trace.reach import reach
from ampcheck.trace.recorder import Probe, Recorder


def build(fails_under_modes: bool) -> Callable[[], None]:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    x = torch.randn(8, 8)

    def step() -> None:
        if fails_under_modes and torch._C._len_torch_dispatch_stack():
            raise RuntimeError("another path was taken under a mode")
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def test_a_step_that_raises_only_while_it_is_watched_is_judged_unwatched() -> None:
    report = ampcheck.check(lambda: build(True), device="cpu")
    found = {v.check: v for v in report.verdicts}
    assert not report.findings
    assert found["AMP111"].outcome == found["AMP101"].outcome == found["AMP201"].outcome == "passed"
    assert found["AMP306"].outcome == "not-run" and "watched" in found["AMP306"].reason


def test_a_watched_step_is_judged_by_its_ops() -> None:
    found = {v.check: v for v in ampcheck.check(lambda: build(False), device="cpu").verdicts}
    assert found["AMP306"].outcome == "passed"


class Foreign:
    """An optimizer that is not torch's, whose `step` the recorder replaces on the object itself."""

    def __init__(self, parameters: list[torch.Tensor]) -> None:
        self.param_groups = [{"params": parameters, "lr": 0.1}]
        slow = torch.zeros(2)
        self.step = lambda: slow.add_(1.0)


def test_a_walk_over_a_watched_object_finds_what_is_its_own_and_nothing_of_the_recorder() -> None:
    optimizer = Foreign([torch.ones(3, requires_grad=True)])
    before = set(map(id, reach(("step", optimizer)).tensors.values()))
    recorder = Recorder([Probe()])
    recorder.probes[0].kept = torch.zeros(5)  # type: ignore[attr-defined]
    with recorder:
        recorder.optimizer_index(optimizer)
        assert set(map(id, reach(("step", optimizer)).tensors.values())) == before
    assert len(before) == 2
