"""The census of ops of the natural run, as a stage and a probe of it."""

from __future__ import annotations

from collections.abc import Callable

from ampcheck.scenarios.drive import Built, Stage
from ampcheck.trace.census import CensusTaker
from ampcheck.trace.ops import Census

__all__ = ["CensusStage"]


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
