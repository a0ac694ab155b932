"""The reference contracts on a GPU."""

from __future__ import annotations

import pytest
import torch

from ampcheck import reference
from ampcheck.contract import Contract


@pytest.mark.parametrize(
    "contract", [getattr(reference, name) for name in reference.__all__], ids=lambda contract: contract.name
)
def test_trains_on_the_gpu_and_skips_nothing(contract: Contract) -> None:
    training = contract("cuda")
    first, *_, last = [training.step() for _ in range(6)]
    assert first.device.type == "cuda"
    assert last < first
    assert training.state_dict is not None
    if "scaler" in (state := training.state_dict()):
        assert (state["scaler"]["scale"], state["scaler"]["_growth_tracker"]) == (65536.0, 6)
    assert all(value.dtype == torch.float32 for value in state["model"].values() if value.is_floating_point())
