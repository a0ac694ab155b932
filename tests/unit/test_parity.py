"""Parity from the step to the verdict: honest steps of many kinds are left alone, and each mechanism is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ampcheck
from ampcheck.evidence import Evidence
from ampcheck.findings import Location
from ampcheck.registry import Fault, Inconclusive, Note, NotRun, load_checks
from ampcheck.scenarios.natural import natural
from ampcheck.scenarios.parity import parity
from ampcheck.scenarios.spec import Spec

Step = Callable[[], Any]
LiesIn = Callable[[Location, Callable[..., Any]], bool]
IDS = ("AMP501", "AMP502", "AMP503", "AMP504", "AMP505", "AMP506")


def measured(build: Callable[[], Any], dtypes: tuple[str, ...] | None = None) -> tuple[Evidence, Spec]:
    spec = Spec(build, "step")
    evidence = Evidence("step", "cpu", natural(spec))
    parity(spec, evidence, dtypes)
    return evidence, spec


def verdicts(evidence: Evidence, policy: str = "as-written") -> dict[str, Any]:
    evidence.policy = policy
    return {id: next(iter(load_checks()[id].function(evidence)), None) for id in IDS}


def faults(evidence: Evidence) -> list[str]:
    return [id for id, result in verdicts(evidence).items() if isinstance(result, Fault)]


def net(**layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), *layers.values(), nn.Linear(32, 4))


def loop(
    model: nn.Module,
    *,
    dtype: torch.dtype = torch.float16,
    scale: float | None = 2.0**10,
    optimizer: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.AdamW(p, lr=1e-3),
    before_step: Callable[[], None] = lambda: None,
    returns: Callable[[Tensor], Any] = lambda loss: loss.item(),
    every: int = 1,
    forward: Callable[[nn.Module, Tensor], Tensor] = lambda model, x: model(x),
) -> Step:
    optim = optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
    data = torch.randn(8, 24, 16), torch.randint(0, 4, (8, 24))
    calls = 0

    def step() -> Any:
        nonlocal calls
        x, y = data[0][calls % 8], data[1][calls % 8]
        if calls % every == 0:
            optim.zero_grad()
        calls += 1
        with torch.autocast("cpu", dtype=dtype):
            logits = forward(model, x)
        loss = F.cross_entropy(logits.float(), y)
        scaler.scale(loss / every).backward()
        if calls % every == 0:
            scaler.unscale_(optim)
            before_step()
            scaler.step(optim)
            scaler.update()
        return returns(loss.detach())

    return step


HONEST: dict[str, Callable[[], Step]] = {
    "layer norm": lambda: loop(net(norm=nn.LayerNorm(32), act=nn.GELU())),
    "batch norm": lambda: loop(net(norm=nn.BatchNorm1d(32), act=nn.ReLU())),
    "dropout": lambda: loop(net(drop=nn.Dropout(0.5), act=nn.Tanh())),
    "dropout in bfloat16": lambda: loop(net(act=nn.Tanh(), drop=nn.Dropout(0.5)), dtype=torch.bfloat16, scale=None),
    "noise of the activation's dtype": lambda: loop(net(), forward=lambda m, x: m(x) + torch.randn_like(m(x))),
    "sgd with momentum": lambda: loop(net(act=nn.SiLU()), optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "two calls a step": lambda: loop(net(act=nn.Tanh()), every=2),
    "a scale that overflows at first": lambda: loop(net(act=nn.Tanh()), scale=2.0**22),
}


@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_step_passes(kind: str) -> None:
    def build() -> Step:
        torch.manual_seed(11)
        return HONEST[kind]()

    evidence, _ = measured(build)
    found = verdicts(evidence)
    assert evidence.parity["as-written"].status == "judged"
    assert evidence.parity["as-written"].units >= 2
    assert {id: result for id, result in found.items() if isinstance(result, (Fault, Inconclusive))} == {}
    assert (found["AMP506"] is None) == (kind == "batch norm"), "statistics are judged where there are any"


def test_an_honest_step_costs_two_calls_of_each_kind() -> None:
    def build() -> Step:
        torch.manual_seed(11)
        return HONEST["layer norm"]()

    _, spec = measured(build)
    kinds = ("parity reference", "parity", "yardstick, every op", "yardstick, matmul")
    assert {name: cost.calls for name, cost in spec.costs.items() if name != "natural"} == dict.fromkeys(kinds, 2)


def test_dropout_in_16_bits_is_another_without_care() -> None:
    """The honest dropout above is no easy case: left alone, the masks of the two worlds differ."""
    masks = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        masks.append([F.dropout(torch.ones(7, 3, dtype=dtype)) != 0 for _ in range(20)])
        masks.append([torch.rand(7, 3, dtype=dtype) > 0.5 for _ in range(20)])
    same = [torch.equal(a, b) for a, b in zip(masks[0] + masks[1], masks[2] + masks[3], strict=True)]
    assert not all(same)


class Cancels(nn.Module):
    """Subtracts nearly equal numbers, in 16 bits or in FP32."""

    def __init__(self, wide: bool) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, x: Tensor) -> Tensor:
        h = x.float() if self.wide else x
        return ((h + 300.0) - 300.0).to(x.dtype)


def test_a_sum_that_cancels_in_16_bits_is_found_and_its_line_named(lies_in: LiesIn) -> None:
    def build(wide: bool) -> Step:
        torch.manual_seed(3)
        return loop(net(cancel=Cancels(wide), act=nn.Tanh()))

    assert faults(measured(lambda: build(True))[0]) == []
    evidence, _ = measured(lambda: build(False))
    result = verdicts(evidence)["AMP502"]
    assert isinstance(result, Fault)
    assert result.location is not None
    assert lies_in(result.location, Cancels.forward)
    assert "sub in 1" in result.seen
    assert result.evidence["headroom"] > 2.0


def test_clipping_scaled_gradients_is_found_and_returned_numbers_are_not_blamed() -> None:
    def build(clip: float) -> Step:
        torch.manual_seed(3)
        model = net(act=nn.Tanh())
        optim = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        x, y = torch.randn(24, 16), torch.randint(0, 4, (24,))

        def step() -> Any:
            optim.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x).float(), y)
            scaler.scale(loss).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip * scaler.get_scale() if clip < 1e6 else clip)
            scaler.step(optim)
            scaler.update()
            return {"loss": loss.item(), "scaled norm": norm.item(), "scale": scaler.get_scale()}

        return step

    assert faults(measured(lambda: build(0.1))[0]) == []


def test_a_number_that_is_returned_scaled_is_found() -> None:
    def build(factor: float) -> Step:
        torch.manual_seed(3)
        model = net(act=nn.Tanh())
        optim = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        x, y = torch.randn(24, 16), torch.randint(0, 4, (24,))

        def step() -> Any:
            optim.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x).float(), y)
            scaled = scaler.scale(loss)
            scaled.backward()
            scaler.step(optim)
            scaler.update()
            return (scaled / (scaler.get_scale() if factor else 1.0)).item()

        return step

    assert faults(measured(lambda: build(1.0))[0]) == []
    assert faults(measured(lambda: build(0.0))[0]) == ["AMP501"]


class HalfUpdate(torch.optim.SGD):
    """Applies its update through a float16 buffer."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_((p.grad * group["lr"]).half().to(p.dtype))


