"""What the checks ask about: a deployment, and the job or the stream that is named."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from nightshift.settings import Settings

if TYPE_CHECKING:
    from nightshift.hooks.services import Connections
    from nightshift.jobset.kubernetes.api import JobSetApi
    from nightshift.profiles import WorkerShape
    from nightshift.spec import JobSpec, StreamSpec


@dataclass(frozen=True)
class Triggerer:
    """What the triggerer answered. problem: why it did not, else ''. settings: its own, by field; None if it has none."""

    problem: str = ""
    version: str = ""
    settings: Mapping[str, object] | None = None


@dataclass(frozen=True)
class Surroundings:
    """One deployment, and the job or the stream that is asked about, if any.

    triggerer: None if it was not asked. environment: the process's variables. now: Unix time.
    """

    settings: Settings
    connections: Connections
    job: JobSpec | None = None
    triggerer: Triggerer | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    now: Callable[[], float] = time.time
    stream: StreamSpec | None = None

    @property
    def storage(self) -> str:
        """Base address of Cloud Storage, or of its emulator, as `nightshift.store` reads it."""
        host = self.environment.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
        if not host:
            return "https://storage.googleapis.com"
        return host if "://" in host else f"http://{host}"

    @property
    def named_job(self) -> JobSpec:
        """The job, for checks that need the check `job`."""
        assert self.job is not None
        return self.job

    @property
    def named_stream(self) -> StreamSpec:
        """The stream, for checks that need the check `stream`."""
        assert self.stream is not None
        return self.stream

    @property
    def work(self) -> JobSpec | StreamSpec:
        """The job or the stream, for checks that need one."""
        return self.stream or self.named_job

    @property
    def workers(self) -> dict[str, WorkerShape]:
        """By profile: what the job may run on, its fallbacks included; or a stream's servers. Empty if neither is named.

        A fallback that the job's worker does not fit is left out.
        """
        if self.stream:
            return {self.stream.compute.profile: self.stream.compute.worker()}
        found: dict[str, WorkerShape] = {}
        for profile in self.job.compute.profiles if self.job else ():
            with suppress(ValueError):
                found[profile] = self.named_job.compute.worker(profile)
        return found

    @property
    def partition(self) -> str:
        """The job's last partition that is over."""
        from nightshift.spec import periods

        return periods.at(datetime.fromtimestamp(self.now(), UTC), self.named_job.every)

    @property
    def cluster(self) -> JobSetApi:
        """The cluster's API, for checks that need the check `cluster`."""
        api = self.connections.cluster()
        assert api is not None
        return api

    @property
    def dataset(self) -> str:
        """``project.dataset`` of nightshift's own tables."""
        return f"{self.settings.project}.{self.settings.dataset}"

    @property
    def emulated(self) -> bool:
        """Whether both services of Google are the emulators."""
        return all(self.environment.get(name) for name in EMULATORS)


EMULATORS: Final = ("STORAGE_EMULATOR_HOST", "BIGQUERY_EMULATOR_HOST")
