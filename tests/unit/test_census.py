"""The census of ops, and the checks that read it (AMP301-306, AMP601-604): a broken and a right twin of each mechanism."""

from __future__ import annotations

import copy
import importlib
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ampcheck import facts
from ampcheck.evidence import Evidence
from ampcheck.registry import Fault, Note, NotRun, Result, load_checks
from ampcheck.scenarios.gain import Gain
from ampcheck.scenarios.natural import natural
from ampcheck.scenarios.spec import Spec
from ampcheck.trace.patches import PatchSet
from ampcheck.trace.regions import Regions

Step = Callable[[], Any]
BF16, FP16 = torch.bfloat16, torch.float16
X = torch.linspace(-1, 1, 16 * 16).reshape(16, 16)
Y = torch.arange(16) % 8


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def evidence_of(build: Callable[[], Step]) -> Evidence:
    evidence = Evidence("contract", "cpu", natural(Spec(build, "contract")))
    evidence.facts = facts.load("cpu")
    assert evidence.trace.raised is None, evidence.trace.raised
    assert not evidence.census.failed
    return evidence


def result(build: Callable[[], Step], id: str) -> Result | None:
    """The first thing that a check says: a fault if there is one."""
    one = load_checks()[id]
    found = sorted(one.function(evidence_of(build)), key=lambda r: not isinstance(r, Fault))
    return found[0] if found else None


def fault(build: Callable[[], Step], id: str) -> Fault:
    found = result(build, id)
    assert isinstance(found, Fault), f"{id}: {found}"
    assert found.location is not None
    assert found.location.file == __file__
    return found


def silent(build: Callable[[], Step], id: str) -> Result | None:
    found = result(build, id)
    assert not isinstance(found, Fault), found
    return found


def training(
    model: nn.Module,
    loss_of: Callable[[torch.Tensor], torch.Tensor] = lambda out: F.cross_entropy(out.float(), Y),
    *,
    region: Callable[[], Any] = lambda: torch.autocast("cpu", dtype=BF16),
    x: torch.Tensor = X,
) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> float:
        optimizer.zero_grad()
        with region():
            out = model(x)
        loss = loss_of(out)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), *layers, nn.Linear(16, 8))


