"""The one place where attributes of other people's objects are replaced, and put back exactly as they were."""

from __future__ import annotations

from types import TracebackType
from typing import Any

__all__ = ["PatchSet"]

_ABSENT = object()


class PatchSet:
    """A stack of attribute replacements; leaving it restores them in reverse order, whatever happened in between.

    An attribute that was inherited, not the object's own, is removed again instead of being written down on it.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, object]] = []

    def set(self, owner: Any, name: str, value: object) -> None:
        """Replace `owner.name` until the set is closed."""
        own = getattr(owner, "__dict__", {})
        before = own.get(name, _ABSENT) if name in own else _ABSENT
        if before is _ABSENT and not hasattr(owner, "__dict__"):
            before = getattr(owner, name)  # an object with __slots__: nothing is inherited by the instance
        setattr(owner, name, value)
        self._undo.append((owner, name, before))

    def close(self) -> None:
        """Put everything back; an error on one attribute does not keep the others from being restored."""
        errors: list[Exception] = []
        while self._undo:
            owner, name, before = self._undo.pop()
            try:
                if before is not _ABSENT:
                    setattr(owner, name, before)
                elif name in getattr(owner, "__dict__", {}):
                    delattr(owner, name)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def __enter__(self) -> PatchSet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
