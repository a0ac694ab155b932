"""`ampcheck.scaler_contract`: fights the reference model against any loss scaler with a Hypothesis state machine."""

from __future__ import annotations

import sys
import unittest
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import settings as Settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from ampcheck import strategies
from ampcheck.scaler import textbook
from ampcheck.scaler.capabilities import Capabilities
from ampcheck.scaler.measure import resolve
from ampcheck.scaler.referee import Disagreement, Referee
from ampcheck.scaler.session import quiet_torch
from ampcheck.scaler.source import factory_source

__all__ = ["ScalerContract", "ScalerMachine", "scaler_contract"]

#: The random part keeps the scale in here; beyond it float32 gradients over- and underflow by themselves.
WORKING_RANGE = (2.0**-20, 2.0**60)


def _some(allowed: str) -> Any:
    """One of the optimizers that the machine's referee allows for an action."""
    return st.runner().flatmap(lambda machine: st.sampled_from(getattr(machine.referee, allowed)()))


def _may(allowed: str) -> Callable[[Any], bool]:
    return lambda machine: bool(getattr(machine.referee, allowed)())


class ScalerMachine(RuleBasedStateMachine):
    """Random training iterations over one scaler and the model. `scaler_contract` makes a subclass with `contract` set."""

    contract: ClassVar[type[ScalerContract]]

    def __init__(self) -> None:
        super().__init__()
        self.referee = self.contract.referee()

    @precondition(_may("may_backward"))
    @rule(optimizer=_some("may_backward"), slope=strategies.slopes())
    def backward(self, optimizer: str, slope: float) -> None:
        """A first backward, or one more that accumulates."""
        self.referee.backward(optimizer, slope)

    @precondition(_may("may_plant"))
    @rule(optimizer=_some("may_plant"), plant=strategies.plants([4, 2]))
    def overflow(self, optimizer: str, plant: strategies.Plant) -> None:
        if self.referee.model.scale > WORKING_RANGE[0]:
            self.referee.plant(optimizer, plant.parameter, plant.element, plant.value)

    @precondition(_may("may_fill"))
    @rule(optimizer=_some("may_fill"))
    def large_gradient(self, optimizer: str) -> None:
        """Finite in float16, but neither its norm nor its sum of squares is."""
        self.referee.fill(optimizer, 32768.0)

    @precondition(_may("may_unscale"))
    @rule(optimizer=_some("may_unscale"))
    def unscale(self, optimizer: str) -> None:
        self.referee.unscale(optimizer)

    @precondition(_may("may_clip"))
    @rule(optimizer=_some("may_clip"), max_norm=st.sampled_from([0.5, 8.0]))
    def clip(self, optimizer: str, max_norm: float) -> None:
        self.referee.clip(optimizer, max_norm)

    @precondition(_may("may_step"))
    @rule(optimizer=_some("may_step"))
    def step(self, optimizer: str) -> None:
        self.referee.step(optimizer)

    @precondition(_may("may_update"))
    @rule()
    def update(self) -> None:
        self.referee.update()

    @precondition(lambda self: self.referee.between_iterations() and self.referee.can.new_scale and self.referee.used)
    @rule(scale=strategies.loss_scales(0, 16))
    def update_to(self, scale: float) -> None:
        self.referee.update_to(scale)

    @precondition(lambda self: self.referee.between_iterations() and self.referee.can.saves)
    @rule()
    def save_and_load(self) -> None:
        self.referee.save_and_load()

    @precondition(lambda self: self.referee.between_iterations() and self.referee.model.scale < WORKING_RANGE[1])
    @rule(optimizer=_some("may_backward"), slope=strategies.slopes(), count=st.integers(1, 6))
    def clean_iterations(self, optimizer: str, slope: float, count: int) -> None:
        for _ in range(count):
            self.referee.iteration(optimizer, slope)

    @precondition(lambda self: self.referee.between_iterations() and self.referee.model.scale > 4 * WORKING_RANGE[0])
    @rule(optimizer=_some("may_backward"), plant=strategies.plants([4, 2]), count=st.integers(1, 3))
    def overflowing_iterations(self, optimizer: str, plant: strategies.Plant, count: int) -> None:
        for _ in range(count):
            self.referee.iteration(optimizer, 0.5, (plant.parameter, plant.element, plant.value))


