"""What a scaler can do: declared by its author, or read from its own attributes. Nothing is called but getters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from ampcheck.errors import UsageError
from ampcheck.scaler.model import Refill, ScalerModel

__all__ = ["Capabilities", "Source", "attributes", "takes_new_scale"]

Source = Literal["declared", "attribute", "measured", "default"]

#: Names that scalers give to one thing, torch's own first: only those are sure to mean what torch means.
TORCH_NAMES = {
    "growth_interval": ("get_growth_interval", "growth_interval", "_growth_interval"),
    "growth_factor": ("get_growth_factor", "growth_factor", "_growth_factor"),
    "backoff_factor": ("get_backoff_factor", "backoff_factor", "_backoff_factor"),
}
OTHER_NAMES = {
    "growth_interval": ("scale_window", "_scale_window", "loss_scale_window", "scale_seq_len", "_scale_seq_len"),
    "growth_factor": ("scale_factor", "_scale_factor"),
    "backoff_factor": (),
    "min_scale": ("min_scale", "_min_scale", "min_loss_scale", "_min_loss_scale"),
    "max_scale": ("max_scale", "_max_scale", "max_loss_scale", "_max_loss_scale"),
    "hysteresis": ("hysteresis", "_hysteresis", "delayed_shift", "_delayed_shift"),
}
SENSIBLE: dict[str, Callable[[float], bool]] = {
    "growth_interval": lambda value: value >= 1 and value == int(value),
    # A `scale_factor` of 65536 is a loss scale, not a factor.
    "growth_factor": lambda value: 1.0 < value <= 64.0,
    "backoff_factor": lambda value: 0.0 < value < 1.0,
    "min_scale": lambda value: math.isfinite(value) and value >= 0.0,
    "max_scale": lambda value: math.isfinite(value) and value > 0.0,
    "hysteresis": lambda value: value >= 1 and value == int(value),
}


def _number(scaler: Any, name: str) -> float | None:
    try:
        value = getattr(scaler, name)
        if callable(value):
            value = value()
        return None if isinstance(value, (bool, str)) else float(value)
    # A user's property may raise anything; what cannot be read is not known.
    except Exception:
        return None


def attributes(scaler: Any, *, torch_names_only: bool = False) -> dict[str, float]:
    """Parameters that `scaler` shows as attributes or torch-like getters: `growth_interval`, `growth_factor`,
    `backoff_factor`, `min_scale`, `max_scale`, `hysteresis`, as far as they are there and make sense.

    Args:
        scaler: any object.
        torch_names_only: leave out names, such as `scale_window`, that other libraries use in their own sense.
    """
    found: dict[str, float] = {}
    for what, sensible in SENSIBLE.items():
        names: tuple[str, ...] = TORCH_NAMES.get(what, ())
        if not torch_names_only:
            names += OTHER_NAMES.get(what, ())
        for name in names:
            value = _number(scaler, name)
            if value is not None and sensible(value):
                found[what] = value
                break
    if "backoff_factor" not in found and not torch_names_only:
        factor = next((v for n in OTHER_NAMES["growth_factor"] if (v := _number(scaler, n)) is not None), 0.0)
        if SENSIBLE["growth_factor"](factor):
            found["backoff_factor"] = 1.0 / factor
    return found


def takes_new_scale(scaler: Any) -> bool:
    """Whether `update(new_scale)` is there, as in torch."""
    try:
        return "new_scale" in inspect.signature(scaler.update).parameters
    except (AttributeError, TypeError, ValueError):
        return False


@dataclass(frozen=True)
class Capabilities:
    """What `ampcheck.scaler_contract` holds a scaler to. Whatever is not declared is read from the scaler's attributes,
    then (interval, factors, and a cap or floor that the scale was seen to move to) measured, then torch's default.

    Args:
        growth_factor, backoff_factor, growth_interval, min_scale, max_scale, hysteresis, refill, static, skips: as in
            `ampcheck.scaler.model.ScalerModel`.
        optimizers: how many optimizers one iteration may have, 1 or 2.
        sparse: gradients may be sparse.
        unscale: `unscale_(optimizer)` exists.
        update: `update()` ends the iteration; `False`: the end of `step` does.
        new_scale: `update(new_scale)` sets the scale.
        saves: `state_dict` and `load_state_dict` exist.
        step_args, step_kwargs: further arguments of `step(optimizer, ...)`, plain data.
    """

    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int | None = 2000
    min_scale: float = 0.0
    max_scale: float | None = None
    hysteresis: int = 1
    refill: Refill = "growth"
    static: bool = False
    skips: bool = True
    optimizers: int = 2
    sparse: bool = True
    unscale: bool = True
    update: bool = True
    new_scale: bool = True
    saves: bool = True
    step_args: tuple[Any, ...] = ()
    step_kwargs: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict, repr=False)

    @classmethod
    def validate(cls, declared: Mapping[str, Any]) -> None:
        """Raise `UsageError` for a capability that does not exist or makes no sense, with the legal ones."""
        legal = [f.name for f in fields(cls) if f.name != "sources"]
        for name, value in declared.items():
            if name not in legal:
                raise UsageError(f"no capability of a scaler is called {name!r}; there are {', '.join(legal)}")
            unlimited = value is None and name in ("growth_interval", "max_scale")
            if name in SENSIBLE and not unlimited and not SENSIBLE[name](value):
                raise UsageError(f"capability {name}={value!r} makes no sense")
        if declared.get("refill", "growth") not in ("growth", "clean"):
            raise UsageError(f"capability refill={declared['refill']!r}: the tolerance is refilled by 'growth' or 'clean'")
        if declared.get("optimizers", 1) not in (1, 2):
            raise UsageError(f"capability optimizers={declared['optimizers']!r} must be 1 or 2")

    @classmethod
    def of(cls, scaler: Any, declared: Mapping[str, Any]) -> Capabilities:
        """Declared over attributes over torch's defaults.

        Raises:
            UsageError: as `validate`.
        """
        cls.validate(declared)
        seen: dict[str, Any] = dict(attributes(scaler))
        for whole in ("growth_interval", "hysteresis"):
            if whole in seen:
                seen[whole] = int(seen[whole])
        if getattr(scaler, "consecutive_hysteresis", None) is True:
            seen["refill"] = "clean"
        methods = ("unscale_", "update", "state_dict", "load_state_dict")
        has = {name for name in methods if callable(getattr(scaler, name, None))}
        seen["unscale"] = "unscale_" in has
        seen["update"] = "update" in has
        seen["new_scale"] = takes_new_scale(scaler)
        seen["saves"] = {"state_dict", "load_state_dict"} <= has
        values = {**seen, **declared}
        if not values["update"]:
            values["optimizers"] = 1
        sources: dict[str, Source] = {f.name: "default" for f in fields(cls) if f.name != "sources"}
        sources.update(dict.fromkeys(seen, "attribute"))
        sources.update(dict.fromkeys(declared, "declared"))
        return cls(**values, sources=sources)

    def measured(self, **values: Any) -> Capabilities:
        """A copy with what was measured, where nothing better was known."""
        new = {name: value for name, value in values.items() if self.sources[name] == "default"}
        sources: dict[str, Source] = {**self.sources, **dict.fromkeys(new, "measured")}
        return replace(self, **new, sources=sources)

    def settled_in_step(self) -> Capabilities:
        """A copy for a scaler whose `step` moves the scale: its `update` has nothing to do."""
        return replace(self, update=False, new_scale=False, optimizers=1, sources={**self.sources, "update": "measured"})

    def model(self, scale: float) -> ScalerModel:
        """The reference scaler with these capabilities, at `scale`."""
        names = {f.name for f in fields(self)} & {f.name for f in fields(ScalerModel)}
        return ScalerModel(scale, **{name: getattr(self, name) for name in names})

    def describe(self) -> str:
        """What the scaler is held to, and where each value is from."""
        shown = ["static"] if self.static else ["growth_factor", "backoff_factor", "growth_interval", "hysteresis"]
        shown += [name for name in ("min_scale", "max_scale") if getattr(self, name)]
        return ", ".join(f"{name}={getattr(self, name)} ({self.sources[name]})" for name in shown)
