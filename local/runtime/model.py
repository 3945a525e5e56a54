"""What the local runtime carries out of a JobSet manifest, as frozen records. `local.runtime.spec` reads them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from local.runtime.expansion import EnvVar
from local.runtime.policy import IndexedJob


@dataclass(frozen=True)
class Probe:
    """A startup, liveness or readiness probe; one of ``command``, ``path`` (HTTP GET) or only ``port`` (TCP). Times in seconds.

    port: a number, or the name of a containerPort of the same container.
    """

    port: int | str = 0
    path: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    command: tuple[str, ...] = ()
    initial_delay_s: int = 0
    period_s: int = 10
    timeout_s: int = 1
    failure_threshold: int = 3
    success_threshold: int = 1


@dataclass(frozen=True)
class ContainerSpec:
    """One container. sidecar: an init container with restartPolicy Always. ports: name -> containerPort.

    last_lines: terminationMessagePolicy FallbackToLogsOnError.
    """

    name: str
    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[EnvVar, ...] = ()
    ports: tuple[tuple[str, int], ...] = ()
    sidecar: bool = False
    last_lines: bool = False
    startup: Probe | None = None
    liveness: Probe | None = None
    readiness: Probe | None = None


@dataclass(frozen=True)
class PodTemplate:
    """port_env: containerPort name -> environment variable that gets the port that the runtime chose."""

    init: tuple[ContainerSpec, ...]
    main: tuple[ContainerSpec, ...]
    grace_s: int
    port_env: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class JobSetSpec:
    """ttl_s: seconds between the end of the JobSet and its removal; None to keep it."""

    name: str
    namespace: str
    replicated_job: str
    job: IndexedJob
    pod: PodTemplate
    suspended: bool
    ttl_s: int | None

    @property
    def job_name(self) -> str:
        return f"{self.name}-{self.replicated_job}-0"
