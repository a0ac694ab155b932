"""AMP303 knows a norm by its ops, however it is written: in 16 bits it is named, in FP32 it is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ampcheck.checks.dtypes import handmade_norm
from ampcheck.evidence import Evidence
from ampcheck.registry import Fault
from ampcheck.scenarios.natural import natural
from ampcheck.scenarios.spec import Spec

Norm = Callable[[Tensor], Tensor]
EPS = 1e-5


def mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def grouped(x: Tensor) -> Tensor:
    g = x.view(x.shape[0], 4, -1)
    return ((g - mean(g)) * (g.var(-1, keepdim=True, unbiased=False) + EPS).rsqrt()).view_as(x)


def safe(x: Tensor) -> Tensor:
    deviation = x.std(-1, keepdim=True)
    return x / torch.where(deviation > EPS, deviation, torch.ones_like(deviation))


NORMS: dict[str, Norm] = {
    "root mean square": lambda x: x * torch.rsqrt(mean(x.pow(2)) + EPS),
    "mean of squares less square of mean": lambda x: (x - mean(x)) / torch.sqrt(mean(x * x) - mean(x) ** 2 + EPS),
    "that in one op": lambda x: (x - mean(x)) * torch.addcmul(mean(x * x), mean(x), mean(x), value=-1).add(EPS).rsqrt(),
    "standard deviation": lambda x: (x - mean(x)) / (x.std(-1, keepdim=True) + EPS),
    "power": lambda x: x * (mean(x.square()) + EPS) ** -0.5,
    "one over": lambda x: x * (1 / (mean(x**2) + EPS).sqrt()),
    "sum over n": lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) / x.shape[-1] + EPS),
    "product with itself": lambda x: x * torch.rsqrt(torch.einsum("bd,bd->b", x, x)[:, None] / x.shape[-1] + EPS),
    "gain first": lambda x: x * (torch.rsqrt(mean(x.pow(2)) + EPS) * torch.ones(x.shape[-1], dtype=x.dtype)),
    "divided and added": lambda x: torch.addcdiv(torch.zeros_like(x), x, x.std(-1, keepdim=True) + EPS),
    "groups": grouped,
    "batch": lambda x: (x - x.mean(0)) / torch.sqrt(x.var(0, unbiased=False) + EPS),
    "a deviation that is not zero": safe,
}


def faults(norm: Norm) -> list[Fault]:
    def build() -> Callable[[], float]:
        torch.manual_seed(0)
        first, last = nn.Linear(16, 32), nn.Linear(32, 4)
        optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.1)
        x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))

        def step() -> float:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = last(norm(first(x)))
            loss = nn.functional.cross_entropy(out.float(), y)
            loss.backward()
            optimizer.step()
            return loss.item()

        return step

    evidence = Evidence("norm", "cpu", natural(Spec(build, "norm", "cpu")))
    assert evidence.trace.raised is None
    return [result for result in handmade_norm(evidence) if isinstance(result, Fault)]


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_a_norm_in_16_bits_is_named(norm: Norm) -> None:
    (fault,) = faults(norm)
    assert fault.location is not None
    assert fault.location.file == __file__


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_the_same_norm_in_fp32_is_left_alone(norm: Norm) -> None:
    assert faults(lambda x: norm(x.float()).to(x.dtype)) == []


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x / x.norm(dim=-1, keepdim=True),
        lambda x: torch.softmax((x @ x.T) / x.shape[-1] ** 0.5, -1) @ x,
        lambda x: x * x.pow(2).mean(),
        lambda x: nn.functional.rms_norm(x, (x.shape[-1],)),
    ],
    ids=["unit length", "attention", "no root", "torch's own"],
)
def test_what_is_no_norm_of_ones_own_is_left_alone(other: Norm) -> None:
    assert faults(other) == []
