"""xdist: all items of one contract on one device go to one worker, which judges it once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

__all__ = ["group_of", "make_scheduler"]

ITEM = re.compile(r"-AMP[1-9]\d\d-[a-z0-9-]+\]$")


def group_of(nodeid: str) -> str | None:
    """The part of an item's id that names its contract, parameters and device; None for ordinary tests."""
    found = ITEM.search(nodeid)
    return nodeid[: found.start()] if found else None


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler that the user asked for with `--dist`, changed so that contracts stay whole.

    Returns:
        None for `--dist=each`, where every worker judges everything.
    """
    from xdist.scheduler import (  # type: ignore[import-untyped]
        LoadFileScheduling,
        LoadGroupScheduling,
        LoadScopeScheduling,
    )

    # A single ordinary test is a group of its own in `loadgroup`, which is what `load` and `worksteal` amount to.
    bases = {"loadscope": LoadScopeScheduling, "loadfile": LoadFileScheduling}
    dist = config.getoption("dist")
    if dist == "each":
        return None
    base: Any = bases.get(dist, LoadGroupScheduling)

    class ContractScheduling(base):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid) or str(super()._split_scope(nodeid))

    return ContractScheduling(config, log)
