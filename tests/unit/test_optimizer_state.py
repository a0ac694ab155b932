"""AMP307 and AMP401-406 on small training steps: a broken and a right twin for each mechanism."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ampcheck
from ampcheck.checks._state import table
from ampcheck.evidence import Evidence
from ampcheck.findings import Location
from ampcheck.registry import Fault, load_checks
from ampcheck.scenarios.natural import natural
from ampcheck.scenarios.precision import precision
from ampcheck.scenarios.spec import Spec

IDS = ("AMP307", "AMP401", "AMP402", "AMP403", "AMP404", "AMP405", "AMP406")
Step = Callable[[], object]
LiesIn = Callable[[Location, Callable[..., Any]], bool]


def gather(make: Callable[[], Any], **declared: Any) -> Evidence:
    spec = Spec(make, "contract", "cpu")
    run = natural(spec)
    evidence = Evidence("contract", "cpu", run, declared=declared)
    evidence.precision = run.notes.pop("precision")
    if evidence.precision.suspicious():
        precision(spec, evidence.precision, 6)
    return evidence


def faults(make: Callable[[], Any], **declared: Any) -> dict[str, Fault]:
    """The first fault of each of the checks."""
    evidence, found = gather(make, **declared), {}
    for id in IDS:
        results = [r for r in load_checks()[id].function(evidence) if isinstance(r, Fault)]
        if results:
            found[id] = results[0]
    return found


def errors(make: Callable[[], Any], **declared: Any) -> list[str]:
    return [id for id, f in faults(make, **declared).items() if (f.level or load_checks()[id].level) == "error"]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4))


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(32, 16), torch.randint(0, 4, (32,))


def plain(
    optimizer: Callable[[nn.Module], Any], *, low: bool = True, autocast: bool = False, after: Step | None = None
) -> Step:
    """A step without a scaler: the model, in bfloat16 if `low`, under its optimizer."""
    model = mlp().to(torch.bfloat16 if low else torch.float32)
    opt, (x, y) = optimizer(model), data()

    def step() -> None:
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            out = model(x.to(torch.bfloat16) if low and not autocast else x)
        F.cross_entropy(out.float(), y).backward()
        opt.step()

    return step


class Custom(torch.optim.Optimizer):
    """Adam over whatever it is given; how it keeps 16-bit weights is the subclass's."""

    def __init__(self, params: Any, lr: float = 1e-4, eps: float = 1e-8, state: torch.dtype = torch.float32) -> None:
        super().__init__(params, {"lr": lr, "eps": eps})
        self.dtype = state

    def apply(self, p: torch.Tensor, update: torch.Tensor, state: dict[str, Any]) -> None:
        p.sub_(update.to(p.dtype))

    def denominator(self, v: torch.Tensor, eps: float) -> torch.Tensor:
        return v.float().sqrt() + eps

    def count(self, state: dict[str, Any]) -> None:
        state["step"] = state.get("step", 0) + 1

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                self.count(state)
                m = state.setdefault("m", torch.zeros_like(p, dtype=self.dtype))
                v = state.setdefault("v", torch.zeros_like(p, dtype=self.dtype))
                m.lerp_(p.grad.to(m.dtype), 0.1)
                v.lerp_(p.grad.to(v.dtype).square(), 0.01)
                self.apply(p, group["lr"] * m.float() / self.denominator(v, group["eps"]).float(), state)


class Stochastic(Custom):
    def apply(self, p: torch.Tensor, update: torch.Tensor, state: dict[str, Any]) -> None:
        exact = p.float() - update
        noise = torch.randint_like(exact, 0, 1 << 16, dtype=torch.int32)
        p.copy_(((exact.view(torch.int32) + noise) & -65536).view(torch.float32))


_NOISE = torch.Generator()


class StochasticOfItsOwn(Custom):
    """Draws from a generator that nothing of the optimizer holds."""

    def apply(self, p: torch.Tensor, update: torch.Tensor, state: dict[str, Any]) -> None:
        exact = p.float() - update
        noise = torch.randint(0, 1 << 16, exact.shape, generator=_NOISE, dtype=torch.int32)
        p.copy_(((exact.view(torch.int32) + noise) & -65536).view(torch.float32))


class Kahan(Custom):
    def apply(self, p: torch.Tensor, update: torch.Tensor, state: dict[str, Any]) -> None:
        left = state.setdefault("left", torch.zeros_like(p))
        left.add_(update.to(left.dtype), alpha=-1)
        before = p.clone()
        p.add_(left)
        left.add_(before - p)


