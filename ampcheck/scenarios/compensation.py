"""How an optimizer keeps what rounding takes from 16-bit weights: seen from copies of it that make one step each."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch

from ampcheck.policy import policy
from ampcheck.scenarios.state import kept
from ampcheck.trace.digest import local
from ampcheck.trace.precision import is_low

__all__ = ["compensation"]

#: Explicit mantissa bits and the exponent of the smallest subnormal.
_GRID = {torch.float16: (10, -24), torch.bfloat16: (7, -133)}

#: From this share of weights on, neighbours that change from step to step are no accident of a kernel.
_OFTEN = 0.01


def compensation(optimizer: Any, parameters: Sequence[torch.Tensor], sizes: Sequence[float]) -> str:
    """Let copies of an optimizer step 16-bit parameters with made-up gradients, and see where the lost bits go.

    Args:
        optimizer: any; it is left alone, its state and gradients too.
        parameters: those of its parameters that are 16-bit.
        sizes: root mean square of the gradient of each, so that updates are of the usual size.

    Returns:
        "stochastic rounding" where the same step with another seed gives neighbouring weights; the name of a slot that holds,
        to the sign, what rounding left over, judged against the same step in FP32; else "", also where the optimizer cannot
        be copied or stepped by itself.
    """
    try:
        low = [_stepped(optimizer, parameters, sizes, seed) for seed in (1, 2, 1)]
        if _at_random(*low):
            return "stochastic rounding"
        with policy(widen=True):
            wide = _stepped(optimizer, parameters, sizes, 1, widen=True)
        return _buffer(low[0], wide)
    except Exception:  # the copies are ours: whatever fails in them says nothing about the contract
        return ""


#: For each parameter: its values, and the state of its shape.
_Stepped = list[tuple[torch.Tensor, dict[str, torch.Tensor]]]


def _stepped(
    optimizer: Any, parameters: Sequence[torch.Tensor], sizes: Sequence[float], seed: int, widen: bool = False
) -> _Stepped:
    """What a copy of the optimizer holds after one step; in float32 where it had 16 bits, if asked."""
    memo: dict[int, Any] = {}
    attributes = {name: value for name, value in vars(optimizer).items() if name != "step" and "hook" not in name}
    twin = object.__new__(type(optimizer))
    twin.__dict__.update(copy.deepcopy(attributes, memo))
    twin.__dict__.update({name: type(value)() for name, value in vars(optimizer).items() if "hook" in name})
    ours: list[torch.Tensor] = [memo[id(p)] for p in parameters]
    gradients = {id(p): _gradient(p, size, seed=i) for i, (p, size) in enumerate(zip(ours, sizes, strict=True))}
    for p in (p for group in twin.param_groups for p in group["params"]):
        p.grad = None
        slots = kept(twin, p)
        if widen:
            if is_low(p):
                p.data = p.data.float()
            for name, value in slots.items():
                if is_low(value):
                    slots[name] = value.float()  # type: ignore[index]
        if id(p) in gradients:
            p.grad = gradients[id(p)].to(p.dtype)
    torch.manual_seed(seed)
    for value in vars(twin).values():
        if isinstance(value, torch.Generator):
            value.manual_seed(seed)
    with torch.no_grad():
        inspect.unwrap(type(twin).step)(twin)  # past the hooks that watch the real one
    return [
        (local(p), {k: v for k, v in kept(twin, p).items() if isinstance(v, torch.Tensor) and v.shape == p.shape}) for p in ours
    ]


def _gradient(p: torch.Tensor, size: float, seed: int) -> torch.Tensor:
    """A gradient that 16 bits hold exactly, so that both copies are given the same."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(p.shape, generator=generator) * size).to(p.device, p.dtype)


def _at_random(one: _Stepped, other: _Stepped, again: _Stepped) -> bool:
    repeats = all(torch.equal(a, c) for (a, _), (c, _) in zip(one, again, strict=True))
    moved = total = 0
    for (a, _), *others in zip(one, other, *(() if repeats else (again,)), strict=True):
        for b, _ in others:
            move = (a.float() - b.float()).abs()
            if bool((move > 1.01 * _unit(a)).any()):
                return False  # noise that is added to the update moves weights by more than to a neighbour
            moved, total = moved + int(move.count_nonzero()), total + move.numel()
    # what does not repeat with the seed draws from a generator that cannot be reached, unless it is a kernel's order of summation
    return moved > (0 if repeats else _OFTEN * total)


def _buffer(low: _Stepped, wide: _Stepped) -> str:
    """The slot that holds what the 16-bit weights lack of the FP32 ones."""
    sums: dict[str, list[float]] = {}
    beyond: set[str] = set()
    for (weight, slots), (exact, wider) in zip(low, wide, strict=True):
        missing = exact.float() - weight.float()
        for name, value in slots.items():
            if not value.is_floating_point() or name not in wider:
                continue
            if bool((value.float().abs() > 2.02 * _unit(weight)).any()):
                beyond.add(name)  # what rounding leaves over is at most a unit, of the larger weight before the step too
            left = value.float() - wider[name].float()
            total = sums.setdefault(name, [0.0, 0.0, 0.0])
            for i, product in enumerate((left * left, left * missing, missing * missing)):
                total[i] += float(product.sum())
    for name, (squares, both, lacking) in sums.items():
        if name in beyond or not squares or not lacking:
            continue
        slope, correlation = abs(both) / squares, abs(both) / (squares * lacking) ** 0.5
        if 0.75 < slope < 1.33 and correlation > 0.6:
            return name
    return ""


def _unit(weight: torch.Tensor) -> torch.Tensor:
    """The unit in the last place of each weight."""
    bits, least = _GRID[weight.dtype]
    return torch.exp2((torch.frexp(weight.float().abs()).exponent - 1 - bits).clamp(min=least).float())
