"""The environment variables of the driver's process, and the settings that they make.

NIGHTSHIFT_RUN_URL             gs://BUCKET/JOB/PARTITION/RUN
ENGINE_URL                     base URL of the engine beside it; of several, which serve the same model, separated by commas
JOB_COMPLETION_INDEX           which shard is home, set by Kubernetes; without one, or if the plan has no such shard, the
                               worker has no home and helps wherever something is left
NIGHTSHIFT_SHARD               which shard is home if a worker spans several hosts. JOB_COMPLETION_INDEX is then the host:
                               host 0 works, and the others stand by until a signal
NIGHTSHIFT_ENGINE_WAIT_S       how long the engine may take to come up, if nothing else waits for it
NIGHTSHIFT_ROLE                "helper": no home, even with an index (a second JobSet on the same run); else "owner"
NIGHTSHIFT_MODEL_ROOT          where the engine must have its model from, as its --model says; by default as the job says
NIGHTSHIFT_MODEL_REVISION      with which --revision the engine loads a model of the Hub; a worker without a home needs it
NIGHTSHIFT_DEAD_LETTERS        how many dead letters the run may have; with more, the worker stops early
NIGHTSHIFT_TUNING              JSON, the job's `tuning` (`nightshift.spec.JobSpec`) as it is now; by default as it was frozen
NIGHTSHIFT_METRICS_PORT        port for Prometheus metrics; 0 takes a free one
NIGHTSHIFT_METRICS_ADDRESS     the address that they are served on; by default all that the pod has
NIGHTSHIFT_NIGHT               JSON for the metrics, all of it optional: deadline (Unix time), price (of the worker's machines
                               for an hour) with its currency
NIGHTSHIFT_BUFFER_MB           input rows held in memory at once: 256 by default, of the container's 2 GiB
NIGHTSHIFT_FLIGHT_MB           memory of requests in flight, with their images: 512 by default; a larger one goes alone
NIGHTSHIFT_PROFILE             the compute profile that its machine was asked for with; for its heartbeats; optional
POD_NAME, NODE_NAME            recorded in what it commits and in heartbeats; optional
"""

from __future__ import annotations

import json
import math
import os
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nightshift.driver.health import ENGINE_BUDGET_S
from nightshift.driver.heartbeats import process_age_s
from nightshift.driver.metrics import EVERYWHERE
from nightshift.driver.request_loop import FLIGHT_BYTES
from nightshift.driver.run_metrics import Night
from nightshift.driver.worker import BUFFER_BYTES
from nightshift.run.models.compile_cache import Place
from nightshift.run.observed.heartbeats import Heartbeat


class ConfigError(ValueError):
    """The environment does not name a run and an engine that can be used."""


