"""The dtype map of a model: its tree of modules with their dtypes, in which layers that are alike stand once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ampcheck.report.text import one_line

__all__ = ["MOST", "Module", "tree"]

#: Rows that are shown.
MOST = 200
#: A name is shown up to this length.
NAME = 120


@dataclass
class Module:
    """One row: how deep it stands, its name below its parent, class, dtypes, and how many alike it stands for."""

    depth: int
    name: str
    path: str
    kind: str
    parameters: str
    forward: list[tuple[str, int]]
    line: str
    alike: int = 1


@dataclass
class _Node:
    name: str
    path: str
    entry: Mapping[str, Any] = field(default_factory=dict)
    children: dict[str, _Node] = field(default_factory=dict)

    @property
    def looks(self) -> tuple[Any, ...]:
        """What makes two modules alike: everything but their names and how often they ran."""
        entry = self.entry
        own = (entry.get("kind"), entry.get("parameters"), tuple(sorted(entry.get("forward") or ())))
        return (*own, tuple((name, child.looks) for name, child in self.children.items()))


def tree(entries: Iterable[Mapping[str, Any]]) -> tuple[list[Module], int]:
    """The rows of the map.

    Args:
        entries: `modules` of a profile, in the order of the model.

    Returns:
        At most `MOST` rows, and how many are left out.
    """
    root = _Node("", "")
    for entry in entries:
        node, path = root, ""
        for part in filter(None, str(entry["module"]).split(".")):
            path = f"{path}.{part}" if path else part
            node = node.children.setdefault(part, _Node(part, path))
        node.entry = entry
    rows = list(_rows(root, 0))
    return rows[:MOST], max(len(rows) - MOST, 0)


def _rows(node: _Node, depth: int) -> Iterator[Module]:
    if node.entry:
        yield _row(node, depth, [node])
    inner = depth + bool(node.entry)
    children = list(node.children.values())
    while children:
        alike = [children[0]]
        if children[0].name.isdigit():
            looks = children[0].looks
            for other in children[1:]:
                if not (other.name.isdigit() and other.looks == looks):
                    break
                alike.append(other)
        if alike[0].entry:
            yield _row(alike[0], inner, alike)
            yield from list(_rows(alike[0], inner))[1:]
        else:
            yield from _rows(alike[0], inner)
        children = children[len(alike) :]


def _row(node: _Node, depth: int, alike: list[_Node]) -> Module:
    entry = node.entry
    name = node.name if len(alike) == 1 else f"{node.name} to {alike[-1].name}"
    return Module(
        depth,
        one_line(name, NAME) or "(the model)",
        one_line(node.path, NAME),
        one_line(entry["kind"], NAME),
        one_line(entry.get("parameters") or "", 60),
        [(one_line(dtype, 40), int(count)) for dtype, count in (entry.get("forward") or {}).items()],
        one_line(entry.get("line") or "", NAME),
        len(alike),
    )
