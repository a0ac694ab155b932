"""How much state each of torch's optimizers holds after a step, to the byte: formulas, not measurements.

Each rule follows the state that the `step` of that class creates (`torch/optim/*.py`, torch 2.4 to 2.14; `foreach`,
`maximize`, `nesterov` and decoupled weight decay change no state). An optimizer that has no rule here is unknown, and
has to be judged against its own FP32 run. Importing this module does not import torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.optim import Optimizer

__all__ = ["Slot", "Total", "expected_slots", "expected_state", "held_slots", "known", "totals"]

#: dtype of state that is a Python number: it takes no tensor memory.
PYTHON = "python"


class Slot(NamedTuple):
    """One entry of one parameter's state.

    Args:
        dtype: such as `"float32"`; `"python"` for a plain number.
        numel: number of elements.
        nbytes: bytes of tensor memory.
        device: device type.
        at_most: whether `numel` and `nbytes` are bounds (LBFGS's history grows with the run), and absence is no fault.
    """

    dtype: str
    numel: int
    nbytes: int
    device: str
    at_most: bool = False


class Total(NamedTuple):
    """One slot summed over parameters: its dtypes, elements, bytes, and how many parameters hold it."""

    dtype: str
    numel: int
    nbytes: int
    parameters: int
    at_most: bool = False


#: (index of the group, index of the parameter in it, slot): parameters have no names for an optimizer.
Key = tuple[int, int, str]


@dataclass(frozen=True)
class _State:
    """Makes the slots of one parameter: `dtype` is that of its buffers, `group` the options of its group."""

    group: Mapping[str, Any]
    parameter: Tensor
    dtype: torch.dtype
    scalar: torch.dtype

    def on(self, option: str) -> bool:
        return bool(self.group.get(option))

    def like(self, numel: int | None = None) -> Slot:
        """A buffer of the parameter's dtype, and of its shape unless `numel` is given."""
        numel = self.parameter.numel() if numel is None else numel
        return Slot(_name(self.dtype), numel, numel * self.dtype.itemsize, self.parameter.device.type)

    def count(self, *, on_device: bool = False) -> Slot:
        """A scalar tensor: on the CPU, unless the optimizer is fused or captured in a CUDA graph."""
        import torch

        dtype = torch.float32 if self.on("fused") else self.scalar
        near = on_device or self.on("capturable") or self.on("fused")
        return Slot(_name(dtype), 1, dtype.itemsize, self.parameter.device.type if near else "cpu")


def _adam(state: _State) -> dict[str, Slot]:
    slots = {"step": state.count(), "exp_avg": state.like(), "exp_avg_sq": state.like()}
    return {**slots, "max_exp_avg_sq": state.like()} if state.on("amsgrad") else slots


def _rmsprop(state: _State) -> dict[str, Slot]:
    slots = {"step": state.count(), "square_avg": state.like()}
    if state.on("momentum"):
        slots["momentum_buffer"] = state.like()
    if state.on("centered"):
        slots["grad_avg"] = state.like()
    return slots


def _asgd(state: _State) -> dict[str, Slot]:
    scalars = {name: state.count(on_device=True) for name in ("step", "eta", "mu")}
    return {**scalars, "ax": state.like()}


def _adafactor(state: _State) -> dict[str, Slot]:
    shape = state.parameter.shape
    if len(shape) < 2:
        return {"step": state.count(), "variance": state.like()}
    rows, columns = shape[:-2].numel() * shape[-2], shape[:-2].numel() * shape[-1]
    return {"step": state.count(), "row_var": state.like(rows), "col_var": state.like(columns)}


def _sparse_adam(state: _State) -> dict[str, Slot]:
    return {"step": Slot(PYTHON, 1, 0, "cpu"), "exp_avg": state.like(), "exp_avg_sq": state.like()}


#: Class of `torch.optim` -> the slots of one parameter that took part in a step. LBFGS is not among them: it has one flat
#: state for all parameters together.
RULES: dict[str, Callable[[_State], dict[str, Slot]]] = {
    "SGD": lambda state: {"momentum_buffer": state.like()} if state.on("momentum") else {},
    "Adam": _adam,
    "AdamW": _adam,
    "NAdam": lambda s: {"step": s.count(), "mu_product": s.count(), "exp_avg": s.like(), "exp_avg_sq": s.like()},
    "RAdam": lambda s: {"step": s.count(), "exp_avg": s.like(), "exp_avg_sq": s.like()},
    "Adamax": lambda s: {"step": s.count(), "exp_avg": s.like(), "exp_inf": s.like()},
    "ASGD": _asgd,
    "Rprop": lambda s: {"step": s.count(), "prev": s.like(), "step_size": s.like()},
    "Adadelta": lambda s: {"step": s.count(), "square_avg": s.like(), "acc_delta": s.like()},
    "Adagrad": lambda s: {"step": s.count(), "sum": s.like()},
    "RMSprop": _rmsprop,
    "Adafactor": _adafactor,
    "SparseAdam": _sparse_adam,
    "Muon": lambda s: {"momentum_buffer": s.like()},
}


def known(optimizer: Optimizer) -> str | None:
    """The class of `torch.optim` whose state `optimizer` holds, or `None`.

    A subclass counts as its base as long as it steps by the base's own code.
    """
    import torch

    for base in type(optimizer).__mro__:
        if (base.__name__ in RULES or base.__name__ == "LBFGS") and getattr(torch.optim, base.__name__, None) is base:
            same = all(
                inspect.unwrap(getattr(type(optimizer), method)) is inspect.unwrap(getattr(base, method))
                for method in ("step", "_init_group")
                if hasattr(base, method)
            )
            return base.__name__ if same else None
    return None


def expected_slots(
    optimizer: Optimizer, stepped: Iterable[Tensor] | None = None, *, widen: bool = True
) -> dict[Key, Slot] | None:
    """The state that the optimizer must hold after its first step, slot by slot.

    Args:
        optimizer: any optimizer; it is only read.
        stepped: the parameters that had a gradient in some step; `None` is those that have one now, or have state.
        widen: what a float32 run must hold, whatever the parameters' dtype; False is what torch itself makes of 16-bit
            parameters (16-bit state).

    Returns:
        (group, parameter, slot) -> `Slot`; `None` for an optimizer without a rule, and for SGD's momentum over sparse
        gradients, whose size depends on the batch.
    """
    import torch

    name = known(optimizer)
    if name is None:
        return None
    scalar = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    if name == "LBFGS":
        return _lbfgs(optimizer, widen)
    chosen = None if stepped is None else {id(parameter) for parameter in stepped}
    slots: dict[Key, Slot] = {}
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            held = optimizer.state.get(parameter, {})
            took_part = parameter.grad is not None or bool(held) if chosen is None else id(parameter) in chosen
            # Adagrad makes its state when it is built, for frozen parameters too.
            if not took_part and not (name == "Adagrad" and held):
                continue
            if name == "SGD" and any(_sparse(tensor) for tensor in (parameter.grad, *held.values())):
                return None
            state = _State(group, parameter, _widened(parameter.dtype) if widen else parameter.dtype, scalar)
            slots.update({(index, position, slot): value for slot, value in RULES[name](state).items()})
    return slots


def expected_state(
    optimizer: Optimizer, stepped: Iterable[Tensor] | None = None, *, widen: bool = True
) -> dict[str, Total] | None:
    """The same as `expected_slots`, summed over parameters: slot -> `Total`.

    AdamW gives `exp_avg` and `exp_avg_sq` of 4 bytes a trained parameter each, and `step` of 4 bytes a tensor.
    """
    slots = expected_slots(optimizer, stepped, widen=widen)
    return None if slots is None else totals(slots)


def held_slots(optimizer: Optimizer) -> dict[Key, Slot]:
    """The state that the optimizer holds now, in the terms of `expected_slots`; lists of tensors count as one slot."""
    slots: dict[Key, Slot] = {}
    for index, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            for slot, value in optimizer.state.get(parameter, {}).items():
                entry = _held(value)
                if entry is not None:
                    slots[index, position, str(slot)] = entry
    return slots


def totals(slots: Mapping[Key, Slot]) -> dict[str, Total]:
    """Sum over parameters; dtypes that differ between parameters are joined as `float32+float64`."""
    found: dict[str, list[Slot]] = {}
    for (_, _, name), slot in slots.items():
        found.setdefault(name, []).append(slot)
    return {
        name: Total(
            "+".join(sorted({slot.dtype for slot in entries})),
            sum(slot.numel for slot in entries),
            sum(slot.nbytes for slot in entries),
            len(entries),
            any(slot.at_most for slot in entries),
        )
        for name, entries in found.items()
    }


def _lbfgs(optimizer: Optimizer, widen: bool) -> dict[Key, Slot]:
    """One flat state, kept at the first parameter, over all parameters, with a gradient or not.

    What depends on the path of the iteration is bounded: the history, and scalars that may be Python numbers. A first
    gradient under the tolerance leaves no tensors at all.
    """
    (group,) = optimizer.param_groups
    parameters = group["params"]
    held = optimizer.state.get(parameters[0], {})
    counters = {"func_evals": Slot(PYTHON, 1, 0, "cpu"), "n_iter": Slot(PYTHON, 1, 0, "cpu")}
    if held.get("n_iter") == 0:
        return {(0, 0, name): slot for name, slot in counters.items()}
    # A complex parameter is flattened as two real ones.
    numel = sum(parameter.numel() * (2 if parameter.is_complex() else 1) for parameter in parameters)
    real = parameters[0].dtype.to_real()
    flat = _State(group, parameters[0], _widened(real) if widen else real, real).like(numel)
    one, history = flat._replace(numel=1, nbytes=flat.nbytes // max(numel, 1), at_most=True), group["history_size"]

    def times(slot: Slot) -> Slot:
        return slot._replace(numel=slot.numel * history, nbytes=slot.nbytes * history, at_most=True)

    state = {**counters, "d": flat, "prev_flat_grad": flat, "old_dirs": times(flat), "old_stps": times(flat)}
    state |= {"ro": times(one), "al": times(one), "t": one, "H_diag": one, "prev_loss": Slot(PYTHON, 1, 0, "cpu", True)}
    return {(0, 0, name): slot for name, slot in state.items()}


def _held(value: Any) -> Slot | None:
    import torch

    if isinstance(value, torch.Tensor):
        parts = [value._indices(), value._values()] if _sparse(value) else [value]
        nbytes = sum(part.numel() * part.element_size() for part in parts)
        return Slot(_name(value.dtype), value.numel(), nbytes, value.device.type)
    if isinstance(value, (bool, int, float)):
        return Slot(PYTHON, 1, 0, "cpu")
    if isinstance(value, (list, tuple)):
        entries = [entry for entry in map(_held, value) if entry is not None and entry.dtype != PYTHON]
        if entries:
            dtype = "+".join(sorted({entry.dtype for entry in entries}))
            return Slot(dtype, sum(e.numel for e in entries), sum(e.nbytes for e in entries), entries[0].device)
    return None


def _sparse(value: object) -> bool:
    return bool(getattr(value, "is_sparse", False))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _widened(dtype: torch.dtype) -> torch.dtype:
    import torch

    if dtype.is_complex:
        return torch.complex64 if dtype.itemsize < torch.complex64.itemsize else dtype
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < torch.float32.itemsize else dtype
