"""What a user declares: `@ampcheck.contract` around a function that builds a training step, and `Training` for what
cannot be discovered from the run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, overload

from ampcheck.errors import ContractError, UsageError

__all__ = ["Contract", "Options", "Training", "bound", "contract"]

#: How often `step` may be called after one build unless `Training(calls=)` says otherwise.
DEFAULT_CALLS = 6


@dataclass(frozen=True)
class Options:
    """The options of one contract; every field has the same name on the decorator, in the ini and on the command line.

    Args:
        devices: device types to judge on, such as `("cpu", "cuda")`; `None` is CUDA where there is one, else the CPU.
        dtypes: 16-bit dtypes to judge parity in, such as `("float16",)`; `None` is what the step enters by itself.
        select: ids or prefixes (`"AMP1"`, `"AMP102"`) to report; `None` is all.
        ignore: ids or prefixes not to report.
        xfail: id -> reason; a strict expected failure: the contract fails when the finding is gone.
        strict: ids or prefixes whose warnings count as errors; `True` is all.
        timeout: seconds that one scenario may take; `None` is the session's setting.
    """

    devices: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    xfail: Mapping[str, str] = field(default_factory=dict)
    strict: bool | tuple[str, ...] = ()
    timeout: float | None = None


class Contract:
    """A declared contract: the user's build function with its options. It is collected by `pytest --ampcheck`.

    It is deliberately not a function: pytest never takes it for a test, whatever it is called.
    """

    # pytest asks objects in a module for this; saying no keeps a contract called `test_x` from being collected as a test.
    __test__ = False

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        if isinstance(function, Contract):
            raise ContractError(f"@ampcheck.contract was applied twice to {function.name!r}; once is enough")
        if not callable(function):
            raise ContractError(f"@ampcheck.contract takes a function that builds a training step, not {function!r}")
        self.function = function
        self.options = options
        functools.update_wrapper(self, function)

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the step as the suite does; useful in a REPL."""
        return self.function(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Contract:
        if instance is None:
            return self
        bound = Contract(self.function.__get__(instance, owner), self.options)
        # Marks that stand above the decorator are on this object, not on the function.
        vars(bound).update({name: value for name, value in vars(self).items() if name == "pytestmark"})
        vars(bound)["__self__"] = instance  # as a method has it; pytest 8.0 looks there for the instance of an item
        return bound

    def __repr__(self) -> str:
        return f"<ampcheck contract {self.name}>"


@dataclass
class Training:
    """A training step together with what ampcheck cannot discover by watching it run.

    Args:
        step: does one optimizer step's worth of work; called again and again, without arguments.
        calls: how often `step` may be called after one build (1 for a whole `trainer.fit`); `None` is six, and more only to see
            whether a loop that skipped every step ever takes one.
        model: the module(s), for names in messages, where they are not reachable from `step`.
        optimizers: optimizers that `step` does not reach.
        scaler: a loss scaler that is not derived from `torch.amp.GradScaler`: any object with `scale` and `step`.
        set_scale: `set_scale(value: float)` forces the loss scale of a scaler that has no usable `load_state_dict`.
        loss_scale: a loss scale kept by hand: a number, or a function that returns the current one.
        scheduler: a learning-rate schedule that `step` does not reach.
        state_dict: returns everything that a checkpoint of this training holds.
        load_state_dict: restores what `state_dict` returned into a training that was just built.
        state_bytes_per_param: declared size of the optimizer state, in bytes for each trained parameter.
        capabilities: capabilities of a hand-written scaler, as for `ampcheck.scaler_contract`.
    """

    step: Callable[[], Any]
    calls: int | None = None
    model: Any = None
    optimizers: Any = None
    scaler: Any = None
    set_scale: Callable[[float], None] | None = None
    loss_scale: float | Callable[[], float] | None = None
    scheduler: Any = None
    state_dict: Callable[[], Any] | None = None
    load_state_dict: Callable[[Any], Any] | None = None
    state_bytes_per_param: float | None = None
    capabilities: Mapping[str, Any] = field(default_factory=dict)

    @property
    def most_calls(self) -> int:
        return self.calls or DEFAULT_CALLS

    @classmethod
    def of(cls, built: Any, name: str) -> Training:
        """Take what a contract returned; a bare callable becomes `Training(step)`.

        Raises:
            ContractError: if it is neither, with what to return instead.
        """
        if isinstance(built, Training):
            training = built
        elif built is None:
            raise ContractError(
                f"contract {name} returned nothing; return the function that makes one training step (`return step`)"
            )
        elif callable(built):
            training = cls(built)
        else:
            raise ContractError(
                f"contract {name} returned {type(built).__name__}, which cannot be called; "
                "return the function that makes one training step, or ampcheck.Training(step, ...)"
            )
        if not callable(training.step):
            raise ContractError(f"contract {name}: Training(step=...) must be callable, not {type(training.step).__name__}")
        missing = _missing_arguments(training.step)
        if missing:
            raise ContractError(
                f"contract {name}: the step is called without arguments, and needs {missing}; bind them inside the contract "
                "(`return lambda: train_one_step(model, batch)`)"
            )
        if training.calls is not None and (not isinstance(training.calls, int) or training.calls < 1):
            raise ContractError(f"contract {name}: Training(calls=...) must be a whole number from 1, not {training.calls!r}")
        if (training.state_dict is None) != (training.load_state_dict is None):
            raise ContractError(f"contract {name}: declare state_dict= and load_state_dict= together, resume needs both")
        return training


def _missing_arguments(step: Callable[..., Any]) -> str:
    """Names of the arguments that a step cannot do without."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not say
        return ""
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(p.name for p in parameters if p.default is p.empty and p.kind not in free)


def _names(value: Iterable[str] | str | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    return (value,) if isinstance(value, str) else tuple(str(v).removeprefix("torch.") for v in value)


@overload
def contract(function: Callable[..., Any], /) -> Contract: ...
@overload
def contract(
    *,
    devices: Iterable[str] | str | None = ...,
    dtypes: Iterable[Any] | str | None = ...,
    select: Iterable[str] | str | None = ...,
    ignore: Iterable[str] | str = ...,
    xfail: Mapping[str, str] | None = ...,
    strict: bool | Iterable[str] | str = ...,
    timeout: float | None = ...,
) -> Callable[[Callable[..., Any]], Contract]: ...
def contract(
    function: Callable[..., Any] | None = None,
    /,
    *,
    devices: Iterable[str] | str | None = None,
    dtypes: Iterable[Any] | str | None = None,
    select: Iterable[str] | str | None = None,
    ignore: Iterable[str] | str = (),
    xfail: Mapping[str, str] | None = None,
    strict: bool | Iterable[str] | str = (),
    timeout: float | None = None,
) -> Contract | Callable[[Callable[..., Any]], Contract]:
    """Declare a function that builds a training step as a contract; `pytest --ampcheck` judges it.

    Usable bare (`@ampcheck.contract`) and with options; see `Options` for each of them.

    Returns:
        A `Contract`, not a function: a name that starts with `test_` is never collected as an ordinary test.
    """
    options = Options(
        devices=_names(devices),
        dtypes=_names(dtypes),
        select=_names(select),
        ignore=_names(ignore) or (),
        xfail=dict(xfail or {}),
        strict=strict if isinstance(strict, bool) else (_names(strict) or ()),
        timeout=timeout,
    )
    if function is not None:
        return _declare(function, options)
    return lambda built: _declare(built, options)


#: Lines of the contracts declared under one name of one file, by file and qualified name.
_DECLARED: dict[tuple[str, str], set[int]] = {}


def declared_at(contract: Contract) -> list[int]:
    """The lines that declare a contract under this name in its file; of several, the last one hides the others."""
    return sorted(_DECLARED.get(_place(contract.function)[:2], ()))


def _place(function: Callable[..., Any]) -> tuple[str, str, int]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (code.co_filename, function.__qualname__, code.co_firstlineno) if code else ("", "", 0)


def _declare(function: Callable[..., Any], options: Options) -> Contract:
    contract = Contract(function, options)
    file, name, line = _place(function)
    # A function inside a function may be made, and named, as often as its maker likes.
    if name and "<locals>" not in name:
        _DECLARED.setdefault((file, name), set()).add(line)
    return contract


def bound(function: Callable[..., object], device: str) -> Callable[[], object]:
    """The function without arguments: with the device type for the one parameter that it may have.

    Raises:
        UsageError: if it needs more.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not say
        return function
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    others = [name for name in needed if name not in ("amp_device", "device")]
    if others or len(needed) > 1:
        raise UsageError(
            f"the function needs {', '.join(others or needed)}, which only pytest's fixtures can give; use `pytest --ampcheck`"
        )
    if not needed:
        return function

    def build() -> object:
        return function(**{needed[0]: device})

    build.__wrapped__ = function  # type: ignore[attr-defined]  # so that the function, not this, is the place to blame
    return build
