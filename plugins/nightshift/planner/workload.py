"""What a job computes, and on what: the workload by which its speed is recorded and looked up. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from nightshift.planner.record import Workload
from nightshift.profiles.hardware import GPUS, TPUS, Gpu
from nightshift.spec import JobSpec
from nightshift.spec.profile_names import profile_of
from nightshift.spec.vllm_flags import affects_answers

CPU: Final = "cpu"
"""The hardware of a worker without an accelerator."""


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
