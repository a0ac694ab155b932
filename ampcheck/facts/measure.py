"""Measures the autocast table of the torch and the device at hand: `python -m ampcheck.facts.measure --device cuda --out F`.

Three measurements, none of which needs a list of what autocast does:

- the *policies*: the dispatcher tells which ops have an autocast kernel for the device; each is called with FP32, 16-bit
  and mixed tensors, and what reaches the first op below autocast is looked at. That op is never run, so that arguments of
  any shape will do;
- the *rows*: each function of `ampcheck.facts.functions` is run, and its output and kernels are noted;
- the *norms*: the same with each weight dtype, and with the backward.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampcheck.facts.functions import EVALUATING, FUNCTIONS, NORMS, Inputs, NormRecipe
from ampcheck.facts.table import Kernel, Norm, Policy, Row, Table, op_name

__all__ = ["available", "measure"]

LOW = (torch.float16, torch.bfloat16)
#: Ops that move, make or cast values: not part of what a function computes.
PLUMBING = ("_to_copy", "copy", "clone", "empty", "zeros", "ones", "full", "new_", "rand", "scalar_tensor", "fill", "arange")

PRECEDENCE: list[Policy] = ["low", "fp32", "promote", "refused", "leave", "unmeasured"]
#: Deprecated ops that print a notice past Python's warnings when they are called.
NOISY = {"_lu_with_info", "lu_solve", "qr"}


def available(device: str) -> bool:
    """Whether there is a device of this type to measure on."""
    if device == "cpu":
        return True
    module = getattr(torch, device, None)
    return bool(module is not None and hasattr(module, "is_available") and module.is_available())


def measure(device: str = "cpu") -> Table:
    """Measure the whole table.

    Args:
        device: device type.

    Returns:
        The table, also where some function could not run: its row then holds the error.
    """
    with _undisturbed(device):
        rows = dict(_rows(device))
        norms = _possible(dict(_norms(device)))
        policies = _policies(device)
    name = torch.cuda.get_device_name() if device == "cuda" else f"cpu {torch.backends.cpu.get_cpu_capability()}"
    outputs = {key: row for key, (row, _) in rows.items()}
    return Table(device, str(torch.__version__), name, policies, _lowered(rows, policies), outputs, norms)


@contextlib.contextmanager
def _undisturbed(device: str) -> Iterator[None]:
    """Leave no trace in the process: random state, warnings, autocast's cache; and let none of it in."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([torch.cuda.current_device()] if device == "cuda" else []))
        stack.enter_context(warnings.catch_warnings())
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.autocast(device, enabled=False))
        warnings.simplefilter("ignore")
        default = torch.get_default_dtype()
        stack.callback(torch.set_default_dtype, default)
        torch.set_default_dtype(torch.float32)
        yield


def _name(dtype: torch.dtype | None) -> str:
    return "off" if dtype is None else str(dtype).removeprefix("torch.")


def _floats(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())]


def _dtypes(value: Any) -> tuple[str, ...]:
    return tuple(_name(tensor.dtype) for tensor in _floats(value))


# -- rows and norms ----------------------------------------------------------------------------------------------------


