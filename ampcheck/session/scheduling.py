"""xdist: all items of one contract on one device go to one worker, which judges it once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

__all__ = ["group_of", "make_scheduler", "parts_of"]

ITEM = re.compile(
    r"(?P<contract>.+\[(?:.+-)?(?P<device>[a-z]+))-(?:(?P<check>AMP[1-9]\d\d)-(?P<slug>[a-z0-9-]+)|baseline)\]", re.DOTALL
)


def group_of(nodeid: str) -> str | None:
    """The part of an item's id that names its contract, parameters and device; None for ordinary tests."""
    found = ITEM.fullmatch(nodeid)
    return found["contract"] if found else None


def parts_of(nodeid: str) -> tuple[str, str, str, str]:
    """Contract, device, check, and slug with dtype, of the id of a contract's item."""
    found = ITEM.fullmatch(nodeid)
    if found is None or not found["check"]:
        raise ValueError(nodeid)
    name, _, params = found["contract"].removesuffix(found["device"]).rpartition("[")
    return f"{name}[{params[:-1]}]" if params else name, found["device"], found["check"], found["slug"]


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

        def remove_node(self, node: Any) -> str | None:
            """A contract that crashed its worker would crash the next one, at each of its items: it is not tried again."""
            workload = self.assigned_work[node]
            crashed = next((id for unit in workload.values() for id, done in unit.items() if not done), None)
            self.given_up: list[str] = []
            if crashed is not None and (group := group_of(crashed)):
                self.given_up = [id for id, done in workload[group].items() if not done and id != crashed]
                workload[group] = dict.fromkeys(workload[group], True)
            elif crashed is not None and dist in ("load", "worksteal"):
                workload[crashed][crashed] = True
            super().remove_node(node)
            return crashed

    return ContractScheduling(config, log)