class Layer(nn.Module):
    """A module of a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


# -- the census itself --------------------------------------------------------------------------------------------------


def test_ops_are_added_up_by_place_forward_and_backward() -> None:
    uses = evidence_of(lambda: training(net())).census.of("matmul")
    forward = [u for u in uses if u.phase == "forward"]
    assert [(u.op, u.module, u.kind, u.low, u.autocast, u.count, u.trained) for u in forward] == [
        ("addmm", "0", "Linear", "bfloat16", "bfloat16", 6, True),
        ("addmm", "1", "Linear", "bfloat16", "bfloat16", 6, True),
    ]
    assert [u.flops for u in forward] == [6 * 2 * 16 * 16 * 16, 6 * 2 * 16 * 16 * 8]
    backward = {u.module: u for u in uses if u.phase == "backward"}
    assert backward["1"].count == 12  # for the weight and for the input
    assert backward["0"].count == 6
    assert all(u.site is not None and u.site == forward[0].site for u in backward.values())  # the line of the forward


def test_an_op_that_no_backward_goes_through_is_not_trained() -> None:
    def build() -> Step:
        model = net()
        step = training(model)

        def both() -> None:
            step()
            with torch.autocast("cpu", dtype=BF16):
                model(X).softmax(-1).exp()  # logged, with gradients on

        return both

    uses = [u for u in evidence_of(build).census.uses if u.op == "exp"]
    assert [(u.grad, u.trained) for u in uses] == [(True, False)]
    silent(build, "AMP305")


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = net(nn.GELU()), reentrant
        self.stem = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(self.inner, self.stem(x), use_reentrant=self.reentrant)
        return out


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_is_told_from_the_backward(reentrant: bool) -> None:
    census = evidence_of(lambda: training(Checkpointed(reentrant))).census
    uses = [u for u in census.of("matmul") if u.module == "inner.0"]
    assert {u.phase for u in uses} == {"forward", "recompute", "backward"}
    assert all(u.autocast == "bfloat16" and u.low == "bfloat16" for u in uses if u.phase != "backward")
    # the graph that the backward goes through is the one that is recomputed, or the first one
    assert {u.phase for u in uses if u.trained} == {"recompute" if reentrant else "forward"}


def test_the_census_leaves_no_tensor_and_no_hook_behind() -> None:
    before = dict(nn.modules.module._global_forward_pre_hooks), dict(nn.modules.module._global_forward_hooks)
    census = evidence_of(lambda: training(net())).census
    assert (dict(nn.modules.module._global_forward_pre_hooks), dict(nn.modules.module._global_forward_hooks)) == before

    def plain(value: object) -> bool:
        if hasattr(value, "__dataclass_fields__"):
            return all(plain(getattr(value, name)) for name in value.__dataclass_fields__)
        if isinstance(value, (list, tuple)):
            return all(map(plain, value))
        if isinstance(value, dict):
            return all(map(plain, [*value, *value.values()]))
        return value is None or isinstance(value, (str, int, float, bool))

    assert plain(census)


def test_a_failure_of_the_census_is_not_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ValueError("a formula went wrong")

    monkeypatch.setattr(importlib.import_module("ampcheck.trace.census"), "place", broken)
    run = natural(Spec(lambda: training(net()), "contract"))
    assert run.trace.raised is None
    assert "a formula went wrong" in run.notes["census"].failed
    assert isinstance(next(iter(load_checks()["AMP303"].function(Evidence("contract", "cpu", run)))), NotRun)


# -- regions ------------------------------------------------------------------------------------------------------------


def test_regions_are_followed_by_device_and_thread() -> None:
    regions, patches = Regions(), PatchSet()
    me = threading.get_ident()
    with patches:
        regions.install(patches, lambda region, asked, site: None)
        regions.begin()
        assert regions.state("cpu", me).dtype == "off"
        with torch.autocast("cpu", dtype=BF16):
            first = regions.outermost(me)
            assert regions.state("cpu", me).dtype == "bfloat16"
            assert regions.state("cpu", me + 1).dtype == "off"  # another thread
            with torch.autocast("cpu", enabled=False):
                state = regions.state("cpu", me)
                assert (state.dtype, state.island, state.foreign) == ("off", True, None)
                assert regions.outermost(me) == first
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with torch.autocast("cuda", enabled=False):
                    state = regions.state("cpu", me)
                    assert state.dtype == "bfloat16"
                    assert state.foreign is not None
                    assert (state.foreign.device, state.foreign.asked) == ("cuda", False)
        assert regions.outermost(me) == 0
        with torch.autocast("cpu", dtype=BF16):
            assert regions.outermost(me) not in (0, first)


def test_a_region_through_a_decorator_or_a_stack_is_the_users_own() -> None:
    regions, patches, seen = Regions(), PatchSet(), []
    me = threading.get_ident()
    with patches, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        regions.install(patches, lambda region, asked, site: None)

        @torch.autocast("cuda", enabled=False)
        def decorated() -> None:
            seen.append(regions.state("cpu", me).foreign)

        decorated()
        with ExitStack() as stack:
            stack.enter_context(torch.autocast("cuda", enabled=False))
            seen.append(regions.state("cpu", me).foreign)
    assert [f is not None and f.site is not None and f.site.file for f in seen] == [__file__, __file__]


def test_a_region_that_torch_enters_for_itself_is_not_the_users() -> None:
    regions, patches, seen = Regions(), PatchSet(), []
    me = threading.get_ident()
    body = "with region: look()"
    with patches, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        regions.install(patches, lambda region, asked, site: None)
        for name in ("torch.utils.checkpoint", "project.model"):
            region = torch.autocast("cuda", enabled=False)
            names = {"__name__": name, "region": region, "look": lambda: seen.append(regions.state("cpu", me).foreign)}
            exec(compile(body, f"{name}.py", "exec"), names)
    assert [found is None for found in seen] == [True, False]


# -- AMP301, AMP302: norms ----------------------------------------------------------------------------------------------


def low_statistics(norm: nn.BatchNorm1d) -> nn.BatchNorm1d:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean, norm.running_var = norm.running_mean.half(), norm.running_var.half()
    return norm


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_batchnorm_statistics_in_16_bits(dtype: torch.dtype) -> None:
    def build() -> Step:
        norm = nn.BatchNorm1d(16, affine=False)
        norm.running_mean, norm.running_var = norm.running_mean.to(dtype), norm.running_var.to(dtype)
        return training(net(norm), region=lambda: torch.autocast("cpu", dtype=dtype))

    found = fault(build, "AMP301")
    assert "running statistics of 1 (BatchNorm1d)" in found.seen
    assert isinstance(silent(build, "AMP302"), NotRun)


def test_batchnorm_as_it_should_be() -> None:
    assert silent(lambda: training(net(nn.BatchNorm1d(16))), "AMP301") is None


def test_a_frozen_batchnorm_may_be_kept_as_it_is() -> None:
    def build() -> Step:
        norm = low_statistics(nn.BatchNorm1d(16, affine=False)).eval()
        return training(net(norm), region=lambda: torch.autocast("cpu", dtype=FP16))

    silent(build, "AMP301")


def test_a_model_kept_in_16_bits_as_a_whole_is_not_the_norms_fault() -> None:
    silent(lambda: training(net(nn.BatchNorm1d(16)).to(BF16), region=nullcontext, x=X.to(BF16)), "AMP301")


@pytest.mark.parametrize("norm", [nn.LayerNorm(16), nn.GroupNorm(4, 16)], ids=["layer", "group"])
def test_another_norm_with_weights_in_16_bits(norm: nn.Module) -> None:
    found = fault(lambda: training(net(norm.to(BF16))), "AMP302")
    assert "parameters" in found.seen
    assert "saves its statistics in bfloat16" in found.seen


def test_instance_norm_is_no_batch_norm() -> None:
    def build() -> Step:
        norm = nn.InstanceNorm1d(16, affine=True)
        model = nn.Sequential(nn.Conv1d(16, 16, 1), norm.to(BF16), nn.Flatten(), nn.Linear(64, 8))
        return training(model, lambda out: out.float().square().mean(), x=X.reshape(4, 16, 4))

    assert isinstance(silent(build, "AMP301"), NotRun)
    fault(build, "AMP302")


def test_what_the_kernel_loses_by_itself_is_a_note() -> None:
    found = silent(lambda: training(net(nn.LayerNorm(16))), "AMP302")
    assert isinstance(found, Note)
    assert "the kernel's own loss" in found.reason


def test_rms_norm_with_the_eps_of_its_dtype() -> None:
    if torch.__version__ >= "2.8":  # which takes the eps of FP32
        silent(lambda: training(net(nn.RMSNorm(16))), "AMP302")
        return
    found = fault(lambda: training(net(nn.RMSNorm(16))), "AMP302")
    assert "0.0078125" in found.seen
    silent(lambda: training(net(nn.RMSNorm(16, eps=1e-6))), "AMP302")
    silent(lambda: training(net(nn.RMSNorm(16))), "AMP303")
    assert "0.0078125" in fault(lambda: training(net(Layer(lambda x: F.rms_norm(x, (16,))))), "AMP302").seen


# -- AMP303: hand-made norms --------------------------------------------------------------------------------------------

LOW_NORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "pow, mean, rsqrt": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "product with itself": lambda x: x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6),
    "variance": lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt(),
    "standard deviation": lambda x: (x - x.mean(0)) / (x.std(0) + 1e-5),
    "sum over n": lambda x: x * (x.square().sum(-1, keepdim=True) / x.shape[-1]).add(1e-6).rsqrt(),
    "root in 16 bits only": lambda x: x / x.float().var(-1, keepdim=True).to(x.dtype).add(1e-5).sqrt(),
    "statistics cast up too late": lambda x: (x.float() * (x.pow(2).mean(-1, keepdim=True).float() + 1e-6).rsqrt()).to(x.dtype),
    "in place": lambda x: x * x.var(-1, keepdim=True).add_(1e-5).rsqrt_(),
}
RIGHT_NORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "float first": lambda x: (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype),
    "vector norm": lambda x: F.normalize(x, dim=-1),
    "scaled by a number": lambda x: x / 16**0.5,
    "a moment that nothing is divided by": lambda x: x + x.var(-1, keepdim=True).sqrt(),
    "another tensor": lambda x: x[:, :1] * torch.rsqrt(x.pow(2).mean() + 1e-6) + x,
}


@pytest.mark.parametrize("name", LOW_NORMS)
def test_a_handmade_norm_in_16_bits(name: str) -> None:
    found = fault(lambda: training(net(Layer(LOW_NORMS[name]))), "AMP303")
    assert "bfloat16" in found.seen
    assert "1 (Layer)" in found.seen


@pytest.mark.parametrize("name", RIGHT_NORMS)
def test_no_handmade_norm_in_16_bits(name: str) -> None:
    silent(lambda: training(net(Layer(RIGHT_NORMS[name]))), "AMP303")


def test_an_eps_that_follows_the_dtype() -> None:
    def norm(eps: float | None) -> Layer:
        def function(x: torch.Tensor) -> torch.Tensor:
            h = x.float()
            return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + (eps or torch.finfo(x.dtype).eps))).to(x.dtype)

        return Layer(function)

    assert "0.0078125" in fault(lambda: training(net(norm(None))), "AMP303").seen
    silent(lambda: training(net(norm(1e-5))), "AMP303")


# -- AMP304: the loss ---------------------------------------------------------------------------------------------------

LOW_LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cross entropy": lambda out: F.cross_entropy(out, Y),
    "mean squared error": lambda out: F.mse_loss(out, torch.zeros_like(out)),
    "by hand": lambda out: (out - 1).abs().mean(),
    "sum of a term in FP32 and one in 16 bits": lambda out: F.cross_entropy(out.float(), Y) + 0.1 * out.square().mean(),
}


#: Why these cannot be judged under torch 2.4.
NEWER = {
    "mean squared error": "torch 2.4 has no such kernel for bfloat16 on the CPU: the step itself raises",
    "sum of a term in FP32 and one in 16 bits": "torch 2.4 does not tell the dtypes of a graph's nodes: the fault is not seen",
}


@pytest.mark.parametrize("name", LOW_LOSSES)
def test_a_loss_in_16_bits(name: str) -> None:
    if name in NEWER and torch.__version__ < "2.5":
        pytest.skip(NEWER[name])
    assert "bfloat16" in fault(lambda: training(net(), LOW_LOSSES[name]), "AMP304").seen


@pytest.mark.parametrize("low", [True, False])
def test_a_loss_in_16_bits_that_a_scaler_multiplies(low: bool) -> None:
    def build() -> Step:
        model, scaler = net(), torch.amp.GradScaler("cpu", init_scale=4.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=FP16):
                out = model(X)
            loss = (out if low else out.float()).abs().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        return step

    (fault if low else silent)(build, "AMP304")


def test_a_loss_in_16_bits_is_told_at_the_sum_that_makes_it() -> None:
    """The backward of a sum is a view alone."""

    def total(out: torch.Tensor) -> torch.Tensor:
        return (out * out).sum() / 32

    found = fault(lambda: training(net(), total), "AMP304")
    assert "by sum" in found.seen
    assert found.location is not None
    assert found.location.function == "total"


def test_a_loss_that_autocast_leaves_in_16_bits_is_not_sent_into_the_region() -> None:
    def build(within: bool) -> Callable[[], Step]:
        def step_of() -> Step:
            model = net()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def step() -> None:
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=BF16):
                    out = model(X)
                    loss = F.softplus(out).mean() if within else None
                (F.softplus(out).mean() if loss is None else loss).backward()
                optimizer.step()

            return step

        return step_of

    assert fault(build(True), "AMP304").fix.startswith("compute the loss from outputs.float(): autocast on cpu leaves")
    assert not fault(build(False), "AMP304").fix


def test_a_loss_of_rounded_probabilities() -> None:
    def build(logits: bool) -> Callable[[], Step]:
        target = torch.full((16, 8), 0.5)

        def loss(out: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=BF16):
                return (
                    F.binary_cross_entropy_with_logits(out, target) if logits else F.binary_cross_entropy(out.sigmoid(), target)
                )

        return lambda: training(net(), loss)

    assert "rounded to bfloat16" in fault(build(logits=False), "AMP304").seen
    silent(build(logits=True), "AMP304")


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: F.cross_entropy(out.float(), Y),
        lambda out: F.mse_loss(out.float(), torch.zeros(16, 8)),
        lambda out: (out.square().float()).mean(),
    ],
    ids=["cross entropy", "mean squared error", "by hand"],
)
def test_a_loss_in_fp32(loss: Callable[[torch.Tensor], torch.Tensor]) -> None:
    silent(lambda: training(net(), loss), "AMP304")


def test_a_loss_inside_the_region_is_cast_by_autocast() -> None:
    def build() -> Step:
        class WithLoss(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = net()

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return F.cross_entropy(self.net(x), Y)

        return training(WithLoss(), lambda loss: loss)

    silent(build, "AMP304")


def test_a_gradient_asked_for_by_itself_is_no_loss() -> None:
    def build() -> Step:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            x = X.clone().requires_grad_()
            with torch.autocast("cpu", dtype=BF16):
                out = model(x)
            (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            (F.cross_entropy(out.float(), Y) + gradient.float().square().mean()).backward()
            optimizer.step()

        return step

    silent(build, "AMP304")


# -- AMP305: sensitive ops ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op",
    [lambda x: x.cumsum(-1), lambda x: x.exp(), lambda x: F.normalize(x, dim=-1), lambda x: (x.sigmoid() + 1e-3).log()],
    ids=["cumsum", "exp", "normalize", "log"],
)
def test_a_sensitive_op_in_16_bits(op: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert "bfloat16" in fault(lambda: training(net(Layer(op))), "AMP305").seen
    silent(lambda: training(net(Layer(lambda x: op(x.float())))), "AMP305")


def test_a_logarithm_of_rounded_probabilities() -> None:
    fault(lambda: training(net(Layer(lambda x: x.sigmoid().float().add(1e-3).log()))), "AMP305")
    silent(lambda: training(net(Layer(lambda x: x.float().sigmoid().add(1e-3).log()))), "AMP305")


def test_softmax_that_autocast_leaves_on_this_device_is_a_note() -> None:
    assert isinstance(silent(lambda: training(net(Layer(lambda x: x.softmax(-1)))), "AMP305"), Note)
    fault(lambda: training(net(Layer(lambda x: x.softmax(-1))).to(BF16), region=nullcontext, x=X.to(BF16)), "AMP305")


@pytest.mark.parametrize(("largest", "coarse"), [(3000.0, True), (1.0, False)])
def test_angles_that_16_bits_cannot_hold(largest: float, coarse: bool) -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        angle = torch.linspace(0, largest, x.shape[-1]).to(FP16)
        return x * angle.float().cos().to(x.dtype)

    (fault if coarse else silent)(lambda: training(net(Layer(turned))), "AMP305")


# -- AMP306: autocast honoured ------------------------------------------------------------------------------------------


class Cached(nn.Linear):
    """Keeps a cast of its weight."""

    kept: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            self.kept = self.weight.to(BF16)
        return F.linear(x.to(BF16), self.kept, self.bias.to(BF16))


def with_cache(first_without_gradients: bool, drop: bool) -> Callable[[], Step]:
    def build() -> Step:
        layer, head = Cached(16, 16), nn.Linear(16, 8)
        optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            if first_without_gradients:
                layer.kept = None
                with torch.no_grad():
                    layer(X)
            if drop:
                layer.kept = None
            F.cross_entropy(head(layer(X).float()), Y).backward()
            optimizer.step()
            if layer.kept is not None:  # its graph is used up
                layer.kept = layer.kept.detach().requires_grad_()

        return step

    return build


def test_a_cast_made_without_gradients_is_stale() -> None:
    assert "gradients were off" in fault(with_cache(True, drop=False), "AMP306").seen
    silent(with_cache(True, drop=True), "AMP306")


def test_a_cast_from_before_the_step_is_stale() -> None:
    assert "before the last optimizer step" in fault(with_cache(False, drop=False), "AMP306").seen
    silent(with_cache(False, drop=True), "AMP306")


@pytest.mark.parametrize("around", [True, False])
def test_autocasts_own_cache_outlives_a_step(around: bool) -> None:
    def build() -> Step:
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def amp() -> Any:
            return torch.autocast("cpu", dtype=BF16)

        def step() -> None:
            with amp() if around else nullcontext():
                for _ in range(2):
                    with amp():
                        out = model(X)
                    with torch.autocast("cpu", enabled=False):
                        optimizer.zero_grad()
                        F.cross_entropy(out.float(), Y).backward()
                        optimizer.step()

        return step

    (fault if around else silent)(build, "AMP306")


def test_weights_scaled_before_they_are_cast_are_followed() -> None:
    def build(drop: bool, dtype: torch.dtype = BF16) -> Callable[[], Step]:
        def inner() -> Step:
            weight, gain = nn.Parameter(torch.eye(16)), nn.Parameter(torch.ones(16, 1))
            optimizer = torch.optim.SGD([weight, gain], lr=0.1)
            kept: list[torch.Tensor] = []

            def step() -> None:
                optimizer.zero_grad()
                if drop:
                    kept.clear()
                if not kept:
                    with torch.no_grad():
                        kept.append((weight * gain).to(dtype))
                x = X.clone().requires_grad_()
                used = (weight * gain).to(dtype) if drop else kept[0]
                (F.linear(x.to(dtype), used).float().square().mean() + weight.square().mean() + gain.sum()).backward()
                optimizer.step()

            return step

        return inner

    fault(build(drop=False), "AMP306")
    silent(build(drop=True), "AMP306")
    silent(build(drop=False, dtype=torch.float32), "AMP306")  # whatever it is, it is not a matter of precision


@pytest.mark.parametrize("foreach", [True, False])
def test_weights_kept_in_16_bits_are_no_copies_of_themselves(foreach: bool) -> None:
    def build() -> Step:
        model = net().to(BF16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=foreach)  # decays each weight in place

        def step() -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(X.to(BF16)).float(), Y).backward()
            optimizer.step()

        return step

    silent(build, "AMP306")


class Threaded(nn.Module):
    def __init__(self, pool: bool, hand_on: bool) -> None:
        super().__init__()
        self.inner, self.pool, self.hand_on = net(nn.GELU()), pool, hand_on

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        enabled = self.hand_on and torch.is_autocast_enabled("cpu")

        def work(part: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=BF16, enabled=enabled, cache_enabled=False) if self.hand_on else nullcontext():
                return self.inner(part)

        if self.pool:
            with ThreadPoolExecutor(2) as pool:
                return torch.cat(list(pool.map(work, x.chunk(2))))
        results: dict[int, torch.Tensor] = {}
        threads = [threading.Thread(target=lambda i=i, p=p: results.update({i: work(p)})) for i, p in enumerate(x.chunk(2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return torch.cat([results[i] for i in sorted(results)])


@pytest.mark.parametrize("pool", [True, False])
def test_worker_threads_do_not_inherit_autocast(pool: bool) -> None:
    assert "another thread" in fault(lambda: training(Threaded(pool, hand_on=False)), "AMP306").seen
    silent(lambda: training(Threaded(pool, hand_on=True)), "AMP306")


def foreign(**how: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.autocast("cuda", **how)


def test_a_region_for_another_device_type() -> None:
    found = fault(lambda: training(net(), region=foreign), "AMP306")
    assert "entered for cuda" in found.seen
    silent(lambda: training(net(), region=lambda: foreign(enabled=False)), "AMP306")  # FP32, and said so


def test_regions_for_two_device_types_at_once() -> None:
    def both() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(torch.autocast("cpu", dtype=BF16))
        stack.enter_context(foreign())
        return stack

    silent(lambda: training(net(), region=both), "AMP306")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_an_island_for_another_device_type(device: str) -> None:
    def island(x: torch.Tensor) -> torch.Tensor:
        x = x.float()
        with foreign(enabled=False) if device == "cuda" else torch.autocast("cpu", enabled=False):
            return x @ x.t()

    build = lambda: training(net(Layer(island)))  # noqa: E731
    if device == "cuda":
        assert "disabled for cuda" in fault(build, "AMP306").seen
    else:
        silent(build, "AMP306")


def test_a_disabled_region_around_everything_only_chooses_the_device() -> None:
    def both() -> ExitStack:
        stack = ExitStack()
        stack.enter_context(torch.autocast("cpu", dtype=BF16))
        stack.enter_context(foreign(enabled=False))
        return stack

    silent(lambda: training(net(), region=both), "AMP306")


def test_a_region_at_float32_switches_itself_off_and_is_no_fault() -> None:
    def region() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.autocast("cpu", dtype=torch.float32)

    silent(lambda: training(net(), region=region), "AMP306")


@pytest.mark.parametrize("entered", [True, False])
def test_a_region_that_is_never_entered(entered: bool) -> None:
    def region() -> Any:
        made = torch.autocast("cpu", dtype=BF16)
        return made if entered else nullcontext(made)

    if entered:
        silent(lambda: training(net(), region=region), "AMP306")
    else:
        assert "never entered" in fault(lambda: training(net(), region=region), "AMP306").seen


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_enters_regions_of_its_own(reentrant: bool) -> None:
    silent(lambda: training(Checkpointed(reentrant)), "AMP306")
    silent(lambda: training(Checkpointed(reentrant)), "AMP604")


def test_an_enabled_scaler_and_nothing_in_16_bits() -> None:
    def build(enabled: bool) -> Callable[[], Step]:
        def inner() -> Step:
            model, scaler = net(), torch.amp.GradScaler("cpu")
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

            def step() -> None:
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=FP16, enabled=enabled):
                    out = model(X)
                scaler.scale(F.cross_entropy(out.float(), Y)).backward()
                scaler.step(optimizer)
                scaler.update()

            return step

        return inner

    assert "GradScaler" in fault(build(enabled=False), "AMP306").seen
    silent(build(enabled=True), "AMP306")


def test_a_plain_fp32_loop_is_no_error() -> None:
    def build() -> Step:
        return training(net(), region=nullcontext)

    assert isinstance(silent(build, "AMP306"), NotRun)
    assert load_checks()["AMP601"].level == "warning"
    assert "0% of the matmul FLOPs" in fault(build, "AMP601").seen


def test_float64_is_left_alone() -> None:
    def build() -> Step:
        class Solve(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.eye(16, dtype=torch.float64))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return (x.double() @ self.weight).to(x.dtype)

        return training(net(Solve()))

    silent(build, "AMP306")


# -- AMP601 to AMP604: what it brings -----------------------------------------------------------------------------------


def test_coverage_names_what_is_left_out() -> None:
    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.big, self.small = nn.Linear(16, 512), nn.Linear(512, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                h = self.big(x)
            return self.small(h)

    found = fault(lambda: training(Outside()), "AMP601")
    assert "addmm in big (Linear)" in found.seen
    silent(lambda: training(net()), "AMP601")


def test_a_recurrent_cell_that_keeps_its_state_in_fp32() -> None:
    def build(library: bool) -> Callable[[], Step]:
        class Unrolled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell = nn.LSTMCell(16, 16) if library else nn.Linear(32, 16)
                self.head = nn.Linear(16, 8)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                h = c = x.new_zeros(16, 16)
                for _ in range(4):
                    if library:
                        h, c = self.cell(x, (h, c))
                    else:
                        h = torch.tanh(self.cell(torch.cat([x.to(BF16), h.to(BF16)], 1)))
                out: torch.Tensor = self.head(h)
                return out

        return lambda: training(Unrolled())

    assert "keeps its state in float32" in fault(build(library=True), "AMP601").seen
    silent(build(library=False), "AMP601")


def test_odd_sizes() -> None:
    found = fault(lambda: training(nn.Sequential(nn.Linear(16, 31), nn.Linear(31, 8))), "AMP602")
    assert "16 x 31" in found.seen or "31 x 8" in found.seen
    silent(
        lambda: training(net(), x=X[:5], loss_of=lambda out: F.cross_entropy(out.float(), Y[:5])), "AMP602"
    )  # the batch is free


@pytest.mark.parametrize(
    ("layers", "odd"),
    [
        ([nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 1)], False),  # a picture has three channels
        ([nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, groups=16), nn.Conv2d(16, 8, 1)], False),
        ([nn.Conv2d(3, 16, 3), nn.ConvTranspose2d(16, 8, 3, groups=2)], False),
        ([nn.Conv2d(3, 20, 3), nn.Conv2d(20, 8, 1)], True),
        ([nn.Conv2d(3, 16, 3), nn.ConvTranspose2d(16, 10, 3)], True),
    ],
    ids=["plain", "depthwise", "transposed", "odd", "odd and transposed"],
)
def test_channels_of_convolutions(layers: list[nn.Module], odd: bool) -> None:
    def build() -> Step:
        model = nn.Sequential(*(copy.deepcopy(layer) for layer in layers))
        return training(model, x=torch.ones(2, 3, 8, 8), loss_of=lambda out: out.float().square().mean())

    (fault if odd else silent)(build, "AMP602")


@pytest.mark.parametrize("cache", [False, True])
def test_a_weight_is_cast_once_a_region(cache: bool) -> None:
    class Repeated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(16, 16), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(5):
                x = torch.tanh(self.inner(x))
            out: torch.Tensor = self.head(x)
            return out

    def build() -> Step:
        return training(Repeated(), region=lambda: torch.autocast("cpu", dtype=BF16, cache_enabled=cache))

    if cache:
        assert silent(build, "AMP604") is None
    else:
        assert "inner.weight is cast to 16 bits 5 times" in fault(build, "AMP604").seen


@pytest.mark.parametrize(
    ("measured", "kind"),
    [
        (Gain(0.030, 0.030, 100.0, 100.0, 4), Fault),
        (Gain(0.031, 0.030, 50.0, 100.0, 4), Note),  # memory alone is a gain
        (Gain(0.015, 0.030, 100.0, 100.0, 4), Note),
        (Gain(0.002, 0.001, 100.0, 100.0, 4), Note),  # bound by launches
    ],
)
def test_what_is_gained_on_a_gpu(measured: Gain, kind: type) -> None:
    evidence = evidence_of(lambda: training(net()))
    check = load_checks()["AMP603"].function
    assert isinstance(next(iter(check(evidence))), NotRun)  # no GPU
    evidence.device = "cuda"
    assert isinstance(next(iter(check(evidence))), NotRun)  # nothing was measured
    evidence.gain = measured
    assert [type(found) for found in check(evidence)] == [kind]
