"""Whose code a file is: the user's, an installed package's, or never the user's."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import torch

import ampcheck
from ampcheck.trace.sources import _rank

OWN = Path(ampcheck.__file__).resolve().parent
PACKAGES = Path(sysconfig.get_paths()["purelib"])


@pytest.mark.parametrize(
    ("file", "rank"),
    [
        (OWN / "runner.py", 2),
        (OWN / "trace" / "recorder.py", 2),
        (OWN / "reference.py", 0),
        (OWN.parent / "ampcheck_demo" / "train.py", 0),
        (Path(f"{OWN}-tests") / "train.py", 0),
        (PACKAGES / "torch" / "nn" / "modules" / "module.py", 2),
        (PACKAGES / "pytest" / "__main__.py", 2),
        (PACKAGES / "_pytest" / "python.py", 2),
        (PACKAGES / "accelerate" / "optimizer.py", 1),
        (PACKAGES / "pytest_of_mine" / "train.py", 1),
        (Path(os.__file__), 2),
        ("<string>", 2),
    ],
)
def test_whose_code_a_file_is(file: Path | str, rank: int) -> None:
    assert _rank(str(file)) == rank


def test_a_checkpoint_without_the_scaler_is_told_where_it_is_put_together() -> None:
    """Not where the contract wraps the project's own function."""

    def save(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    def build() -> ampcheck.Training:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        x = torch.randn(5, 4)

        def step() -> float:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.item()

        def load(state: dict[str, Any]) -> None:
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])

        return ampcheck.Training(step, state_dict=lambda: save(model, optimizer), load_state_dict=load)

    [fault] = [f for f in ampcheck.check(build, device="cpu").findings if f.id == "AMP701"]
    assert fault.location is not None
    assert fault.location.function == "save"