def test_an_update_that_is_rounded_inside_the_optimizer_is_found() -> None:
    def build(cls: type[torch.optim.SGD]) -> Step:
        torch.manual_seed(3)
        model = net(act=nn.Tanh())
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.01)
        return loop(model, optimizer=lambda p: cls(p, lr=3e-7))

    assert faults(measured(lambda: build(torch.optim.SGD))[0]) == []
    assert faults(measured(lambda: build(HalfUpdate))[0]) == ["AMP504"]


def test_nothing_in_16_bits_is_said_not_passed() -> None:
    def build(device: str) -> Step:
        torch.manual_seed(3)
        model = net(act=nn.Tanh())
        optim = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(4, 16)

        def step() -> Any:
            optim.zero_grad()
            if device:
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    torch.zeros(1)
            model(x).square().mean().backward()
            optim.step()

        return step

    for device, reason in (("", "no autocast region"), ("cpu", "to the bit")):
        result = verdicts(measured(lambda: build(device))[0])["AMP502"]  # noqa: B023
        assert isinstance(result, NotRun)
        assert reason in result.reason


def test_forcing_float16_on_a_loop_without_a_scale_is_nobodys_fault() -> None:
    def build() -> Step:
        torch.manual_seed(3)
        return loop(net(act=nn.Tanh()), dtype=torch.bfloat16, scale=None)

    evidence, _ = measured(build, ("float16", "bfloat16"))
    result = verdicts(evidence, "float16")["AMP502"]
    assert isinstance(result, NotRun)
    assert "needs a loss scale" in result.reason
    assert verdicts(evidence, "bfloat16")["AMP502"] is None


def test_one_verdict_for_each_declared_dtype() -> None:
    def build() -> Step:
        torch.manual_seed(3)
        return loop(net(act=nn.Tanh()))

    report = ampcheck.check(build, device="cpu", name="step", dtypes=("float16", "bfloat16"))
    found = {(v.check, v.policy): v.outcome for v in report.verdicts if v.check in IDS[:5]}
    assert found == {(id, policy): "passed" for id in IDS[:5] for policy in ("float16", "bfloat16")}
    assert set(report.contracts[0].facts["headroom"]) == {"float16", "bfloat16"}


