"""Follows JobSets on a cluster, in the triggerer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow.triggers.base import BaseTrigger, TriggerEvent

from nightshift.fields.terminal import harmless
from nightshift.jobset.fleet.watch import FleetWatch
from nightshift.triggers.ended import ended_by_a_person
from nightshift.triggers.log_flush import logged_lines_taken
from nightshift.triggers.night_gauges import NightGauges
from nightshift.triggers.polling import BACKOFF_FACTOR, BACKOFF_MAX_S, SETTLE_S
from nightshift.triggers.shielded import run_shielded

if TYPE_CHECKING:
    from nightshift.hooks.jobset import AsyncJobSetHook
    from nightshift.jobset.fleet.records import WatchReport
    from nightshift.jobset.kubernetes.aio import AsyncJobSetApi
    from nightshift.jobset.kubernetes.follow import Followed, Follower
    from nightshift.run.observed.pods_now import JobSetNow

KILL_AGAIN_S: Final = 1.0
KillPolicy = Literal["delete", "suspend", "leave"]
WAITING: Final = (
    *("jobsets", "namespace", "deadline", "startup_timeout", "min_running", "disruptions"),
    *("get_logs", "owner", "kill_policy", "look", "before"),
)
"""Arguments of a trigger that follows JobSets, in whatever way it reaches the cluster."""


class KubernetesJobSetTrigger(BaseTrigger):
    """
    Watches JobSets and fires once, for the first one that ends or needs a decision.

    The event is the JSON of a `nightshift.jobset.fleet.records.JobSetEvent`. ``ending`` is one of ``finished``, ``lost``
    (deleted from outside), ``deadline``, ``starved`` (too few pods for ``startup_timeout`` seconds), ``disrupted`` (more pods
    were taken away than ``disruptions``), ``broken`` (of a run: its engine cannot start), ``gave_up`` (Kueue will never admit
    it), ``refused`` (a permission is missing) and ``look`` (see below). ``pods`` holds the last state of failed or deleted
    pods, which cannot be read later; ``counts`` has the counts of each JobSet by name (`JobSetCounts`). If the cluster does not
    answer, the trigger waits until the deadline.

    Every container's log is copied to the task's log while it runs, including those of replacement pods.

    Marking the waiting task failed or successful, clearing it, or deleting its DAG run applies ``kill_policy``; a restart of
    the triggerer does not.

    With ``look``, the trigger forecasts when the run will end (`nightshift.jobset.fleet.watch.FleetWatch`). Every event then
    has the result as ``look``; with the ending ``look``, ``before`` has what the next trigger needs to continue the counts.

    :param jobsets: the ``name`` and ``uid`` of each, and its own ``min_running`` if it has one.
    :param namespace: of the JobSets.
    :param deadline: Unix time.
    :param kubernetes_conn_id: the Kubernetes connection.
    :param config_file: path of a kubeconfig.
    :param cluster_context: a context of the kubeconfig.
    :param in_cluster: use the service account of the triggerer's pod.
    :param startup_timeout: in seconds; None for no limit.
    :param min_running: how many pods must run; with fewer, the JobSet is starved.
    :param disruptions: how many are tolerated; None for any number.
    :param get_logs: copy the containers' logs.
    :param owner: the task instance's id.
    :param kill_policy: ``delete``, ``suspend`` or ``leave``.
    :param look: what is known of the run whose deadline is to be kept; None for no forecast.
    :param before: what the last trigger's event had under that name.
    """

    def __init__(
        self,
        *,
        jobsets: Sequence[dict[str, Any]],
        namespace: str,
        deadline: float,
        kubernetes_conn_id: str | None = None,
        config_file: str | None = None,
        cluster_context: str | None = None,
        in_cluster: bool | None = None,
        startup_timeout: float | None = None,
        min_running: int = 1,
        disruptions: int | None = None,
        get_logs: bool = True,
        owner: str = "",
        kill_policy: KillPolicy = "delete",
        look: dict[str, Any] | None = None,
        before: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.jobsets = list(jobsets)
        self.namespace = namespace
        self.deadline = deadline
        self.kubernetes_conn_id = kubernetes_conn_id
        self.config_file = config_file
        self.cluster_context = cluster_context
        self.in_cluster = in_cluster
        self.startup_timeout = startup_timeout
        self.min_running = min_running
        self.disruptions = disruptions
        self.get_logs = get_logs
        self.owner = owner
        self.kill_policy = kill_policy
        self.look = look
        self.before = before
        self._followers: dict[str, Follower] = {}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        own = ("kubernetes_conn_id", "config_file", "cluster_context", "in_cluster")
        return "nightshift.triggers.jobset.KubernetesJobSetTrigger", arguments(self, *WAITING, *own)

    @cached_property
    def hook(self) -> AsyncJobSetHook:
        from nightshift.hooks.jobset import AsyncJobSetHook

        return AsyncJobSetHook(
            conn_id=self.kubernetes_conn_id,
            config_file=self.config_file,
            cluster_context=self.cluster_context,
            in_cluster=self.in_cluster,
        )

    def connect(self) -> AbstractAsyncContextManager[AsyncJobSetApi]:
        return self.hook.jobsets(self.namespace)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from nightshift.jobset.kubernetes.follow import Followed

        began = time.monotonic()
        followers = [self._follower(each) for each in self.jobsets]
        self._followers = dict(zip([each["name"] for each in self.jobsets], followers, strict=True))
        watch = None if self.look is None else await asyncio.to_thread(self._watch, self.look)
        try:
            found = await _first_ending(
                [follower.run() for follower in followers],
                watch.until_needed(self._counts, self._paused, self._reachable, self._pods) if watch else None,
                lambda: asyncio.gather(*(follower.note() for follower in followers)),
            )
        finally:
            if watch:
                watch.close()
        # See `SETTLE_S`: Airflow takes a task that resumes too early for dead.
        await asyncio.sleep(max(0.0, SETTLE_S - (time.monotonic() - began)))
        if not await logged_lines_taken():
            self.log.warning(
                "The triggerer is too busy to pass on all lines: the last ones may be missing here and be only in its own log"
            )
        before = {name: follower.left() for name, follower in self._followers.items()} if found is None else None
        number, followed = found or (0, Followed("look"))
        report = watch.report if watch else None
        event = jobset_event(self.jobsets[number], followed, self._counts(), report, before)
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    def _watch(self, look: dict[str, Any]) -> FleetWatch:
        from nightshift.hooks.credentials import open_bucket

        return FleetWatch(look, self.deadline, self.log, open_bucket, NightGauges(look["run"]))

    def _counts(self) -> dict[str, Any]:
        return {name: asdict(follower.counts()) for name, follower in self._followers.items()}

    def _pods(self) -> list[JobSetNow]:
        return [now for follower in self._followers.values() if (now := follower.now())]

    def _paused(self) -> frozenset[str]:
        """The JobSets that a user has paused. Waiting in Kueue's queue does not count."""
        return frozenset(name for name, follower in self._followers.items() if follower.paused)

    def _reachable(self) -> bool:
        return all(follower.reachable for follower in self._followers.values())

    async def on_kill(self) -> None:
        """Applies the policy, unless another attempt or triggerer has taken over the JobSet meanwhile.

        If the cluster does not answer, it is asked again until the deadline, at which the cluster itself ends the Jobs.
        """
        if self.kill_policy == "leave":
            self.log.info("A user ended the task; its on_kill_policy keeps the JobSet running")
            return
        await run_shielded(self._end(self.kill_policy), self.log)

    async def _end(self, policy: Literal["delete", "suspend"]) -> None:
        # At the same time: Airflow may take minutes to answer, and pods cost money.
        told = asyncio.create_task(ended_by_a_person(self)) if self.look is not None else None
        from nightshift.jobset.kubernetes.on_kill import apply_kill_policy
        from nightshift.jobset.runtime import RuntimeUnavailable

        for each in self.jobsets:
            name, pause = each["name"], KILL_AGAIN_S
            while True:
                try:
                    async with self.connect() as api:
                        done = await apply_kill_policy(api, name, each["uid"], self.owner, self._signature(name), policy)
                    self.log.info("%s", done)
                    break
                except RuntimeUnavailable as error:
                    left = self.deadline - time.time()
                    if left <= 0:
                        self.log.warning("JobSet %s was not ended before its deadline: %s", name, error)
                        break
                    self.log.warning("JobSet %s cannot be ended yet: %s", name, error)
                await asyncio.sleep(min(pause, left))
                pause = min(pause * BACKOFF_FACTOR, BACKOFF_MAX_S)
        if told is not None:
            await told

    def _follower(self, jobset: dict[str, Any]) -> Follower:
        from nightshift.jobset.kubernetes.follow import Follower, WakeLimits

        name = jobset["name"]
        running = jobset.get("min_running", self.min_running)
        limits = WakeLimits(self.deadline, self.startup_timeout, running, self.disruptions, self.look is not None)
        sink = self._sink(name) if self.get_logs else None
        before = (self.before or {}).get(name)
        return Follower(self.connect, name, jobset["uid"], limits, self.log, sink, self.owner, before)

    def _signature(self, name: str) -> str:
        return self._followers[name].signature if name in self._followers else ""

    def _sink(self, name: str) -> Callable[[str, str, str], None]:
        def write(pod: str, container: str, line: str) -> None:
            self.log.info("[%s %s] %s", pod.removeprefix(f"{name}-"), container, harmless(line))

        return write


