"""Settings of one session: the command line over pytest's ini over defaults. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """What the session asks for; a contract's own `Options` are added to it.

    Args:
        devices, dtypes, select, ignore, xfail, strict: as in `ampcheck.contract.Options`, for every contract.
        timeout: seconds that one scenario of one contract may take.
        budget: seconds for one contract; the cheapest families go first, the rest are not run. `None` is no limit.
        require: "judged" makes a contract of which nothing could be judged an error.
        json: where the JSON report goes.
    """

    devices: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    xfail: Mapping[str, str] = field(default_factory=dict)
    strict: bool | tuple[str, ...] = ()
    timeout: float = 300.0
    budget: float | None = None
    require: Literal["judged"] | None = None
    json: Path | None = None
