"""Correct steps that the exact oracle would flag if its verdict rule were naive: each must be silent or inconclusive."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ampcheck
from ampcheck.findings import Report, Verdict

Step = Callable[[], Any]


#: The families that rest on the order of calls and on the exact oracle: what this module is about.
FAMILIES = ("AMP1", "AMP2", "AMP311", "AMP7", "AMP9")


def verdicts(build: Callable[[], Step], **options: Any) -> dict[str, Verdict]:
    report = ampcheck.check(build, device="cpu", **options)
    return {v.check: v for v in report.verdicts if v.check.startswith(FAMILIES)}


def errors(build: Callable[[], Step]) -> list[str]:
    report: Report = ampcheck.check(build, device="cpu")
    return [f"{f.id}: {f.seen}" for f in report.findings if f.level == "error" and f.id.startswith(FAMILIES)]


def loop(
    model: nn.Module,
    loss_of: Callable[[torch.Tensor], torch.Tensor] = lambda out: out.float().square().mean(),
    *,
    optimizer: torch.optim.Optimizer | None = None,
    scaler: torch.amp.GradScaler | None = None,
    before_step: Callable[[], None] = lambda: None,
    returns: Callable[[torch.Tensor, torch.amp.GradScaler], Any] = lambda loss, scaler: loss.item(),
) -> Step:
    x = torch.randn(8, 12)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = scaler or torch.amp.GradScaler("cpu", init_scale=2.0**8)

    def step() -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = model(x)
        loss = loss_of(out)
        scaler.scale(loss).backward()
        before_step()
        scaler.step(optimizer)
        scaler.update()
        return returns(loss, scaler)

    return step


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 4))


def test_logcumsumexp() -> None:
    # its backward divides and multiplies by values that are not powers of two: 3e-7 in FP32
    assert errors(lambda: loop(net(), lambda out: out.float().logcumsumexp(1).mean())) == []


def test_subnormal_gradients() -> None:
    # at scale 1 the gradients are subnormal and lose bits that they have at 2^16
    def build() -> Step:
        return loop(net(), lambda out: out.float().mean() * 1e-38)

    assert errors(build) == []


def test_growth_factor_that_is_no_power_of_two() -> None:
    assert errors(lambda: loop(net(), scaler=torch.amp.GradScaler("cpu", 64.0, growth_factor=1.5, growth_interval=2))) == []


def test_initial_scale_that_is_no_power_of_two() -> None:
    assert errors(lambda: loop(net(), scaler=torch.amp.GradScaler("cpu", 1000.0, growth_interval=1))) == []


class HalfBlock(nn.Module):
    """Runs in half whatever autocast says."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(12, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            h = F.linear(x.half(), self.inner.weight.half(), self.inner.bias.half())
        return self.out(h.tanh().float())  # type: ignore[no-any-return]


def test_hard_coded_half_block() -> None:
    assert errors(lambda: loop(HalfBlock(), lambda out: 100 * out.float().square().sum())) == []


def test_half_compression_of_gradients() -> None:
    def build() -> Step:
        model = net()
        for p in model.parameters():
            p.register_hook(lambda g: g.half().float())
        return loop(model, lambda out: 10 * out.float().square().sum())

    assert errors(build) == []


@pytest.mark.parametrize(
    "returns",
    [
        lambda loss, scaler: scaler.get_scale(),
        lambda loss, scaler: {
            "scale": scaler.get_scale(),
            "log2": torch.tensor(scaler.get_scale()).log2(),
            "inverse": 1 / scaler.get_scale(),
        },
        lambda loss, scaler: (loss.detach(), scaler.get_scale() * 2),
    ],
)
def test_returning_the_scale(returns: Callable[[torch.Tensor, torch.amp.GradScaler], Any]) -> None:
    found = verdicts(lambda: loop(net(), returns=returns))
    assert found["AMP101"].outcome == "passed"


