"""The measured speed of a sealed run, so that the next run of the same work can be planned from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final

from pydantic import AfterValidator

from nightshift.fields.stored import Amount, Count, read
from nightshift.fields.text import n
from nightshift.formats import SPEED, UnreadableFormat
from nightshift.profiles.hardware import GPUS, TPUS, Gpu
from nightshift.spec import JobSpec
from nightshift.spec.limits import SPEED_LEAST, SPEED_MOST
from nightshift.spec.profile_names import profile_of
from nightshift.spec.vllm_flags import affects_answers

CPU: Final = "cpu"
"""The hardware of a worker without an accelerator."""
HELD_LEAST_S: Final = 60.0
"""On average before a machine is taken away. With less nothing would ever be computed, so such a record is invalid."""
HELD_LEAST_H: Final = 4.0
"""Hours over which preemptions are counted at least: one in a run of three minutes is not a rate of 20 an hour."""


class NotARecord(ValueError):
    """Not the JSON of a record that this release reads."""


def _settings(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises ValueError unless each is one value, or some by their names, as vLLM's flags are: what is deeper cannot be
    written again."""
    for each in found.values():
        values = each.values() if isinstance(each, Mapping) else [each]
        if not all(value is None or isinstance(value, str | int | float | bool) for value in values):
            raise ValueError("a setting is one value, or some by their names")
    return found


@dataclass(frozen=True)
class Workload:
    """What was computed, and on what: two runs with equal workloads have the same speed, as far as settings decide.

    answers: digest, in hex, of the settings that change answers: task, request, and the engine's own such settings.
    performance: the settings that change the speed alone, as the job has them. hardware: the accelerator's name in
    `nightshift.profiles.hardware`, or "cpu". accelerators: of one worker, over all its hosts. cpus: of a worker without an
    accelerator, else 0.
    """

    model_uri: str
    model_revision: str
    task: str
    answers: str
    performance: Annotated[Mapping[str, Any], AfterValidator(_settings)]
    hardware: str
    accelerators: Count
    cpus: Amount = 0.0

    @property
    def engines(self) -> int:
        """Of a worker. Only several are a setting of their own: records of earlier releases have none, and are of one."""
        found = self.performance.get("engines")
        return found if isinstance(found, int) else 1


def hardware_of(profile: str) -> str:
    """The name of a profile's accelerator in `nightshift.profiles.hardware`, or "cpu"; of one that the deployment has defined,
    the profile's. Raises ValueError for no profile."""
    hardware = profile_of(profile).hardware
    if isinstance(hardware, Gpu) and hardware.nodes:
        return hardware.label
    return next((name for name, each in {**GPUS, **TPUS}.items() if each is hardware), CPU)


def workload_of(spec: JobSpec, profile: str, cpus: float = 0.0) -> Workload:
    """The job on one of its profiles. cpus: of a worker, which counts if it has no accelerator; 0 if unknown.

    `JobSpec.semantic` has the settings of engine and request that change answers; the others are the workload's performance
    (`JobSpec.tuning`, and flags), with how the model is spread over accelerators. Raises ValueError if the job does not fit the
    profile.
    """
    worker = spec.compute.worker(profile)
    semantic = spec.semantic()
    hardware = hardware_of(profile)
    return Workload(
        model_uri=spec.model.uri,
        model_revision=spec.model.revision,
        task=spec.task,
        answers=_digest({part: semantic.get(part) for part in ("task", "request", "engine")}),
        performance={
            **{name: value for part in spec.tuning(worker).values() for name, value in part.items()},
            "args": {flag: value for flag, value in spec.engine.args.items() if not affects_answers(flag)},
            "tensor_parallel": worker.tensor_parallel,
            "pipeline_parallel": worker.pipeline_parallel,
            **({"engines": worker.engines} if worker.engines > 1 else {}),
        },
        hardware=hardware,
        accelerators=worker.hosts * worker.accelerators,
        cpus=cpus if hardware == CPU else 0.0,
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Record:
    """The speed of a sealed run. Rates are per worker and second of work: from a worker's first request to its last answer.

    rows: that an engine answered, also those that were lost or computed twice. workers: that computed any. work_s: their
    seconds of work, added up. start_up_s: median seconds of each stage, by its name in
    `nightshift.run.observed.pod_startup.STAGES`; a stage that was not observed is missing. profile: the compute profile of the
    workers, which shows how their machines are bought. preemptions: of workers, as their cluster saw them; none that a user or
    nightshift itself has caused. alive_s: seconds that machines were held for its attempts, added up: from the start of each
    driver to its end, and before it as far as clusters saw that (image and weights). row_tokens: input tokens of a mean row, as
    the planner counted them before the run; None if it did not look at any.
    """

    workload: Workload
    run: str
    sealed_at: str
    rows: Count
    workers: Count
    work_s: Amount
    alive_s: Amount
    input_tokens: Count
    output_tokens: Count
    preemptions: Count
    start_up_s: Mapping[str, Amount] = field(default_factory=dict)
    profile: str = ""
    row_tokens: Amount | None = None

    @property
    def filled(self) -> bool:
        """Whether each engine had a full batch. With less, it was partly idle, and was faster than it could show."""
        seats = self.workload.performance.get("max_num_seqs")
        return not isinstance(seats, int) or self.rows >= self.workers * self.workload.engines * seats

    @property
    def rows_per_second(self) -> float:
        """Of one worker; 0 if nothing was computed."""
        return self.rows / self.work_s if self.work_s else 0.0

    @property
    def preemptions_per_hour(self) -> float:
        """Of one worker's machine, as if machines had been held for at least `HELD_LEAST_H`."""
        return self.preemptions / max(HELD_LEAST_H, self.alive_s / 3600)

    def to_json(self) -> dict[str, Any]:
        return {**SPEED.stamp(), **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> Record:
        """Inverse of `to_json`; entries that a later release added are passed over. Raises NotARecord."""
        if not isinstance(value, dict):
            raise NotARecord("not a JSON object")
        try:
            SPEED.check(value, "it")
            record = read(cls, value)
        except UnreadableFormat as error:
            raise NotARecord(str(error)) from error
        except ValueError as error:
            raise NotARecord(f"its {error}") from error
        if record.rows and not SPEED_LEAST <= record.rows_per_second <= SPEED_MOST:
            raise NotARecord(f"its {n(record.rows, 'row')} in {record.work_s} s are the speed of no worker")
        if record.preemptions * HELD_LEAST_S > record.alive_s:
            raise NotARecord(f"its {record.preemptions} preemptions are too many for {record.alive_s} s")
        return record
