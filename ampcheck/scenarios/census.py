"""The census of ops of the natural run, and its outline, each as a stage and a probe of it."""

from __future__ import annotations

from collections.abc import Callable

from ampcheck.scenarios.drive import Built, Stage
from ampcheck.trace.census import CensusTaker
from ampcheck.trace.ops import Census
from ampcheck.trace.outline import OutlineTaker

__all__ = ["CensusStage", "OutlineStage"]


class CensusStage(Stage):
    """Takes the census of each call; `probe` goes to the recorder, and `census` is complete when the run has finished."""

    def __init__(self) -> None:
        self.probe = CensusTaker()
        self.census = Census()

    def built(self, built: Built) -> None:
        reached = built.reach()
        self.probe.built(built.recorder, reached.modules, reached.names())

    def call(self, built: Built, step: Callable[[], object]) -> object:
        with self.probe.watch():
            return step()

    def finished(self, built: Built) -> None:
        self.census = self.probe.finish()


class OutlineStage(Stage):
    """Takes the outline of each call; `probe` goes to the recorder and holds it."""

    def __init__(self) -> None:
        self.probe = OutlineTaker()

    def built(self, built: Built) -> None:
        self.probe.built(built.reach().modules)

    def call(self, built: Built, step: Callable[[], object]) -> object:
        with self.probe.watch():
            return step()
