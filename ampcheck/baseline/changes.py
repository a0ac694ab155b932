"""One thing that is not as it was: what the comparison says, and how much it weighs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

__all__ = ["FAILING", "Change", "Kind", "Verdict"]

Verdict = Literal["worse", "new", "better", "info"]
#: What the gate is there to stop.
FAILING = ("worse", "new")
#: What changes: each is also a word for `--ampcheck-accept`.
Kind = Literal["finding", "settings", "modules", "ops", "events", "state", "headroom", "judged", "contract", "environment"]


@dataclass(frozen=True)
class Change:
    """One difference, in a line.

    Args:
        kind: what it is a difference of.
        verdict: "worse" and "new" fail; "better" and "info" are told.
        text: the line, such as `encoder.norm: float32 -> bfloat16`.
        subject: what to look for where its place is wanted: a module's path, an event, or a check's id.
        accept: words that acknowledge it: the kind, and ids of checks.
        location: `{"file", "line", "function"}` in the user's code, where there is one.
    """

    kind: Kind
    verdict: Verdict
    text: str
    subject: str = ""
    accept: tuple[str, ...] = ()
    location: dict[str, Any] | None = None

    @property
    def fails(self) -> bool:
        return self.verdict in FAILING

    def told(self, why: str) -> Change:
        """The same where it must not fail, with the reason."""
        return replace(self, verdict="info", text=f"{self.text} ({why})") if self.fails else self

    def to_json(self, contract: str, device: str) -> dict[str, Any]:
        """An entry of the document's `changes`."""
        what = {"kind": self.kind, "verdict": self.verdict, "text": self.text, "location": self.location}
        return {"contract": contract, "device": device, **what}
