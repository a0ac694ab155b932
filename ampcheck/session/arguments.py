"""Fixture values that a contract may not take: whatever a build would change under the next one."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["refusal"]

#: Values looked at; a list of a million numbers is not searched to its end.
MOST = 10_000


def refusal(values: Mapping[str, Any]) -> str | None:
    """Why these fixture values cannot be used, or None.

    Every scenario builds the training afresh, but a fixture's value is made once: a module, parameter, optimizer, loss
    scaler, schedule or iterator in it would carry what one run did to it into the next. Tensors and data are fine.

    Args:
        values: the contract's arguments, by the name of their fixture.
    """
    for name, value in values.items():
        kind = next((kind for held in _held(value) if (kind := _state(held))), None)
        if kind:
            return (
                f"fixture {name!r} is or holds {kind}, which the builds of this contract would share; "
                f"return a factory from the fixture (a function that makes a new one) and call it in the contract"
            )
    return None


def _state(value: object) -> str | None:
    """What kind of training state this is, with its article; None if it is none."""
    kind = type(value)
    torch = sys.modules.get("torch")  # while nobody has imported it, nothing can be one of its modules
    if torch is not None and isinstance(value, torch.nn.Module):
        return f"a module ({kind.__name__})"
    if torch is not None and isinstance(value, torch.nn.Parameter):
        return "a parameter"
    if hasattr(kind, "step") and hasattr(value, "param_groups"):
        return f"an optimizer ({kind.__name__})"
    if hasattr(kind, "step") and hasattr(kind, "get_last_lr"):
        return f"a learning-rate schedule ({kind.__name__})"
    if hasattr(kind, "step") and hasattr(kind, "scale"):
        return f"a loss scaler ({kind.__name__})"
    if hasattr(kind, "__next__"):
        return f"an iterator ({kind.__name__})"
    return None


def _held(value: object) -> Iterator[object]:
    """The value and what it holds, breadth first; not what a function closes over, for a factory is a function."""
    waiting, seen = [value], {id(value)}
    for looked_at, held in enumerate(waiting):
        if looked_at >= MOST:
            return
        if type(held).__module__.partition(".")[0] in ("pytest", "_pytest"):
            continue
        yield held
        for inner in _inside(held):
            if id(inner) not in seen:
                seen.add(id(inner))
                waiting.append(inner)


def _inside(value: Any) -> Iterable[object]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return value
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__self__]
    if isinstance(value, (type, types.FunctionType, types.ModuleType)):
        return []
    return list(getattr(value, "__dict__", {}).values())
