"""The part of the document that says what each contract does: settings, parity headroom, profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ampcheck.findings import ContractReport
from ampcheck.report.plain import plain
from ampcheck.report.text import relative

__all__ = ["contract_entry", "relative_lines"]


def contract_entry(contract: ContractReport, root: Path) -> dict[str, Any]:
    """One entry of the document's `contracts`; lines in it are relative to `root`."""
    facts = contract.facts
    return {
        "contract": contract.contract,
        "device": contract.device,
        "judged": facts.get("judged", contract.judged),
        "notes": plain(facts.get("notes", [])),
        "headroom": plain(facts.get("headroom", {})),
        "settings": plain(facts.get("settings", {})),
        "evidence": relative(facts["evidence"], root) if facts.get("evidence") else None,
        "profile": relative_lines(plain(facts.get("profile", {})), root),
    }


def relative_lines(profile: dict[str, Any], root: Path) -> dict[str, Any]:
    """A profile whose lines are given relative to `root`."""

    def seen(line: str | None) -> str | None:
        file, _, number = (line or "").rpartition(":")
        return f"{relative(file, root)}:{number}" if file else line

    found = dict(profile)
    for key in ("modules", "ops"):
        found[key] = [{**row, "line": seen(row.get("line"))} for row in profile.get(key, ())]
    found["places"] = {name: seen(line) for name, line in profile.get("places", {}).items()}
    found["first_nonfinite"] = first = profile.get("first_nonfinite")
    if first is not None:
        found["first_nonfinite"] = {**first, "line": seen(first["line"])}
    return found