def test_returning_the_scaled_loss_is_no_fault_of_the_gradients() -> None:
    found = verdicts(lambda: loop(net(), returns=lambda loss, scaler: loss.item() * scaler.get_scale()))
    assert found["AMP101"].outcome == "warned" or found["AMP101"].follows == "AMP501"
    assert found["AMP102"].outcome == found["AMP104"].outcome == "passed"
    assert found["AMP101"].finding is not None and "2^16" not in found["AMP101"].finding.fix


def scheduled_on_skips() -> Step:
    optimizer_of: dict[str, torch.optim.lr_scheduler.LRScheduler] = {}
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer_of["schedule"] = torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, 1.0, 100)
    inner = loop(model, optimizer=optimizer)

    def step() -> Any:
        value = inner()
        optimizer_of["schedule"].step()
        return value

    return step


def test_a_schedule_that_advances_on_skips_is_a_warning_only() -> None:
    found = verdicts(scheduled_on_skips)
    assert found["AMP201"].outcome == "warned"
    assert {v.outcome for k, v in found.items() if k != "AMP201"} <= {"passed", "not-run"}


def test_a_schedule_by_the_epoch_may_move_after_a_skipped_step() -> None:
    def build() -> Step:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        inner, calls = loop(model, optimizer=optimizer), itertools.count(1)

        def step() -> Any:
            value = inner()
            if next(calls) % 2:  # an epoch is two steps, and the third is the one that is skipped
                schedule.step()
            return value

        return step

    assert verdicts(build)["AMP201"].outcome == "passed"


def test_strict_makes_it_an_error() -> None:
    assert verdicts(scheduled_on_skips, strict=["AMP201"])["AMP201"].outcome == "failed"


def test_unseeded_noise_is_not_judged_but_said() -> None:
    import os

    def build() -> Step:
        seed = int.from_bytes(os.urandom(4), "big")
        generator = torch.Generator().manual_seed(seed)
        model = net()

        def noisy(out: torch.Tensor) -> torch.Tensor:
            return (out.float() + torch.randn(out.shape, generator=generator)).square().mean()

        return loop(model, noisy)

    found = verdicts(build)
    assert found["AMP901"].outcome == "warned"
    assert found["AMP101"].outcome == "inconclusive"
    assert found["AMP102"].outcome == "inconclusive"


def test_dropout_and_sampling_repeat_by_their_seeds() -> None:
    def build() -> Step:
        return loop(nn.Sequential(nn.Linear(12, 16), nn.Dropout(0.5), nn.Linear(16, 4)))

    assert verdicts(build)["AMP901"].outcome == "passed"


def test_a_micro_step_contract() -> None:
    """Some calls make no optimizer step."""

    def build() -> Step:
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        x, count = torch.randn(8, 12), [0]

        def step() -> None:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).float().square().mean()
            scaler.scale(loss / 3).backward()
            count[0] += 1
            if count[0] % 3 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()

        return step

    found = verdicts(build)
    assert not [v for v in found.values() if v.outcome in ("failed", "warned")]
    assert found["AMP101"].outcome == "passed"


def test_a_whole_fit_in_one_call() -> None:
    def build() -> ampcheck.Training:
        inner = loop(net())

        def fit() -> None:
            for _ in range(5):
                inner()

        return ampcheck.Training(fit, calls=1)

    found = verdicts(build)  # type: ignore[arg-type]
    assert not [v for v in found.values() if v.outcome in ("failed", "warned")]
    assert found["AMP201"].outcome == found["AMP101"].outcome == "passed"


def test_an_iterator_that_runs_out_ends_the_run_quietly() -> None:
    def build() -> Step:
        inner, left = loop(net()), iter(range(3))

        def step() -> Any:
            next(left)
            return inner()

        return step

    found = verdicts(build)
    assert not [v for v in found.values() if v.outcome in ("failed", "warned")]
    assert found["AMP201"].outcome == "passed"
