"""Where each pod of a JobSet is, and who has to act, by its cluster's objects (`nightshift.run.observed.pods_now`). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from nightshift import exits
from nightshift.jobset.labels import PAUSED_ANNOTATION, PROFILE_LABEL
from nightshift.jobset.manifest.constants import DRIVER, SERVER
from nightshift.jobset.observation import Observation, condition, containers, finished, moment
from nightshift.jobset.verdict.last_words import Words
from nightshift.jobset.verdict.pending import POD_EVENTS, latest
from nightshift.jobset.verdict.pod_ends import EndCause, end_of, index_of
from nightshift.jobset.verdict.text import shorten
from nightshift.run.observed.pods_now import Acts, JobSetNow, LastWords, PodEnding, PodNow, Stage, waited_s

PATIENCE_S: Final = 600.0
"""Quota and machines often come within minutes, and then nobody has to act."""

_QUIET: Final = ("ContainerCreating", "PodInitializing", "")
"""Why a container waits when nothing is wrong."""
_NEVER_RAN: Final = ("StartError", "ContainerCannotRun", "RunContainerError", "CreateContainerError")
_ENDINGS: Final = {EndCause.SUCCEEDED: PodEnding.DONE, EndCause.FAILED: PodEnding.FAILED}


def jobset_now(seen: Observation, pods: Sequence[PodNow], now: float) -> JobSetNow:
    """seen: of it, the JobSet and Kueue's Workload are used. pods: `pod_now` of each. now: Unix time."""
    jobset = seen.jobset or {"metadata": {"name": ""}, "spec": {"replicatedJobs": []}}
    meta = jobset["metadata"]
    wanted = sum(
        each.get("replicas", 1) * each["template"]["spec"].get("parallelism", 1)
        for each in jobset["spec"].get("replicatedJobs") or ()
    )
    stage, since, acts, why = _held(seen, now)
    profile = (meta.get("labels") or {}).get(PROFILE_LABEL, "")
    return JobSetNow(meta["name"], moment(now), wanted, stage, since, acts, why, profile, tuple(pods))


def _held(seen: Observation, now: float) -> tuple[Stage | None, str, Acts, str]:
    """What holds the JobSet itself: stage, since when, who acts, why."""
    jobset = seen.jobset
    if jobset is None or finished(jobset) or jobset["metadata"].get("deletionTimestamp"):
        return Stage.ENDED, moment(now), Acts.NOBODY, ""
    if not jobset.get("spec", {}).get("suspend"):
        return None, "", Acts.NOBODY, ""
    if paused := (jobset["metadata"].get("annotations") or {}).get(PAUSED_ANNOTATION):
        return Stage.PAUSED, moment(now), Acts.USER, str(paused)
    workload = seen.workload or {}
    created = str(workload.get("metadata", {}).get("creationTimestamp") or jobset["metadata"].get("creationTimestamp") or "")
    unmet = condition(workload, "QuotaReserved", "False") or condition(workload, "Admitted", "False")
    why = shorten(unmet.get("message", "")) if unmet else ""
    return Stage.QUEUE, created or moment(now), _after_patience(created, now), why


def with_log(pod: PodNow, spoken: Words | None) -> PodNow:
    """With what its log says that its kubelet has not kept. spoken: of the container of its last words."""
    if pod.words is None or spoken is None or pod.words.cause or not (spoken.cause or spoken.lines):
        return pod
    words = replace(pod.words, cause=spoken.cause, lines=pod.words.lines or spoken.lines, may_pass=spoken.may_pass)
    return replace(pod, words=words)


def pod_now(pod: Mapping[str, Any], now: float, *, deleted: bool = False, events: Sequence[Mapping[str, Any]] = ()) -> PodNow:
    """pod: slim or whole. deleted: it no longer exists. now: Unix time. events: of its JobSet's pods, as far as known."""
    meta = pod["metadata"]
    words = last_words(pod)
    restarts = max((int(each.get("restartCount") or 0) for each in containers(pod)), default=0)
    common = {
        "name": meta["name"],
        "index": index_of(pod),
        "node": pod.get("spec", {}).get("nodeName", ""),
        "restarts": restarts,
        "words": words,
    }
    if deleted or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        end = end_of(pod, resume_codes=(exits.RESUME,), permanent_codes=(exits.CONFIG,))
        ending = _ENDINGS.get(end.cause, PodEnding.TAKEN)
        if end.failed and all(each.exit_code == exits.RESUME for each in end.failed):
            ending = PodEnding.TAKEN
        if ending is not PodEnding.FAILED:
            common["words"] = None
        acts = Acts.NOBODY if ending is not PodEnding.FAILED else Acts.CLUSTER if words and words.killed else Acts.AUTHOR
        why = ": ".join(filter(None, (end.reason, shorten(end.message)))) if ending is not PodEnding.DONE else ""
        since = _finished(pod) or end.since or meta.get("deletionTimestamp") or moment(now)
        return PodNow(**common, stage=Stage.ENDED, since=since, acts=acts, why=why, ending=ending)
    stage, since, acts, why = _alive(pod, words, now, events)
    stuck = stage is Stage.IMAGE and acts is Acts.CLUSTER
    return PodNow(**common, stage=stage, since=since or moment(now), acts=acts, why=why, stuck=stuck)


