"""The precision that is asked for, and the override that makes code run in it: autocast, loss scale, 16-bit dtypes.

FP32 does not switch autocast off: regions are entered and set to float32. That is bit-identical to autocast off on FP32
inputs, and code with half inputs, or with `if torch.is_autocast_enabled()`, still takes the path it takes under AMP.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from ampcheck._compat import force_eager
from ampcheck.errors import PolicyError
from ampcheck.trace.patches import PatchSet

__all__ = ["HELD", "Policy", "policy", "world"]

#: A growth interval that is never reached: the loss scale is held.
HELD = 2**30
LOW_PRECISION = (torch.float16, torch.bfloat16)
AutocastChoice = Literal["as-written", "float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class Policy:
    """How a run is forced.

    Args:
        autocast: the dtype that every region which the code enters enabled is set to; "as-written" leaves it.
        scale: the initial loss scale of every enabled `torch.amp.GradScaler` that the code makes: a power of two. Unless it
            is 1, each further scaler gets an eighth of the one before, so that one scaler's gradients cannot pass for
            another's. `None` leaves it.
        growth_interval: forced likewise; `HELD` keeps the scale. `None` leaves it.
        widen: every request for a 16-bit dtype gives float32 (hard-coded `.half()`, half weights).
        seed: of torch's, Python's and NumPy's global generators.
    """

    autocast: AutocastChoice = "as-written"
    scale: float | None = None
    growth_interval: int | None = None
    widen: bool = False
    seed: int = 1234

    def widened(self) -> Policy:
        return replace(self, widen=True)


class _Widen(TorchFunctionMode):
    """Answers every request for a 16-bit dtype with float32."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("half", "bfloat16"):
            return torch.Tensor.float(args[0])
        if "autocast" in name:
            return func(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        # torch's functions take a dtype as an argument of its own; looking into every container would double the cost of small ops
        if any(type(a) is torch.dtype for a in args):
            args = tuple(_wide(a) if type(a) is torch.dtype else a for a in args)
        if any(type(a) is torch.dtype for a in kwargs.values()):
            kwargs = {k: _wide(a) if type(a) is torch.dtype else a for k, a in kwargs.items()}
        return func(*args, **kwargs)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in LOW_PRECISION else dtype


def power_of_two(value: float) -> float:
    """The power of two nearest to a positive number; anything else is given back."""
    return 2.0 ** round(math.log2(value)) if math.isfinite(value) and value > 0 else value


@contextlib.contextmanager
def world(policy: Policy) -> Iterator[None]:
    """Run under a policy: precision, loss scale, seeds, determinism, eager. Everything is put back on the way out.

    Python warnings that the run provokes are recorded, not raised; collect them with `warnings.catch_warnings` outside.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_autocast_state())
        stack.enter_context(_determinism())
        stack.enter_context(_generators())
        stack.enter_context(force_eager())
        patches = stack.enter_context(PatchSet())
        if policy.autocast != "as-written":
            _force_autocast(patches, getattr(torch, policy.autocast))
        if policy.scale is not None or policy.growth_interval is not None:
            _force_scalers(patches, policy)
        reseed(policy.seed)
        if policy.widen:
            _widen(stack, patches)
        yield


def _widen(stack: contextlib.ExitStack, patches: PatchSet) -> None:
    """Answer requests for 16-bit dtypes with float32, in backward too: a function mode is off while `Tensor.backward` runs."""
    autograd: Any = torch.autograd
    run = autograd._engine_run_backward

    def widened(*args: Any, **kwargs: Any) -> Any:
        with _Widen():
            return run(*args, **kwargs)

    patches.set(autograd, "_engine_run_backward", widened)
    stack.enter_context(_Widen())


@contextlib.contextmanager
def policy(autocast: AutocastChoice = "float32", *, scale: float | None = None, widen: bool = False) -> Iterator[None]:
    """Run code under a forced precision, as ampcheck's own scenarios do.

    Args:
        autocast: "float32", "float16", "bfloat16" or "as-written": the dtype of every region that the code enters enabled.
        scale: initial loss scale of every `torch.amp.GradScaler` that is made inside; a power of two keeps FP32 exact.
        widen: also answer explicit requests for 16-bit dtypes (`.half()`) with float32.

    Raises:
        PolicyError: for a dtype that is none of these.
    """
    if autocast not in ("as-written", "float32", "float16", "bfloat16"):
        raise PolicyError(f"policy({autocast!r}): choose 'float32', 'float16', 'bfloat16' or 'as-written'")
    with contextlib.ExitStack() as stack:
        stack.enter_context(_autocast_state())
        stack.enter_context(force_eager())
        patches = stack.enter_context(PatchSet())
        if autocast != "as-written":
            _force_autocast(patches, getattr(torch, autocast))
        if scale is not None:
            _force_scalers(patches, Policy(scale=scale))
        if widen:
            _widen(stack, patches)
        yield


# -- autocast -------------------------------------------------------------------------------------------------------


def _force_autocast(patches: PatchSet, dtype: torch.dtype) -> None:
    cls: Any = torch.amp.autocast_mode.autocast
    init, enter = cls.__init__, cls.__enter__

    def made(region: Any, device_type: str, dtype_: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
        # Activation checkpointing builds its regions anew from the dtype in force, float32 here, which torch refuses.
        asked = kwargs.pop("dtype", dtype_)
        if asked is None and device_type in ("cpu", "cuda"):
            asked = torch.get_autocast_dtype(device_type)
        swap = asked is torch.float32 and dtype is torch.float32
        if device_type == "cuda" and asked in LOW_PRECISION:
            swap_in = torch.float16  # a card without bfloat16 can still run it in FP32
            init(region, device_type, swap_in if dtype is torch.float32 else asked, *args, **kwargs)
            region.fast_dtype = asked
            return
        init(region, device_type, torch.bfloat16 if swap else asked, *args, **kwargs)
        if swap:
            region.fast_dtype = torch.float32

    def entered(region: Any) -> Any:
        written = region.fast_dtype
        if region._enabled:
            region.fast_dtype = dtype
        try:
            return enter(region)
        finally:
            region.fast_dtype = written

    if dtype is torch.float32:
        _keep_recurrences(patches)
    cast = torch.amp.autocast_mode._cast

    def cast_inputs(value: Any, device_type: str, wanted: torch.dtype) -> Any:
        return cast(value, device_type, dtype if wanted in LOW_PRECISION else wanted)

    patches.set(cls, "__init__", made)
    patches.set(cls, "__enter__", entered)
    patches.set(torch.amp.autocast_mode, "_cast", cast_inputs)


def _keep_recurrences(patches: PatchSet) -> None:
    """Recurrences of cuDNN run in half under any autocast region, whatever its dtype: in an FP32 world they are taken out of it."""
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        original = getattr(torch._VF, name)

        def recurrence(*args: Any, _original: Any = original) -> Any:
            if not torch.is_autocast_enabled("cuda"):
                return _original(*args)
            args = tree_map_only(torch.Tensor, lambda t: t.float() if t.dtype in LOW_PRECISION else t, args)
            with torch.autocast("cuda", enabled=False):
                return _original(*args)

        patches.set(torch._VF, name, recurrence)


@contextlib.contextmanager
def _autocast_state() -> Iterator[None]:
    """Put autocast's own state back: enabled, dtype, cache, nesting, for the CPU and CUDA."""
    from ampcheck._compat import autocast_nesting

    devices = ["cpu", "cuda"]
    before = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    cache, nesting = torch.is_autocast_cache_enabled(), autocast_nesting()
    try:
        yield
    finally:
        for device, enabled, dtype in before:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(cache)
        while autocast_nesting() > nesting:
            torch.autocast_decrement_nesting()
        while autocast_nesting() < nesting:
            torch.autocast_increment_nesting()
        if nesting == 0:
            torch.clear_autocast_cache()


# -- the loss scale -------------------------------------------------------------------------------------------------


def _force_scalers(patches: PatchSet, policy: Policy) -> None:
    cls = torch.amp.GradScaler
    init, update, load, set_interval = cls.__init__, cls.update, cls.load_state_dict, cls.set_growth_interval
    made_so_far: list[int] = []

    def force(scaler: Any, rank: int) -> None:
        if not scaler.is_enabled():
            return
        if policy.scale is not None:
            scaler._init_scale = policy.scale * (1.0 if policy.scale == 1.0 else 8.0 ** -(rank % 4))
            scaler._init_growth_tracker = 0
            if scaler._scale is not None:
                scaler._scale.fill_(scaler._init_scale)
                scaler._growth_tracker.fill_(0)
            # factors that are not powers of two would make FP32 inexact
            for name, plain in (("_growth_factor", 2.0), ("_backoff_factor", 0.5)):
                factor = getattr(scaler, name)
                if factor != power_of_two(factor):
                    setattr(scaler, name, plain)
        if policy.growth_interval is not None:
            scaler._growth_interval = policy.growth_interval

    def made(scaler: Any, *args: Any, **kwargs: Any) -> None:
        init(scaler, *args, **kwargs)
        scaler._ampcheck_rank = len(made_so_far)
        if scaler.is_enabled():
            made_so_far.append(id(scaler))
        force(scaler, scaler._ampcheck_rank)

    def loaded(scaler: Any, state: Any) -> None:
        load(scaler, state)
        force(scaler, getattr(scaler, "_ampcheck_rank", 0))

    def updated(scaler: Any, new_scale: Any = None) -> None:
        if new_scale is not None and policy.scale is not None:
            number = power_of_two(float(new_scale))
            new_scale = new_scale.fill_(number) if isinstance(new_scale, torch.Tensor) else number
        update(scaler, new_scale)

    def interval(scaler: Any, wanted: int) -> None:
        set_interval(scaler, wanted if policy.growth_interval is None else policy.growth_interval)

    patches.set(cls, "__init__", made)
    patches.set(cls, "load_state_dict", loaded)
    patches.set(cls, "update", updated)
    patches.set(cls, "set_growth_interval", interval)


# -- determinism ----------------------------------------------------------------------------------------------------


def reseed(seed: int) -> None:
    """Seed torch's, Python's and, where it is loaded, NumPy's global generators."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


@contextlib.contextmanager
def _generators() -> Iterator[None]:
    """Give the user's random numbers back as they were."""
    numpy = sys.modules.get("numpy")
    python, array = random.getstate(), None if numpy is None else numpy.random.get_state()
    cuda = torch.cuda.is_initialized()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if cuda else []):
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(array)


@contextlib.contextmanager
def _determinism() -> Iterator[None]:
    """TF32 off, deterministic algorithms where there are any (warn only), no NaN-filled `torch.empty`."""
    enabled, warn_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    deterministic: Any = torch.utils.deterministic
    fill = deterministic.fill_uninitialized_memory
    cudnn = torch.backends.cudnn
    flags = (cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.use_deterministic_algorithms(True, warn_only=True)
            cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32 = False, True, False
            torch.backends.cuda.matmul.allow_tf32 = False
        deterministic.fill_uninitialized_memory = False
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
            cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = flags
        deterministic.fill_uninitialized_memory = fill