class ScalerContract(unittest.TestCase):
    """The base of what `scaler_contract` returns: a TestCase that pytest and unittest collect, and `check()`."""

    # The base itself is no test; the classes made from it are.
    __test__ = False
    factory: ClassVar[Callable[[], Any]]
    declared: ClassVar[dict[str, Any]]
    capabilities: ClassVar[Capabilities]
    device: ClassVar[str]
    settings: ClassVar[Settings | None]
    machine: ClassVar[type[ScalerMachine]]

    @classmethod
    def referee(cls) -> Referee:
        return Referee(cls.factory, factory_source(cls.factory), cls.capabilities, cls.device)

    @classmethod
    def check(cls) -> None:
        """Run the contract now, outside any test runner.

        Raises:
            AssertionError: if the scaler and the model differ; the message ends in a script that shows it.
            UsageError: if the factory builds no scaler.
        """
        __tracebackhide__ = True
        if found := cls.disagreement():
            raise AssertionError("\n".join([cls.message(found), "a minimal script:", "", *found.script]))

    def test_agrees_with_the_model(self) -> None:
        __tracebackhide__ = True
        if found := self.disagreement():
            # Written out, since runners indent or cut messages, and a script is there to be copied.
            sys.stdout.write("\n".join([*found.script, ""]))
            raise AssertionError(self.message(found) + "\na minimal script, ready to run, stands in the captured output")

    @classmethod
    def disagreement(cls) -> Disagreement | None:
        """Fight the model against the scaler; a small difference that was found, or `None`.

        Raises:
            UsageError: if the factory builds no scaler.
        """
        with quiet_torch(cls.device):
            # Not when the class is made: that is at collection, where nobody should run torch.
            cls.capabilities = resolve(cls.factory, cls.declared, cls.device)
            return cls.textbook() or cls.search()

    @classmethod
    def textbook(cls) -> Disagreement | None:
        """A few written sequences: fast, small, and some need more iterations than random search makes."""
        try:
            for sequence in textbook.SEQUENCES:
                sequence(cls.referee())
        except Disagreement as found:
            return found
        return None

    @classmethod
    def search(cls) -> Disagreement | None:
        """Random iterations; what is found is shrunk by Hypothesis."""
        try:
            run_state_machine_as_test(cls.machine, settings=cls.settings or _current_settings())
        except Disagreement as found:
            return found
        except Flaky as error:
            return Disagreement("the same iterations give the same scale", f"different results when repeated: {error}", [])
        return None

    @classmethod
    def message(cls, found: Disagreement) -> str:
        return (
            "AMP208 scaler-model: the scaler differs from the reference loss scaler\n"
            f"  expected: {found.expected}\n"
            f"  seen:     {found.seen}\n"
            f"  held to:  {cls.capabilities.describe()}\n"
            "  fix:      make the scaler do what is expected, or declare what it does on purpose:\n"
            "            ampcheck.scaler_contract(factory, hysteresis=, min_scale=, max_scale=, static=, ...)"
        )


def _current_settings() -> Settings:
    """The thorough profile where the session asked for it, else the fast deterministic one."""
    thorough = Settings.get_current_profile_name() == strategies.THOROUGH_PROFILE
    return Settings.get_profile(strategies.THOROUGH_PROFILE if thorough else strategies.CI_PROFILE)


def scaler_contract(
    factory: Callable[[], Any], /, *, device: str = "cpu", settings: Settings | None = None, **capabilities: Any
) -> type[ScalerContract]:
    """Hold a loss scaler class to the reference model under random training iterations.

    In a test module, `TestMyScaler = ampcheck.scaler_contract(lambda: MyScaler(growth_interval=3), hysteresis=2)` is one
    test; `ampcheck.scaler_contract(MyScaler).check()` runs it on the spot. Build the scaler with a short growth interval
    and a small power-of-two scale, so that growth and backoff are reached often and the numbers read well.

    Args:
        factory: builds a new scaler: an object with `scale(loss)` and `step(optimizer)`.
        device: the device type the toy parameters live on.
        settings: Hypothesis settings; the default is the profile "ampcheck-ci", or "ampcheck-thorough" if that is loaded.
        capabilities: what the scaler does on purpose; see `ampcheck.scaler.capabilities.Capabilities` for the names. What
            is not declared is read from the scaler, measured, or taken to be as in `torch.amp.GradScaler`.

    Returns:
        A `unittest.TestCase` class.

    Raises:
        UsageError: for a capability that does not exist or makes no sense.
    """
    Capabilities.validate(capabilities)
    names = {
        "__test__": True,
        "__module__": getattr(factory, "__module__", __name__),
        "factory": staticmethod(factory),
        "declared": capabilities,
        "device": device,
        "settings": settings,
    }
    contract: type[ScalerContract] = type("ScalerContract", (ScalerContract,), names)
    contract.machine = type("ScalerMachine", (ScalerMachine,), {"contract": contract})
    return contract