class Remainder(Custom):
    def apply(self, p: torch.Tensor, update: torch.Tensor, state: dict[str, Any]) -> None:
        rest = state.setdefault("rest", torch.zeros_like(p, dtype=torch.int16))
        whole = ((p.view(torch.int16).int() << 16) | (rest.int() & 0xFFFF)).view(torch.float32) - update
        bits = whole.view(torch.int32)
        rest.copy_((bits & 0xFFFF).to(torch.int16))
        p.copy_((bits >> 16).to(torch.int16).view(p.dtype))


class Masters(Custom):
    def apply(self, p: torch.Tensor, update: torch.Tensor, state: dict[str, Any]) -> None:
        master = state.setdefault("master", p.float())
        p.copy_(master.sub_(update))


class FlatMasters(torch.optim.Optimizer):
    """SGD over one flat FP32 master of all the 16-bit weights."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})
        self.flat = torch.cat([p.detach().float().flatten() for p in self.param_groups[0]["params"]])

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        group = self.param_groups[0]
        self.flat.sub_(torch.cat([p.grad.float().flatten() for p in group["params"]]), alpha=group["lr"])
        for p, piece in zip(group["params"], self.flat.split([p.numel() for p in group["params"]]), strict=True):
            p.copy_(piece.view_as(p))


class Small(Custom):
    """Momentum so small that it is less than a unit of the weights everywhere, and yet no compensation."""

    def apply(self, p: torch.Tensor, update: torch.Tensor, state: dict[str, Any]) -> None:
        small = state.setdefault("small", torch.zeros_like(p))
        small.copy_(p.abs() * 0.0017 * update.sign())
        p.sub_(update.to(p.dtype))


class TestSixteenBitWeights:
    def test_a_buffer_of_small_numbers_compensates_for_nothing(self) -> None:
        assert "AMP403" in faults(lambda: plain(lambda m: Small(m.parameters(), lr=1e-6)))

    @pytest.mark.parametrize("kind", [Stochastic, StochasticOfItsOwn, Kahan, Remainder, Masters, FlatMasters])
    @pytest.mark.parametrize("lr", [1e-2, 1e-4])
    @pytest.mark.parametrize("autocast", [True, False])
    def test_an_optimizer_that_keeps_what_rounding_takes_passes(self, kind: Any, lr: float, autocast: bool) -> None:
        assert errors(lambda: plain(lambda m: kind(m.parameters(), lr=lr), autocast=autocast)) == []

    @pytest.mark.parametrize("autocast", [True, False])
    @pytest.mark.parametrize("lr", [1e-3, 1e-5])
    @pytest.mark.parametrize("kind", [Custom, torch.optim.AdamW])
    def test_an_optimizer_that_does_not_is_named(self, kind: Any, lr: float, autocast: bool) -> None:
        found = faults(lambda: plain(lambda m: kind(m.parameters(), lr=lr), autocast=autocast))
        assert "AMP403" in found
        assert ("AMP307" in found) == autocast
        location = found["AMP403"].location
        assert location is not None
        assert location.function == "plain", "the line that casts the model"

    def test_the_share_of_lost_updates_is_measured(self) -> None:
        small = gather(lambda: plain(lambda m: torch.optim.SGD(m.parameters(), lr=1e-6))).precision
        large = gather(lambda: plain(lambda m: torch.optim.SGD(m.parameters(), lr=10.0))).precision
        assert small is not None
        assert large is not None
        assert small.lost[0].share > 0.9
        assert large.lost[0].share < 0.1

    def test_moments_in_sixteen_bits_are_a_warning_where_weights_are_compensated(self) -> None:
        found = faults(lambda: plain(lambda m: Stochastic(m.parameters(), state=torch.bfloat16)))
        assert found["AMP401"].level == "warning"
        assert "AMP403" not in found

    def test_an_fp32_average_of_a_sixteen_bit_model_is_no_master(self) -> None:
        def make() -> Step:
            model = mlp()
            average = copy.deepcopy(model)  # before the cast: it rounds to the weights for as long as they do not move
            model.to(torch.bfloat16)
            opt, (x, y) = torch.optim.SGD(model.parameters(), lr=1e-7), data()

            def step() -> None:
                opt.zero_grad()
                F.cross_entropy(model(x.bfloat16()).float(), y).backward()
                opt.step()
                with torch.no_grad():
                    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                        slow.lerp_(fast.float(), 0.001)

            return step

        assert "AMP403" in faults(make)

    def test_frozen_sixteen_bit_weights_are_free(self) -> None:
        def make() -> Step:
            model = mlp()
            model[0].to(torch.bfloat16).requires_grad_(False)
            opt, (x, y) = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]), data()

            def step() -> None:
                opt.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    out = model(x)
                F.cross_entropy(out.float(), y).backward()
                opt.step()

            return step

        assert faults(make) == {}


def by_hand(when: str, *, flat: bool = False) -> Step:
    """A half model with FP32 masters that are copied into it `when`: "after" or "before" each step, or "never"."""
    model = mlp()
    masters = [p.detach().clone() for p in model.parameters()]
    model.to(torch.bfloat16)
    if flat:
        whole = torch.cat([m.flatten() for m in masters]).requires_grad_()
        pieces = whole.split([m.numel() for m in masters])
        owned = [whole]
    else:
        owned = [m.requires_grad_() for m in masters]
        pieces = tuple(owned)
    opt, (x, y) = torch.optim.AdamW(owned, lr=1e-4), data()

    def copied() -> None:
        with torch.no_grad():
            for master, p in zip(pieces, model.parameters(), strict=True):
                p.copy_(master.view_as(p))

    def step() -> None:
        if when == "before":
            copied()
        model.zero_grad()
        F.cross_entropy(model(x.bfloat16()).float(), y).backward()
        gradients = [p.grad.float() for p in model.parameters() if p.grad is not None]
        if flat:
            whole.grad = torch.cat([g.flatten() for g in gradients])
        else:
            for master, g in zip(masters, gradients, strict=True):
                master.grad = g
        opt.step()
        if when == "after":
            copied()

    return step


class TestMasters:
    @pytest.mark.parametrize("flat", [True, False])
    @pytest.mark.parametrize("when", ["after", "before"])
    def test_masters_in_step_pass(self, when: str, flat: bool) -> None:
        assert faults(lambda: by_hand(when, flat=flat)) == {}

    def test_masters_that_the_optimizer_holds_leave_no_doubt(self) -> None:
        evidence = gather(lambda: plain(lambda m: Masters(m.parameters())))
        assert list(load_checks()["AMP403"].function(evidence)) == []

    def test_masters_that_the_model_does_not_follow_are_named(self) -> None:
        assert "does not follow" in faults(lambda: by_hand("never"))["AMP403"].seen

    def test_fp32_moments_beside_masters_pass_and_sixteen_bit_ones_do_not(self, lies_in: LiesIn) -> None:
        assert errors(lambda: plain(lambda m: Masters(m.parameters()))) == []
        found = faults(lambda: plain(lambda m: Masters(m.parameters(), state=torch.bfloat16)))
        assert {"AMP401", "AMP402"} <= set(found)
        assert "AMP403" not in found
        location = found["AMP401"].location
        assert location is not None
        assert lies_in(location, Custom.step), "the line that makes the state"


class TestState:
    @pytest.mark.parametrize(
        "make",
        [
            lambda m: torch.optim.AdamW(m.parameters()),
            lambda m: torch.optim.Adam(m.parameters(), amsgrad=True),
            lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
            lambda m: torch.optim.Adafactor(m.parameters()),
            lambda m: torch.optim.RMSprop(m.parameters(), centered=True),
            lambda m: Custom(m.parameters()),
        ],
        ids=["AdamW", "amsgrad", "momentum", "Adafactor", "RMSprop", "custom"],
    )
    def test_fp32_state_passes(self, make: Callable[[nn.Module], Any]) -> None:
        assert faults(lambda: plain(make, low=False, autocast=True)) == {}

    def test_adamw_takes_eight_bytes_an_element_and_four_a_counter(self) -> None:
        found = gather(lambda: plain(lambda m: torch.optim.AdamW(m.parameters()), low=False))
        assert found.precision is not None
        (row,) = table(found.precision)
        numel = sum(p.numel() for p in mlp().parameters())
        assert row["bytes"] == 8 * numel + 4 * len(list(mlp().parameters()))
        assert row["bytes per parameter"] == 8.0
        assert row["slots"]["exp_avg_sq"] == {"dtype": "float32", "tensors": 6, "elements": numel, "bytes": 4 * numel}

    def test_state_of_a_declared_size_is_held_to_it(self) -> None:
        def make(m: nn.Module) -> Custom:
            return Custom(m.parameters(), state=torch.bfloat16)

        assert set(faults(lambda: plain(make, low=False))) == {"AMP401", "AMP402"}
        assert faults(lambda: plain(make, low=False), state_bytes_per_param=4) == {}
        assert set(faults(lambda: plain(make, low=False), state_bytes_per_param=2)) == {"AMP402"}

    def test_state_that_is_cast_later_is_seen(self) -> None:
        def make() -> Step:
            model = mlp()
            opt, (x, y) = torch.optim.Adam(model.parameters()), data()

            def step() -> None:
                opt.zero_grad()
                F.cross_entropy(model(x), y).backward()
                opt.step()
                for state in opt.state.values():
                    state["exp_avg_sq"] = (
                        state["exp_avg_sq"].bfloat16().float() if step_is_right else state["exp_avg_sq"].half()
                    )

            return step

        for step_is_right in (True, False):
            assert set(faults(make)) == (set() if step_is_right else {"AMP401", "AMP402"})

    def test_state_in_attributes_of_the_optimizer_is_seen(self) -> None:
        class Attributes(torch.optim.Optimizer):
            def __init__(self, params: Any, dtype: torch.dtype) -> None:
                super().__init__(params, {"lr": 1e-3})
                self.momentum = [torch.zeros_like(p, dtype=dtype) for p in self.param_groups[0]["params"]]

            @torch.no_grad()
            def step(self, closure: Any = None) -> None:
                for p, m in zip(self.param_groups[0]["params"], self.momentum, strict=True):
                    p.sub_(m.add_(p.grad.to(m.dtype)).to(p.dtype), alpha=1e-3)

        assert faults(lambda: plain(lambda m: Attributes(m.parameters(), torch.float32), low=False)) == {}
        assert set(faults(lambda: plain(lambda m: Attributes(m.parameters(), torch.bfloat16), low=False))) == {"AMP401"}

    def test_state_that_is_sixteen_bit_in_fp32_too_is_meant_to_be(self) -> None:
        class Fixed(Custom):
            def count(self, state: dict[str, Any]) -> None:
                super().count(state)
                state.setdefault("table", torch.from_numpy(np.zeros(4, np.float16)))

        assert faults(lambda: plain(lambda m: Fixed(m.parameters()), low=False)) == {}

    def test_quantised_state_is_no_fault(self) -> None:
        class Quantised(Custom):
            @torch.no_grad()
            def step(self, closure: Any = None) -> None:
                for p in self.param_groups[0]["params"]:
                    state = self.state[p]
                    state.setdefault("m", torch.zeros_like(p, dtype=torch.uint8))
                    state.setdefault("scale", torch.ones(1))
                    p.sub_(p.grad, alpha=1e-3)

        assert faults(lambda: plain(lambda m: Quantised(m.parameters()), low=False)) == {}


class HalfDenominator(Custom):
    def denominator(self, v: torch.Tensor, eps: float) -> torch.Tensor:
        return v.sqrt() + eps


class Constant(Custom):
    def denominator(self, v: torch.Tensor, eps: float) -> torch.Tensor:
        return v.sqrt().add_(1e-8)


class TestEpsilon:
    def test_a_constant_in_the_code_counts_too(self) -> None:
        for state, expected in ((torch.float16, True), (torch.float32, False)):
            kind = functools.partial(Constant, eps=0.0, state=state)
            assert ("AMP404" in faults(lambda kind=kind: plain(lambda m: kind(m.parameters()), low=False))) == expected

    @pytest.mark.parametrize(
        ("kind", "eps", "state", "expected"),
        [
            (HalfDenominator, 1e-8, torch.float16, True),
            (HalfDenominator, 1e-4, torch.float16, False),
            (HalfDenominator, 1e-8, torch.bfloat16, False),
            (HalfDenominator, 1e-8, torch.float32, False),
            (Custom, 1e-8, torch.float16, False),
        ],
        ids=["half", "half, large eps", "bfloat16", "FP32", "half state, FP32 denominator"],
    )
    def test_what_counts_is_the_dtype_of_the_denominator(
        self, kind: Any, eps: float, state: torch.dtype, expected: bool, lies_in: LiesIn
    ) -> None:
        found = faults(lambda: plain(lambda m: kind(m.parameters(), eps=eps, state=state), low=False))
        assert ("AMP404" in found) == expected
        if expected:
            location = found["AMP404"].location
            assert location is not None
            assert lies_in(location, HalfDenominator.denominator)

    @pytest.mark.parametrize("foreach", [True, False])
    def test_torch_optimizers_over_half_weights(self, foreach: bool) -> None:
        def make() -> Step:
            weight = nn.Parameter(torch.ones(4, 4, dtype=torch.float16))
            opt = torch.optim.Adam([weight], foreach=foreach)

            def step() -> None:
                opt.zero_grad()
                weight.float().square().sum().backward()
                opt.step()

            return step

        assert "AMP404" in faults(make)


def averaged(update: Callable[[nn.Module, Any], None], begin: Callable[[nn.Module], Any]) -> Step:
    model = mlp()
    nn.init.zeros_(model[4].bias)
    average = begin(model)
    opt, (x, y) = torch.optim.AdamW(model.parameters(), lr=1e-3), data()

    def step() -> None:
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        F.cross_entropy(out.float(), y).backward()
        opt.step()
        with torch.no_grad():
            update(model, average)

    return step


def in_place(model: nn.Module, average: nn.Module) -> None:
    for slow, fast in zip(average.parameters(), model.parameters(), strict=False):
        slow.mul_(0.999).add_(fast.to(slow.dtype), alpha=0.001)


def replaced(model: nn.Module, average: dict[str, torch.Tensor]) -> None:
    for name, p in model.named_parameters():
        if name in average:
            average[name] = 0.999 * average[name] + 0.001 * p.to(average[name].dtype)


def copied(model: nn.Module, average: nn.Module) -> None:
    for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
        slow.copy_(fast)


def module_of(dtype: torch.dtype) -> Callable[[nn.Module], nn.Module]:
    return lambda model: copy.deepcopy(model).requires_grad_(False).to(dtype)


def dict_of(dtype: torch.dtype, left_out: tuple[str, ...] = ()) -> Callable[[nn.Module], dict[str, torch.Tensor]]:
    return lambda model: {n: p.detach().to(dtype).clone() for n, p in model.named_parameters() if n not in left_out}


class TestAverages:
    @pytest.mark.parametrize(
        ("update", "begin", "expected"),
        [
            (in_place, module_of(torch.float32), ""),
            (in_place, module_of(torch.bfloat16), "averaged copies are bfloat16"),
            (replaced, dict_of(torch.float32), ""),
            (replaced, dict_of(torch.float16), "averaged copies are float16"),
            (replaced, dict_of(torch.float32, ("2.weight", "2.bias")), "leave out 2.weight, 2.bias"),
            (copied, module_of(torch.bfloat16), ""),
        ],
        ids=["module", "module in bfloat16", "dict", "dict in half", "some left out", "a copy, not an average"],
    )
    def test_averages(self, update: Any, begin: Any, expected: str) -> None:
        found = faults(lambda: averaged(update, begin))
        assert (expected in found["AMP405"].seen) if expected else found == {}

    def test_a_parameter_of_one_element_is_not_missed(self) -> None:
        def make() -> Step:
            model = nn.Sequential(mlp(), nn.Linear(4, 1))
            nn.init.zeros_(model[1].bias)
            average = copy.deepcopy(model).requires_grad_(False)
            opt, (x, _) = torch.optim.AdamW(model.parameters()), data()

            def step() -> None:
                opt.zero_grad()
                (model(x) - 1.0).square().mean().backward()
                opt.step()
                with torch.no_grad():
                    in_place(model, average)

            return step

        assert faults(make) == {}

    def test_an_average_of_a_part_of_the_model_is_whole_in_itself(self) -> None:
        class Pair(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.encoder, self.predictor = mlp(), nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.predictor(self.encoder(x))

        def make() -> Step:
            model = Pair()
            target = copy.deepcopy(model.encoder).requires_grad_(False)
            opt, (x, _) = torch.optim.AdamW(model.parameters()), data()

            def step() -> None:
                opt.zero_grad()
                F.mse_loss(model(x), target(x)).backward()
                opt.step()
                with torch.no_grad():
                    in_place(model.encoder, target)

            return step

        assert faults(make) == {}


class Twice(Custom):
    def count(self, state: dict[str, Any]) -> None:
        state["step"] = state.get("step", 0) + 2


class Never(Custom):
    def count(self, state: dict[str, Any]) -> None:
        state.setdefault("step", 0)


class InHalf(Custom):
    def count(self, state: dict[str, Any]) -> None:
        state.setdefault("step", torch.zeros((), dtype=torch.bfloat16)).add_(1)


class InGroup(Custom):
    """Counts in the group, once for each parameter instead of once a step."""

    def count(self, state: dict[str, Any]) -> None:
        group = self.param_groups[0]
        group["step"] = group.get("step", 0) + 1


class Gathering(Custom):
    """Steps on every second call only."""

    calls = 0

    def step(self, closure: Any = None) -> None:
        self.calls += 1
        if self.calls % 2 == 0:
            super().step()
        else:
            for p in self.param_groups[0]["params"]:
                self.state[p].setdefault("step", 0)


class TestCounters:
    @pytest.mark.parametrize(
        ("kind", "seen"),
        [
            (Custom, ""),
            (Gathering, ""),
            (Twice, "by 2 for 6"),
            (Never, "by 0 for 6"),
            (InHalf, "cannot count beyond 256"),
            (InGroup, "by 6 for 1"),
        ],
    )
    def test_counters(self, kind: type[Custom], seen: str) -> None:
        found = faults(lambda: plain(lambda m: kind(m.parameters()), low=False))
        assert (seen in found["AMP406"].seen) if seen else "AMP406" not in found

    def test_lbfgs_counts_iterations_and_passes(self) -> None:
        def make() -> Step:
            model = mlp()
            opt, (x, y) = torch.optim.LBFGS(model.parameters(), max_iter=3), data()

            def closure() -> torch.Tensor:
                opt.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            return lambda: opt.step(closure)

        assert faults(make) == {}


class Rotary(nn.Module):
    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.table.float()


class TestBuffers:
    def test_a_buffer_that_is_made_in_half_is_meant_to_be(self) -> None:
        def make() -> Step:
            model = Rotary((torch.arange(1, 17) ** -0.5).half())
            opt, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(8, 16)

            def step() -> None:
                opt.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    out = model(x)
                out.float().square().mean().backward()
                opt.step()

            return step

        assert faults(make) == {}

    @pytest.mark.parametrize(
        ("table", "half", "expected"),
        [
            (torch.arange(1, 17) ** -0.5, True, True),
            (torch.arange(1, 17) ** -0.5, False, False),
            (torch.ones(16), True, False),
        ],
        ids=["rounded", "FP32", "exact in half"],
    )
    def test_a_buffer_that_was_cast_with_its_module(self, table: torch.Tensor, half: bool, expected: bool) -> None:
        def make() -> Step:
            torch.manual_seed(0)
            model = Rotary(table)
            if half:
                model.half()
                for p in model.parameters():
                    p.data = p.data.float()
            opt, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(8, 16)

            def step() -> None:
                opt.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    out = model(x)
                out.float().square().mean().backward()
                opt.step()

            return step

        assert ("AMP307" in faults(make)) == expected


@pytest.fixture
def refused() -> Callable[[], Step]:
    def make() -> Step:
        model = mlp().half()
        opt, (x, y) = torch.optim.AdamW(model.parameters()), data()
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

        def step() -> None:
            opt.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(x)
            scaler.scale(F.cross_entropy(out.float(), y)).backward()
            scaler.step(opt)
            scaler.update()

        return step

    return make


def test_an_error_over_sixteen_bit_gradients_is_named_by_its_cause(refused: Callable[[], Step]) -> None:
    report = ampcheck.check(refused, device="cpu")
    assert [f.id for f in report.findings] == ["AMP307"]
    follows = {v.check: v.follows for v in report.verdicts if v.follows}
    assert follows["AMP111"] == follows["AMP403"] == "AMP307"


def test_the_report_shows_bytes_by_slot() -> None:
    report = ampcheck.check(lambda: plain(lambda m: torch.optim.AdamW(m.parameters()), low=False, autocast=True), device="cpu")
    (row,) = report.contracts[0].facts["optimizer state"]
    assert set(row["slots"]) == {"step", "exp_avg", "exp_avg_sq"}


def test_a_plain_step_costs_no_further_run() -> None:
    found = gather(lambda: plain(lambda m: torch.optim.AdamW(m.parameters()), low=False, autocast=True)).precision
    assert found is not None
    assert not found.suspicious()
