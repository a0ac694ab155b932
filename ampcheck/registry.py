"""The catalogue: which checks exist, under which ids, and how a user's `AMP1`, `AMP102` or typo is understood.

A check is one function in one file of `ampcheck/checks`; its docstring is its documentation. Importing this module does
not import torch.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ampcheck.errors import UsageError
from ampcheck.findings import Level, Location

if TYPE_CHECKING:
    from ampcheck.evidence import Evidence

__all__ = ["CHECKS", "Check", "Fault", "Inconclusive", "NotRun", "Note", "check", "expand", "load_checks", "matches"]


@dataclass(frozen=True)
class Fault:
    """A broken rule, as a check yields it. `level` None is the check's own; `follows` names a check that explains it."""

    seen: str
    location: Location | None = None
    expected: str = ""
    fix: str = ""
    level: Level | None = None
    evidence: Any = None
    follows: str | None = None


@dataclass(frozen=True)
class Inconclusive:
    """The rule was tried and cannot be decided; `reason` says why and what would help."""

    reason: str


@dataclass(frozen=True)
class NotRun:
    """The rule does not apply here or could not be tried; `reason` says why."""

    reason: str


@dataclass(frozen=True)
class Note:
    """The rule holds as far as the user's code goes; `reason` says what is worth knowing all the same (a kernel's own rounding)."""

    reason: str


Result = Fault | Inconclusive | NotRun | Note
CheckFunction = Callable[["Evidence"], Iterator[Result]]


@dataclass(frozen=True)
class Check:
    """One entry of the catalogue.

    Args:
        id: `AMPnnn`, for ever. The first digit is the family.
        slug: the rule in two or three words, as in item ids.
        level: what a fault counts as by default.
        expected: one line: what must hold.
        fix: one line: what usually mends it.
        follows: ids whose faults, if present in the same contract, explain a fault of this check.
        function: a pure function of the evidence; yields faults, or why there is no verdict; nothing, or a note, is "passed".
        per_dtype: whether there is one item for each 16-bit dtype.
    """

    id: str
    slug: str
    level: Level
    expected: str
    fix: str
    follows: tuple[str, ...]
    function: CheckFunction
    per_dtype: bool = False

    @property
    def doc(self) -> str:
        return (self.function.__doc__ or "").strip()

    @property
    def name(self) -> str:
        """`AMP102-clip-scaled-gradients`, as in pytest's item ids."""
        return f"{self.id}-{self.slug}"


CHECKS: dict[str, Check] = {}


def check(
    id: str, slug: str, *, level: Level = "error", expected: str, fix: str, follows: Iterable[str] = (), per_dtype: bool = False
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check; see `Check` for the arguments."""

    def register(function: CheckFunction) -> CheckFunction:
        if not re.fullmatch(r"AMP[1-9]\d\d", id):
            raise UsageError(f"check id {id!r} is not AMP and three digits")
        if id in CHECKS and CHECKS[id].function.__qualname__ != function.__qualname__:
            raise UsageError(f"check id {id} is taken by {CHECKS[id].slug}")
        CHECKS[id] = Check(id, slug, level, expected, fix, tuple(follows), function, per_dtype)
        return function

    return register


def load_checks() -> dict[str, Check]:
    """Import every module of `ampcheck.checks` and return the catalogue, ordered by id."""
    import ampcheck.checks

    for module in pkgutil.iter_modules(ampcheck.checks.__path__):
        importlib.import_module(f"ampcheck.checks.{module.name}")
    ordered = dict(sorted(CHECKS.items()))
    CHECKS.clear()
    CHECKS.update(ordered)
    return CHECKS


def matches(id: str, patterns: Iterable[str]) -> bool:
    """Whether `id` is one of `patterns` or starts with one of them."""
    return any(id.startswith(pattern.upper()) for pattern in patterns)


def expand(patterns: Iterable[str], where: str) -> list[str]:
    """The ids that the patterns name.

    Args:
        patterns: ids (`AMP102`, any case) or prefixes (`AMP1`).
        where: the setting they come from, for the message.

    Raises:
        UsageError: for a pattern that names nothing, with the nearest id.
    """
    catalogue = load_checks()
    found: list[str] = []
    for pattern in patterns:
        hits = [id for id in catalogue if matches(id, [pattern])] if re.fullmatch(r"AMP\d{0,3}", pattern.upper()) else []
        if not hits:
            names = [*catalogue, *(c.slug for c in catalogue.values())]
            near = difflib.get_close_matches(pattern.upper(), names, 1, 0.5) or difflib.get_close_matches(
                pattern.lower(), names, 1, 0.5
            )
            near = [next((c.id for c in catalogue.values() if c.slug == n), n) for n in near]
            hint = f"; did you mean {near[0]} ({catalogue[near[0]].slug})?" if near else ""
            raise UsageError(
                f"{where}: no check is called {pattern!r}{hint} `ampcheck list` shows all of them.".replace(
                    f"{hint} `", f"{hint or '.'} `"
                )
            )
        found += [id for id in hits if id not in found]
    return found
