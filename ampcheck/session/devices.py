"""Which devices there are, asked without starting CUDA."""

from __future__ import annotations

import difflib

from ampcheck.errors import UsageError

__all__ = ["check_device", "default_device", "missing"]

#: Device types that need no torch to be understood.
KNOWN = ("cpu", "cuda", "mps", "xpu", "hpu", "mtia")


def default_device() -> str:
    """`"cuda"` where there is a GPU, else `"cpu"`."""
    import torch

    # The count is read from the driver's management library; `is_available` would start CUDA, after which no fork works.
    return "cuda" if torch.cuda.device_count() > 0 else "cpu"


def check_device(name: str, where: str) -> str:
    """The device type, if it is one.

    Args:
        name: what the user wrote.
        where: the setting it comes from.

    Raises:
        UsageError: for an index (`cuda:1`), `meta`, and names that torch does not know, with the nearest one.
    """
    if name in KNOWN:
        return name
    kind, _, index = name.partition(":")
    if index and kind in KNOWN:
        raise UsageError(f"{where}: give a device type, {kind!r}, without an index; CUDA_VISIBLE_DEVICES chooses which one")
    import torch

    try:
        if name != "meta" and torch.device(name).type == name:
            return name
    except RuntimeError:
        pass
    near = difflib.get_close_matches(kind.lower(), KNOWN, 1, 0.5)
    hint = f"; did you mean {near[0]!r}?" if near else f" (known are {', '.join(KNOWN)})"
    raise UsageError(f"{where}: there is no device type {name!r} to train on{hint}")


def missing(device: str) -> str | None:
    """Why nothing can run on this device type; None if something can."""
    if device == "cpu":
        return None
    import torch

    module = getattr(torch, device, None)
    if module is not None and module.is_available():
        return None
    return f"there is no {device} device: torch {torch.__version__} sees none"
