"""What is to be rendered: the arguments of `render`, with the worker decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nightshift.jobset.manifest.constants import DRIVER_PROGRAM, LOAD_PATIENCE, Role
from nightshift.profiles import WorkerShape
from nightshift.run.names import RunRef
from nightshift.run.pins import Pins
from nightshift.settings import Settings
from nightshift.spec import JobSpec, StreamSpec
from nightshift.spec.engine_defaults import NO_HINTS, Hints


@dataclass(frozen=True, kw_only=True)
class ServerRequest:
    """An engine: what it serves, and on what. name: of the object that its pods belong to. hints: of its model."""

    name: str
    spec: JobSpec | StreamSpec
    settings: Settings
    worker: WorkerShape
    pins: Pins
    hints: Hints = NO_HINTS

    @property
    def patience_seconds(self) -> int:
        """How long the server may take to load."""
        return LOAD_PATIENCE * self.worker.start_seconds

    @property
    def patience_seconds_each(self) -> int:
        """How long one engine of it may."""
        return LOAD_PATIENCE * self.worker.load_seconds


@dataclass(frozen=True, kw_only=True)
class RenderRequest(ServerRequest):
    """A run's JobSet. workers: pods, or slices if a worker has several hosts. rows, pins: of the run.

    observed: variables of the driver that only observe (`nightshift.jobset.identity`). program: what stands in the driver's
    place, `nightshift.trial.keeper` for an engine that nobody works with yet.
    """

    spec: JobSpec
    run: RunRef
    workers: int
    rows: int
    role: Role
    observed: Mapping[str, str] = field(default_factory=dict)
    program: str = DRIVER_PROGRAM
