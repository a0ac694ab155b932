"""The table of optimizer state: bytes by slot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ampcheck.findings import ContractReport
from ampcheck.report.text import one_line

__all__ = ["state_lines", "state_rows"]


def state_rows(contract: ContractReport) -> list[dict[str, Any]]:
    """What the contract's optimizers keep, as it was recorded: a row for each class of optimizer."""
    rows = contract.facts.get("optimizer state", [])
    return rows if isinstance(rows, list) else []


def state_lines(contracts: list[ContractReport]) -> Iterator[str]:
    """A table of all contracts whose optimizers keep state: a line for each slot, and the sum for each class of optimizer."""
    cells = [("optimizer state", "optimizer", "slot", "dtype", "tensors", "elements", "bytes", "a parameter")]
    for contract in contracts:
        for row in state_rows(contract):
            name = f"{one_line(contract.contract, 120)} [{one_line(contract.device, 20)}]"
            kind = one_line(row["optimizer"], 40) + (f" x {row['optimizers']}" if row["optimizers"] > 1 else "")
            for slot, held in row["slots"].items():
                share = held["bytes"] / row["elements"] if row["elements"] else 0.0
                figures = (str(held["tensors"]), str(held["elements"]), str(held["bytes"]), f"{share:.4g}")
                cells.append((name, kind, one_line(slot, 40), one_line(held["dtype"], 40), *figures))
                name = kind = ""
    if len(cells) > 1:
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
        for line in cells:
            left = [cell.ljust(width) for cell, width in zip(line[:4], widths[:4], strict=True)]
            right = [cell.rjust(width) for cell, width in zip(line[4:], widths[4:], strict=True)]
            yield "  ".join([*left, *right]).rstrip()
