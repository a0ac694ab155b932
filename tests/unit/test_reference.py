"""The reference contracts are what they claim to be: they train, repeat bit for bit, skip nothing, stop and resume."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from ampcheck import Training, reference
from ampcheck.contract import Contract

CONTRACTS = [getattr(reference, name) for name in reference.__all__]
every_contract = pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)


def losses(training: Training, calls: int) -> list[Tensor]:
    return [training.step() for _ in range(calls)]


def test_all_contracts_of_the_module_are_listed() -> None:
    assert [value for value in vars(reference).values() if isinstance(value, Contract)] == CONTRACTS


@every_contract
def test_trains_and_repeats_bit_for_bit(contract: Contract) -> None:
    first = losses(contract("cpu"), 6)
    assert first == losses(contract("cpu"), 6)
    assert all(loss.dtype == torch.float32 for loss in first)
    assert first == sorted(first, reverse=True), "every one of the steps lowers the loss"


@every_contract
def test_resumes_where_it_stopped(contract: Contract) -> None:
    whole = contract("cpu")
    losses(whole, 3)
    assert whole.state_dict is not None
    checkpoint = copy.deepcopy(whole.state_dict())
    resumed = contract("cpu")
    losses(resumed, 1)  # something to overwrite
    assert resumed.load_state_dict is not None
    resumed.load_state_dict(checkpoint)
    assert losses(resumed, 3) == losses(whole, 3)


@pytest.mark.parametrize("contract", [c for c in CONTRACTS if "bf16" not in c.name], ids=lambda contract: contract.name)
def test_the_default_scale_overflows_nowhere(contract: Contract) -> None:
    training = contract("cpu")
    losses(training, 6)
    assert training.state_dict is not None
    scaler = training.state_dict()["scaler"]
    assert (scaler["scale"], scaler["_growth_tracker"]) == (65536.0, 6)
