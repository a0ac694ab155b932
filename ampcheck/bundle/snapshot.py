"""Generators and states of a training at one moment: taken as tensors and plain data, and put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ampcheck.scenarios.drive import Built

__all__ = ["STATES_LIMIT", "generators", "known", "put_generators", "put_states", "states"]

#: Bytes of states that are kept; larger ones are left out, and the bundle says so.
STATES_LIMIT = 64 << 20


def generators() -> dict[str, Any]:
    """The state of Python's, NumPy's (where it is loaded) and torch's global generators, CUDA's where it has started."""
    version, internal, gauss = random.getstate()
    numpy = sys.modules.get("numpy")
    array = None
    if numpy is not None:
        kind, keys, position, has_gauss, cached = numpy.random.get_state()
        array = [str(kind), [int(k) for k in keys], int(position), int(has_gauss), float(cached)]
    cuda = [t.clone() for t in torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else []
    return {"python": [version, list(internal), gauss], "numpy": array, "torch": torch.get_rng_state(), "cuda": cuda}


def put_generators(kept: Mapping[str, Any]) -> Iterator[str]:
    """Put them back; yields what could not be."""
    version, internal, gauss = kept["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(kept["torch"])
    numpy, array = sys.modules.get("numpy"), kept["numpy"]
    if numpy is not None and array is not None:
        kind, keys, position, has_gauss, cached = array
        numpy.random.set_state((kind, numpy.array(keys, dtype="uint32"), position, has_gauss, cached))
    if kept["cuda"]:
        if torch.cuda.is_available() and torch.cuda.device_count() >= len(kept["cuda"]):
            torch.cuda.set_rng_state_all(kept["cuda"])
        else:
            yield "the generators of CUDA"


def _parts(built: Built) -> Iterator[tuple[str, Any]]:
    """Everything of a training that has a state, by a name that is the same in each build."""
    recorder = built.recorder
    yield from ((f"module {path}", module) for path, module in built.reach().modules.items())
    yield from ((f"optimizer {i}", optimizer) for i, optimizer in enumerate(recorder.optimizers))
    yield from ((f"scaler {i}", scaler) for i, scaler in enumerate(recorder.scalers))


def known(built: Built) -> Iterator[torch.Tensor]:
    """Every parameter, its gradient, every buffer, and the states of optimizers and scalers."""
    reached, recorder = built.reach(), built.recorder
    parameters: list[torch.Tensor] = [p for module in reached.modules.values() for p in module.parameters()]
    parameters += [p for index in range(len(recorder.optimizers)) for p in recorder.parameters(index)]
    yield from parameters
    yield from (p.grad for p in parameters if p.grad is not None)
    yield from (b for module in reached.modules.values() for b in module.buffers())
    for optimizer in recorder.optimizers:
        yield from _tensors([dict(getattr(optimizer, "state", {})), [dict(group) for group in optimizer.param_groups]])
    for scaler in recorder.scalers:
        yield from _tensors(dict(getattr(scaler, "__dict__", {})))


def states(built: Built, limit: int = STATES_LIMIT) -> dict[str, Any]:
    """State dicts of the modules, optimizers and scalers, copied to the CPU.

    Args:
        built: the training.
        limit: bytes; where they have more, none is kept.

    Returns:
        `kept`, `bytes`, `reason`, and `parts`: name -> state dict.
    """
    watch, size, found, left_out = built.recorder.scaler_watch, 0, {}, []
    with _disable_current_modes(), torch.no_grad():
        for name, part in _parts(built):
            asked = ("get_scale", id(part))  # state_dict() of a scaler asks itself for its scale; that is not the loop's doing
            held = asked in watch._inside
            watch._inside.add(asked)
            try:
                found[name] = part.state_dict()
                size += sum(t.numel() * t.element_size() for t in _tensors(found[name]))
            except Exception as error:  # a part of somebody else's
                left_out.append(f"{name} ({type(error).__name__})")
            finally:
                if not held:
                    watch._inside.discard(asked)
        if size > limit:
            reason = f"they have {size} bytes, more than the {limit} that are kept"
            return {"kept": False, "bytes": size, "reason": reason, "parts": {}}
        copied = {name: _copied(state) for name, state in found.items()}
    left_out += [f"{name} ({reason})" for name, (_, reason) in copied.items() if reason]
    parts = {name: state for name, (state, reason) in copied.items() if not reason}
    return {"kept": True, "bytes": size, "reason": f"without {', '.join(left_out)}" if left_out else "", "parts": parts}


def _copied(state: Any) -> tuple[Any, str]:
    """A copy of a state dict, or why there is none."""
    try:
        return plain(state, {}), ""
    except TypeError as error:
        return None, str(error)


def put_states(built: Built, kept: Mapping[str, Any]) -> Iterator[str]:
    """Load the states into a training that was just built; yields what could not be."""
    parts = dict(_parts(built))
    for name, state in kept["parts"].items():
        part = parts.get(name)
        try:
            if part is None:
                raise LookupError("it is not there any more")
            part.load_state_dict(state)
        except Exception as error:  # the project has changed since
            yield f"{name}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)


def plain(value: Any, copies: dict[int, torch.Tensor]) -> Any:
    """A copy of tensors and plain data on the CPU, without anything that a safe load refuses; shared tensors stay shared.

    Raises:
        TypeError: names what is neither.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided or value.is_quantized:
            raise TypeError(f"a tensor of the kind {type(value).__name__}")
        if id(value) not in copies:
            copies[id(value)] = value.detach().to("cpu", copy=True).contiguous()
        return copies[id(value)]
    if isinstance(value, Mapping):
        if not all(type(key) in (str, int) for key in value):
            raise TypeError("keys that are neither text nor numbers")
        return {key: plain(inner, copies) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        copied = [plain(inner, copies) for inner in value]
        return tuple(copied) if isinstance(value, tuple) else copied
    raise TypeError(f"an object of the kind {type(value).__name__}")
