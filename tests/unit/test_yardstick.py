"""The rounding of the yardsticks: how much, where, and what is left alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ampcheck.scenarios.yardstick import Grid, Rounding
from ampcheck.trace.recorder import Recorder

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


@pytest.mark.parametrize("dtype", UNIT)
def test_a_grid_rounds_to_the_mantissa_of_its_dtype(dtype: str) -> None:
    x = torch.randn(20_000)
    error = ((Grid(dtype, 0).round_(x.clone()) - x) / x).abs()
    assert 0.5 * UNIT[dtype] < float(error.max()) <= 1.001 * UNIT[dtype]
    assert abs(float(((Grid(dtype, 1).round_(x.clone()) - x) / x).mean())) < 0.02 * UNIT[dtype], "to the nearest: no drift"


def test_equal_values_get_equal_errors_and_the_next_grid_others() -> None:
    grid = Grid("float16", 0)
    first, second = grid.round_(torch.full((100,), 1.2345)), grid.round_(torch.full((100,), 1.2345))
    assert first.unique().numel() == 1
    assert float(first[0]) != float(second[0])
    assert torch.equal(grid.round_(torch.ones(3) / 3, own=4), grid.round_(torch.ones(3) / 3, own=4))


@pytest.mark.parametrize("dtype", UNIT)
def test_zeros_masks_and_what_is_not_finite_survive(dtype: str) -> None:
    x = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, torch.finfo(torch.float32).min])
    grid = Grid(dtype, 0)
    for _ in range(300):
        rounded = grid.round_(x.clone())
        assert rounded[:2].tolist() == [0.0, 0.0]
        assert rounded[2:4].tolist() == [torch.inf, -torch.inf]
        assert bool(rounded[4].isnan())
        assert bool(rounded[5].isfinite())


def rounded_by(yardstick: str, run: object, enabled: bool) -> bool:
    """Whether a function gives other values under a yardstick than without, inside an autocast region or outside."""
    assert callable(run)
    with Recorder() as recorder, torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        torch.set_autocast_dtype("cpu", torch.float32)
        plain = run()
        with Rounding("float16", yardstick, 1, recorder):  # type: ignore[arg-type]
            other = run()
    return not torch.equal(plain, other)


X, W = torch.randn(8, 16), torch.randn(16, 16)


@pytest.mark.parametrize(
    ("run", "everything", "matmul"),
    [
        (lambda: X @ W, True, True),
        (lambda: X.exp(), True, False),
        (lambda: X * 1.3, True, False),
        (lambda: torch.cat([X, X]), False, False),
        (lambda: X.clone().mul_(1.3), False, False),
        (lambda: X.view(16, 8), False, False),
        (lambda: X.relu(), False, False),
    ],
)
def test_what_is_rounded(run: object, everything: bool, matmul: bool) -> None:
    assert rounded_by("every op", run, True) == everything
    assert rounded_by("matmul", run, True) == matmul


def test_outside_any_region_the_second_yardstick_rounds_nothing_backward_included() -> None:
    def step() -> torch.Tensor:
        w = W.clone().requires_grad_()
        (X @ w).sum().backward()
        assert w.grad is not None
        return w.grad

    assert rounded_by("matmul", step, True)
    assert not rounded_by("matmul", step, False)


def test_nothing_is_rounded_while_an_optimizer_steps() -> None:
    with Recorder() as recorder:
        mode = Rounding("float16", "every op", 1, recorder)
        with mode:
            mode.pause(True)
            paused = X.exp()
            mode.pause(False)
            rounded = X.exp()
    assert torch.equal(paused, X.exp())
    assert not torch.equal(rounded, X.exp())


def test_inputs_are_never_changed() -> None:
    model, x = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU()), X.clone()
    before = [p.clone() for p in model.parameters()]
    with Recorder() as recorder, Rounding("bfloat16", "matmul", 1, recorder) as mode:
        mode.weights(model.parameters())
        model(x).sum().backward()
    assert torch.equal(x, X)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
