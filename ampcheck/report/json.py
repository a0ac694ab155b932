"""The JSON report: versioned, ordered, and free of absolute paths where they can be avoided."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ampcheck.findings import SCHEMA_VERSION, ContractReport, Finding, Report
from ampcheck.report.contracts import contract_entry
from ampcheck.report.files import put
from ampcheck.report.plain import plain
from ampcheck.report.state import state_rows
from ampcheck.report.text import relative

__all__ = ["document", "render", "write"]


def document(report: Report, root: Path) -> dict[str, Any]:
    """The report as JSON data.

    Args:
        report: what was concluded.
        root: the directory that the paths in it are made relative to (pytest's rootdir).

    Returns:
        `version`, `environment`, `findings` (those of a contract primary first, then by id), `items`, `costs`,
        `optimizer_state` (bytes by slot), `contracts` (settings, parity headroom and `ampcheck.profile.profile`), `baseline`
        (what they were compared with, or null) and `changes` since;
        entries carry the device beside the contract, since one contract may be judged on several.
    """
    contracts = report.contracts
    return {
        "version": SCHEMA_VERSION,
        "environment": plain(report.environment),
        "findings": [_finding(finding, contract, root) for contract in contracts for finding in contract.findings],
        "items": [{**plain(v.to_json()), "slug": v.slug, "device": c.device} for c in contracts for v in c.verdicts],
        "costs": [{"contract": c.contract, "device": c.device, **cost.to_json()} for c in contracts for cost in c.costs],
        "optimizer_state": [{"contract": c.contract, "device": c.device, **plain(r)} for c in contracts for r in state_rows(c)],
        "contracts": [contract_entry(c, root) for c in contracts],
        "baseline": plain(report.baseline),
        "changes": plain(report.changes),
    }


def render(document: Mapping[str, Any]) -> str:
    """The document as text; one that was read from a file comes out as it was."""
    return json.dumps(plain(document), indent=1, allow_nan=False) + "\n"


def write(report: Report, path: Path, root: Path) -> None:
    """Write `document` to a file, whose folder is made; the file is there whole or not at all."""
    put(path, render(document(report, root)))


def _finding(finding: Finding, contract: ContractReport, root: Path) -> dict[str, Any]:
    data: dict[str, Any] = plain(finding.to_json())
    if data["location"] is not None:
        data["location"]["file"] = relative(data["location"]["file"], root)
    return {**data, "device": contract.device}
