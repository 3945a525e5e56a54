"""Engines for trials: JobSets with one worker, made like a night's, that are asked in the bucket.

A preview's stays warm for a while and answers the next one. A tune starts one for each trial, so that no prefix of an earlier
one is cached, and stops it after it.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

import obstore

from nightshift.formats import PREVIEW, UnreadableFormat, loaded
from nightshift.jobset.manifest.constants import LOAD_PATIENCE, SERVER
from nightshift.jobset.manifest.render import render
from nightshift.jobset.manifest.server import image_setting, server_args
from nightshift.jobset.observation import Observation, condition, finished
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound, Runtime, RuntimeUnavailable
from nightshift.jobset.verdict import cannot_start
from nightshift.jobset.verdict.stages import last_words, pod_now
from nightshift.run.names import canonical_json, digest_of
from nightshift.run.observed.pods_now import PodEnding, Stage
from nightshift.run.plan import InputFile, Plan
from nightshift.store import ObjectTooLarge, get_bytes, reaching
from nightshift.trial.engine_folder import LIFE_S, EngineFolder, new_id
from nightshift.trial.outcomes import Cause, EngineGone, EngineTaken, Outcome, UnfitEngine
from nightshift.trial.rows import to_parquet

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore.store import ObjectStore

    from nightshift.settings import Settings
    from nightshift.spec import JobSpec

PROGRAM: Final = "nightshift.trial.keeper"
TAKEN_S: Final = 2.5
"""How soon a warm engine takes a question: several of its looks."""
POLL_S: Final = 0.1
LOOK_S: Final = 3.0
SAY_S: Final = 15.0
RESTARTS: Final = 2
"""Of a server, before it counts as one that cannot start."""
PATIENT_S: Final = 10.0
"""After which whoever waits for an answer looks whether its pod is still there."""
LAST_LINES: Final = 12
NAME_BYTES: Final = 1 << 10
"""Of the object that names the pod which has taken a question."""
ANSWER_BYTES: Final = 16 << 20
ANSWER_ROW_BYTES: Final = 256 << 10
"""Of an answer, and of each of its rows more: a vector of 8,192 numbers has 160 KiB."""
COMPUTE_S: Final = 900.0
"""How long a question that was taken may take."""
STOP_S: Final = 180.0
"""How long an engine of one trial may take to end before the next one starts."""
WORDS_MOST: Final = 2_000
"""Characters of an engine's last words that are kept."""
KILLED: Final = 137
"""Exit code of a process that SIGKILL has ended: in a pod, nearly always for want of memory."""


class NoEngine(Exception):
    """There is no engine to ask: it does not start. The message ends with its own last words, if it has left some."""


class NoMachine(Exception):
    """The engine has had no machine to start on: quota, or capacity. The message says where it waits."""


class EngineFailed(Exception):
    """A trial has shown that settings cannot be used. words: the engine's last ones, or what was seen of it."""

    def __init__(self, cause: Cause, words: str) -> None:
        super().__init__(words)
        self.cause, self.words = cause, words[-WORDS_MOST:]


class Engines(Protocol):
    """Starts engines. JobSets are one way; who has another gives it to `nightshift.trial.tune.tuner.tune`."""

    def trial(
        self, spec: JobSpec, names: Sequence[str], warm_up: pa.Table, rows: pa.Table, *, answers: bool = False
    ) -> Outcome:
        """Starts the job's engine, sends it the warm-up and then the rows by the driver's request loop, and stops it.

        names: of this trial's attempts, this one last: what a killed process has left of the others is ended first. The outcome
        is that of `rows`, with their answers only if they are asked for.

        Raises EngineFailed; EngineTaken if the cluster took the machine away, which says nothing of the point; NoMachine,
        UnfitEngine, StoreUnavailable, and what reaching the machines raises.
        """
        ...


