"""The formulas of optimizer state, against each of torch's optimizers after real steps on the CPU."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from ampcheck.optimizer_formulas import RULES, Slot, Total, expected_slots, expected_state, held_slots, known, totals

#: What there is to try of each class, besides its defaults.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "fused": True}, {"fused": True}],
    "Adam": [{}, {"amsgrad": True}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"fused": True, "amsgrad": True}],
    "AdamW": [{}, {"amsgrad": True}, {"foreach": True}, {"fused": True}, {"maximize": True, "weight_decay": 0.0}],
    "NAdam": [{}, {"decoupled_weight_decay": True}, {"foreach": True}],
    "RAdam": [{}, {"foreach": True}],
    "Adamax": [{}, {"foreach": True}],
    "ASGD": [{}, {"foreach": True}],
    "Rprop": [{}, {"foreach": True}],
    "Adadelta": [{}, {"foreach": True}],
    "Adagrad": [{}, {"foreach": True}, {"initial_accumulator_value": 0.1, "lr_decay": 0.1}, {"fused": True}],
    "RMSprop": [{}, {"momentum": 0.9}, {"centered": True}, {"momentum": 0.9, "centered": True, "foreach": True}],
    "Adafactor": [{}, {"foreach": True}],
    "Muon": [{}, {"nesterov": False}],
}
RUNS = [
    pytest.param(name, options, id=f"{name}-{'-'.join(options) or 'defaults'}")
    for name, variants in OPTIONS.items()
    if hasattr(optim, name)
    for options in variants
]
#: What a parameter may be: trained, frozen, or without a gradient in this step.
ROLES = st.sampled_from(["trained", "trained", "frozen", "unused"])


def shapes(least: int = 0, most: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(1, 5), min_size=least, max_size=most).map(tuple)


def build(shape: tuple[int, ...], role: str, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape, dtype=dtype), requires_grad=role != "frozen")


def step(optimizer: optim.Optimizer, trained: list[nn.Parameter], times: int = 1) -> None:
    for _ in range(times):
        for parameter in trained:
            parameter.grad = torch.full_like(parameter, 0.25)
        optimizer.step()


def agree(optimizer: optim.Optimizer, **arguments: Any) -> dict[str, Total]:
    expected = expected_slots(optimizer, **arguments)
    assert expected is not None
    assert held_slots(optimizer) == expected
    return totals(expected)


@pytest.mark.parametrize(("name", "options"), RUNS)
@settings(max_examples=15, deadline=None)
@given(data=st.data(), times=st.integers(1, 3))
def test_every_optimizer_holds_what_its_formula_says(
    name: str, options: dict[str, Any], data: st.DataObject, times: int
) -> None:
    shape = shapes(2, 2) if name == "Muon" else shapes()
    drawn = data.draw(st.lists(st.tuples(shape, ROLES), min_size=1, max_size=4))
    parameters = [build(*entry) for entry in drawn]
    trained = [parameter for parameter, (_, role) in zip(parameters, drawn, strict=True) if role == "trained"]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:]}] if len(parameters) > 1 else parameters
    optimizer = getattr(optim, name)(groups, lr=1e-3, **options)
    before = expected_slots(optimizer, trained)
    step(optimizer, trained, times)
    agree(optimizer, stepped=trained)
    # The same is known before the step, and after the gradients are gone.
    assert before == held_slots(optimizer)
    optimizer.zero_grad(set_to_none=True)
    agree(optimizer)


@pytest.mark.parametrize("name", sorted(set(RULES) - {"SparseAdam"}))
def test_every_class_with_a_formula_is_tried(name: str) -> None:
    assert OPTIONS[name]


def test_every_optimizer_of_torch_is_known() -> None:
    classes = {
        name
        for name in dir(optim)
        if isinstance(getattr(optim, name), type) and issubclass(getattr(optim, name), optim.Optimizer)
    }
    assert classes - {*RULES, "LBFGS"} == {"Optimizer"}


@pytest.mark.parametrize(("name", "options"), [run for run in RUNS if "fused" not in str(run.id)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_sixteen_bit_weights_make_sixteen_bit_state_and_a_float32_run_does_not(
    name: str, options: dict[str, Any], dtype: torch.dtype
) -> None:
    parameters = [build((3, 4), "trained", dtype), build((2, 2), "trained", dtype)]
    optimizer = getattr(optim, name)(parameters, lr=1e-3, **options)
    step(optimizer, parameters)
    agree(optimizer, widen=False)
    wide, plain = expected_state(optimizer), expected_state(optimizer, widen=False)
    assert wide is not None
    assert plain is not None
    for slot, total in wide.items():
        same = dtype is torch.float64 or slot in ("step", "mu_product", "eta", "mu")
        assert total.nbytes == plain[slot].nbytes * (1 if same else 2), slot
        assert total.dtype == (plain[slot].dtype if same else "float32")


@pytest.mark.parametrize("name", ["Adam", "SGD", "RMSprop", "Adagrad"])
def test_complex_parameters(name: str) -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    optimizer = getattr(optim, name)([parameter], lr=1e-3, **({"momentum": 0.9} if name == "SGD" else {}))
    step(optimizer, [parameter])
    assert 3 * 8 in {total.nbytes for total in agree(optimizer).values()}


@pytest.mark.parametrize("name", ["Adam", "AdamW", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop", "Adadelta", "RMSprop"])
def test_capturable_keeps_its_counters_with_the_parameters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[getattr(optim, name).__module__]
    monkeypatch.setattr(sys.modules["torch.optim.adam"], "_get_capturable_supported_devices", lambda **_: ["cpu"])
    monkeypatch.setattr(module, "_get_capturable_supported_devices", lambda **_: ["cpu"], raising=False)
    parameter = build((2, 3), "trained")
    optimizer = getattr(optim, name)([parameter], lr=1e-3, capturable=True, foreach=False)
    step(optimizer, [parameter], 2)
    agree(optimizer)


@pytest.mark.parametrize(
    ("options", "dtype", "device"),
    [
        ({}, "float64", "cpu"),
        ({"fused": True}, "float32", "meta"),
        ({"capturable": True}, "float64", "meta"),
    ],
)
def test_where_and_in_what_dtype_a_counter_is_kept(options: dict[str, Any], dtype: str, device: str) -> None:
    parameter = nn.Parameter(torch.empty(2, 3, device="meta"))
    optimizer = optim.Adam([parameter], **({} if "fused" in options else options))
    optimizer.param_groups[0].update(options)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        slots = expected_slots(optimizer, [parameter])
    finally:
        torch.set_default_dtype(default)
    assert slots is not None
    assert slots[0, 0, "step"] == Slot(dtype, 1, 8 if dtype == "float64" else 4, device)
    assert slots[0, 0, "exp_avg"] == Slot("float32", 6, 24, "meta")


def test_a_float64_default_makes_float64_counters() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        parameter = build((2, 3), "trained")
        optimizer = optim.AdamW([parameter])
        step(optimizer, [parameter])
        assert agree(optimizer)["step"] == Total("float64", 1, 8, 1)
    finally:
        torch.set_default_dtype(torch.float32)


def test_adagrad_has_state_before_any_step_and_for_frozen_parameters() -> None:
    parameters = [build((2, 3), "trained"), build((4,), "frozen")]
    optimizer = optim.Adagrad(parameters)
    assert agree(optimizer, stepped=[])["sum"] == Total("float32", 10, 40, 2)


@pytest.mark.skipif(not hasattr(optim, "Adafactor"), reason="this torch has no Adafactor")
def test_adafactor_keeps_a_row_and_a_column_of_a_matrix() -> None:
    parameter = build((2, 3, 5), "trained")
    optimizer = optim.Adafactor([parameter])
    step(optimizer, [parameter])
    state = agree(optimizer)
    assert (state["row_var"].numel, state["col_var"].numel) == (6, 10)


@settings(max_examples=10, deadline=None)
@given(rows=st.integers(1, 5), columns=st.integers(1, 5))
def test_sparse_adam(rows: int, columns: int) -> None:
    table = nn.Embedding(rows, columns, sparse=True)
    optimizer = optim.SparseAdam(table.parameters())
    table(torch.zeros(2, dtype=torch.long)).sum().backward()
    optimizer.step()
    assert agree(optimizer)["step"] == Total("python", 1, 0, 1)


def test_momentum_over_sparse_gradients_has_no_formula() -> None:
    table = nn.Embedding(4, 3, sparse=True)
    optimizer = optim.SGD(table.parameters(), lr=0.1, momentum=0.9)
    table(torch.zeros(2, dtype=torch.long)).sum().backward()
    optimizer.step()
    assert expected_slots(optimizer) is None
    optimizer.zero_grad(set_to_none=True)
    assert expected_slots(optimizer) is None
    # Two indices of one coordinate (int64) and two rows of three values.
    assert totals(held_slots(optimizer))["momentum_buffer"].nbytes in (2 * 8 + 2 * 12, 8 + 12)


def squares(optimizer: optim.Optimizer, parameters: list[nn.Parameter]) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum(
            (parameter * index - 0.3).pow(4).sum() for index, parameter in enumerate(parameters, 1) if parameter.requires_grad
        )
        assert isinstance(loss, Tensor)
        loss.backward()
        return loss.detach()  # torch 2.8 warns, once, when LBFGS turns one with a graph into a number

    return closure


@settings(max_examples=15, deadline=None)
@given(
    drawn=st.lists(shapes(0, 3), min_size=1, max_size=3),
    history=st.integers(1, 4),
    iterations=st.integers(1, 6),
    search=st.booleans(),
)
def test_lbfgs_keeps_one_flat_state_with_a_bounded_history(
    drawn: list[tuple[int, ...]], history: int, iterations: int, search: bool
) -> None:
    parameters = [build(shape, "trained") for shape in drawn] + [build((3,), "frozen")]
    line_search = "strong_wolfe" if search else None
    optimizer = optim.LBFGS(parameters, lr=0.01, max_iter=iterations, history_size=history, line_search_fn=line_search)
    for _ in range(2):
        optimizer.step(squares(optimizer, parameters))
    expected, held = expected_slots(optimizer), held_slots(optimizer)
    assert expected is not None
    numel = sum(math.prod(shape) for shape in drawn) + 3
    assert held[0, 0, "d"] == expected[0, 0, "d"] == Slot("float32", numel, 4 * numel, "cpu")
    assert held.keys() <= expected.keys()
    for key, slot in expected.items():
        if not slot.at_most:
            assert held[key] == slot
        elif key in held:
            assert held[key].nbytes <= slot.nbytes
            assert held[key].dtype in (slot.dtype, "python")


def test_lbfgs_flattens_a_complex_parameter_as_two_real_ones() -> None:
    parameters = [nn.Parameter(torch.ones(3, dtype=torch.complex64)), build((2,), "trained")]
    optimizer = optim.LBFGS(parameters, lr=0.01, max_iter=1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = sum(parameter.abs().sum() for parameter in parameters)
        assert isinstance(loss, Tensor)
        loss.backward()
        return loss

    optimizer.step(closure)
    expected = expected_slots(optimizer)
    assert expected is not None
    assert held_slots(optimizer)[0, 0, "d"] == expected[0, 0, "d"] == Slot("float32", 8, 32, "cpu")


def test_lbfgs_that_stops_at_once_holds_no_tensors() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    optimizer = optim.LBFGS([parameter])

    def closure() -> Tensor:
        parameter.grad = torch.zeros(3)
        return parameter.sum()

    optimizer.step(closure)
    agree(optimizer)


def test_adamw_on_gpt2_small_is_eight_bytes_a_parameter_and_four_a_tensor() -> None:
    width, layers = 768, 12
    block = [(width,)] * 4 + [(width, 3 * width), (3 * width,), (width, width), (width,)]
    block += [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    sizes = [(50257, width), (1024, width), *block * layers, (width,), (width,)]
    parameters = [nn.Parameter(torch.empty(size, device="meta")) for size in sizes]
    count = sum(parameter.numel() for parameter in parameters)
    assert (count, len(parameters)) == (124_439_808, 148)
    state = expected_state(optim.AdamW(parameters), parameters)
    assert state == {
        "step": Total("float32", 148, 4 * 148, 148),
        "exp_avg": Total("float32", count, 4 * count, 148),
        "exp_avg_sq": Total("float32", count, 4 * count, 148),
    }
    assert sum(total.nbytes for total in state.values()) == 8 * 124_439_808 + 4 * 148


class Renamed(optim.AdamW):
    """Adds nothing to the step."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, amsgrad=True)


class WithMasters(optim.SGD):
    """Holds more than its base."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["master"] = parameter.detach().float()
        return super().step(closure)


class Own(optim.Optimizer):
    """Derived from no optimizer that torch knows."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass


def test_a_subclass_counts_as_its_base_only_while_it_steps_like_it() -> None:
    parameter = build((2, 3), "trained")
    renamed = Renamed([parameter])
    step(renamed, [parameter])
    assert known(renamed) == "AdamW"
    assert "max_exp_avg_sq" in agree(renamed)
    for optimizer in (WithMasters([parameter], lr=0.1), Own([parameter])):
        step(optimizer, [parameter])
        assert known(optimizer) is None
        assert expected_state(optimizer) is None


def test_dtypes_that_differ_between_parameters_are_joined() -> None:
    parameters = [build((2,), "trained"), build((3,), "trained", torch.float64)]
    optimizer = optim.SGD(parameters, lr=0.1, momentum=0.9)
    step(optimizer, parameters)
    assert agree(optimizer)["momentum_buffer"] == Total("float32+float64", 5, 32, 2)


def test_importing_the_formulas_does_not_import_torch() -> None:
    code = "import sys, ampcheck.optimizer_formulas; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
