"""What is to be rendered: the arguments of `render`, with the worker decided."""

from __future__ import annotations

from dataclasses import dataclass

from nightshift.jobset.manifest.constants import LOAD_PATIENCE, Role
from nightshift.profiles import WorkerShape
from nightshift.run.names import RunRef
from nightshift.run.pins import Pins
from nightshift.settings import Settings
from nightshift.spec import JobSpec


@dataclass(frozen=True)
class Order:
    """name: of the JobSet. workers: pods, or slices if a worker has several hosts. rows, pins: of the run."""

    name: str
    spec: JobSpec
    run: RunRef
    settings: Settings
    worker: WorkerShape
    workers: int
    rows: int
    role: Role
    pins: Pins

    @property
    def patience_seconds(self) -> int:
        """How long the server may take to load."""
        return LOAD_PATIENCE * self.worker.load_seconds
