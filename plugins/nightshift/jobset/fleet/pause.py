"""Applies a request to pause or resume a run (`nightshift.run.pauses`) to its JobSets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nightshift.jobset.labels import PAUSED_ANNOTATION, QUEUE_LABEL, RUN_URL_ANNOTATION
from nightshift.jobset.observation import finished
from nightshift.jobset.runtime import JobSetNotFound, Runtime
from nightshift.run.pauses import PauseRequest


def apply(runtime: Runtime, run_url: str, request: PauseRequest) -> list[str]:
    """Applies the request to all JobSets of the run that have not ended; returns their names. run_url: ``gs://.../RUN``."""
    done = []
    for jobset in runtime.jobsets(run_url.rpartition("/")[2]):
        meta = jobset["metadata"]
        if (meta.get("annotations") or {}).get(RUN_URL_ANNOTATION) == run_url and not finished(jobset):
            apply_to(runtime, meta["name"], request, jobset)
            done.append(str(meta["name"]))
    return done


def apply_to(runtime: Runtime, name: str, request: PauseRequest, jobset: Mapping[str, Any]) -> None:
    """Applies the request to one JobSet. One that has gone meanwhile is fine."""
    try:
        if request.paused:
            runtime.pause(name, str(request))
        elif is_paused(jobset) or _only_suspended(jobset):
            runtime.resume(name)
    except JobSetNotFound:
        return


def is_paused(jobset: Mapping[str, Any]) -> bool:
    return PAUSED_ANNOTATION in (jobset["metadata"].get("annotations") or {})


def _only_suspended(jobset: Mapping[str, Any]) -> bool:
    """Created while its run was paused, by a task that died before it could note that. Kueue starts those of its queues."""
    return bool(jobset["spec"].get("suspend")) and QUEUE_LABEL not in (jobset["metadata"].get("labels") or {})


def tell(names: Sequence[str], request: PauseRequest) -> str:
    """What was done, in a sentence. names: of the JobSets that the request was applied to."""
    if not names:
        later = "infer creates its JobSets suspended until you resume it" if request.paused else "there is nothing to resume"
        return f"The run has no JobSet now; {later}"
    return f"{'Suspended' if request.paused else 'Resumed'}: JobSet {', '.join(names)}"
