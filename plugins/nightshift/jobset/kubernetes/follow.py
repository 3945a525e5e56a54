"""Follows one JobSet to its end by watching, not polling: its state, its pods' last states, and every container's log.

A connection that breaks, falls silent or is refused for a while is opened again, and the logs continue where they stopped. A
follower that starts in another process continues from the time that its predecessor noted on the JobSet
(`LOGGED_UNTIL_ANNOTATION`).
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, Protocol

from nightshift.fields.text import n
from nightshift.jobset.kubernetes.aio import AsyncJobSetApi, WatchExpired
from nightshift.jobset.kubernetes.logs import Logs
from nightshift.jobset.kubernetes.on_kill import owner_of, signed
from nightshift.jobset.kubernetes.pods import Pods
from nightshift.jobset.labels import LOGGED_UNTIL_ANNOTATION, OWNER_ANNOTATION, PAUSED_ANNOTATION, QUEUE_LABEL
from nightshift.jobset.observation import Observation, condition
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound, RequestRefused, RuntimeUnavailable
from nightshift.jobset.verdict.cannot_start import CannotStart, cannot_start
from nightshift.jobset.verdict.outcome import over_in_its_queue
from nightshift.jobset.verdict.pending import waiting_of
from nightshift.jobset.verdict.pod_ends import end_of
from nightshift.jobset.verdict.stages import jobset_now, with_log
from nightshift.run.observed.pods_now import JobSetNow, PodNow, in_words

WaitEnd = Literal["finished", "lost", "deadline", "starved", "disrupted", "broken", "gave_up", "refused", "look"]
Verdict = tuple[WaitEnd, str]

SESSION_S: Final = 2400.0
"""One connection's life: below the hour after which Google's tokens expire."""
TICK_S: Final = 2.0
SENTENCE_S: Final = 15.0
"""At most how often the pods' states are logged."""
EXPLAIN_S: Final = 60.0
"""How often to ask for events, or Kueue's reasons, while pods do not start."""
NOTE_S: Final = 300.0
"""How often to note how far the logs were read. After a triggerer is killed, at most this much is logged twice."""
LAST_LINES_S: Final = 30.0
"""How long a finished JobSet's pods and logs may be silent before their follower stops waiting for them."""
BACKOFF_MAX_S: Final = 30.0


class Log(Protocol):
    """What is used of a logger: Airflow's task logger and Python's both have it."""

    def info(self, event: str, /, *args: Any) -> Any: ...

    def warning(self, event: str, /, *args: Any) -> Any: ...


@dataclass(frozen=True)
class WakeLimits:
    """When to give up waiting, and wake the task.

    deadline: Unix time.
    startup_s: wake with "starved" when fewer than `min_running` pods have been running for this long; None: never.
    disruptions: wake with "disrupted" when this many pods were taken away since the follower began; None: never.
    broken: wake with "broken" when no engine can start (`nightshift.jobset.verdict.cannot_start`).
    """

    deadline: float
    startup_s: float | None = None
    min_running: int = 1
    disruptions: int | None = None
    broken: bool = False


@dataclass(frozen=True)
class Followed:
    """Why following ended.

    detail: why the JobSet does not start, by the last check, or why the cluster refuses requests.
    pods: `Pods.last_words`. jobset: a finished one, slim, because it may soon be gone. stuck: why its engine cannot start.
    """

    ending: WaitEnd
    detail: str = ""
    pods: list[dict[str, Any]] = field(default_factory=list)
    jobset: dict[str, Any] | None = None
    stuck: CannotStart | None = None


@dataclass(frozen=True)
class JobSetCounts:
    """How a JobSet did since its follower began, for the decision whether it needs help.

    wanted, running: pods. short_s: seconds for which fewer than `WakeLimits.min_running` have been running, 0 while enough do.
    held_s: the reverse. disruptions: pods that were taken away. worked_s: seconds of pods that ran, added up.
    """

    wanted: int
    running: int
    short_s: float
    held_s: float
    disruptions: int
    worked_s: float


