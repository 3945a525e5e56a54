"""What only the clusters of a run's pods know: how long these took to start, and which were taken away.

A driver starts only when its pod has a machine and its containers run; in a pod of one host, when its engine answers. Only the
cluster knows what came before, and when a driver that was killed ended. The task `infer` records it when a JobSet has ended.
Where pods are while they run is beside it: `nightshift.run.observed.pods_now`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from obstore.store import ObjectStore

from nightshift.fields.stored import MOST
from nightshift.formats import STARTS
from nightshift.run.names import RunRef, canonical_json
from nightshift.run.observed.heartbeats import Ended, Heartbeat, ended_at_age_s
from nightshift.store import Objects, ObjectTooLarge, create_or_read

STAGES: Final = ("queue", "node", "image", "weights", "warm_up")
"""Of a worker's start: waiting for quota; until its pod has a machine; until its containers run; until the engine has the
weights and answers; until its first request. Its work begins then, so that no second counts twice."""
RAN: Final = "driver"
"""Beside the stages: how long the driver's container ran, to the second."""
ENGINE_PARTS: Final = ("weights", "compile", "warm_up")
"""Of the engine's start, as its own log has them: reading the weights, compiling, and what else it does with them before it
answers. What is left of the stage `weights` are imports, downloads and the like."""
_ENGINE: Final = {f"engine_{part}": part for part in ENGINE_PARTS}
"""Their names beside the stages."""
PAID: Final = ("image", "weights")
"""The stages before a driver's start during which its pod has a machine."""


@dataclass(frozen=True)
class Starts:
    """pods: by name, the seconds of each stage (`STAGES`) that the cluster saw, of `RAN`, and of the engine's parts
    (`with_engine`).

    taken: names of the pods that the cluster itself took away.
    """

    pods: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()

    def preempted(self, beat: Heartbeat) -> bool:
        """Whether an attempt lost its machine before it was done."""
        return beat.pod in self.taken and beat.ended is not Ended.DONE

    def before_s(self, beat: Heartbeat) -> float | None:
        """How long its pod had a machine before an attempt started; None if no cluster saw that."""
        found = [seconds for stage, seconds in self.pods.get(beat.pod, {}).items() if stage in PAID]
        return sum(found) if found else None

    def tail_s(self, beat: Heartbeat) -> float:
        """How long an attempt ran after its newest heartbeat: by the cluster, else half a period if it was killed."""
        if beat.ended is None and (ran := self.pods.get(beat.pod, {}).get(RAN)) is not None:
            # A cluster counts whole seconds.
            return max(0.0, ran - beat.age_s)
        return ended_at_age_s(beat) - beat.age_s

    def stages(self, beat: Heartbeat) -> dict[str, float]:
        """What cluster and attempt know together. Seconds of `weights` before and after the driver's start are added, and
        missing if the cluster did not see those before."""
        cluster = self.pods.get(beat.pod, {})
        both = {stage: seconds for stage, seconds in {**cluster, **beat.start_up_s}.items() if stage in STAGES}
        both.pop("weights", None)
        if "weights" in cluster and "weights" in beat.start_up_s:
            both["weights"] = cluster["weights"] + beat.start_up_s["weights"]
        return both

    def engine(self, beat: Heartbeat) -> dict[str, float]:
        """Seconds of the parts of its engine's start (`ENGINE_PARTS`), as far as its log was read."""
        cluster = self.pods.get(beat.pod, {})
        return {part: cluster[name] for name, part in _ENGINE.items() if name in cluster}

    def to_bytes(self) -> bytes:
        return canonical_json(
            {**STARTS.stamp(), "pods": {pod: dict(stages) for pod, stages in self.pods.items()}, "taken": sorted(self.taken)}
        )

    @classmethod
    def from_bytes(cls, body: bytes) -> Starts:
        """Inverse of `to_bytes`; of anything else, what can be read, because nothing is proven from it."""
        try:
            value = json.loads(body)
            if not isinstance(value, dict) or not isinstance(value.get("pods"), dict):
                return cls()
            STARTS.check(value, "it")
        except (ValueError, RecursionError):
            return cls()
        taken = value.get("taken")  # Earlier releases did not write it.
        names = taken if isinstance(taken, list) else ()
        return cls(
            {pod: _readable(stages) for pod, stages in value["pods"].items()},
            frozenset(name for name in names if isinstance(name, str)),
        )


def with_engine(stages: Mapping[str, float], parts: Mapping[str, float]) -> dict[str, float]:
    """A pod's stages, and the parts of its engine's start."""
    return {**stages, **{name: parts[part] for name, part in _ENGINE.items() if part in parts}}


def in_order(stages: Mapping[str, float]) -> list[tuple[str, float]]:
    """The stages that are known, as they follow one another."""
    return [(stage, stages[stage]) for stage in STAGES if stage in stages]


def save_starts(store: ObjectStore, run: RunRef, jobset: str, starts: Starts) -> None:
    """Writes what was seen of a JobSet's pods, once; nothing if nothing was seen."""
    if starts != Starts():
        create_or_read(store, run.starts_path(jobset), starts.to_bytes())


async def read_starts(objects: Objects, run: RunRef) -> Starts:
    """Of all JobSets of a run. Raises StoreUnavailable."""
    pods: dict[str, Mapping[str, float]] = {}
    taken: frozenset[str] = frozenset()
    async for path in objects.list(run.starts_folder):
        if run.is_now(path):
            continue
        with suppress(ObjectTooLarge):
            found = Starts.from_bytes(await objects.read(path) or b"")
            pods, taken = {**pods, **found.pods}, taken | found.taken
    return Starts(pods, taken)


def _readable(stages: Any) -> dict[str, float]:
    if not isinstance(stages, dict):
        return {}
    return {
        stage: float(seconds)
        for stage, seconds in stages.items()
        if stage in (*STAGES, RAN, *_ENGINE) and isinstance(seconds, int | float) and 0 <= seconds <= MOST
    }
