"""What every task that runs a JobSet does: finds, adopts or creates it, waits deferred, judges its end, and goes on or fails.

Safe to kill and repeat at any point. The name of a JobSet is a function of its work and of a *generation*, which advances
only when an end has been judged; the generation is kept in Airflow's task state store before the JobSet is created. So a
repeat finds what its predecessor made, whether or not that had come as far as to say so, and there is never a second one.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from nightshift.jobset.names import WORK_ANNOTATION
from nightshift.operators.jobset_errors import JobSetRefused, JobSetUnavailable, JobSetUnknown, failure_of, runtime_failures

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from nightshift.jobset.observation import Observation
    from nightshift.jobset.runtime import Runtime
    from nightshift.jobset.verdict.outcome import Outcome
    from nightshift.jobset.verdict.pod_ends import FailedContainer

GONE_S: Final = 240.0
"""How long a JobSet that is being deleted may take to go: its pods' grace period and the garbage collector."""
GENERATIONS_MAX: Final = 1000
LAST_LINES: Final = 20
LAST_LINES_PODS: Final = 4
RESUME_PAUSE_S: Final = 5.0


@dataclass(frozen=True)
class Live:
    """A JobSet that this task has decided to have. profile: what it runs on, where the task knows several."""

    generation: int
    profile: str = ""


@dataclass(frozen=True)
class Kept:
    """What outlives an attempt. deadline: Unix time, for all attempts together. resumes: how often it went on by itself."""

    live: tuple[Live, ...] = ()
    next: int = 1
    deadline: float = 0.0
    resumes: int = 0

    @classmethod
    def of(cls, value: Any) -> Kept:
        if not isinstance(value, Mapping):
            return cls()
        return cls(tuple(Live(**each) for each in value["live"]), value["next"], value["deadline"], value["resumes"])

    def over(self) -> Kept:
        """No attempt follows by itself: one that a person asks for begins with all its time."""
        return Kept(next=self.next)


@dataclass(frozen=True)
class Waited:
    """A JobSet that is waited for."""

    live: Live
    name: str
    uid: str
    seen: Observation = field(repr=False)