class _Log(TorchDispatchMode):
    """Notes the ops that compute something from float tensors."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[tuple[Any, Kernel]] = []
        self.last: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        inputs = _dtypes((args, kwargs))
        name = op_name(func._schema.name)
        if inputs and not func.is_view and not name.startswith(PLUMBING):
            kept = [tensor for tensor in _floats(out) if tensor.numel()]
            self.ops.append((func, Kernel(name, inputs, _dtypes(kept))))
        return out


def _call(device: str, amp: torch.dtype | None, function: Callable[[], Tensor]) -> tuple[Tensor | None, _Log, str]:
    """Run a function under autocast with dtype `amp` (`None`: off): its output, its ops, and what it raised, if so."""
    torch.manual_seed(0)
    with _Log() as log, torch.autocast(device, dtype=amp or LOW[1], enabled=amp is not None):
        try:
            return function(), log, ""
        except Exception as error:  # Whatever a torch says to an unsupported dtype is the measurement.
            return None, log, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:70]}"


def _regions() -> Iterator[tuple[torch.dtype | None, torch.dtype]]:
    """Every region dtype with the dtypes of activations that occur in it."""
    for given in (torch.float32, *LOW):
        yield None, given
    for amp in LOW:
        yield amp, torch.float32
        yield amp, amp


def _rows(device: str) -> Iterator[tuple[tuple[str, str, str], tuple[Row, _Log]]]:
    for function, recipe in FUNCTIONS.items():
        for amp, given in _regions():
            inputs = Inputs(device, given)
            yield (function, _name(amp), _name(given)), _row(device, amp, recipe, inputs)
            if inputs.took_other and given == amp:
                yield (function, _name(amp), "mixed"), _row(device, amp, recipe, Inputs(device, given, torch.float32))


def _row(device: str, amp: torch.dtype | None, recipe: Callable[[Inputs], Tensor], inputs: Inputs) -> tuple[Row, _Log]:
    out, log, error = _call(device, amp, lambda: recipe(inputs))
    # The same op in the same dtypes again (every time step of an RNN) says nothing new.
    kernels = tuple(dict.fromkeys(kernel for _, kernel in log.ops))
    return Row(None if out is None else _name(out.dtype), kernels if out is not None and amp is not None else (), error), log


def _norms(device: str) -> Iterator[tuple[tuple[str, str, str, str, str], Norm]]:
    for name, recipe in NORMS.items():
        for amp, given in _regions():
            for weight in dict.fromkeys((torch.float32, amp or given, None)):
                for mode in ("train", "eval") if name in EVALUATING else ("train",):
                    key = (name, mode, _name(amp), _name(given), "none" if weight is None else _name(weight))
                    yield key, _norm(device, amp, recipe, Inputs(device, given, weight=weight), mode == "train")


def _possible(norms: dict[tuple[str, str, str, str, str], Norm]) -> dict[tuple[str, str, str, str, str], Norm]:
    """Without the norms that this device has no kernel of."""
    able = {key[0] for key, norm in norms.items() if key[1] == "train" and norm.output is not None}
    return {key: norm for key, norm in norms.items() if key[0] in able}


def _norm(device: str, amp: torch.dtype | None, recipe: NormRecipe, inputs: Inputs, training: bool) -> Norm:
    out, log, error = _call(device, amp, lambda: recipe(inputs, training))
    if out is None:
        return Norm(None, error=error)
    saved = [kernel for _, kernel in log.ops if "norm" in kernel.name and "vector_norm" not in kernel.name]
    saving = next((kernel for kernel in saved if len(kernel.outputs) > 1), None)
    statistics, kernel = (None, None) if saving is None else (saving.outputs[-1], saving.name)
    return Norm(_name(out.dtype), statistics, kernel, _bias_gradient(out, inputs.shift))


def _bias_gradient(out: Tensor, bias: Tensor | None) -> str | None:
    """How the sum over the batch for the bias gradient was taken, by its error; see `Norm`."""
    if bias is None:
        return None
    seed = torch.rand_like(out, dtype=torch.float32).to(out.dtype)
    try:
        (found,) = torch.autograd.grad(out, bias, seed)
    except RuntimeError:
        return None
    exact = seed.double().transpose(0, 1).flatten(1).sum(1)
    error = ((found.double() - exact).abs() / exact).max().item()
    # An FP32 sum of 2048 terms errs by at most some hundred units; its rounding to 16 bits by half of one of those.
    if error <= 256 * torch.finfo(torch.float32).eps:
        return "fp32"
    return "rounded" if error <= torch.finfo(found.dtype).eps else "lossy"


def _lowered(rows: dict[tuple[str, str, str], tuple[Row, _Log]], policies: dict[str, Policy]) -> dict[str, tuple[str, ...]]:
    """The kernels that do the work of the ops on autocast's list: reached by 16-bit operands although FP32 was given.

    Taken are ops of two operands or more that autocast itself does not know and that are not elementwise: `convolution` and
    `_cudnn_rnn`, not the `_softmax` and the `add` inside an attention that runs in 16 bits as a whole.
    """
    found: dict[str, set[str]] = {}
    low = {_name(dtype) for dtype in LOW}
    for (function, amp, given), (row, log) in rows.items():
        if amp == "off" or given != "float32" or row.output not in low:
            continue
        for op, kernel in log.ops:
            works = len(kernel.inputs) > 1 and torch.Tag.pointwise not in op.tags and not kernel.name.startswith("_thnn")
            if works and {*kernel.inputs} <= low and policies.get(kernel.name, "low") == "low":
                found.setdefault(kernel.name, set()).add(function)
    return {kernel: tuple(sorted(functions)) for kernel, functions in sorted(found.items())}


# -- policies ----------------------------------------------------------------------------------------------------------


class _Reached(Exception):
    """The probe has seen what it came for."""


class _Probe(TorchDispatchMode):
    """Looks at the casts that autocast makes, and stops at the first op behind them, before it runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.casts: set[torch.dtype] = set()
        self.reached = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.name == "aten::_to_copy":
            self.casts.add(kwargs["dtype"])
            return func(*args, **kwargs)
        self.reached = True
        # Ops that compute in FP32 from 16-bit operands are told so in an argument (`sum`, `softmax`).
        if torch.float32 in (kwargs.get("dtype"), *args) or _half_to_float(func, args):
            self.casts.add(torch.float32)
        raise _Reached


