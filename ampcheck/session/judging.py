"""A contract is judged whole when its first item runs; the others only report."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest

from ampcheck import registry
from ampcheck.config import Settings, merge, settings_of
from ampcheck.contract import Contract
from ampcheck.errors import ContractError, UsageError
from ampcheck.findings import ContractReport, Verdict
from ampcheck.session.arguments import refusal
from ampcheck.session.devices import check_device, default_device, missing
from ampcheck.session.gate import Gate
from ampcheck.session.group import BASELINE, Group, Slot
from ampcheck.session.progress import Progress

__all__ = ["Judging"]

#: cuBLAS is deterministic only if this is set before CUDA starts.
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


class Judging:
    """The settings and the catalogue of a session, and the one way from a contract to its report."""

    def __init__(self, config: pytest.Config) -> None:
        self.checks = registry.load_checks()
        self.settings: Settings = settings_of(config)
        for device in self.settings.devices or ():
            check_device(device, "ampcheck_device")
        self.gate = Gate(config, self.settings)
        self.progress: Progress | None = None
        self.config = config
        self.groups: dict[tuple[str, str], Group] = {}
        self._cublas = os.environ.get(CUBLAS)
        os.environ.setdefault(CUBLAS, ":4096:8")

    def close(self) -> None:
        """Put the environment back."""
        self.gate.close()
        if self._cublas is None:
            os.environ.pop(CUBLAS, None)

    def measure_base(self, config: pytest.Config) -> None:
        """Measure the commit that this session is compared with, if it names one.

        Raises:
            pytest.UsageError: if that cannot be done.
        """
        try:
            self.gate.measure(config)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None

    def plan(self, contract: Contract) -> tuple[tuple[str, ...], tuple[Slot, ...]]:
        """The devices that a contract is judged on, and what is reported for each.

        Raises:
            UsageError: if the contract's options name a check, dtype or device that does not exist.
        """
        options = merge(contract.options, self.settings)
        for device in contract.options.devices or ():
            check_device(device, "@ampcheck.contract(devices=)")
        slots = [
            Slot(check.id, check.slug, policy)
            for check in self.checks.values()
            if (options.select is None or check.id in options.select) and check.id not in options.ignore
            for policy in (("as-written",) if not check.per_dtype or options.dtypes is None else options.dtypes)
        ]
        if slots and self.gate.compares:
            slots.append(Slot(BASELINE, BASELINE, "as-written"))
        return (default_device(),) if options.devices is None else options.devices, tuple(slots)

    def group(self, contract: str, device: str, declared: Contract, slots: tuple[Slot, ...]) -> Group:
        """The group of an item, made when its first item is collected."""
        key = (contract, device)
        if key not in self.groups:
            self.groups[key] = Group(contract, device, declared.options, slots)
        return self.groups[key]

    def settle(self, group: Group) -> None:
        """Conclude what needs no run: nothing runs on a device that is not there."""
        if group.report is None and (reason := missing(group.device)):
            group.report = group.without_verdicts(reason)

    def stop(self, group: Group, reason: str) -> None:
        """An item failed before its contract was judged: the others do not try again."""
        group.report, group.blamed = group.without_verdicts(reason), True

    def builder(self, group: Group, make_step: Callable[..., object], arguments: dict[str, Any]) -> Callable[[], object]:
        """The contract's function with its fixtures bound; it raises a `ContractError` if one of them cannot be used."""
        refused = refusal(arguments)

        @functools.wraps(make_step)  # so that the contract, not this, is the place to blame
        def build() -> object:
            if refused:
                raise ContractError(f"contract {group.contract}: {refused}")
            return make_step(**arguments)

        return build

    def judge(self, group: Group, make_step: Callable[..., object], arguments: dict[str, Any]) -> ContractReport:
        """Judge a contract, once, and keep the report.

        Args:
            group: the contract and its device.
            make_step: the user's function.
            arguments: its fixtures.
        """
        from ampcheck import runner

        if self.progress is None:
            self.progress = Progress(self.config)
        group.environment = runner.environment(group.device)
        group.report = runner.judge(
            self.builder(group, make_step, arguments),
            contract=group.contract,
            device=group.device,
            options=group.contract_options,
            settings=self.settings,
            progress=self.progress.of(group.contract, group.device),
        )
        self.gate.settle(group)
        return group.report

    def verdict(self, group: Group, slot: Slot) -> Verdict:
        """What an item of a judged contract reports.

        Raises:
            LookupError: if there is no verdict, which is our fault and must not look like a pass.
        """
        of_check = [v for v in (group.report.verdicts if group.report else ()) if v.check == slot.check]
        for verdict in of_check:
            if verdict.policy == slot.policy:
                return verdict
        if slot.policy == "as-written" and of_check:
            # Without declared dtypes there is one item, whatever the step entered by itself.
            return max(of_check, key=lambda v: SEVERITY.index(v.outcome))
        raise LookupError(f"no verdict for {slot.id}; this is a fault of ampcheck, please report it")


#: From what weighs least to what must be seen.
SEVERITY = ("not-run", "passed", "inconclusive", "xfailed", "warned", "failed")