@dataclass(frozen=True)
class JobSetEngines:
    """Of the deployment's runtime, on a cluster as on this machine.

    runtime(): called when an engine is started, and while an answer takes long. say(sentence): while a person waits.
    machine_s: how long to wait for a machine; None: as long as for the weights.
    """

    store: ObjectStore
    settings: Settings
    runtime: Callable[[], Runtime]
    say: Callable[[str], None] = lambda sentence: None
    machine_s: float | None = None

    def trial(
        self, spec: JobSpec, names: Sequence[str], warm_up: pa.Table, rows: pa.Table, *, answers: bool = False
    ) -> Outcome:
        """As `Engines`. Nights come first: they have no priority in Kueue but that of their pods' PriorityClass."""
        # Of one attempt alone: in the folder of another there may be questions that nobody waits for.
        *earlier, folder = [EngineFolder(spec.job, digest_of(["tune", spec.job, name])) for name in names]
        runtime = self.runtime()
        spec = spec.model_copy(update={"priority": None})
        # A machine may take hours, as for a night.
        own = replace(self, runtime=lambda: runtime, machine_s=spec.deadline_seconds)
        taken = f"The cluster took the pod of JobSet {folder.jobset} away."
        for each in earlier:
            _end(runtime, each.jobset)
        try:
            own.answers(spec, warm_up, folder, brief=True)
            found = own.answers(spec, rows, folder, brief=not answers)
            if taken_away(runtime.observe(folder.jobset)):
                raise EngineTaken(taken)  # The rows may have met a second engine, which was cold.
        except NoEngine as error:
            raise EngineFailed(cause_of(str(error), Cause.CANNOT_START), str(error)) from error
        except EngineTaken:
            raise
        except EngineGone as error:
            seen = runtime.observe(folder.jobset)
            if taken_away(seen):
                raise EngineTaken(taken) from error
            said = f"{error}{last_lines(runtime, folder.jobset)}"
            killed = any(map(_killed, seen.pods))
            raise EngineFailed(Cause.OUT_OF_MEMORY if killed else cause_of(said, Cause.DIED), said) from error
        finally:
            _end(runtime, folder.jobset)
        return found

    def answers(self, spec: JobSpec, table: pa.Table, folder: EngineFolder | None = None, *, brief: bool = False) -> Outcome:
        """The answers to the rows. folder: of the engine that is to be asked; by default the job's own. brief: numbers alone.

        Raises NoEngine, NoMachine, EngineTaken, EngineGone, UnfitEngine, StoreUnavailable, and what `runtime` raises.
        """
        folder, id_ = folder or folder_of(spec, self.settings), new_id()
        ask = {
            **PREVIEW.stamp(),
            "at": datetime.now(UTC).isoformat(),
            "spec": spec.model_dump(mode="json"),
            "rows": base64.b64encode(to_parquet(table)).decode(),
            "brief": brief,
            "waits_s": self.machine_s or 0.0,
        }
        with reaching(f"write {folder.ask_path(id_)}"):
            obstore.put(self.store, folder.ask_path(id_), canonical_json(ask), mode="create")
        if not self._taken(folder, id_, TAKEN_S):
            self._start(spec, folder)
            self._await_taken(spec, folder, id_)
        return self._answer(folder, id_, ANSWER_BYTES + len(table) * ANSWER_ROW_BYTES)

    def _taken(self, folder: EngineFolder, id_: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not (taken := self._get(folder.taken_path(id_), NAME_BYTES) is not None) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return taken

    def _start(self, spec: JobSpec, folder: EngineFolder) -> None:
        """Submits the JobSet, unless one is on its way. The name of one that has ended is free once it is gone."""
        runtime, deadline = self.runtime(), math.inf
        manifest = manifest_of(spec, folder, self.settings, self.machine_s)
        while True:
            try:
                runtime.submit(manifest)
                break
            except JobSetExists:
                if deadline == math.inf:
                    jobset = runtime.observe(folder.jobset).jobset
                    if jobset is not None and not finished(jobset):
                        self.say(f"the engine is starting already: JobSet {folder.jobset}")
                        return
                    runtime.stop(folder.jobset)
                    deadline = time.monotonic() + 60
                elif time.monotonic() > deadline:
                    raise NoEngine(f"JobSet {folder.jobset} has ended and is not deleted. Delete it, and try again.") from None
                else:
                    time.sleep(0.5)
        self.say(
            f"an engine starts (JobSet {folder.jobset}) and loads the model; it stays while it is used, and ten minutes longer"
        )

    def _await_taken(self, spec: JobSpec, folder: EngineFolder, id_: str) -> None:
        began = said = placed = time.monotonic()
        patience_s = LOAD_PATIENCE * spec.compute.worker().start_seconds
        machine_s = patience_s if self.machine_s is None else self.machine_s
        runtime = self.runtime()
        while not self._taken(folder, id_, LOOK_S):
            seen = runtime.observe(folder.jobset)
            self._judge(runtime, folder, seen)
            waited = time.monotonic() - began
            if not has_machine(seen):
                placed = time.monotonic()
                if waited > machine_s:
                    raise NoMachine(f"JobSet {folder.jobset} has had no machine for {waited:.0f} s: quota, or capacity.")
            elif time.monotonic() - placed > patience_s:
                raise NoEngine(
                    f"The engine was not ready within {patience_s} s. Its JobSet {folder.jobset} goes on: ask again later."
                    + last_lines(runtime, folder.jobset)
                )
            if time.monotonic() - said >= SAY_S:
                said = time.monotonic()
                self.say(f"the engine is loading ({waited:.0f} s)")

    def _judge(self, runtime: Runtime, folder: EngineFolder, seen: Observation) -> None:
        """Raises NoEngine for a JobSet that has ended, or whose server ends again and again; it is stopped then. Raises
        EngineTaken if it ended because its pod was taken away."""
        ended = seen.jobset is None or finished(seen.jobset)
        if ended and taken_away(seen):
            raise EngineTaken(f"The cluster took the pod of JobSet {folder.jobset} away before its engine answered.")
        restarts = max((_restarts(pod) for pod in seen.pods), default=0)
        if not ended and restarts < RESTARTS:
            return
        words = last_lines(runtime, folder.jobset)
        runtime.stop(folder.jobset)
        raise NoEngine(f"The engine does not start: it ended {restarts + 1} times.{words}")

    def _answer(self, folder: EngineFolder, id_: str, most: int) -> Outcome:
        """most: bytes that it may have."""
        deadline, look = time.monotonic() + COMPUTE_S, time.monotonic() + PATIENT_S
        while (body := self._get(folder.answer_path(id_), most)) is None:
            if time.monotonic() > deadline:
                raise EngineGone(f"The engine has taken the rows and not answered for {COMPUTE_S:.0f} s.")
            if time.monotonic() > look:
                self._look_after(folder, id_, most)
                look = time.monotonic() + LOOK_S
            time.sleep(POLL_S)
        try:
            found = loaded(body)
            PREVIEW.check(found, folder.answer_path(id_))
            outcome = None if "error" in found else Outcome.from_json(found["outcome"])
        except UnreadableFormat:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise EngineGone(f"{folder.answer_path(id_)} is not an answer of an engine: {error!r}") from error
        if outcome is None:
            raise (UnfitEngine if found.get("unfit") else EngineGone)(str(found["error"]))
        return outcome

    def _look_after(self, folder: EngineFolder, id_: str, most: int) -> None:
        """Raises EngineTaken, EngineGone if the pod that has taken a question is gone, and with it the answer."""
        if not (pod := (self._get(folder.taken_path(id_), NAME_BYTES) or b"").decode(errors="replace")):
            return  # The engine is none of a JobSet's, or of an earlier release.
        try:
            seen = self.runtime().observe(folder.jobset)
        except RuntimeUnavailable:
            return  # The engine may answer all the same.
        mine = next((each for each in seen.pods if each["metadata"]["name"] == pod), None)
        ending = PodEnding.TAKEN if mine is None else pod_now(mine, time.time()).ending
        if ending is None or self._get(folder.answer_path(id_), most) is not None:
            return
        if ending is PodEnding.TAKEN:
            raise EngineTaken(f"The cluster took pod {pod} away while its engine answered.")
        raise EngineGone(f"The process beside the engine ended in pod {pod} and has not answered.")

    def _get(self, path: str, most: int) -> bytes | None:
        """A worker writes it: an object of more bytes than `most` is not read. Raises EngineGone, StoreUnavailable."""
        try:
            with reaching(f"read {path}"):
                return get_bytes(self.store, path, most)
        except ObjectTooLarge as error:
            raise EngineGone(f"{error}: no engine writes that") from error


def _end(runtime: Runtime, jobset: str) -> None:
    """Stops it, and waits until its machine is free: two engines at once would be measured together."""
    if runtime.observe(jobset).jobset is None:
        return
    runtime.stop(jobset)
    deadline = time.monotonic() + STOP_S
    while runtime.observe(jobset).jobset is not None and time.monotonic() < deadline:
        time.sleep(POLL_S)


def cause_of(words: str, otherwise: Cause) -> Cause:
    """Why an engine ended, by its last words."""
    return Cause.OUT_OF_MEMORY if cannot_start.cause_in(words) is cannot_start.Cause.MEMORY else otherwise


def _killed(pod: Mapping[str, Any]) -> bool:
    """Whether a container was ended for want of memory, as its pod's status says."""
    words = last_words(pod)
    return words is not None and (words.exit_code == KILLED or cannot_start.cause_of(words) is cannot_start.Cause.MEMORY)


def folder_of(spec: JobSpec, settings: Settings) -> EngineFolder:
    """The engine of this job: the same for two versions of a prompt."""
    return EngineFolder(spec.job, digest_of([spec.job, *_how(spec, settings)]))


def same_engine(spec: JobSpec, other: JobSpec, settings: Settings) -> bool:
    """Whether the engine of one job answers for the other."""
    return _how(spec, settings) == _how(other, settings)


def _how(spec: JobSpec, settings: Settings) -> list[Any]:
    """All of how its engine is started."""
    worker = spec.compute.worker()
    return [server_args(spec, worker), worker.engines, worker.profile.name, getattr(settings, image_setting(worker, settings))]


def manifest_of(spec: JobSpec, folder: EngineFolder, settings: Settings, machine_s: float | None = None) -> dict[str, Any]:
    """One worker, whose driver is the keeper. Raises as `render`. machine_s: as of `JobSetEngines`.

    Its deadline is its own: who has asked may be gone, and then nothing else ends an engine that cannot start.
    """
    patience_s = LOAD_PATIENCE * spec.compute.worker().start_seconds
    deadline_s = (machine_s or patience_s) + patience_s + LIFE_S + COMPUTE_S
    spec = spec.model_copy(update={"deadline": f"{math.ceil(deadline_s / 60)}m"})
    plan = Plan(folder.digest, 1, 1, 1, (InputFile("none", 1, (1,), 0, ""),))
    return render(spec, folder.run, plan, settings, name=folder.jobset, workers=1, program=PROGRAM)


def has_machine(seen: Observation) -> bool:
    """Whether one of its pods has a machine."""
    return any(pod_now(pod, time.time()).stage not in (Stage.NODE, Stage.ENDED) for pod in seen.pods)


def taken_away(seen: Observation) -> bool:
    """Whether the cluster takes, or has taken, one of its pods away; also a JobSet that somebody has deleted."""
    if seen.jobset is None:
        return True
    return any(
        condition(pod, "DisruptionTarget") is not None
        or "deletionTimestamp" in pod["metadata"]
        or pod_now(pod, time.time()).ending is PodEnding.TAKEN
        for pod in seen.pods
    )


def _restarts(pod: Mapping[str, Any]) -> int:
    statuses = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return max((int(each.get("restartCount") or 0) for each in statuses if each.get("name") == SERVER), default=0)


def last_lines(runtime: Runtime, jobset: str) -> str:
    """The last lines of the server's log; "" if there are none."""
    for pod in runtime.observe(jobset).pods:
        try:
            lines = [line for line in runtime.logs(jobset, pod["metadata"]["name"], SERVER, last=LAST_LINES) if line.strip()]
        except JobSetNotFound:
            continue
        if lines:
            return "\nIts last lines:\n" + "\n".join(f"    {line}" for line in lines)
    return ""