@dataclass(frozen=True)
class DriverConfig:
    """The settings of the process. index: None for a helper. attempt: names this run of the worker in partials and provenance.
    bystander: another host of the same slice runs the driver that works. worker: its number in its JobSet, a helper's too.
    compiled: where the engine beside it leaves what it compiles, if this worker is the one to keep that."""

    run_url: str
    index: int | None
    engine_urls: tuple[str, ...]
    node: str
    attempt: str
    dead_letters: int | None = None
    metrics_port: int | None = None
    metrics_address: str = EVERYWHERE
    night: Night = field(default_factory=Night)
    buffer_mb: int = BUFFER_BYTES >> 20
    flight_mb: int = FLIGHT_BYTES >> 20
    engine_wait_s: float = ENGINE_BUDGET_S
    model_root: str | None = None
    model_revision: str | None = None
    tuning: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bystander: bool = False
    role: str = "owner"
    worker: int | None = None
    profile: str = ""
    pod: str = "driver"
    compiled: Place | None = None

    @classmethod
    def from_environment(cls) -> DriverConfig:
        """Raises ConfigError, which names the variable that is missing or wrong."""
        for name in ("NIGHTSHIFT_RUN_URL", "ENGINE_URL"):
            if not os.environ.get(name):
                raise ConfigError(f"{name} is not set")
        role = os.environ.get("NIGHTSHIFT_ROLE") or "owner"
        if role not in ("owner", "helper"):
            raise ConfigError(f"NIGHTSHIFT_ROLE is {role!r}, but must be 'owner' or 'helper'")
        pod = os.environ.get("POD_NAME") or "driver"
        index, shard = _number("JOB_COMPLETION_INDEX"), _number("NIGHTSHIFT_SHARD")
        home = index if shard is None else shard
        return cls(
            os.environ["NIGHTSHIFT_RUN_URL"],
            home if role == "owner" else None,
            engine_urls(os.environ["ENGINE_URL"]),
            os.environ.get("NODE_NAME") or os.uname().nodename,
            f"{pod}-{uuid.uuid4().hex[:8]}",
            dead_letters=_number("NIGHTSHIFT_DEAD_LETTERS"),
            metrics_port=_number("NIGHTSHIFT_METRICS_PORT"),
            metrics_address=os.environ.get("NIGHTSHIFT_METRICS_ADDRESS") or EVERYWHERE,
            night=_night(),
            buffer_mb=_number("NIGHTSHIFT_BUFFER_MB") or BUFFER_BYTES >> 20,
            flight_mb=_number("NIGHTSHIFT_FLIGHT_MB") or FLIGHT_BYTES >> 20,
            engine_wait_s=_number("NIGHTSHIFT_ENGINE_WAIT_S") or ENGINE_BUDGET_S,
            model_root=os.environ.get("NIGHTSHIFT_MODEL_ROOT") or None,
            model_revision=os.environ.get("NIGHTSHIFT_MODEL_REVISION") or None,
            tuning=_tuning(),
            bystander=shard is not None and index not in (None, 0),
            role=role,
            worker=home,
            profile=os.environ.get("NIGHTSHIFT_PROFILE") or "",
            pod=pod,
            # One of many that start at once is enough; another one takes its number if it is taken away.
            compiled=Place.of(os.environ) if home == 0 else None,
        )

    def birth(self) -> Heartbeat:
        """What does not change of its heartbeats."""
        return Heartbeat(
            attempt=self.attempt,
            profile=self.profile,
            role=self.role,
            index=self.worker,
            node=self.node,
            pod=self.pod,
            cpus=float(len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1),
            born_at="",
            at="",
            age_s=process_age_s(),
        )


def engine_urls(value: str) -> tuple[str, ...]:
    """ENGINE_URL's addresses. Raises ConfigError for an empty one, and for one that stands there twice."""
    found = tuple(each.strip() for each in value.split(","))
    if not all(found):
        raise ConfigError(f"ENGINE_URL is {value!r}: an address between two commas is missing")
    if len(set(found)) < len(found):
        raise ConfigError(f"ENGINE_URL is {value!r}: it names an engine twice")
    return found


def _number(name: str) -> int | None:
    value = os.environ.get(name)
    if not value:
        return None
    if not (value.isascii() and value.isdecimal()):
        raise ConfigError(f"{name} is {value!r}, not a whole number")
    return int(value)


def _tuning() -> Mapping[str, Mapping[str, Any]]:
    found = _object("NIGHTSHIFT_TUNING")
    if not all(isinstance(each, dict) for each in found.values()):
        raise ConfigError(f"NIGHTSHIFT_TUNING is {os.environ['NIGHTSHIFT_TUNING']!r}, not a JSON object of objects")
    return found


def _night() -> Night:
    found = {name: value for name, value in _object("NIGHTSHIFT_NIGHT").items() if name in Night.__dataclass_fields__}
    numbers = [found[name] for name in ("deadline", "price") if found.get(name) is not None]
    if not all(isinstance(each, int | float) and 0 <= each < math.inf for each in numbers) or not isinstance(
        found.get("currency", ""), str
    ):
        value = os.environ["NIGHTSHIFT_NIGHT"]
        raise ConfigError(f"NIGHTSHIFT_NIGHT is {value!r}: deadline and price must be numbers from 0, currency a text")
    return Night(**found)


def _object(name: str) -> dict[str, Any]:
    """The JSON object in the variable; {} if it is not set."""
    value = os.environ.get(name) or "{}"
    try:
        found = json.loads(value)
    except ValueError as error:
        raise ConfigError(f"{name} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{name} is {value!r}, not a JSON object")
    return found