def arguments(trigger: BaseTrigger, *names: str) -> dict[str, Any]:
    """What Airflow stores of a trigger: the arguments with these names, which are those of its attributes."""
    return {name: getattr(trigger, name) for name in names}


def jobset_event(
    jobset: dict[str, Any],
    followed: Followed,
    counts: dict[str, Any],
    look: WatchReport | None = None,
    before: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """JSON of a `JobSetEvent`. jobset: name and uid of the one that it is about."""
    from nightshift.jobset.fleet.records import JobSetEvent

    return JobSetEvent(
        name=jobset["name"],
        uid=jobset["uid"],
        ending=followed.ending,
        detail=followed.detail,
        pods=followed.pods,
        jobset=followed.jobset,
        stuck=followed.stuck,
        counts=counts,
        look=look,
        before=before,
    ).to_json()


async def _first_ending(
    following: Sequence[Coroutine[Any, Any, Followed]],
    needed: Coroutine[Any, Any, None] | None,
    note: Callable[[], Awaitable[Any]] | None = None,
) -> tuple[int, Followed] | None:
    """The number and the result of the first of `following` to end; None if `needed` ends first. Cancels the others.

    needed: ends when the task has a decision to make. note: called then, while the others still follow.
    """
    tasks = [asyncio.create_task(each) for each in following]
    watching = [asyncio.create_task(needed)] if needed else []
    try:
        await asyncio.wait([*tasks, *watching], return_when=asyncio.FIRST_COMPLETED)
        for number, task in enumerate(tasks):
            if task.done():
                return number, task.result()
        watching[0].result()
        if note:
            await note()
        return None
    finally:
        for each in (*tasks, *watching):
            each.cancel()
        await asyncio.gather(*tasks, *watching, return_exceptions=True)
