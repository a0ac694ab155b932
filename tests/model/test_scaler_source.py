"""The lines that rebuild what a factory builds."""

from __future__ import annotations

import functools

import torch
import torch.amp as precision

from ampcheck.scaler.source import factory_source


class Mine(torch.amp.GradScaler):
    def __init__(self, device: str = "cpu", init_scale: float = 8.0) -> None:
        super().__init__(device, init_scale)


def make() -> Mine:
    return Mine("cpu")


def built(factory: object) -> object:
    names: dict[str, object] = {}
    exec("\n".join(factory_source(factory)), names)  # type: ignore[arg-type]
    return names["build_scaler"]()  # type: ignore[operator]


def test_every_kind_of_factory_is_rebuilt() -> None:
    indented = lambda: Mine("cpu", init_scale=2.0)  # noqa: E731
    factories = [
        Mine,
        make,
        functools.partial(Mine, "cpu", init_scale=2.0),
        indented,
        lambda: precision.GradScaler("cpu", growth_interval=len("abc")),
    ]
    for factory in factories:
        ours, theirs = factory(), built(factory)
        assert type(ours) is type(theirs)
        assert ours.get_scale() == theirs.get_scale()  # type: ignore[attr-defined]
        assert ours.get_growth_interval() == theirs.get_growth_interval()  # type: ignore[attr-defined]


def test_the_right_lambda_of_a_line_is_taken() -> None:
    pair = (lambda: Mine("cpu", 2.0), lambda: Mine("cpu", 4.0))
    assert [built(factory).get_scale() for factory in pair] == [2.0, 4.0]  # type: ignore[attr-defined]


def test_what_cannot_be_rebuilt_is_a_stub_that_says_so() -> None:
    scale = 4.0
    for factory in (
        lambda: Mine("cpu", scale),
        functools.partial(lambda: Mine("cpu")),
        type("Local", (Mine,), {"__module__": None}),
    ):
        assert "return the scaler that your factory returns" in "\n".join(factory_source(factory))