class Follower:
    """Follows one JobSet. uid: of this object, since another may have the same name.

    connect: opens a client; called again for each session, so that it can bring fresh credentials.
    log: for people. sink: gets (pod, container, line) for every line of every container; None: no logs.
    owner: the attempt for which it follows; '' for none. signature: its own id, once the JobSet bears both; else ''.
    before: what an earlier follower `left`, if this one is to go on with its counts.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[AsyncJobSetApi]],
        name: str,
        uid: str,
        limits: WakeLimits,
        log: Log,
        sink: Callable[[str, str, str], None] | None,
        owner: str = "",
        before: Mapping[str, Any] | None = None,
    ) -> None:
        self._connect = connect
        self._api: AsyncJobSetApi | None = None
        self._name = name
        self._uid = uid
        self._limits = limits
        self._log = log
        self.pods = Pods()
        self._clients = AsyncExitStack()
        self._logs = Logs(sink, log.warning) if sink is not None else None
        self._suspended = False
        self._paused = ""
        self._queued = False
        self._jobset: Mapping[str, Any] | None = None
        self._workload: Mapping[str, Any] | None = None
        self._stuck: CannotStart | None = None
        self._sentence = ""
        self._sentence_at = 0.0
        self._explained_at = time.monotonic()
        self._noted_at = time.time()
        self._turned_at = self._counted_at = time.monotonic()
        self._short = True
        self._wanted = 0
        self._finished: dict[str, Any] | None = None
        self._worked_s = 0.0
        self._detail = ""
        self._owner = owner
        self.signature = ""
        self._met = asyncio.Event()
        self._listed = False
        self._session_lasted = False
        self._outage = False
        if before is not None:
            self._go_on(JobSetCounts(**before["counts"]), before["pods"])

    def _go_on(self, counts: JobSetCounts, pods: list[dict[str, Any]]) -> None:
        self._short = counts.held_s == 0
        self._turned_at -= max(counts.short_s, counts.held_s)
        self._worked_s = counts.worked_s
        self.pods.recall(pods, counts.disruptions)

    @property
    def paused(self) -> bool:
        """Whether a user has paused the JobSet."""
        return bool(self._paused)

    @property
    def reachable(self) -> bool:
        """Whether the cluster answered last: during an outage the counts stand still."""
        return not self._outage

    def left(self) -> dict[str, Any]:
        """JSON, for the follower after this one."""
        return {"counts": asdict(self.counts()), "pods": self.pods.last_words()}

    def now(self) -> JobSetNow | None:
        """Where its pods are; None before it was seen."""
        if self._jobset is None:
            return None
        at = time.time()
        pods = [self._with_log(pod) for pod in self.pods.now(at)]
        return jobset_now(Observation(self._jobset, workload=self._workload), pods, at)

    def _with_log(self, pod: PodNow) -> PodNow:
        return with_log(pod, self._logs.spoken(pod.name, pod.words.container)) if self._logs and pod.words else pod

    async def note(self) -> None:
        """Notes now how far the logs were read, so that the follower after this one repeats few lines."""
        if self._api is not None:
            self._noted_at = 0.0
            with suppress(RuntimeUnavailable):
                await self._note(self._api)

    def counts(self) -> JobSetCounts:
        since = time.monotonic() - self._turned_at
        return JobSetCounts(
            wanted=self._wanted,
            running=self.pods.started(),
            short_s=since if self._short else 0.0,
            held_s=0.0 if self._short else since,
            disruptions=self.pods.disruptions,
            worked_s=self._worked_s,
        )

    async def run(self) -> Followed:
        """Until the JobSet has ended, is gone, or a limit is reached. An unreachable API ends nothing before the deadline."""
        try:
            return await self._sessions()
        finally:
            await self._close()

    async def _sessions(self) -> Followed:
        failures = 0
        while True:
            try:
                verdict = await self._session(await self._clients.enter_async_context(self._connect()))
                if verdict:
                    pods = self.pods.last_words()
                    return Followed(verdict[0], verdict[1] or self._detail, pods, self._finished, self._stuck)
                failures = 0
            except RuntimeUnavailable as error:
                # A session that lasted for a while does not count as a failure.
                failures = 1 if self._session_lasted else failures + 1
                if not self._outage:
                    self._outage = True
                    self._log.warning("The cluster does not answer (%s). The JobSet keeps running; trying again", error)
                await self._close()
            except RequestRefused as error:
                return Followed("refused", str(error), self.pods.last_words())
            left = self._limits.deadline - time.time()
            if left <= 0:
                return Followed("deadline", self._detail, self.pods.last_words())
            await asyncio.sleep(min(BACKOFF_MAX_S, left, random.uniform(0.5, 1.0) * 2 ** min(failures, 6)))

    async def _session(self, api: AsyncJobSetApi) -> Verdict | None:
        """With one client; None when it is time for a new one. Open logs stay on the old one, which costs no new calls."""
        began = time.monotonic()
        self._listed = False
        tasks = [asyncio.create_task(each) for each in (self._watch_jobset(api), self._watch_pods(api), self._clock(api))]
        try:
            done, _ = await asyncio.wait(tasks, timeout=SESSION_S, return_when=asyncio.FIRST_COMPLETED)
            verdict = next((task.result() for task in done), None)
            if verdict and verdict[0] in ("finished", "lost"):
                await self._hear_out(tasks[1])
            return verdict
        finally:
            self._session_lasted = time.monotonic() - began > BACKOFF_MAX_S
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _close(self) -> None:
        """Stops reading logs and closes every client."""
        # A closed client would raise an error that is not the cluster's.
        self._api = None
        if self._logs:
            await self._logs.interrupt()
        await self._clients.aclose()

    async def _hear_out(self, watching: asyncio.Task[Any]) -> None:
        """Waits until the pods and their logs have ended, as long as anything new comes.

        Raises RuntimeUnavailable when they cannot be watched; the next session sees the JobSet's end again.
        """
        heard, end = -1, 0.0
        while self._met.is_set():
            if watching.done():
                watching.result()
            if self._listed and self.pods.all_ended() and (self._logs is None or self._logs.quiet):
                return
            if (lines := self._logs.lines if self._logs else 0) != heard:
                heard, end = lines, time.monotonic() + LAST_LINES_S
            elif time.monotonic() > end:
                return
            await asyncio.sleep(0.1)

    async def _watch_jobset(self, api: AsyncJobSetApi) -> Verdict:
        version = ""
        while True:
            try:
                if not version:
                    found, version = await api.list_jobset(self._name)
                    if not found:
                        return "lost", ""
                    if verdict := self._observe("ADDED", found[0]):
                        return verdict
                async for kind, jobset in api.watch_jobset(self._name, version):
                    version = jobset["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK" and (verdict := self._observe(kind, jobset)):
                        return verdict
            except WatchExpired:
                version = ""

    def _observe(self, kind: str, jobset: Mapping[str, Any]) -> Verdict | None:
        meta = jobset["metadata"]
        if meta["uid"] != self._uid or kind == "DELETED":
            return "lost", ""
        if self._logs:
            self._logs.begin_at((meta.get("annotations") or {}).get(LOGGED_UNTIL_ANNOTATION, ""))
        self._met.set()
        if self._outage:
            self._outage = False
            self._log.info("The cluster answers again")
        self._jobset = jobset
        self._queued = QUEUE_LABEL in (meta.get("labels") or {})
        self._wanted = sum(
            each.get("replicas", 1) * each["template"]["spec"].get("parallelism", 1)
            for each in jobset["spec"]["replicatedJobs"]
        )
        paused = (meta.get("annotations") or {}).get(PAUSED_ANNOTATION, "")
        if paused != self._paused:
            self._log.info("JobSet %s: %s", self._name, f"{paused}; its pods drain" if paused else "no longer paused")
            self._paused = paused
        suspended = bool(jobset.get("spec", {}).get("suspend"))
        if suspended != self._suspended:
            self._log.info("JobSet %s is %s", self._name, "suspended" if suspended else "no longer suspended")
            self._suspended = suspended
        ended = condition(jobset, "Completed") or condition(jobset, "Failed")
        if ended:
            self._finished = {
                "metadata": {key: meta[key] for key in ("name", "uid")},
                "spec": {},
                "status": {"conditions": jobset["status"]["conditions"]},
            }
            self._log.info("JobSet %s: %s, %s", self._name, ended["type"], ended.get("message") or ended.get("reason", ""))
            return "finished", ""
        return None

    async def _watch_pods(self, api: AsyncJobSetApi) -> Verdict:
        # The JobSet's annotation says where the logs begin.
        await self._met.wait()
        version = ""
        while True:
            try:
                if not version:
                    found, version = await api.list_pods(self._name)
                    for name in self.pods.keep_only({pod["metadata"]["uid"] for pod in found}):
                        self._log.warning(
                            "Pod %s disappeared while the cluster could not be watched; how it ended is unknown", name
                        )
                    for pod in found:
                        self._pod(api, "ADDED", pod)
                    self._listed = True
                async for kind, pod in api.watch_pods(self._name, version):
                    version = pod["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        self._pod(api, kind, pod)
            except WatchExpired:
                version = ""

    def _pod(self, api: AsyncJobSetApi, kind: str, pod: Mapping[str, Any]) -> None:
        disruptions = self.pods.disruptions
        self.pods.update(pod, deleted=kind == "DELETED")
        if self._paused:
            self.pods.disruptions = disruptions
        if self._logs:
            self._logs.update(api, pod)

    async def _clock(self, api: AsyncJobSetApi) -> Verdict:
        self._api = api
        while True:
            await asyncio.sleep(max(0.0, min(TICK_S, self._limits.deadline - time.time())))
            if time.time() >= self._limits.deadline:
                return "deadline", ""
            limit = self._limits.disruptions
            if limit is not None and self.pods.disruptions >= limit:
                return "disrupted", f"the cluster took {n(self.pods.disruptions, 'pod')} away"
            self._log_pods()
            if self._limits.broken and (broken := self._cannot_start()):
                self._stuck = broken
                return "broken", broken.explanation
            self._count()
            startup = self._limits.startup_s
            if startup is not None and self.counts().short_s > startup:
                await self._log_why_waiting(api)
                return "starved", ""
            if (self._short or self._suspended) and not self._paused and time.monotonic() - self._explained_at > EXPLAIN_S:
                await self._log_why_waiting(api)
                if over := over_in_its_queue(self._workload):
                    return "gave_up", over.explanation
            await self._sign(api)
            await self._note(api)

    def _count(self) -> None:
        now = time.monotonic()
        self._worked_s += self.pods.running() * (now - self._counted_at)
        self._counted_at = now
        short = self.pods.started() < self._limits.min_running
        # A pause is not a lack of capacity: the time without pods begins when it is over.
        if short != self._short or self._paused:
            self._short, self._turned_at = short, now

    def _log_pods(self) -> None:
        if (now := self.now()) is None:
            return
        sentence = in_words(now)
        if sentence != self._sentence and time.monotonic() - self._sentence_at > SENTENCE_S:
            self._log.info("JobSet %s: %s", self._name, sentence)
            self._sentence, self._sentence_at = sentence, time.monotonic()

    def _cannot_start(self) -> CannotStart | None:
        # Pods that are gone may have worked.
        if self._paused or self._suspended or self._worked_s:
            return None
        at = time.time()
        return cannot_start([self._with_log(pod) for pod in self.pods.now(at)], at)

    async def _log_why_waiting(self, api: AsyncJobSetApi) -> None:
        """Logs a new reason why the JobSet does not start, in the words of Kueue, the scheduler or a kubelet."""
        self._explained_at = time.monotonic()
        with suppress(RequestRefused, JobSetNotFound):
            workload = await api.get_workload(self._uid) if self._queued and self._suspended else None
            self._workload = workload
            self.pods.events = tuple(await api.list_events(self._name))
            seen = Observation(self._jobset, pods=self.pods.pending(), workload=workload, events=self.pods.events)
            waiting = waiting_of(seen, [end_of(pod, resume_codes=(), permanent_codes=()) for pod in seen.pods])
            detail = f"{waiting.subject}: {waiting.words}" if waiting else ""
            if detail and detail != self._detail:
                self._log.info("JobSet %s does not start: %s", self._name, detail)
                self._detail = detail

    async def _sign(self, api: AsyncJobSetApi) -> None:
        """Once; see `nightshift.jobset.kubernetes.on_kill`."""
        if not self._owner or self.signature or self._jobset is None:
            return
        if owner_of(self._jobset) != self._owner:
            # Another attempt owns it now.
            return
        follower = uuid.uuid4().hex[:8]
        if await self._annotate(api, OWNER_ANNOTATION, signed(self._owner, follower)):
            self.signature = follower

    async def _note(self, api: AsyncJobSetApi) -> None:
        """Notes on the JobSet how far every log was read."""
        if self._logs is None or time.time() - self._noted_at < NOTE_S or not (until := self._logs.read_until()):
            return
        self._noted_at = time.time()
        await self._annotate(api, LOGGED_UNTIL_ANNOTATION, until)

    async def _annotate(self, api: AsyncJobSetApi, name: str, value: str) -> bool:
        """Whether it succeeded: the JobSet may be gone or changed, and the permission may be missing."""
        with suppress(RequestRefused, JobSetNotFound, JobSetExists):
            await api.patch_jobset(self._name, {"metadata": {"uid": self._uid, "annotations": {name: value}}})
            return True
        return False
