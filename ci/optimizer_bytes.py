"""Bytes of optimizer state of a GPT-2 of 124 million parameters, measured in a training step and by formula.

    python ci/optimizer_bytes.py [--device cpu] [--optimizer AdamW]

The model is transformers' GPT-2 with its default configuration and new weights; one step under bfloat16 autocast is taken.
Needs the `transformers` package and about 3 GB of memory. The exit status is 1 where measurement and formula differ by a byte.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable

import torch

import ampcheck
from ampcheck.checks._state import table
from ampcheck.scenarios.natural import natural
from ampcheck.scenarios.spec import Spec


def contract(device: str, optimizer: str) -> Callable[[], ampcheck.Training]:
    """A contract of one step; nothing is downloaded."""
    transformers = importlib.import_module("transformers")

    def make() -> ampcheck.Training:
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).to(device)
        opt = getattr(torch.optim, optimizer)(model.parameters(), lr=1e-4)
        tokens = torch.randint(0, 50257, (1, 8), device=device)

        def step() -> torch.Tensor:
            opt.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                loss: torch.Tensor = model(tokens, labels=tokens).loss
            loss.backward()
            opt.step()
            return loss.detach()

        return ampcheck.Training(step, calls=1)

    return make


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--optimizer", default="AdamW")
    arguments = parser.parse_args()
    run = natural(Spec(contract(arguments.device, arguments.optimizer), "GPT-2", arguments.device))
    if run.trace.raised is not None:
        sys.exit(f"the step raises {run.trace.raised}")
    found = run.notes["precision"]
    state = next(iter(found.natural.optimizers.values()))
    expected = sum(slot.nbytes for p in state.parameters for slot in (p.expected or {}).values())
    (row,) = table(found)
    print(f"{row['optimizer']} over {row['parameters']} parameters of {row['elements']} elements")
    for name, slot in row["slots"].items():
        print(f"  {name:12} {slot['dtype']:10} {slot['tensors']:5} tensors {slot['bytes']:14} bytes")
    print(f"  {row['bytes']} bytes = {row['bytes per parameter']:g} a parameter + {row['bytes of counters']} of counters")
    print(f"  {expected} bytes by the formula")
    return int(row["bytes"] != expected)


if __name__ == "__main__":
    sys.exit(main())
