"""A trial on a real engine: started for it alone, so that no prefix of an earlier one is cached, and stopped after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from nightshift.jobset.verdict import cannot_start, stages
from nightshift.run.names import digest_of
from nightshift.trial.preview.names import EngineFolder
from nightshift.trial.preview.outcome import EngineGone, EngineTaken, Outcome
from nightshift.trial.preview.warm import NoEngine, WarmEngine, last_words, taken_away
from nightshift.trial.tune.points import Cause

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore.store import ObjectStore

    from nightshift.jobset.runtime import Runtime
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec

STOP_S: Final = 180.0
"""How long an engine may take to end before the next one starts."""
POLL_S: Final = 0.2
WORDS_MOST: Final = 2_000
"""Characters of an engine's last words that are kept."""
KILLED: Final = 137
"""Exit code of a process that SIGKILL has ended: in a pod, nearly always for want of memory."""


class EngineFailed(Exception):
    """A trial has shown that a point cannot be used. words: the engine's last ones, or what was seen of it."""

    def __init__(self, cause: Cause, words: str) -> None:
        super().__init__(words)
        self.cause, self.words = cause, words[-WORDS_MOST:]


class Engines(Protocol):
    """Starts engines. JobSets are one way; whoever knows another gives it to `nightshift.trial.tune.session.tune`."""

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
    """As JobSets of the deployment's runtime, one worker each, on a cluster as on this machine.

    Nights come first: they have no priority in Kueue but that of their pods' PriorityClass.
    """

    store: ObjectStore
    settings: Settings
    runtime: Callable[[], Runtime]

    def trial(
        self, spec: JobSpec, names: Sequence[str], warm_up: pa.Table, rows: pa.Table, *, answers: bool = False
    ) -> Outcome:
        *earlier, folder = [_folder(spec.job, name) for name in names]
        runtime = self.runtime()
        spec = spec.model_copy(update={"priority": None})
        # A machine may take hours, as for a night.
        warm = WarmEngine(self.store, self.settings, lambda: runtime, lambda sentence: None, machine_s=spec.deadline_seconds)
        for each in earlier:
            self._end(runtime, each.jobset)
        try:
            warm.answers(spec, warm_up, folder, brief=True)
            found = warm.answers(spec, rows, folder, brief=not answers)
            if taken_away(runtime.observe(folder.jobset)):
                # The rows may have met a second engine, which was cold.
                raise EngineTaken(f"The cluster took the pod of JobSet {folder.jobset} away.")
        except NoEngine as error:
            raise EngineFailed(cause_of(str(error), Cause.CANNOT_START), str(error)) from error
        except EngineTaken:
            raise
        except EngineGone as error:
            seen = runtime.observe(folder.jobset)
            if taken_away(seen):
                raise EngineTaken(f"The cluster took the pod of JobSet {folder.jobset} away.") from error
            said = f"{error}{last_words(runtime, folder.jobset)}"
            killed = any(map(_killed, seen.pods))
            raise EngineFailed(Cause.OUT_OF_MEMORY if killed else cause_of(said, Cause.DIED), said) from error
        finally:
            self._end(runtime, folder.jobset)
        return found

    def _end(self, runtime: Runtime, jobset: str) -> None:
        """Stops it, and waits until its machine is free: two engines at once would be measured together."""
        if runtime.observe(jobset).jobset is None:
            return
        runtime.stop(jobset)
        deadline = time.monotonic() + STOP_S
        while runtime.observe(jobset).jobset is not None and time.monotonic() < deadline:
            time.sleep(POLL_S)


def _folder(job: str, name: str) -> EngineFolder:
    """Of one attempt alone: in that of another there may be questions that nobody waits for."""
    return EngineFolder(job, digest_of(["tune", job, name]))


def cause_of(words: str, otherwise: Cause) -> Cause:
    """Why an engine ended, by its last words."""
    return Cause.OUT_OF_MEMORY if cannot_start.cause_in(words) is cannot_start.Cause.MEMORY else otherwise


def _killed(pod: Mapping[str, Any]) -> bool:
    """Whether a container was ended for want of memory, as its pod's status says."""
    words = stages.last_words(pod)
    return words is not None and (words.exit_code == KILLED or cannot_start.cause_of(words) is cannot_start.Cause.MEMORY)
