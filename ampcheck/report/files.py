"""Files of reports: there whole or not at all."""

from __future__ import annotations

from pathlib import Path

__all__ = ["below_repository", "clear", "put"]


def clear(path: Path) -> None:
    """Make the folder and remove what an earlier run left: an old report must not pass for the one that a crash prevented.

    Raises:
        OSError: if the report could not be written there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)


def put(path: Path, text: str) -> None:
    """Write the text as UTF-8 with LF ends, beside the file first, then in its place.

    Raises:
        OSError: if that fails; the file is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def below_repository(root: Path) -> str:
    """A folder seen from the root of the repository that holds it, with `/`; empty if it is that root, or in none."""
    for folder in (root, *root.parents):
        if (folder / ".git").exists():
            below = root.relative_to(folder).as_posix()
            return "" if below == "." else below
    return ""
