"""Random draws that are the same in every dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ampcheck.trace.randomness import DrawInFP32, without_fused_dropout

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "dropout2d": lambda x: F.dropout2d(x[None, None], 0.5),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.5),
    "rand_like": torch.rand_like,
    "randn of a dtype": lambda x: torch.randn(40, 50, dtype=x.dtype),
    "normal_": lambda x: x.clone().normal_(),
    "uniform_": lambda x: x.clone().uniform_(),
    "exponential_": lambda x: x.clone().exponential_(),
    "multinomial": lambda x: torch.multinomial(x.abs() + 1, 5).to(x.dtype),
    "gumbel": lambda x: F.gumbel_softmax(torch.zeros_like(x), hard=True),
    "rrelu": lambda x: F.rrelu(-torch.ones_like(x), training=True),
    "own generator": lambda x: torch.rand(40, 50, dtype=x.dtype, generator=torch.Generator().manual_seed(3)),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_same_numbers_in_16_bits(name: str, dtype: torch.dtype) -> None:
    x = torch.ones(40, 50)
    results = []
    for kind in (torch.float32, dtype):
        torch.manual_seed(5)
        with DrawInFP32() as mode:
            results.append(DRAWS[name](x.to(kind)))
            following = torch.rand(3)
        assert mode.seen == (2 if name != "gumbel" else mode.seen)
        results.append(following)
    wide, after_wide, low, after_low = results
    assert low.dtype is dtype
    rounded = wide.to(dtype)
    if name in ("rand_like", "own generator"):  # uniform: what rounds up to 1 does not get there
        rounded = rounded.clamp(max=1 - torch.finfo(dtype).eps / 2)
    assert torch.equal(rounded, low)
    assert torch.equal(after_wide, after_low), "and the stream goes on from the same place"


def test_ordinary_integers_are_drawn_as_ever() -> None:
    torch.manual_seed(0)
    with DrawInFP32():
        drawn = torch.randint(0, 100, (10,)), torch.randperm(10)
    torch.manual_seed(0)
    assert torch.equal(drawn[0], torch.randint(0, 100, (10,)))
    assert torch.equal(drawn[1], torch.randperm(10))


@pytest.mark.filterwarnings("ignore:`torch.cpu.amp.autocast:FutureWarning")  # torch 2.4's own checkpointing
def test_recomputation_has_the_mask_of_its_forward() -> None:
    x = torch.ones(50, 8, dtype=torch.bfloat16, requires_grad=True)  # a normal draw in 16 bits may be zero
    layer = nn.Dropout(0.5)
    with DrawInFP32():
        out = checkpoint(layer, x, use_reentrant=False)
        assert isinstance(out, Tensor)
        out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad != 0, out != 0)


@pytest.mark.parametrize("bind", ["late", "early"])
def test_attention_drops_nothing(bind: str) -> None:
    early = F.scaled_dot_product_attention
    q = torch.randn(2, 2, 6, 4)
    expected = F.scaled_dot_product_attention(q, q, q)
    with without_fused_dropout():
        function = early if bind == "early" else F.scaled_dot_product_attention
        assert torch.equal(function(q, q, q, dropout_p=0.5), expected)
        assert torch.equal(function(q, q, q, None, 0.5), expected)
    assert F.scaled_dot_product_attention is early


def test_modules_drop_nothing_inside_their_kernels() -> None:
    lstm, attention = nn.LSTM(4, 4, 2, dropout=0.5), nn.MultiheadAttention(4, 2, dropout=0.5)
    x = torch.randn(6, 3, 4)
    with without_fused_dropout():
        first, second = lstm(x)[0], lstm(x)[0]
        assert torch.equal(first, second)
        assert torch.equal(attention(x, x, x, need_weights=False)[0], attention(x, x, x, need_weights=False)[0])
    assert not torch.equal(lstm(x)[0], lstm(x)[0])


def test_uniform_numbers_stay_below_one_in_sixteen_bits() -> None:
    torch.manual_seed(0)
    with DrawInFP32():
        drawn = [torch.rand(100_000, dtype=torch.bfloat16), torch.rand_like(torch.empty(100_000, dtype=torch.float16))]
    assert all(float(x.max()) < 1.0 for x in drawn)
