"""What CUDA's kernels do by themselves: told where a user can use it, and never an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ampcheck
from ampcheck.findings import Report


class Tagger(nn.Module):
    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.rnn, self.head = cell(16, 32, batch_first=True), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def classifier(make: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype) -> Callable[[], Any]:
    def build() -> Callable[[], float]:
        torch.manual_seed(0)
        model = make().cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16)
        x, y = torch.randn(shape, device="cuda"), torch.randint(0, 8, shape[:1], device="cuda")

        def step() -> float:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=dtype):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.item()

        return step

    return build


def errors(report: Report) -> dict[str, str]:
    return {finding.id: finding.seen for finding in report.findings if finding.level == "error"}


@pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU])
def test_a_recurrence_that_runs_in_half_under_bfloat16_is_a_warning(cell: Any) -> None:
    report = ampcheck.check(classifier(lambda: Tagger(cell), (16, 12, 16), torch.bfloat16), device="cuda")
    assert errors(report) == {}
    (warning,) = [finding for finding in report.findings if finding.id == "AMP306"]
    assert warning.level == "warning"
    assert "float16" in warning.seen


def test_the_bias_of_a_convolution_that_is_rounded_away_before_a_batch_norm_is_no_error() -> None:
    def make() -> nn.Module:
        layers = [nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 8))
        nn.init.constant_(model[0].bias, 1e-3)
        return model

    report = ampcheck.check(classifier(make, (32, 3, 32, 32), torch.bfloat16), device="cuda")
    assert errors(report) == {}
    assert "passed" in [verdict.outcome for verdict in report.verdicts if verdict.check == "AMP506"]


class ZeroKeys(nn.Module):
    """Attention by cosines in which the keys of padded tokens are zero: in FP32 their gradient is huge and meets a zero."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.head = nn.Linear(16, 16, bias=False), nn.Linear(16, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        padded = nn.functional.pad(x, (0, 0, 0, 4))
        k, q = nn.functional.normalize(self.key(padded), dim=-1), nn.functional.normalize(self.query(x), dim=-1)
        return self.head(((10.0 * q @ k.mT).softmax(-1) @ padded).mean(1))


def test_a_model_that_takes_no_step_in_half_at_any_scale_is_told_so() -> None:
    report = ampcheck.check(classifier(ZeroKeys, (16, 12, 16), torch.float16), device="cuda")
    assert "AMP310" in errors(report)
    assert not errors(ampcheck.check(classifier(ZeroKeys, (16, 12, 16), torch.bfloat16), device="cuda"))


def test_torchs_scaler_agrees_with_the_reference_model_on_the_gpu() -> None:
    ampcheck.scaler_contract(lambda: torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=3)).check()