class JobSetTask:
    """
    A mixin for operators, which bring what is theirs.

    :param resume_limit: how often the task goes on by itself, without using up a retry, when pods were taken away or the
        JobSet was deleted from outside.
    """

    if TYPE_CHECKING:
        log: Any

    resume_limit: int = 100
    deferrable: bool = True
    keep_finished: bool = False
    _created: tuple[str, str] | None = None

    # What the operator brings.

    @property
    @abstractmethod
    def runtime(self) -> Runtime:
        """Where its JobSets run."""

    @abstractmethod
    def work(self, context: Context) -> str:
        """Whose work it is: the same for every attempt, and for every task that may share the JobSet."""

    @abstractmethod
    def jobset_name(self, context: Context, generation: int) -> str:
        """A function of the work and the generation."""

    @abstractmethod
    def manifest(self, context: Context, live: Live, name: str) -> dict[str, Any]:
        """Raises ValueError with a sentence when there is none."""

    @abstractmethod
    def seconds(self) -> float:
        """From the first attempt's start to the deadline of all."""

    @abstractmethod
    def waiter(self, context: Context, waited: list[Waited], deadline: float) -> BaseTrigger:
        """The trigger that fires `jobset_event`s."""

    @abstractmethod
    def judge(self, seen: Observation, *, expired: bool, starved: bool) -> Outcome:
        """What the observation means for this task."""

    @abstractmethod
    def result(self, context: Context, name: str, seen: Observation) -> Any:
        """What a successful task returns."""

    def describe(self, failed: FailedContainer) -> str:
        """What the failed index was working on, for a message; '' where nothing is known."""
        return ""

    def relive(self, context: Context, kept: Kept, event: Mapping[str, Any]) -> tuple[Live, ...] | None:
        """For a JobSet that has not ended but needs a decision: the JobSets to have from now on; None: give it up."""
        return None

    def first_profile(self) -> str:
        return ""

    # What is the same for all.

    def run_jobset(self, context: Context) -> Any:
        """`execute`'s part: returns the result of a JobSet that is done already, or defers."""
        with runtime_failures():
            kept = self._load(context)
            if kept.deadline <= time.time():
                # A deadline that has passed belonged to attempts that were cleared since.
                kept = replace(kept, deadline=time.time() + self.seconds(), resumes=0)
            return self._go_on(context, kept)

    def complete(self, context: Context, event: Mapping[str, Any]) -> Any:
        """`execute_complete`'s part: judges the JobSet that the event is about."""
        with runtime_failures():
            kept = self._load(context)
            live = next((each for each in kept.live if self.jobset_name(context, each.generation) == event["name"]), None)
            if live is None:
                self.log.info("JobSet %s is no longer waited for", event["name"])
                return self._go_on(context, kept)
            if event["ending"] == "refused":
                self._close(context, event["name"], None)
                raise JobSetRefused(f"JobSet {event['name']} is refused: {event['detail']}")
            seen = self._with_last_words(self._observe(event["name"], event["uid"]), event)
            return self._conclude(context, kept, live, event, seen)

    def drop_jobsets(self, context: Context) -> None:
        """Ends what this task may still have: its work turned out to be done."""
        kept = self._load(context)
        for live in kept.live:
            self.runtime.stop(self.jobset_name(context, live.generation))
        self._save(context, replace(kept, live=()))

    def end_on_kill(self) -> None:
        """`on_kill`'s part, when the worker's process gets SIGTERM: a worker that drains looks the same as a person who fails
        the task. A JobSet that this very process has made is seconds old and goes; one that works stays for the next attempt.
        """
        if self._created is None:
            return
        name, uid = self._created
        self.log.info("Deleting JobSet %s, which this process has just made", name)
        self.runtime.stop(name, uid)

    def _go_on(self, context: Context, kept: Kept) -> Any:
        """Sees to it that every JobSet of `kept.live` is there, once, and waits for them."""
        if not kept.live:
            kept = self._with_new(kept)
        self._save(context, kept)
        waited: list[Waited] = []
        for live in kept.live:
            name = self.jobset_name(context, live.generation)
            seen = self._settled(name)
            while seen.jobset is not None and self._is_judged(seen):
                # Kept from an earlier run of this task, whose memory was cleared with its success.
                kept = self._replace(kept, live, replace(live, generation=self._next(kept)))
                self._save(context, kept)
                live, name = kept.live[-1], self.jobset_name(context, kept.live[-1].generation)
                seen = self._settled(name)
            if seen.jobset is None:
                waited.append(self._create(context, live, name))
                continue
            self._must_be_ours(context, seen)
            if _finished(seen):
                # Waited for all the same: the trigger fires at once, when it has copied the logs.
                self.log.info("JobSet %s is finished already; nobody has judged it yet", name)
            waited.append(self._adopt(context, live, seen))
        return self._wait(context, kept, waited)

    def _conclude(self, context: Context, kept: Kept, live: Live, event: Mapping[str, Any], seen: Observation) -> Any:
        from nightshift.jobset.verdict.outcome import Ending

        name, ending = event["name"], event["ending"]
        outcome = self.judge(seen, expired=ending == "deadline", starved=ending == "starved")
        self._tell(name, outcome)
        if ending in ("starved", "disrupted") and outcome.ending in (Ending.RUNNING, Ending.STARTUP):
            lives = self.relive(context, kept, event)
            if lives is not None:
                return self._with_lives(context, kept, lives)
            if outcome.ending is Ending.RUNNING:
                return self._go_on(context, kept)
        self._show_last_lines(name, outcome)
        if outcome.ending is Ending.SUCCEEDED:
            result = self.result(context, name, seen)
            for each in kept.live:
                self._close(context, self.jobset_name(context, each.generation), seen if each == live else None)
            self._save(context, kept.over())
            return result
        self._close(context, name, seen)
        self._await_end(name)
        others = tuple(each for each in kept.live if each != live)
        kept = replace(kept, live=others)
        self._save(context, kept)
        if others:
            self.log.info("Another JobSet of this task works on")
            return self._go_on(context, kept)
        if outcome.resumes_at_once and kept.resumes < self.resume_limit and kept.deadline > time.time():
            self.log.info("Going on with a new JobSet; this uses up none of the task's retries")
            time.sleep(RESUME_PAUSE_S)
            return self._go_on(context, self._with_new(replace(kept, resumes=kept.resumes + 1), profile=live.profile))
        failure = failure_of(name, outcome)
        if isinstance(failure, AirflowFailException):
            self._save(context, kept.over())
        raise failure

    def _with_lives(self, context: Context, kept: Kept, lives: tuple[Live, ...]) -> Any:
        """Ends what is not among `lives`, and goes on with those."""
        for each in kept.live:
            if each not in lives:
                self._close(context, self.jobset_name(context, each.generation), None)
        kept = replace(kept, live=lives, next=max([kept.next, *(each.generation + 1 for each in lives)]))
        return self._go_on(context, kept)

    def _create(self, context: Context, live: Live, name: str) -> Waited:
        from nightshift.jobset.observation import Observation
        from nightshift.jobset.runtime import JobSetExists

        try:
            manifest = self._stamped(context, self.manifest(context, live, name))
        except ValueError as error:
            raise JobSetRefused(f"JobSet {name} cannot be made: {error}") from error
        try:
            uid = self.runtime.submit(manifest)
        except JobSetExists:
            # Somebody with the same work was faster, or the reply to our own try was lost.
            seen = self._settled(name)
            if seen.jobset is None:
                raise JobSetUnavailable(f"JobSet {name} was there and is gone; the next attempt makes it anew") from None
            self._must_be_ours(context, seen)
            return self._adopt(context, live, seen)
        self._created = (name, uid)
        self.log.info("Created JobSet %s", name)
        return Waited(live, name, uid, Observation(manifest))

    def _adopt(self, context: Context, live: Live, seen: Observation) -> Waited:
        assert seen.jobset is not None
        meta = seen.jobset["metadata"]
        uid = str(meta.get("uid", ""))
        self.runtime.claim(meta["name"], uid, self._owner(context))
        self.log.info("JobSet %s is there already: waiting for it", meta["name"])
        if not self._is_as_submitted(context, live, meta):
            self.log.warning(
                "JobSet %s was made from another manifest than this task has now. It works on; delete it to have it anew",
                meta["name"],
            )
        return Waited(live, meta["name"], uid, seen)

    def _is_as_submitted(self, context: Context, live: Live, meta: Mapping[str, Any]) -> bool:
        from nightshift.jobset.names import SPEC_HASH_ANNOTATION
        from nightshift.jobset.naming import spec_hash

        try:
            ours = spec_hash(self.manifest(context, live, meta["name"]))
        except ValueError:
            # There is none now; the one that works was made when there was.
            return False
        return bool((meta.get("annotations") or {}).get(SPEC_HASH_ANNOTATION) == ours)

    def _must_be_ours(self, context: Context, seen: Observation) -> None:
        assert seen.jobset is not None
        meta = seen.jobset["metadata"]
        theirs, ours = (meta.get("annotations") or {}).get(WORK_ANNOTATION), self.work(context)
        if theirs != ours:
            raise JobSetRefused(
                f"JobSet {meta['name']} works on {theirs or 'something unknown'}, not on {ours}. "
                "Find out whose it is, and delete it or give this task's JobSets another name."
            )

    def _stamped(self, context: Context, manifest: dict[str, Any]) -> dict[str, Any]:
        from nightshift.jobset.names import OWNER_ANNOTATION, SPEC_HASH_ANNOTATION
        from nightshift.jobset.naming import spec_hash

        meta = manifest["metadata"]
        stamps = {
            WORK_ANNOTATION: self.work(context),
            OWNER_ANNOTATION: self._owner(context),
            SPEC_HASH_ANNOTATION: spec_hash(manifest),
        }
        return {**manifest, "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), **stamps}}}

    def _wait(self, context: Context, kept: Kept, waited: list[Waited]) -> Any:
        trigger = self.waiter(context, waited, kept.deadline)
        if self.deferrable:
            raise TaskDeferred(trigger=trigger, method_name="execute_complete")
        self._created = None
        return self.complete(context, asyncio.run(_first_event(trigger)))

    def _settled(self, name: str) -> Observation:
        """The JobSet of this name, once it is not (or no longer) being deleted."""
        end = time.monotonic() + GONE_S
        told = False
        while True:
            seen = self.runtime.observe(name)
            if seen.jobset is None or not seen.jobset["metadata"].get("deletionTimestamp"):
                return seen
            if not told:
                self.log.info("JobSet %s is being deleted; waiting until its pods have gone", name)
                told = True
            if time.monotonic() > end:
                raise JobSetUnavailable(f"JobSet {name} is being deleted, and is still there after {GONE_S:.0f} s")
            time.sleep(1)

    def _observe(self, name: str, uid: str) -> Observation:
        from nightshift.jobset.observation import Observation

        seen = self.runtime.observe(name, closely=True)
        if seen.jobset is not None and uid and seen.jobset["metadata"].get("uid") != uid:
            return Observation(None)
        return seen

    def _with_last_words(self, seen: Observation, event: Mapping[str, Any]) -> Observation:
        """With what the trigger saw and nobody can ask for any more: deleted pods, and a finished JobSet whose time was up."""
        there = {pod["metadata"].get("uid") for pod in seen.pods}
        gone = tuple(pod for pod in event["pods"] if pod["metadata"]["uid"] not in there)
        return replace(seen, jobset=seen.jobset or event["jobset"], pods=(*seen.pods, *gone))

    def _is_judged(self, seen: Observation) -> bool:
        from nightshift.jobset.names import JUDGED_ANNOTATION

        assert seen.jobset is not None
        return _finished(seen) and JUDGED_ANNOTATION in (seen.jobset["metadata"].get("annotations") or {})

    def _close(self, context: Context, name: str, seen: Observation | None) -> None:
        """Deletes a JobSet, or notes that it was judged. Not before its end was shown. Never fails the task's success."""
        from nightshift.jobset.runtime import JobSetNotFound

        uid = str(seen.jobset["metadata"].get("uid", "")) if seen and seen.jobset else ""
        if seen is not None and seen.jobset is None:
            return
        if self.keep_finished and seen is not None and _finished(seen):
            try:
                self.runtime.mark_judged(name, uid, self._owner(context))
            except JobSetNotFound:
                return
        else:
            self.runtime.stop(name, uid)

    def _await_end(self, name: str) -> None:
        """So that a next JobSet does not begin beside pods that still drain."""
        try:
            self._settled(name)
        except JobSetUnavailable as error:
            self.log.warning("%s", error)

    def _tell(self, name: str, outcome: Outcome) -> None:
        self.log.info("JobSet %s: %s (%s): %s", name, outcome.ending.value, outcome.reason, outcome.explanation)
        for line in outcome.evidence:
            self.log.info("  %s", line)

    def _show_last_lines(self, name: str, outcome: Outcome) -> None:
        """Of containers that failed, for whoever reads the end of the log first. Never fails the task."""
        for failed in outcome.failed[:LAST_LINES_PODS]:
            about = self.describe(failed)
            try:
                lines = list(self.runtime.logs(name, failed.pod, failed.container, last=LAST_LINES))
            except Exception as error:
                self.log.info("%s's log of %s%s is no longer to be had (%s)", failed.pod, failed.container, about, error)
            else:
                self.log.info("Last lines of %s in %s%s:\n%s", failed.container, failed.pod, about, "\n".join(lines))

    def _with_new(self, kept: Kept, profile: str = "") -> Kept:
        return replace(kept, live=(Live(kept.next, profile or self.first_profile()),), next=kept.next + 1)

    def _replace(self, kept: Kept, old: Live, new: Live) -> Kept:
        others = tuple(each for each in kept.live if each != old)
        return replace(kept, live=(*others, new), next=new.generation + 1)

    def _next(self, kept: Kept) -> int:
        if kept.next > GENERATIONS_MAX:
            raise JobSetRefused(f"{GENERATIONS_MAX} finished JobSets of this task are kept: delete them")
        return kept.next

    def _owner(self, context: Context) -> str:
        return str(context["ti"].id)

    def _load(self, context: Context) -> Kept:
        return Kept.of(context["task_state_store"].get(self._key(context)))

    def _save(self, context: Context, kept: Kept) -> None:
        context["task_state_store"].set(self._key(context), {**asdict(kept), "live": [asdict(each) for each in kept.live]})

    def _key(self, context: Context) -> str:
        return f"jobset:{hashlib.sha256(self.work(context).encode()).hexdigest()[:16]}"


def _finished(seen: Observation) -> bool:
    from nightshift.jobset.observation import finished

    return seen.jobset is not None and finished(seen.jobset)


async def _first_event(trigger: BaseTrigger) -> dict[str, Any]:
    async for event in trigger.run():
        payload: dict[str, Any] = event.payload
        return payload
    raise JobSetUnknown("the trigger ended without an event")
