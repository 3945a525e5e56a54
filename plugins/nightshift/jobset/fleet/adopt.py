"""One JobSet for each generation of a task's work: it is adopted or created, never created twice.

Safe to kill and repeat at any point. A JobSet's name is made from its work and a *generation*, which advances only when
an end has been judged; the generation is kept in the task's memory before the JobSet is created. So a repeat finds what its
predecessor created, even if that one died at once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from nightshift.jobset.fleet.errors import Failure, JobSetFailed, NotCreated
from nightshift.jobset.fleet.work import JobSetWork, Waited
from nightshift.jobset.labels import JUDGED_ANNOTATION, OWNER_ANNOTATION, SPEC_HASH_ANNOTATION, WORK_ANNOTATION

if TYPE_CHECKING:
    from nightshift.jobset.fleet.memory import FleetMember, FleetState, Memory
    from nightshift.jobset.observation import Observation

GONE_S: Final = 240.0
"""How long a deletion may take: the pods' grace period and the garbage collector."""


class Adoption:
    """For one attempt of a task. created: name and uid of the JobSet that it has created, if any."""

    def __init__(self, task: JobSetWork, memory: Memory) -> None:
        self._task = task
        self._memory = memory
        self.created: tuple[str, str] | None = None

    def have_all(self, kept: FleetState) -> tuple[FleetState, list[Waited]]:
        """Makes sure that every JobSet of `kept.live` exists once; saves and returns the new memory.

        One that cannot be created is left out if another one works. After the deadline none is created: the task only waits for
        what exists, which ends it. Raises JobSetFailed if nothing exists then.
        """
        if not kept.live and not _is_over(kept):
            profile, workers = self._task.whole(kept)
            kept = kept.with_new(profile, time.time(), workers)
        self._memory.save(kept)
        waited: list[Waited] = []
        for live in kept.live:
            name, seen = self._find(live)
            while seen.jobset is not None and is_judged(seen):
                # Left by an earlier run of this task, whose memory was cleared when it succeeded.
                kept = kept.renewed(live)
                self._memory.save(kept)
                live = kept.live[-1]
                name, seen = self._find(live)
            if seen.jobset is not None:
                waited.append(self._adopt(live, seen))
                continue
            if _is_over(kept):
                kept = kept.without(live)
                self._memory.save(kept)
                continue
            # Its start-up begins now, even if it was decided on long ago and deleted since.
            kept, live = kept.begun(live, time.time())
            self._memory.save(kept)
            try:
                waited.append(self._create(live, name))
            except NotCreated as error:
                if not waited:
                    raise
                self._task.log.warning("The task continues without JobSet %s: %s", name, error)
                kept = kept.without(live)
                self._memory.save(kept)
        if not waited:
            passed = f"{datetime.fromtimestamp(kept.deadline, UTC):%Y-%m-%d %H:%M} UTC"
            raise JobSetFailed(
                Failure.DEADLINE,
                f"The deadline of all attempts passed at {passed}. To give the task its whole time again, clear it.",
            )
        return kept, waited

    def _find(self, live: FleetMember) -> tuple[str, Observation]:
        name = self._task.jobset_name(live.generation)
        return name, settled(self._task, name)

    def _adopt(self, live: FleetMember, seen: Observation) -> Waited:
        from nightshift.jobset.observation import finished

        assert seen.jobset is not None
        self._must_be_ours(seen.jobset)
        meta = seen.jobset["metadata"]
        uid = str(meta.get("uid", ""))
        if finished(seen.jobset):
            # Wait for it anyway: the trigger fires as soon as it has copied the logs.
            self._task.log.info("JobSet %s has already finished and has not been judged yet", meta["name"])
        self._task.runtime.claim(meta["name"], uid, self._task.attempt_id)
        self._task.log.info("JobSet %s already exists: waiting for it", meta["name"])
        if not self._is_as_submitted(live, meta):
            self._task.log.warning(
                "JobSet %s was made from a different manifest than the task has now. It keeps running; delete it to replace it",
                meta["name"],
            )
        return Waited(live, meta["name"], uid, seen)

    def _create(self, live: FleetMember, name: str) -> Waited:
        from nightshift.jobset.observation import Observation
        from nightshift.jobset.runtime import JobSetExists, RequestRefused

        try:
            manifest = self._stamped(self._task.manifest(live, name))
        except ValueError as error:
            raise NotCreated(f"JobSet {name} cannot be created: {error}") from error
        try:
            uid = self._task.runtime.submit(manifest)
        except RequestRefused as error:
            raise NotCreated(str(error)) from error
        except JobSetExists:
            # Another attempt with the same work was faster, or the reply to this request was lost.
            seen = settled(self._task, name)
            if seen.jobset is None:
                raise JobSetFailed(
                    Failure.UNAVAILABLE, f"JobSet {name} existed and is gone; the next attempt creates it again"
                ) from None
            return self._adopt(live, seen)
        self.created = (name, uid)
        self._task.log.info("Created JobSet %s", name)
        return Waited(live, name, uid, Observation(manifest))

    def _stamped(self, manifest: dict[str, Any]) -> dict[str, Any]:
        from nightshift.jobset.identity import spec_hash

        meta = manifest["metadata"]
        stamps = {
            WORK_ANNOTATION: self._task.work_id,
            OWNER_ANNOTATION: self._task.attempt_id,
            SPEC_HASH_ANNOTATION: spec_hash(manifest),
        }
        return {**manifest, "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), **stamps}}}

    def _must_be_ours(self, jobset: Mapping[str, Any]) -> None:
        meta = jobset["metadata"]
        theirs, ours = (meta.get("annotations") or {}).get(WORK_ANNOTATION), self._task.work_id
        if theirs != ours:
            raise JobSetFailed(
                Failure.REFUSED,
                f"JobSet {meta['name']} works on {theirs or 'something unknown'}, not on {ours}. "
                "Find out whose it is, and delete it or give this task's JobSets another name.",
            )

    def _is_as_submitted(self, live: FleetMember, meta: Mapping[str, Any]) -> bool:
        from nightshift.jobset.identity import spec_hash

        try:
            ours = spec_hash(self._task.manifest(live, meta["name"]))
        except ValueError:
            # No manifest can be rendered now; one could when the JobSet was created.
            return False
        return bool((meta.get("annotations") or {}).get(SPEC_HASH_ANNOTATION) == ours)


def _is_over(kept: FleetState) -> bool:
    return kept.deadline <= time.time()


def settled(task: JobSetWork, name: str) -> Observation:
    """The JobSet of this name, once it is not (or no longer) being deleted. Raises JobSetFailed after GONE_S."""
    end = time.monotonic() + GONE_S
    logged = False
    while True:
        seen = task.runtime.observe(name)
        if seen.jobset is None or not seen.jobset["metadata"].get("deletionTimestamp"):
            return seen
        if not logged:
            task.log.info("JobSet %s is being deleted; waiting until its pods are gone", name)
            logged = True
        if time.monotonic() > end:
            raise JobSetFailed(Failure.UNAVAILABLE, f"JobSet {name} is being deleted, and is still there after {GONE_S:.0f} s")
        time.sleep(1)


def is_judged(seen: Observation) -> bool:
    """Whether it has finished and an attempt has judged its end."""
    from nightshift.jobset.observation import finished

    if seen.jobset is None or not finished(seen.jobset):
        return False
    return JUDGED_ANNOTATION in (seen.jobset["metadata"].get("annotations") or {})
