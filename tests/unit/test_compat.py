"""Torch privates: compiled code is forced eager and comes back; autocast's depth is read without a trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampcheck._compat import autocast_nesting, force_eager, outside_transforms


class Backend:
    """The aot_eager backend (the eager one hides what compiled code bakes in), counting what it compiles and runs."""

    def __init__(self) -> None:
        self.compiled = 0
        self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        from torch._dynamo.backends.registry import lookup_backend

        inner = lookup_backend("aot_eager")(graph, inputs)
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.runs += 1
            return inner(*args)

        return run


class Double(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def compiled(kind: str, backend: Backend) -> Callable[[Tensor], Tensor]:
    if kind == "function":
        # A new code object each time: dynamo keeps its cache on the code.
        return torch.compile(eval("lambda x: x * 2"), backend=backend)
    if kind == "module":
        return torch.compile(Double(), backend=backend)
    module = Double()
    module.compile(backend=backend)
    return module


@pytest.fixture
def x() -> Tensor:
    return torch.arange(3.0)


@pytest.fixture
def backend() -> Iterator[Backend]:
    torch._dynamo.reset()
    yield Backend()
    torch._dynamo.reset()


@pytest.fixture(params=["function", "module", "module.compile"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def global_state() -> list[object]:
    import torch._dynamo.eval_frame as eval_frame

    return [getattr(eval_frame, name, None) for name in ("_stance", "_callback_from_stance", "set_eval_frame")]


def test_compiled_before_runs_eagerly_and_then_from_its_cache(kind: str, backend: Backend, x: Tensor) -> None:
    f = compiled(kind, backend)
    expected = f(x)
    assert (backend.compiled, backend.runs) == (1, 1)
    with force_eager():
        torch.testing.assert_close(f(x), expected)
        assert (backend.compiled, backend.runs) == (1, 1)
    f(x)
    assert (backend.compiled, backend.runs) == (1, 2)


def test_compiled_under_is_eager_inside_and_compiles_after(kind: str, backend: Backend, x: Tensor) -> None:
    with force_eager():
        f = compiled(kind, backend)
        torch.testing.assert_close(f(x), x * 2)
        assert backend.compiled == 0
    f(x)
    assert (backend.compiled, backend.runs) == (1, 1)


def test_compiled_after_compiles(kind: str, backend: Backend, x: Tensor) -> None:
    with force_eager():
        pass
    compiled(kind, backend)(x)
    assert (backend.compiled, backend.runs) == (1, 1)


def test_nests_and_survives_exceptions(backend: Backend, x: Tensor) -> None:
    f = compiled("function", backend)
    before = global_state()
    with pytest.raises(KeyboardInterrupt), force_eager():
        with pytest.raises(ZeroDivisionError), force_eager():
            raise ZeroDivisionError
        f(x)
        assert backend.compiled == 0, "the inner exit must not end the outer block"
        raise KeyboardInterrupt
    assert all(now is then for now, then in zip(global_state(), before, strict=True))
    f(x)
    assert backend.compiled == 1


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch has stances from 2.6 on")
def test_the_users_own_stance_comes_back(backend: Backend, x: Tensor) -> None:
    f = compiled("function", backend)
    with torch.compiler.set_stance("fail_on_recompile"):
        with force_eager():
            torch.testing.assert_close(f(x), x * 2)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            f(x)


def test_a_replaced_autocast_dtype_reaches_compiled_code_only_here(monkeypatch: pytest.MonkeyPatch, backend: Backend) -> None:
    def matmul(a: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return a @ a

    enter = torch.autocast.__enter__

    def enter_float32(self: torch.autocast) -> object:
        self.fast_dtype = torch.float32
        return enter(self)

    a = torch.ones(4, 4)
    f = torch.compile(matmul, backend=backend)
    assert f(a).dtype == torch.float16
    monkeypatch.setattr(torch.autocast, "__enter__", enter_float32)
    assert f(a).dtype == torch.float16, "compiled code ignores the override: the reason for force_eager"
    with force_eager():
        assert f(a).dtype == torch.float32


def test_a_compiled_step_trains_eagerly(backend: Backend) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @torch.compile(backend=backend)
    def loss_of(batch: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(batch).float().square().mean()

    with force_eager():
        loss_of(torch.ones(3, 2)).backward()
        optimizer.step()
    assert backend.compiled == 0
    loss_of(torch.ones(3, 2)).backward()
    assert backend.compiled == 1


def test_nesting_counts_regions_and_leaves_the_cast_cache_alone() -> None:
    linear = nn.Linear(4, 4)
    x = torch.ones(1, 4)
    assert autocast_nesting() == 0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = linear(x).grad_fn
        assert autocast_nesting() == 1
        with torch.autocast("cpu", enabled=False):
            assert autocast_nesting() == 2
        second = linear(x).grad_fn
        assert autocast_nesting() == 1
    assert autocast_nesting() == 0
    # The second call found the weight's 16-bit copy in the cache: both graphs hold the very same cast node.
    assert casts(first) & casts(second)


def casts(node: Any) -> set[Any]:
    """The cast nodes of the graph under `node`."""
    following = {child for child, _ in node.next_functions if child is not None}
    return {child for child in following if "ToCopy" in child.name()}.union(*(casts(child) for child in following))


def test_numbers_can_be_read_outside_the_transforms_that_the_code_is_in() -> None:
    weight, seen = torch.ones(2), []

    def loss(x: torch.Tensor) -> torch.Tensor:
        with outside_transforms():
            seen.append((weight.sum().item(), torch._C._functorch.is_functorch_wrapped_tensor(weight + 1.0)))
        return (x * weight).sum()

    slopes = torch.func.vmap(torch.func.grad(loss))(torch.ones(3, 2))
    assert seen == [(2.0, False)]
    assert torch.equal(slopes, torch.ones(3, 2))  # the transforms are back afterwards
