"""Custom Functions, recomputation and the origin of NaN and inf: each mechanism broken and right."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import ampcheck
from ampcheck.checks import precision_flow
from ampcheck.evidence import Evidence
from ampcheck.registry import Fault
from ampcheck.scenarios.natural import natural
from ampcheck.scenarios.origin import calls_in_doubt, overflow_origin
from ampcheck.scenarios.spec import Spec

Step = Callable[[], Any]
Build = Callable[[], Step]
Middle = Callable[[Tensor], Tensor]


def judged(build: Build, check: Callable[[Evidence], Any]) -> list[Fault]:
    """The natural run, the shadowed one where there is doubt, and one check on what they left."""
    spec = Spec(build, "step")
    evidence = Evidence("step", "cpu", natural(spec))
    doubt = calls_in_doubt(evidence.natural)
    if doubt:
        evidence.origin = overflow_origin(spec, evidence.natural, doubt)
    return [result for result in check(evidence) if isinstance(result, Fault)]


def loop(
    model: nn.Module,
    x: Tensor,
    *,
    dtype: torch.dtype = torch.float16,
    scale: float | None = 2.0**8,
    loss_of: Callable[[Any], Tensor] = lambda out: out.float().square().mean(),
    before_step: Callable[[], None] = lambda: None,
    lr: float = 1e-3,
) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)

    def step() -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            out = model(x)
        loss = loss_of(out)
        scaler.scale(loss).backward()
        if scale is not None:
            scaler.unscale_(optimizer)
        before_step()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


class Between(nn.Module):
    """A layer, a function of its output, and a second layer."""

    def __init__(self, middle: Callable[[Tensor], Tensor], width: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width, bias=False), nn.Linear(width, 3)
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x)))


def between(middle: Callable[[Tensor], Tensor], gain: float = 1.0, **how: Any) -> Build:
    def build() -> Step:
        model = Between(middle)
        x = torch.randn(6, 4) * gain
        x[0] = 0.0
        return loop(model, x, **how)

    return build


# -- AMP310: forward ------------------------------------------------------------------------------------------------

#: what -> (in the dtype that comes, as it should be, size of the input)
FORWARD: dict[str, tuple[Middle, Middle, float]] = {
    "range ends in a product": (lambda h: h * h / 1e4, lambda h: h * (h / 1e4), 2000.0),
    "range ends in a sum": (
        lambda h: h * (torch.cat([h] * 8, -1).abs().sum(-1, keepdim=True) / 1e8),
        lambda h: h * (torch.cat([h / 1e8] * 8, -1).abs().sum(-1, keepdim=True)),
        10000.0,
    ),
    "range ends in exp": (lambda h: torch.log(1.0 + torch.exp(h)), lambda h: F.softplus(h), 60.0),
    "epsilon lost under a root": (
        lambda h: h / torch.sqrt((h * h).mean(-1, keepdim=True) + 1e-12),
        lambda h: h / torch.sqrt((h * h).mean(-1, keepdim=True) + 1e-5),
        1.0,
    ),
    "epsilon lost in normalize": (lambda h: F.normalize(h, dim=-1), lambda h: F.normalize(h, dim=-1, eps=1e-3), 1.0),
    "probability rounds to one": (lambda h: torch.log(1.0 - torch.sigmoid(h)), lambda h: F.logsigmoid(-h.float()), 15.0),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward_overflow_is_named(name: str) -> None:
    middle, _, gain = FORWARD[name]
    (fault,) = judged(between(middle, gain), precision_flow.overflow_origin)
    assert "float16" in fault.seen
    assert "call 1" in fault.seen
    assert fault.location is not None
    assert fault.location.file == __file__


@pytest.mark.parametrize("name", FORWARD)
def test_the_same_without_overflow_is_silent(name: str) -> None:
    _, right, gain = FORWARD[name]
    assert not judged(between(right, gain), precision_flow.overflow_origin)


def test_a_gradient_that_no_scale_brings_into_range_is_named() -> None:
    """FP32 divides by 1e-12 at a zero row, so its gradient is 1e12: finite there, inf in float16 at every loss scale."""
    (fault,) = judged(between(lambda h: F.normalize(h.float(), dim=-1)), precision_flow.overflow_origin)
    assert "in the backward" in fault.seen
    assert "even at a loss scale of 2^-10" in fault.seen


@pytest.mark.parametrize("again", [False, True], ids=["stored", "recomputed"])
def test_an_overflow_in_the_backward_is_told_at_the_line_of_its_forward(again: bool) -> None:
    """The gradient of rsqrt(1e-5) in float16 is beyond its range: 1e7."""

    def middle(h: Tensor) -> Tensor:
        return inner(h) if not again else cast(Tensor, checkpoint(inner, h, use_reentrant=False))

    def inner(h: Tensor) -> Tensor:
        return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-5)

    (fault,) = judged(between(middle), precision_flow.overflow_origin)
    assert "in the backward" in fault.seen
    assert fault.location is not None
    assert fault.location.function == "inner"


@pytest.mark.parametrize("models", [1, 2])
def test_an_overflow_in_the_backward_of_a_norm_in_16_bits_follows_from_the_norm(models: int) -> None:
    class Norm(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-5)

    def build() -> Step:
        steps = [between(Norm())() for _ in range(models)]
        return lambda: [step() for step in steps]

    report = ampcheck.check(build, device="cpu")
    assert [finding.id for finding in report.findings if finding.level == "error"] == ["AMP303"]
    assert {v.follows for v in report.contracts[0].verdicts if v.check == "AMP310"} == {"AMP303"}


def masked(h: Tensor) -> Tensor:
    scores = h @ h.t()
    mask = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(mask, float("-inf")).softmax(-1) @ h


def added_mask(h: Tensor) -> Tensor:
    scores = h @ h.t()
    mask = torch.full(scores.shape, torch.finfo(torch.float32).min).triu(1).to(h.dtype)  # -inf in float16
    return (scores + mask).softmax(-1) @ h


def lowest_mask(h: Tensor) -> Tensor:
    scores = h @ h.t()
    mask = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return (scores.masked_fill(mask, torch.finfo(scores.dtype).min) - 40.0).softmax(-1) @ h


@torch.no_grad()
def _large(h: Tensor) -> Tensor:
    return (h.abs() + 300.0) ** 2


ABSORBED = {
    "-inf under a softmax": masked,
    "float32's lowest, cast": added_mask,
    "the dtype's lowest, passed": lowest_mask,
    "a branch that where() leaves": lambda h: torch.where(h > -1e9, h, _large(h)),
    "a saturated sigmoid": lambda h: h * torch.sigmoid(_large(h)),
    "a clamp at a working value": lambda h: h * _large(h).clamp(max=2.0),
    "the nearest of several": lambda h: h * torch.stack([_large(h), h.abs().detach()]).argmin(0),
    "logsumexp over -inf": lambda h: h + torch.logsumexp(torch.full_like(h, float("-inf")), -1, keepdim=True).clamp(min=-1.0),
}


@pytest.mark.parametrize("name", ABSORBED)
def test_what_is_absorbed_is_silent(name: str) -> None:
    assert not judged(between(ABSORBED[name]), precision_flow.overflow_origin)


def test_a_nan_of_float32_too_is_not_ours() -> None:
    assert not judged(between(lambda h: h / h.abs().sum(-1, keepdim=True)), precision_flow.overflow_origin)


def test_an_infinite_cost_that_decides_is_named() -> None:
    def middle(h: Tensor) -> Tensor:
        with torch.no_grad():
            cost = (h.abs() + 300.0) ** 2 + torch.arange(h.shape[-1]).flip(0)  # all inf: argmin says 0
        return h * cost.argmin(-1, keepdim=True)

    (fault,) = judged(between(middle), precision_flow.overflow_origin)
    assert "argmin" in fault.seen


def test_a_buffer_that_takes_it_up_is_named() -> None:
    class Tracker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 8)
            self.register_buffer("average", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x)
            self.average.lerp_(((h.detach().abs() + 300.0) ** 2).mean(0).float(), 0.1)
            return h

    (fault,) = judged(lambda: loop(Tracker(), torch.randn(6, 4)), precision_flow.overflow_origin)
    assert "average is not finite" in fault.seen


# -- AMP310: gradients ----------------------------------------------------------------------------------------------


def clipping(dtype: torch.dtype) -> Build:
    def build() -> Step:
        model = nn.Linear(4, 3)

        def clip() -> None:
            flat = torch.cat([p.grad.flatten().to(dtype) for p in model.parameters()])
            coefficient = (1.0 / ((flat * flat).sum().sqrt() + 1e-6)).clamp(max=1.0)
            for p in model.parameters():
                p.grad.mul_(coefficient.float())

        loss_of = lambda out: out.float().sub(9.0).square().sum() * 10  # noqa: E731
        return loop(model, torch.randn(6, 4), scale=2.0, loss_of=loss_of, before_step=clip)

    return build


def test_a_norm_of_gradients_in_half_is_named() -> None:
    (fault,) = judged(clipping(torch.float16), precision_flow.overflow_origin)
    assert "on gradients" in fault.seen


def test_a_norm_of_gradients_in_float32_is_silent() -> None:
    assert not judged(clipping(torch.float32), precision_flow.overflow_origin)


def compressed(divide_first: bool) -> Build:
    """Gradients of four shards are summed in half, then delivered."""

    def build() -> Step:
        model = nn.Linear(4, 3)
        x = torch.rand(4, 6, 4) + 1.0
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

        def step() -> Any:
            buckets = [torch.zeros_like(p, dtype=torch.float16) for p in model.parameters()]
            for shard in x:
                with torch.autocast("cpu", dtype=torch.float16):
                    out = model(shard)
                scaler.scale(out.float().sub(4.0).square().mean()).backward()
                for bucket, p in zip(buckets, model.parameters(), strict=True):
                    bucket.add_((p.grad / 4 if divide_first else p.grad).half())
                    p.grad = None
            for bucket, p in zip(buckets, model.parameters(), strict=True):
                p.grad = (bucket if divide_first else bucket / 4).float()
            scaler.step(optimizer)
            scaler.update()

        return step

    return build


def test_a_sum_of_compressed_gradients_that_ends_is_named() -> None:
    (fault,) = judged(compressed(divide_first=False), precision_flow.overflow_origin)
    assert "on gradients" in fault.seen


def test_a_mean_of_compressed_gradients_is_silent() -> None:
    assert not judged(compressed(divide_first=True), precision_flow.overflow_origin)


def test_a_hook_that_ends_the_range_is_named() -> None:
    def build() -> Step:
        model = nn.Linear(4, 3)

        def compress(p: Tensor) -> None:
            p.grad.copy_(p.grad.half() * 64 / 64)

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(compress)
        return loop(model, torch.rand(6, 4) + 1.0, scale=2.0**12, loss_of=lambda out: (out.float() - 4.0).square().mean())

    (fault,) = judged(build, precision_flow.overflow_origin)
    assert "on gradients" in fault.seen


def test_a_compression_that_overflows_while_the_scale_settles_is_silent() -> None:
    """The gradient itself does not fit at this scale: the step is skipped, the scale falls, and it does."""

    def build() -> Step:
        model = nn.Linear(4, 3)

        def compress(p: Tensor) -> None:
            p.grad.copy_(p.grad.half())

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(compress)
        return loop(model, torch.rand(6, 4) + 1.0, dtype=torch.bfloat16, scale=2.0**18)

    spec = Spec(build, "step")
    assert calls_in_doubt(natural(spec))
    assert not judged(build, precision_flow.overflow_origin)


def test_a_loss_that_half_cannot_hold_is_named() -> None:
    def build() -> Step:
        loss_of = lambda out: (out.half() - 20.0).square().sum()  # noqa: E731
        return loop(nn.Linear(4, 300), torch.randn(60, 4), loss_of=loss_of, lr=1e-9)

    (fault,) = judged(build, precision_flow.overflow_origin)
    assert "reaches the loss" in fault.seen


def test_a_norm_that_ends_the_iteration_is_silent() -> None:
    """The first scale overflows in the backward; the clip meets inf, and the iteration is left."""

    def build() -> Step:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler("cpu")
        x = torch.randn(6, 4)

        def step() -> Any:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(x)
            scaler.scale((out.float() - 30.0).square().sum()).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if torch.isfinite(norm):
                scaler.step(optimizer)
            scaler.update()
            return norm

        return step

    spec = Spec(build, "step")
    assert calls_in_doubt(natural(spec)), "the norm that is returned gives reason to look"
    assert not judged(build, precision_flow.overflow_origin)


@pytest.mark.parametrize("lr", [1e-3])
def test_an_optimizer_that_divides_by_zero_in_half_is_named(lr: float, lies_in: Callable[..., bool]) -> None:
    class HalfAdam(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:
            for p in self.param_groups[0]["params"]:
                second = (p.grad.half() * 1e-3).square()  # rounds to zero
                p.data.sub_(lr * (p.grad.half() / (second.sqrt() + 1e-8)).float())

    def build() -> Step:
        model = nn.Linear(4, 3)
        optimizer = HalfAdam(model.parameters(), {"lr": lr})
        x = torch.randn(6, 4)

        def step() -> Any:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(x).float().square().mean() * 1e-2
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    (fault,) = judged(build, precision_flow.overflow_origin)
    assert lies_in(fault.location, HalfAdam.step)


@pytest.mark.parametrize("scale", [2.0**16, 2.0**24])
def test_a_scale_that_settles_is_silent(scale: float) -> None:
    def build() -> Step:
        model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
        return loop(model, torch.randn(6, 4), scale=scale, loss_of=lambda out: (out.float() - 50.0).square().sum())

    assert not judged(build, precision_flow.overflow_origin)


def test_the_shadow_leaves_the_run_as_it_is() -> None:
    """Shadowed and bare, the same model with BatchNorm, dropout and in-place ops takes the same steps."""

    def build() -> Step:
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 3))
        step, state = loop(model, torch.randn(6, 4)), model.state_dict()

        def summed() -> dict[str, float]:
            step()
            return {name: float(value.double().sum()) for name, value in state.items()}

        return summed

    from ampcheck.policy import Policy
    from ampcheck.scenarios.origin import _ShadowProbe, _ShadowStage

    probe = _ShadowProbe()
    bare = Spec(build, "step").run("bare", Policy(), calls=3)
    shadowed = Spec(build, "step").run("shadowed", Policy(), calls=3, probes=[probe], stage=_ShadowStage(probe))
    assert bare.trace.returned == shadowed.trace.returned
    assert len(bare.trace.returned) == 3


def test_nothing_in_doubt_costs_no_run() -> None:
    spec = Spec(between(lambda h: h), "step")
    assert calls_in_doubt(natural(spec)) == 0


# -- AMP308 ---------------------------------------------------------------------------------------------------------


def projection(backward_dtype: torch.dtype | None, restore: bool = True) -> type[Function]:
    class Projection(Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            ctx.on, ctx.dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
            return x @ weight.t()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            x, weight = ctx.saved_tensors
            if restore:
                with torch.autocast("cpu", dtype=backward_dtype or ctx.dtype, enabled=ctx.on):
                    return (grad @ weight).to(x.dtype), (grad.t() @ x).to(weight.dtype)
            return grad @ weight, grad.t() @ x

    return Projection


class Projected(nn.Module):
    def __init__(self, function: type[Function]) -> None:
        super().__init__()
        self.stem, self.weight = nn.Linear(4, 8), nn.Parameter(torch.randn(8, 8))
        self.apply_ = function.apply  # bound before anything could be patched

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_(self.stem(x), self.weight)


def test_a_backward_in_another_16_bit_dtype_is_named() -> None:
    function = projection(torch.float16)
    build = lambda: loop(Projected(function), torch.randn(6, 4), dtype=torch.bfloat16, scale=None)  # noqa: E731
    (fault,) = judged(build, precision_flow.custom_function)
    assert fault.level == "error"
    assert "bfloat16" in fault.seen
    assert "float16" in fault.seen
    assert fault.location is not None
    assert fault.location.function.endswith("backward")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_backward_in_the_region_of_its_forward_is_silent(dtype: torch.dtype) -> None:
    function = projection(None)
    assert not judged(lambda: loop(Projected(function), torch.randn(6, 4), dtype=dtype), precision_flow.custom_function)


def test_a_backward_that_falls_back_to_float32_is_a_warning() -> None:
    class Fallback(projection(None)):  # type: ignore[misc]
        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            x, weight = ctx.saved_tensors
            return grad.float() @ weight, (grad.t().float() @ x.float())

    (fault,) = judged(lambda: loop(Projected(Fallback), torch.randn(6, 4)), precision_flow.custom_function)
    assert fault.level == "warning"


def test_a_backward_that_rounds_where_the_forward_did_not_is_a_warning() -> None:
    class Rounded(Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad.half() * 2 * x.half()

    function = Rounded.apply
    (fault,) = judged(between(function), precision_flow.custom_function)
    assert fault.level == "warning"
    assert "float32" in fault.seen


def test_dtypes_that_meet_in_a_backward_are_this_rule() -> None:
    function = projection(None, restore=False)  # half gradient, float32 weight
    (fault,) = judged(lambda: loop(Projected(function), torch.randn(6, 4)), precision_flow.custom_function)
    assert "backward of Projection" in fault.seen
    assert "custom_bwd" in fault.fix


# -- AMP309 ---------------------------------------------------------------------------------------------------------


class Again(Function):
    """Checkpointing by hand; `dtype` is what the recomputation runs in."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], dtype: torch.dtype | None, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.run, ctx.dtype = run, dtype or torch.get_autocast_dtype("cpu")
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        x, *parameters = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad(), torch.autocast("cpu", dtype=ctx.dtype, enabled=ctx.dtype is not torch.float32):
            y = ctx.run(x.to(torch.float32) if ctx.dtype is torch.float32 else x)
        return None, None, *torch.autograd.grad(y, (x, *parameters), grad.to(y.dtype))


