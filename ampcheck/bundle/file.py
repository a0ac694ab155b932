"""The file: a zip of tensors and plain data as `torch.save` writes it, read with `weights_only`, which builds nothing else."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ampcheck.errors import UsageError

__all__ = ["FORMAT", "LARGEST", "MOST_CALLS", "SUFFIX", "VERSION", "read", "write"]

FORMAT, VERSION = "ampcheck evidence", 1
SUFFIX = ".ampcheck.pt"
#: Bytes that a file may have, unpacked, to be looked at. One that we write has at most what `keeper` and the option allow.
LARGEST = 1 << 30
#: Calls of the step that a replay makes at most; a contract declares some.
MOST_CALLS = 10_000
#: All that is in a file of ours; TorchScript archives, which hold code, have more.
_MEMBERS = re.compile(
    r"[^/]+/(data\.pkl|data/\d+|version|byteorder|\.data/serialization_id|\.format_version|\.storage_alignment)"
)
#: Keys that every bundle has, with their types.
_SHAPE: dict[str, tuple[type, ...]] = {
    "contract": (str,),
    "device": (str,),
    "call": (int,),
    "why": (list,),
    "environment": (dict,),
    "scale": (list,),
    "steps": (list,),
    "judged": (dict,),
    "rng": (dict,),
    "states": (dict,),
    "batch": (dict,),
    "findings": (list,),
    "first_nonfinite": (dict, type(None)),
    "first_module": (dict, type(None)),
}


def write(data: Mapping[str, Any], path: Path) -> None:
    """Write a bundle; the file is there whole, and known to load again, or not at all.

    Args:
        data: tensors and plain data under the keys of a bundle, without its header.
        path: where it goes; folders are made.

    Raises:
        OSError: if it cannot be written.
        UsageError: if it would not load again.
    """
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    try:
        torch.save({"format": FORMAT, "version": VERSION, **data}, part)
        read(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read(path: Path, largest: int = LARGEST) -> dict[str, Any]:
    """Load a bundle, on the CPU, without executing anything that it holds.

    Args:
        path: the file.
        largest: bytes that it may have, unpacked.

    Raises:
        UsageError: says why the file is refused: it is not there, too large, cut short, no bundle, a newer one, or holds more
            than tensors and plain data.
    """
    _look(path, largest)
    import torch

    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever is wrong inside it: torch raises many kinds
        if "weights" in str(error).lower() or "unsupported" in str(error).lower():
            raise UsageError(
                f"{path}: refused: it holds objects other than tensors and plain data, and nothing of it was run"
            ) from None
        raise UsageError(f"{path}: refused: it is damaged ({type(error).__name__})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"{path}: refused: it loads, and is not an evidence bundle of ampcheck")
    version = data.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise UsageError(f"{path}: refused: {version!r} is not a version of the format")
    if version > VERSION:
        raise UsageError(
            f"{path}: refused: it was written by a newer ampcheck (format {version}; this one reads {VERSION}); update ampcheck"
        )
    for key, types in _SHAPE.items():
        if not isinstance(data.get(key), types) or (key not in data):
            raise UsageError(f"{path}: refused: its {key!r} is missing or of the wrong kind")
    if not 0 <= data["call"] <= MOST_CALLS or isinstance(data["call"], bool):
        raise UsageError(f"{path}: refused: it is of a call that there cannot be")
    return data


def _look(path: Path, largest: int) -> None:
    """Refuse by the outside: what kind of file it is, how large it becomes, and which members it has."""
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file")
    if path.stat().st_size > largest:
        raise UsageError(
            f"{path}: refused: {path.stat().st_size} bytes, more than the {largest} that are looked at (--largest)"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError):
        raise UsageError(f"{path}: refused: it is not an evidence bundle, or was cut short (no zip archive)") from None
    strange = next((m.filename for m in members if not _MEMBERS.fullmatch(m.filename)), None)
    if strange is not None or not members:
        raise UsageError(f"{path}: refused: it is not an evidence bundle (it has a member {strange!r})")
    if any(m.compress_type != zipfile.ZIP_STORED for m in members) or sum(m.file_size for m in members) > largest:
        raise UsageError(f"{path}: refused: it unpacks to more than the {largest} bytes that are looked at (--largest)")
