"""The reference scaler by itself: against torch's update rule, and the parts that torch does not have."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ampcheck import strategies
from ampcheck.scaler.capabilities import Capabilities, attributes, takes_new_scale
from ampcheck.scaler.model import FLOAT32_MAX, ModelMisuse, ScalerModel

INF = float("inf")


def overflow(model: ScalerModel, times: int = 1) -> float:
    for _ in range(times):
        model.step("a", [INF])
        model.update()
    return model.scale


def clean(model: ScalerModel, times: int = 1) -> float:
    for _ in range(times):
        model.step("a", [1.0])
        model.update()
    return model.scale


@settings(max_examples=60)
@given(strategies.scaler_arguments(), st.lists(st.booleans(), max_size=40))
def test_agrees_with_torchs_kernel(arguments: dict[str, float], overflows: list[bool]) -> None:
    model = ScalerModel(
        arguments["init_scale"], arguments["growth_factor"], arguments["backoff_factor"], int(arguments["growth_interval"])
    )
    scale, tracker = torch.tensor(arguments["init_scale"]), torch.tensor(0, dtype=torch.int32)
    factors = (arguments["growth_factor"], arguments["backoff_factor"], int(arguments["growth_interval"]))
    for found in overflows:
        torch._amp_update_scale_(scale, tracker, torch.tensor(float(found)), *factors)
        model.step("a", [INF if found else 1.0])
        model.update()
        assert model.scale == pytest.approx(scale.item(), rel=1e-5)
        assert model.growth_tracker == tracker.item()


def test_step_divides_once_and_skips_on_overflow() -> None:
    model = ScalerModel(4.0)
    assert model.step("a", [2.0, -8.0]) == [0.5, -2.0]
    assert model.step("b", [2.0, float("nan")]) is None
    model.update()
    assert model.scale == 2.0
    unscaled = model.unscale("a", [2.0])
    assert unscaled == [1.0]
    assert model.step("a", [0.25]) == [0.25], "what the loop does after unscale_ is kept"


def test_an_overflow_seen_by_unscale_stays_one() -> None:
    model = ScalerModel(4.0)
    model.unscale("a", [INF])
    assert model.step("a", [0.0]) is None


@pytest.mark.parametrize("misuse", ["unscale", "step", "update"])
def test_misuse_is_refused(misuse: str) -> None:
    model = ScalerModel(4.0)
    if misuse != "update":
        model.unscale("a", [1.0])
        model.step("a", [1.0])
    with pytest.raises(ModelMisuse):
        {"unscale": lambda: model.unscale("a", [1.0]), "step": lambda: model.step("a", [1.0]), "update": model.update}[misuse]()


def test_growth_stops_below_infinity() -> None:
    assert clean(ScalerModel(2.0**126, growth_interval=1), 5) == 2.0**127
    assert clean(ScalerModel(2.0**126, growth_interval=1, max_scale=FLOAT32_MAX), 5) == FLOAT32_MAX
    assert clean(ScalerModel(8.0, growth_interval=1, max_scale=24.0), 5) == 24.0
    assert clean(ScalerModel(8.0, growth_interval=None), 5) == 8.0


def test_floor_static_and_a_scaler_that_does_not_look() -> None:
    assert overflow(ScalerModel(8.0, min_scale=3.0), 4) == 3.0
    assert overflow(ScalerModel(8.0, static=True), 4) == 8.0
    assert ScalerModel(8.0, static=True, skips=False).step("a", [INF]) == [INF]


def test_hysteresis_is_refilled_by_growth_or_by_any_clean_update() -> None:
    by_growth = ScalerModel(64.0, hysteresis=2, growth_interval=2)
    assert [overflow(by_growth), overflow(by_growth), overflow(by_growth)] == [64.0, 32.0, 16.0]
    assert [clean(by_growth), overflow(by_growth)] == [16.0, 8.0]
    assert [clean(by_growth, 2), overflow(by_growth)] == [16.0, 16.0]
    by_clean = ScalerModel(64.0, hysteresis=2, growth_interval=9, refill="clean")
    assert [overflow(by_clean, 2), clean(by_clean), overflow(by_clean)] == [32.0, 32.0, 32.0]


def test_state_brings_back_scale_tracker_and_tolerance() -> None:
    model = ScalerModel(64.0, hysteresis=3, growth_interval=3)
    overflow(model)
    clean(model, 2)
    other = ScalerModel(1.0, hysteresis=3, growth_interval=3)
    other.load_state_dict(model.state_dict())
    assert other == model
    model.update(4.0)
    assert (model.scale, model.growth_tracker) == (4.0, 2)


def test_attributes_are_read_by_their_common_names_and_only_where_they_make_sense() -> None:
    class Odd:
        growth_interval = 7
        scale_factor = 4.0
        min_loss_scale = torch.tensor(0.5)
        max_scale = "no number"

        @property
        def hysteresis(self) -> int:
            raise RuntimeError("not set up")

    assert attributes(Odd()) == {"growth_interval": 7, "growth_factor": 4.0, "backoff_factor": 0.25, "min_scale": 0.5}
    assert attributes(Odd(), torch_names_only=True) == {"growth_interval": 7}
    scaler = torch.amp.GradScaler("cpu", growth_interval=5)
    assert attributes(scaler) == {"growth_interval": 5, "growth_factor": 2.0, "backoff_factor": 0.5}
    assert takes_new_scale(scaler)
    # A loss scale by the name of a factor is none.
    assert attributes(type("S", (), {"scale_factor": 65536.0})()) == {}


def test_declared_comes_before_attribute_before_measured_before_default() -> None:
    can = Capabilities.of(torch.amp.GradScaler("cpu", growth_interval=5), {"hysteresis": 2})
    can = can.measured(hysteresis=4, growth_interval=9, max_scale=16.0)
    assert (can.hysteresis, can.growth_interval, can.max_scale, can.refill) == (2, 5, 16.0, "growth")
    assert "hysteresis=2 (declared)" in can.describe()
    assert "growth_interval=5 (attribute)" in can.describe()
    assert "max_scale=16.0 (measured)" in can.describe()


@given(strategies.plants([3, 1]), strategies.loss_scales(-3, 3), strategies.slopes())
def test_strategies_draw_what_they_promise(plant: strategies.Plant, scale: float, slope: float) -> None:
    assert 0 <= plant.element < [3, 1][plant.parameter]
    assert not torch.isfinite(torch.tensor(plant.value))
    assert 2.0**-3 <= scale <= 2.0**3
    assert torch.tensor(slope).half().item() == slope
