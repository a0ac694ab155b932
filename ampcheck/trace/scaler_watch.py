"""Turns what is done with a loss scaler into events: torch's class, its subclasses, and declared ones of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.trace.events import Event, ScalerInfo
from ampcheck.trace.sources import user_site

if TYPE_CHECKING:
    from ampcheck.trace.recorder import Recorder

__all__ = ["ScalerWatch", "describe"]


class ScalerWatch:
    """The scaler part of a `Recorder`; see there."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._inside: set[tuple[str, int]] = set()

    def patch_class(self, cls: type) -> None:
        """Watch a scaler class and every subclass of it that overrides something."""
        for name, method in SCALER_METHODS.items():
            if name in vars(cls) and getattr(vars(cls)[name], "__ampcheck__", None) is not self:
                self.recorder.patches.set(cls, name, self._wrapped(vars(cls)[name], method))
        subclasses: list[type] = cls.__subclasses__()
        for subclass in subclasses:
            self.patch_class(subclass)

    def _wrapped(self, original: Callable[..., Any], method: Callable[..., Any]) -> Callable[..., Any]:
        name = getattr(original, "__name__", "")

        def wrapper(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            key = (name, id(scaler))
            if key in self._inside:  # a subclass calls super()
                return original(scaler, *args, **kwargs)
            if name == "__init__":  # a subclass may have been defined after the recorder began
                self.patch_class(type(scaler))
            self._inside.add(key)
            try:
                return method(self, scaler, lambda *a, **k: original(scaler, *a, **k), args, kwargs)
            finally:
                self._inside.discard(key)

        wrapper.__name__ = name
        wrapper.__wrapped__ = original  # type: ignore[attr-defined]
        wrapper.__ampcheck__ = self  # type: ignore[attr-defined]
        return wrapper

    def watch_custom(self, scaler: Any) -> None:
        """Watch a declared scaler that torch's class knows nothing of."""
        self.recorder.scaler_index(scaler, custom=True)
        for name, method in SCALER_METHODS.items():
            bound = getattr(scaler, name, None)
            if name == "__init__" or not callable(bound):
                continue
            wrapper = self._bound(bound, method, name, scaler)
            try:
                self.recorder.patches.set(scaler, name, wrapper)
            except AttributeError:  # __slots__: the class it is, then
                self.recorder.patches.set(type(scaler), name, self._wrapped(vars(type(scaler))[name], method))

    def _bound(self, bound: Callable[..., Any], method: Callable[..., Any], name: str, scaler: Any) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            key = (name, id(scaler))
            if key in self._inside:
                return bound(*args, **kwargs)
            self._inside.add(key)
            try:
                return method(self, scaler, bound, args, kwargs)
            finally:
                self._inside.discard(key)

        wrapper.__wrapped__ = bound  # type: ignore[attr-defined]
        return wrapper

    def _init(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> None:
        original(*args, **kwargs)
        index = self.recorder.scaler_index(scaler)
        info = self.recorder.trace.scalers[index]
        named = dict(
            zip(("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"), args, strict=False)
        )
        info.asked_enabled = bool({**named, **kwargs}.get("enabled", True))
        info.site = user_site(2)
        self.recorder.emit("scaler_made", scaler=index, site=info.site)

    def _scale(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        index = self.recorder.scaler_index(scaler)
        with self.recorder.around("scale", scaler=index, enabled=_enabled(scaler)) as event:
            result = original(*args, **kwargs)
        event.data["scale"] = scale = self.current_scale(scaler)
        outputs = result if isinstance(result, (list, tuple)) else [result]
        for output in outputs:
            if isinstance(output, torch.Tensor) and output.grad_fn is not None and _enabled(scaler):
                self.recorder.scaled_nodes[id(output.grad_fn)] = (output.grad_fn, index, scale)
        if args and _enabled(scaler):
            for probe in self.recorder.probes:
                probe.scaled(self.recorder, event, args[0])
        return result

    def _unscale(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        index, optimizer = self.recorder.scaler_index(scaler), args[0] if args else kwargs.get("optimizer")
        inside = bool(self.recorder.open) and self.recorder.trace.events[self.recorder.open[-1]].kind == "scaler_step"
        with self.recorder.around(
            "unscale",
            scaler=index,
            optimizer=self.recorder.optimizer_index(optimizer),
            implicit=inside,
            enabled=_enabled(scaler),
        ) as event:
            assert event.optimizer is not None
            event.data["touched"] = self.recorder.ledger.touched(self.recorder.parameters(event.optimizer))
            for probe in self.recorder.probes:
                probe.unscale(self.recorder, event, optimizer, True)
            result = original(*args, **kwargs)
        event.data["done"] = True
        self.recorder.ledger.unscaled(self.recorder.parameters(event.optimizer))
        for probe in self.recorder.probes:
            probe.unscale(self.recorder, event, optimizer, False)
        self.recorder.unscaled(event.optimizer, optimizer)
        return result

    def _step(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        index, optimizer = self.recorder.scaler_index(scaler), args[0] if args else kwargs.get("optimizer")
        which = self.recorder.optimizer_index(optimizer)
        before = len(self.recorder.trace.events)
        with self.recorder.around(
            "scaler_step", scaler=index, optimizer=which, enabled=_enabled(scaler), **_extra(args[1:], kwargs)
        ) as event:
            parameters = self.recorder.parameters(which)
            event.data["written"] = self.recorder.ledger.written(parameters)
            event.data.update(self.recorder.ledger.at_step(parameters, which, self.recorder.engine_depth > 0))
            scale_before = self.current_scale(scaler)
            for probe in self.recorder.probes:
                probe.scaler_step(self.recorder, event, optimizer, True)
            result = original(*args, **kwargs)
        within = self.recorder.trace.events[before + 1 :]
        inner = [e for e in within if e.kind == "optimizer_step" and e.optimizer == which]
        asked = any(e.kind == "step_asked" and e.optimizer == which for e in within)
        if any(e.kind == "backward" for e in within):  # of a closure: what was there before it is not what is used
            event.data |= {"reused": 0, "tainted": 0, "cleared": False}
        event.data["took"] = asked or any(e.get("took") for e in inner)
        event.data["done"] = True
        if self.recorder.trace.scalers[index].custom:
            event.data["before"], event.data["after"] = scale_before, self.current_scale(scaler)
        if not asked:
            self.recorder.ledger.used(self.recorder.parameters(which), which)
        for probe in self.recorder.probes:
            probe.scaler_step(self.recorder, event, optimizer, False)
        if self.recorder.trace.scalers[index].custom and not self.has_update(scaler):
            self._updated(event, index)
        return result

    def _update(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        index = self.recorder.scaler_index(scaler)
        new = args[0] if args else kwargs.get("new_scale")
        facts = {
            "before": self.current_scale(scaler),
            "new_scale": _number(new),
            "found_inf": _found_inf(scaler),
            **_growth_rule(scaler),
        }
        with self.recorder.around("update", scaler=index, enabled=_enabled(scaler), **facts) as event:
            result = original(*args, **kwargs)
        event.data["after"] = self.current_scale(scaler)
        event.data["done"] = True
        if facts["new_scale"] is None or event.data["after"] != facts["before"]:  # setting the scale that it has ends nothing
            self._updated(event, index)
        return result

    def _updated(self, event: Event, index: int) -> None:
        self.recorder.ledger.updated(index)
        self.recorder.scaled_nodes = {k: v for k, v in self.recorder.scaled_nodes.items() if v[1] != index}
        for probe in self.recorder.probes:
            probe.updated(self.recorder, event)

    def _get_scale(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        self.recorder.emit("get_scale", scaler=self.recorder.scaler_index(scaler))
        return result

    def _load(self, scaler: Any, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with self.recorder.around("load_state", scaler=self.recorder.scaler_index(scaler)):
            return original(*args, **kwargs)

    def current_scale(self, scaler: Any) -> float:
        """The scale that is in force now, without leaving an event; 1 where there is none to be had."""
        if isinstance(scaler, torch.amp.GradScaler):
            if not scaler.is_enabled():
                return 1.0
            scale = scaler._scale
            return float(scaler._init_scale if scale is None else scale)
        inside = ("get_scale", id(scaler))
        held = inside in self._inside
        self._inside.add(inside)
        try:
            for name in ("get_scale", "loss_scale", "scale_value", "cur_scale", "_scale"):
                value = getattr(scaler, name, None)
                if name == "get_scale" and callable(value):
                    value = value()
                number = _number(value)
                if number is not None:
                    return number
            return 1.0
        finally:
            if not held:
                self._inside.discard(inside)

    @staticmethod
    def has_update(scaler: Any) -> bool:
        return callable(getattr(scaler, "update", None))


SCALER_METHODS: dict[str, Callable[..., Any]] = {
    "__init__": ScalerWatch._init,
    "scale": ScalerWatch._scale,
    "unscale_": ScalerWatch._unscale,
    "step": ScalerWatch._step,
    "update": ScalerWatch._update,
    "get_scale": ScalerWatch._get_scale,
    "load_state_dict": ScalerWatch._load,
}


def _enabled(scaler: Any) -> bool:
    enabled = getattr(scaler, "is_enabled", None)
    return bool(enabled()) if callable(enabled) else True


def _extra(args: Any, kwargs: Any) -> dict[str, Any]:
    """What `step` is given beyond the optimizer, where that is plain data."""
    rest = {k: v for k, v in kwargs.items() if k != "optimizer"}
    facts: dict[str, Any] = {"extra": len(args) + len(rest)}
    if all(v is None or isinstance(v, (bool, int, float, str)) for v in [*args, *rest.values()]):
        facts |= {"args": tuple(args), "kwargs": rest}
    return facts


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _found_inf(scaler: Any) -> bool | None:
    states = getattr(scaler, "_per_optimizer_states", None)
    if not isinstance(states, dict):
        return None
    return any(bool(f.any()) for s in states.values() for f in s.get("found_inf_per_device", {}).values())


def _growth_rule(scaler: Any) -> dict[str, Any]:
    """What torch's own update() is about to go by; nothing for a scaler whose update() is its own."""
    if not isinstance(scaler, torch.amp.GradScaler) or not scaler.is_enabled() or not _torch_update(type(scaler)):
        return {}
    return {
        "tracker": scaler._get_growth_tracker(),
        "interval": scaler.get_growth_interval(),
        "growth": scaler.get_growth_factor(),
        "backoff": scaler.get_backoff_factor(),
    }


def _torch_update(cls: type) -> bool:
    owner = next(c for c in cls.__mro__ if "update" in vars(c))
    return owner.__module__.startswith("torch.")


def describe(scaler: Any, custom: bool) -> ScalerInfo:
    """A scaler as data."""
    arguments = {
        name.lstrip("_"): _number(getattr(scaler, name, None))
        for name in ("_init_scale", "_growth_factor", "_backoff_factor", "_growth_interval")
        if hasattr(scaler, name)
    }
    return ScalerInfo(
        type(scaler).__name__,
        _enabled(scaler),
        custom,
        device=str(getattr(scaler, "_device", "")),
        arguments=arguments,
        site=user_site(3),
    )