def test_a_batch_that_cannot_judge_is_inconclusive() -> None:
    class Steep(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(300.0 * x.float()).to(x.dtype)

    def build() -> Step:
        torch.manual_seed(3)
        return loop(net(act=Steep(), more=nn.Linear(32, 32), again=Steep()), dtype=torch.bfloat16, scale=None)

    result = verdicts(measured(build)[0])["AMP502"]
    assert isinstance(result, Inconclusive)
    assert "start from trained weights" in result.reason


def test_the_scale_has_settled_where_every_optimizer_of_the_scaler_steps() -> None:
    """The second optimizer steps at a scale at which the first still overflows."""

    def build() -> Step:
        torch.manual_seed(3)
        nets = [net(act=nn.Tanh()), net(act=nn.Tanh())]
        optims = [torch.optim.SGD(m.parameters(), lr=0.01) for m in nets]
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
        x, y = torch.randn(24, 16), torch.randn(24, 4)

        def step() -> None:
            for m, optim, weight in zip(nets, optims, (2.0**6, 1.0), strict=True):
                optim.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    out = m(x)
                scaler.scale(weight * F.mse_loss(out.float(), y)).backward()
                scaler.step(optim)
            scaler.update()

        return step

    evidence = measured(build)[0]
    found = evidence.parity["as-written"]
    assert found.status == "judged"
    assert found.scale is not None
    assert found.scale < 2.0**16


def test_statistics_are_told_where_they_are_kept(lies_in: LiesIn) -> None:
    class SlowNorm(nn.Module):
        running_var: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_var", torch.ones(32))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                now = x.float().var(0)
                self.running_var.copy_((0.999 * self.running_var.to(x.dtype) + 0.001 * now.to(x.dtype)).float())
            return (x.float() * torch.rsqrt(self.running_var)).to(x.dtype)

    def build() -> Step:
        torch.manual_seed(3)
        return loop(net(norm=SlowNorm(), act=nn.Tanh()))

    evidence = measured(build)[0]
    assert isinstance(verdicts(evidence)["AMP506"], Fault)
    site = evidence.parity["as-written"].part_site
    assert site is not None
    assert lies_in(site, SlowNorm.forward)


@pytest.mark.parametrize("fault", ["gradients through half", "detached"])
def test_what_is_wrong_after_the_forward_is_not_told_at_the_loss_scale(fault: str) -> None:
    """The loss scale multiplies the loss in the judged run alone, and the optimizer's arithmetic only follows."""

    def build() -> Step:
        torch.manual_seed(3)
        model = net(act=nn.Tanh())

        def through_half() -> None:
            for p in model.parameters():
                assert p.grad is not None
                p.grad.copy_((1e-5 * p.grad).half().float() / 1e-5)

        def half_detached(model: nn.Module, x: Tensor) -> Tensor:
            out = model(x)
            return 0.5 * out + 0.5 * out.detach() if out.dtype is torch.float16 else out

        if fault == "detached":
            return loop(model, forward=half_detached)
        return loop(model, before_step=through_half)

    evidence = measured(build)[0]
    found = verdicts(evidence)["AMP502"]
    assert isinstance(found, Fault)
    part, site = evidence.parity["as-written"].part, evidence.parity["as-written"].part_site
    if fault == "detached":  # nothing parts: the values of the forward are right
        assert part == ""
    else:
        assert site is not None
        assert site.function == "through_half"


def test_noise_of_gradient_hooks_that_autograd_runs_in_another_order_is_inconclusive() -> None:
    """Casts change the order in which gradients are ready, and hooks that draw from one generator meet other numbers."""

    def build(own: bool) -> Step:
        torch.manual_seed(3)
        model = net(act=nn.Tanh())
        shared = torch.Generator().manual_seed(1)
        for at, p in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(at) if own else shared
            p.register_hook(lambda g, generator=generator: g + 0.1 * torch.randn(g.shape, generator=generator))
        return loop(model, dtype=torch.bfloat16, scale=None)

    found = verdicts(measured(lambda: build(own=False))[0])
    assert {id for id, result in found.items() if isinstance(result, (Fault, Inconclusive))} == {"AMP502", "AMP503", "AMP504"}
    assert all("other random numbers" in found[id].reason for id in ("AMP502", "AMP503", "AMP504"))
    assert faults(measured(lambda: build(own=True))[0]) == []


def test_what_a_kernel_loses_by_itself_is_noted_and_fails_nobody() -> None:
    """On the CPU the backward of layer_norm sums the gradients of its parameters in 16 bits."""

    def build() -> Step:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
        optim = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        x, y = torch.randn(8192, 16), torch.randint(0, 4, (8192,))

        def step() -> Any:
            optim.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x).float(), y)
            scaler.scale(loss).backward()
            scaler.step(optim)
            scaler.update()

        return step

    evidence, _ = measured(build)
    assert faults(evidence) == []
    result = verdicts(evidence)["AMP503"]
    assert isinstance(result, Note)
    assert "layer_norm" in result.reason
    assert "1.bias" in result.reason or "1.weight" in result.reason


def test_a_loop_that_uses_the_scaler_for_the_scale_only_is_judged() -> None:
    """It makes no `scaler.step`: the scale that it settles at is that of its first step by hand."""

    def build() -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        x = torch.randn(8, 8)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(x)
            scaler.scale(out.float().square().mean()).backward()
            scaler.unscale_(optimizer)
            if all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters()):
                optimizer.step()
            scaler.update()

        return step

    found = {v.check: v.outcome for v in ampcheck.check(build, device="cpu").verdicts}
    assert found["AMP502"] == found["AMP504"] == "passed"