def vanished(pod: PodNow, now: float) -> PodNow:
    """One that disappeared before its end was seen. now: Unix time."""
    return replace(pod, stage=Stage.ENDED, ending=PodEnding.TAKEN, since=moment(now), why="", acts=Acts.NOBODY, words=None)


def last_words(pod: Mapping[str, Any]) -> LastWords | None:
    """Of the container that failed last, by what its kubelet kept of its log."""
    found = [
        (ended.get("finishedAt") or "", container, ended)
        for container in containers(pod)
        for state in ("state", "lastState")
        if (ended := (container.get(state) or {}).get("terminated")) and ended.get("exitCode")
    ]
    if not found:
        return None
    at, container, ended = max(found, key=lambda each: each[0])
    spoken = Words((ended.get("message") or "").splitlines())
    return LastWords(
        container["name"],
        int(ended["exitCode"]),
        ended.get("reason", ""),
        int(container.get("restartCount") or 0),
        at,
        spoken.cause,
        spoken.lines,
        int(container.get("restartCount") or 0) + ("running" not in (container.get("state") or {})),
        spoken.may_pass,
    )


def _alive(
    pod: Mapping[str, Any], words: LastWords | None, now: float, events: Sequence[Mapping[str, Any]]
) -> tuple[Stage, str, Acts, str]:
    meta, driver, server = pod["metadata"], _container(pod, DRIVER), _engine(pod)
    if pod.get("status", {}).get("phase") == "Running" or "running" in (driver.get("state") or {}):
        return Stage.WORKING, _started(driver), Acts.NOBODY, ""
    created = meta.get("creationTimestamp", "")
    if unplaced := condition(pod, "PodScheduled", "False"):
        why = shorten(unplaced.get("message") or unplaced.get("reason", ""))
        return Stage.NODE, created, _after_patience(created, now), why
    if not pod.get("spec", {}).get("nodeName"):
        return Stage.NODE, created, _after_patience(created, now), ""
    placed = (condition(pod, "PodScheduled") or {}).get("lastTransitionTime") or created
    if server.get("restartCount") or (server.get("lastState") or {}).get("terminated") or _ended(server):
        return Stage.WEIGHTS, placed, _who_mends(words), ""
    for each in containers(pod):
        waits = (each.get("state") or {}).get("waiting") or {}
        if waits.get("reason", "") not in _QUIET:
            # The driver's, too, whose image is pulled when the engine answers.
            why = f"{each['name']}: {waits['reason']}: {shorten(waits.get('message', ''))}".strip(": ")
            return Stage.IMAGE, placed, Acts.CLUSTER, why
    if trouble := _trouble(pod, events):
        return Stage.IMAGE, placed, Acts.CLUSTER, trouble
    if "running" in (server.get("state") or {}):
        return Stage.WEIGHTS, _started(server), Acts.NOBODY, ""
    return Stage.IMAGE, placed, Acts.NOBODY, ""


def _who_mends(words: LastWords | None) -> Acts:
    """Of an engine that has exited before it ever answered."""
    if words is None:
        return Acts.NOBODY
    return Acts.CLUSTER if words.reason in _NEVER_RAN or words.killed else Acts.AUTHOR


def _after_patience(since: str, now: float) -> Acts:
    return Acts.CLUSTER if waited_s(since, now) > PATIENCE_S else Acts.NOBODY


def _trouble(pod: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> str:
    """Why its volumes or its network cannot be made, for which a kubelet has no place but an event; '' if they can."""
    if condition(pod, "PodReadyToStartContainers", "False") is None:
        return ""
    event = latest([each for each in events if each["involvedObject"]["name"] == pod["metadata"]["name"]], POD_EVENTS)
    return f"{event['reason']}: {shorten(event.get('message', ''))}" if event else ""


def _container(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((each for each in containers(pod) if each["name"] == name), {"name": name})


def _engine(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The server's container; of a JobSet that is not nightshift's, its first sidecar."""
    sidecars = pod.get("status", {}).get("initContainerStatuses") or ()
    return next((each for each in sidecars if each["name"] == SERVER), sidecars[0] if sidecars else {})


def _ended(container: Mapping[str, Any]) -> bool:
    return "terminated" in (container.get("state") or {})


def _started(container: Mapping[str, Any]) -> str:
    state = container.get("state") or {}
    return str((state.get("running") or state.get("terminated") or {}).get("startedAt") or "")


def _finished(pod: Mapping[str, Any]) -> str:
    """When the last of its containers ended."""
    ends = [((each.get("state") or {}).get("terminated") or {}).get("finishedAt") or "" for each in containers(pod)]
    return max(ends, default="")
