"""When to stop waiting for an engine that cannot start, and what to do about it. Pure.

A kubelet restarts an engine that has exited for ever, so without this rule a wrong model is silence until the deadline.
A night is over when, in one of its JobSets,

- no pod has ever worked, so the job itself may be wrong, and no preemption explains it;
- every pod whose engine was started has seen it exit, so it is not one machine that is broken;
- on one of them it has exited `TRIES` times; and, if the cause may pass by itself (a Hub that does not answer, a SIGKILL that
  is not the memory limit's), its pod has had its machine for `PASSING_S` seconds by then.

An image that cannot be pulled, a volume that cannot be mounted, or a container that cannot be made, is given `IMAGE_S`
seconds on every pod that has a machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from nightshift.fields.stored import read
from nightshift.fields.text import n
from nightshift.jobset.verdict.exit_codes import in_words
from nightshift.run.observed.pods_now import LastWords, PodEnding, PodNow, Stage, waited_s

TRIES: Final = 3
"""A kubelet waits 10 s and 20 s between them: with an engine that exits after a minute, about four minutes."""
PASSING_S: Final = 900.0
IMAGE_S: Final = 300.0
"""A registry's short outage passes within it."""
_SIGNALS: Final = (137, 143)


class Cause(StrEnum):
    """Why an engine cannot start, as far as its words say."""

    MODEL = "model"
    WEIGHTS = "weights"
    FLAG = "flag"
    MEMORY = "memory"
    PROGRAM = "program"
    IMAGE = "image"
    UNREACHABLE = "unreachable"
    KILLED = "killed"
    OTHER = "other"


WHAT_TO_DO: Final = {
    Cause.MODEL: "Correct model.uri or model.revision: there is no such model, or the pods cannot ask the Hub for it.",
    Cause.WEIGHTS: "Correct model.uri, or copy the model again: there are no weights that the engine can read.",
    Cause.FLAG: "Correct engine: and engine.args: the engine refuses one of its settings.",
    Cause.MEMORY: "Give the engine more memory (compute.profile), or less to hold: max_model_len, max_num_seqs.",
    Cause.PROGRAM: "Correct the deployment's setting server_image: the program of that image cannot be started.",
    Cause.IMAGE: "Correct what the pod needs: its image, or a secret or volume that it names. Waiting does not help.",
    Cause.UNREACHABLE: "Let the pods reach the server that does not answer, or copy the model into the bucket.",
    Cause.KILLED: "Its own log does not know why: look at the events of the pod and at its node, and repeat the task.",
    Cause.OTHER: "Its last lines say why; correct the job or the image.",
}

_SAID: Final = (
    (Cause.FLAG, ("error: (?:unrecognized|argument|the following|ambiguous)", "invalid choice")),
    (Cause.MODEL, ("repositorynotfound", "revisionnotfound", "gatedrepo", "not a valid model identifier")),
    (Cause.MODEL, ("entrynotfound", "appropriate cached snapshot", "traffic has been disabled", "40[134] client error")),
    (
        Cause.MEMORY,
        ("out ?of ?memory", "no available memory", "free memory on device", "cannot allocate memory", "memoryerror"),
    ),
    (Cause.MEMORY, ("available kv cache memory", "kv cache is needed", "gpu[_ ]memory[_ ]utilization", "bad_alloc")),
    (Cause.MEMORY, ("less than requested memory", "not enough (?:gpu )?memory")),
    (Cause.WEIGHTS, ("safetensors", "cannot find any model weights", "no such file or directory", "filenotfound", "nosuchkey")),
    (Cause.WEIGHTS, ("invalid repository id or local", "repo id must be in the form", "does not appear to have a file")),
    (Cause.FLAG, ("validation errors? for", "unexpected keyword", "unsupported", "not supported")),
)
"""The first that matches."""


@dataclass(frozen=True)
class CannotStart:
    """cause: why. pods: on how many, of how many that have tried. words: of the engine that said most; None for an image.

    why: one line. pod: the name of the one that it is from.
    """

    cause: Cause
    pods: int
    tried: int
    why: str
    pod: str
    words: LastWords | None = None

    @property
    def explanation(self) -> str:
        """What happened, a sentence without its full stop."""
        if self.words is None:
            return f"a container cannot be started on {_pods(self.pods, self.tried)}: {self.why}"
        code, where = in_words(self.words.exit_code, self.words.reason), _pods(self.pods, self.tried)
        how = f"exit code {code}, {self.words.exits} times, on {where}"
        spoke = self.words.cause or self.words.lines
        return f"the engine cannot start: {self.why} ({how})" if spoke else f"the engine cannot start: {how}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CannotStart:
        return read(cls, value)


def cannot_start(pods: Sequence[PodNow], now: float) -> CannotStart | None:
    """pods: all of a JobSet's that are known. now: Unix time. None as long as waiting may help."""
    if any(pod.stage in (Stage.WARM_UP, Stage.WORKING) or pod.ending in (PodEnding.DONE, PodEnding.FAILED) for pod in pods):
        return None
    placed = [pod for pod in pods if pod.stage in (Stage.IMAGE, Stage.WEIGHTS)]
    tried = [pod for pod in placed if pod.stage is Stage.WEIGHTS]
    if not tried:
        stuck = [pod for pod in placed if pod.stuck]
        if placed and len(stuck) == len(placed) and all(waited_s(pod.since, now) >= IMAGE_S for pod in stuck):
            return CannotStart(Cause.IMAGE, len(stuck), len(placed), stuck[0].why, stuck[0].name)
        return None
    if not all(pod.words for pod in tried):
        return None
    over = [pod for pod in tried if pod.words and _is_over(pod.words, waited_s(pod.since, now))]
    if not over:
        return None
    pod = max(over, key=lambda each: (bool(each.words and each.words.cause), each.name))
    assert pod.words is not None
    return CannotStart(cause_of(pod.words), len(tried), len(tried), pod.words.said, pod.name, pod.words)


def cause_of(words: LastWords) -> Cause:
    """By what an engine said before it exited."""
    if words.reason == "OOMKilled":
        return Cause.MEMORY
    if words.reason in ("StartError", "ContainerCannotRun") or words.exit_code in (126, 127):
        return Cause.PROGRAM
    if words.may_pass:
        return Cause.UNREACHABLE
    return Cause.KILLED if words.killed else cause_in(words.said)


def cause_in(said: str) -> Cause:
    """By a text alone."""
    found = (cause for cause, patterns in _SAID if re.search("|".join(patterns), said, re.IGNORECASE))
    return next(found, Cause.OTHER)


def _is_over(words: LastWords, age_s: float) -> bool:
    return words.exits >= TRIES and (not _passes(words) or age_s >= PASSING_S)


def _passes(words: LastWords) -> bool:
    return words.may_pass or (words.exit_code in _SIGNALS and words.reason != "OOMKilled")


def _pods(some: int, every: int) -> str:
    if some == every:
        return "the only pod" if every == 1 else f"all {every} pods that tried"
    return f"{some} of {n(every, 'pod')}"