def _half_to_float(func: Any, args: tuple[Any, ...]) -> bool:
    names = [argument.name for argument in func._schema.arguments]
    return "half_to_float" in names and bool(args[names.index("half_to_float")])


def _policies(device: str) -> dict[str, Policy]:
    """What autocast does to every op that has an autocast kernel of this device type; overloads that differ are kept apart."""
    key = f"Autocast{device.upper()}"
    found: dict[str, dict[str, Policy]] = {}
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        if torch._C._dispatch_has_kernel_for_dispatch_key(full, key):
            name, (qualified, _, overload) = op_name(full), full.partition(".")
            namespace, _, bare = qualified.partition("::")
            op = getattr(getattr(getattr(torch.ops, namespace), bare), overload or "default")
            found.setdefault(name, {})[overload] = "unmeasured" if name in NOISY else _policy(device, op)
    policies: dict[str, Policy] = {}
    for name, overloads in found.items():
        # An op one of whose overloads is cast counts as cast: calls are looked up by the bare name.
        policies[name] = min(overloads.values(), key=PRECEDENCE.index)
    return policies


def _policy(device: str, op: Any) -> Policy:
    full, half = torch.float32, torch.bfloat16
    from_full, reached, error = _probe(device, op, (full, full))
    if "autocast" in error:
        return "refused"
    if from_full & {*LOW}:
        return "low"
    from_half, reached_half, error = _probe(device, op, (half, half))
    if "autocast" in error:
        return "refused"
    if full in from_half:
        return "fp32"
    from_mixed, _, _ = _probe(device, op, (half, full))
    if full in from_mixed:
        return "promote"
    return "leave" if reached or reached_half else "unmeasured"


def _probe(device: str, op: Any, dtypes: tuple[torch.dtype, torch.dtype]) -> tuple[set[torch.dtype], bool, str]:
    """The casts of one call, whether an op behind autocast was reached, and the message of what stopped the call, if so."""
    tensors = (torch.ones(1, 1, dtype=dtypes[index], device=device) for index in [0] + [1] * 63)
    args, kwargs = [], {}
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if argument.kwarg_only or argument.has_default_value():
            if kind == "Optional[Tensor]" or not argument.has_default_value():
                kwargs[argument.name] = _argument(kind, argument.name, tensors)
        else:
            args.append(_argument(kind, argument.name, tensors))
    with _Probe() as probe, torch.autocast(device, dtype=torch.bfloat16):
        try:
            op(*args, **kwargs)
        except _Reached:
            return probe.casts, True, ""
        except Exception as error:  # A composite op may refuse these shapes; the casts before that count.
            return probe.casts, probe.reached, str(error)
    return probe.casts, probe.reached, ""


def _argument(kind: str, name: str, tensors: Iterator[Tensor]) -> Any:
    """A value of a schema's type; autocast comes before any look at shapes, so that the smallest will do."""
    if kind in ("Tensor", "Optional[Tensor]"):
        return next(tensors)
    if "List[" in kind and "Tensor" in kind:
        return [next(tensors), next(tensors)]
    if kind.startswith("Optional"):
        return None
    if kind == "str":
        return "ij,jk->ik" if name == "equation" else "fro"
    plain: dict[str, Any] = {"int": 1, "float": 0.5, "bool": False, "number": 2, "List[int]": [1]}
    return plain.get(kind)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ampcheck.facts.measure", description=__doc__.partition(":")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    if not available(options.device):
        parser.error(f"there is no {options.device} device here")
    table = measure(options.device)
    table.save(options.out)
    sizes = f"{len(table.policies)} policies, {len(table.rows)} rows, {len(table.norms)} norms"
    sys.stdout.write(f"{options.out}: torch {table.torch} on {table.device_name}, {sizes}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