class ByHand(nn.Module):
    def __init__(self, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.stem, self.block, self.dtype = nn.Linear(4, 8), nn.Linear(8, 8), dtype

    def forward(self, x: Tensor) -> Tensor:
        return Again.apply(self.block, self.dtype, self.stem(x), *self.block.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_recomputation_in_another_dtype_is_named(dtype: torch.dtype) -> None:
    build = lambda: loop(ByHand(dtype), torch.randn(6, 4), dtype=torch.bfloat16)  # noqa: E731
    (fault,) = judged(build, precision_flow.checkpoint_recompute)
    assert "bfloat16" in fault.seen
    assert fault.location is not None
    assert fault.location.file == __file__
    assert not [f for f in judged(build, precision_flow.custom_function) if f.level == "error"]


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_recomputation_under_the_forward_region_is_silent(reentrant: bool, by_hand: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.block = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, self.stem(x), use_reentrant=reentrant)

    build = lambda: loop(ByHand(None) if by_hand else Checkpointed(), torch.randn(6, 4))  # noqa: E731
    run = natural(Spec(build, "step"))
    assert run.notes["flow"].recompute_ops > 0, "the recomputation was not seen"
    assert not judged(build, precision_flow.checkpoint_recompute)


def test_a_recomputation_that_overflows_follows() -> None:
    def build() -> Step:
        x, loss_of = torch.randn(6, 4) * 3e5, lambda out: (out.float() * 1e-6).square().mean()
        return loop(ByHand(torch.float16), x, dtype=torch.bfloat16, scale=None, loss_of=loss_of)

    (fault,) = judged(build, precision_flow.overflow_origin)
    assert "recomputes" in fault.seen


def test_a_recomputation_that_raises_under_another_region_is_this_rule() -> None:
    class Elsewhere(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.block = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            regions = lambda: (contextlib.nullcontext(), torch.autocast("cpu", enabled=False))  # noqa: E731
            how = {"use_reentrant": False, "context_fn": regions, "determinism_check": "none"}
            return checkpoint(self.block, self.stem(x), **how)

    (fault,) = judged(lambda: loop(Elsewhere(), torch.randn(6, 4)), precision_flow.checkpoint_recompute)
    assert "two dtypes meet" in fault.seen


def test_a_checkpoint_that_a_cast_cache_disturbs_is_this_rule() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.weight, self.copy = nn.Linear(4, 8), nn.Parameter(torch.randn(8, 8)), None
            self.gain = nn.Parameter(torch.ones(8, 1))

        def region(self, h: Tensor) -> Tensor:
            if self.copy is None:
                self.copy = (self.weight * self.gain).to(torch.bfloat16)
            return torch.tanh(h.to(torch.bfloat16) @ self.copy)

        def forward(self, x: Tensor) -> Tensor:
            h = checkpoint(self.region, checkpoint(self.region, self.stem(x), use_reentrant=False), use_reentrant=False)
            self.copy = None
            return h

    build = lambda: loop(Cached(), torch.randn(6, 4), dtype=torch.bfloat16, scale=None)  # noqa: E731
    (fault,) = judged(build, precision_flow.checkpoint_recompute)
    assert "checkpoint" in fault.seen


def test_numbers_are_numbers() -> None:
    """What the scenarios leave is data: no tensor outlives the run."""
    spec = Spec(between(FORWARD["range ends in a product"][0], 2000.0), "step")
    origins = overflow_origin(spec, natural(spec), 1).found
    assert origins
    for value in vars(origins[0]).values():
        assert not isinstance(value, Tensor)
    assert math.isfinite(origins[0].widened)
