"""The sentences of an outcome: what failed, how, and where to look. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from nightshift.jobset.verdict import indexes
from nightshift.jobset.verdict.exit_codes import in_words
from nightshift.jobset.verdict.pod_ends import FailedContainer, PodEnd

WORDS_MAX: Final = 240
"""Characters of a controller's message that go into a sentence."""
NAMES_MAX: Final = 3
EVIDENCE_MAX: Final = 20
"""Lines of evidence; a JobSet may have thousands of pods."""

_NEVER_RAN: Final = ("StartError", "ContainerCannotRun")
_ADDITIONS: Final = re.compile(r"[;. ]+(?:preemption: |no new claims to deallocate|preemptor path: )")


def shorten(message: str) -> str:
    """One line of at most WORDS_MAX characters, without what schedulers add about their attempts."""
    text = " ".join(_ADDITIONS.split(message)[0].split()).strip(" .")
    return text if len(text) <= WORDS_MAX else text[: WORDS_MAX - 3].rstrip() + "..."


def fact(condition: Mapping[str, Any]) -> str:
    """A condition in one line: "Failed=True FailedJobs: jobset failed"."""
    why = ": ".join(filter(None, (condition.get("reason", ""), shorten(condition.get("message", "")))))
    return f"{condition['type']}={condition['status']} {why}".strip()


def some(names: Sequence[str]) -> str:
    """ "a, b, c and 5 more"."""
    shown = ", ".join(names[:NAMES_MAX])
    return shown if len(names) <= NAMES_MAX else f"{shown} and {len(names) - NAMES_MAX} more"


def who(ends: Sequence[PodEnd], jobs: Sequence[Mapping[str, Any]]) -> str:
    """ "index 3 of 8", "2 indexes of 8 (3,5)"; in a JobSet of several Jobs "Job worker-1 of 4 Jobs".

    jobs: those of the JobSet that exist.
    """
    if len(jobs) > 1:
        names = sorted({f"{end.job.replicated_job}-{end.job.index}" for end in ends})
        if len(names) == 1:
            return f"Job {names[0]} of {len(jobs)} Jobs"
        return f"{len(names)} Jobs of {len(jobs)} ({some(names)})"
    numbers = sorted({end.index for end in ends})
    completions = jobs[0].get("spec", {}).get("completions") if jobs else None
    of = f" of {completions}" if completions else ""
    if len(numbers) == 1:
        return f"index {numbers[0]}{of}"
    return f"{len(numbers)} indexes{of} ({indexes.write(numbers)})"


def why(ends: Sequence[PodEnd], resume: Collection[int], permanent: Collection[int]) -> str:
    """ "driver ended with exit code 1, 3 times; server ended with exit code 137 (SIGKILL, out of memory)".

    If a kubelet ended the pod because of the pod itself, its message says more than the containers' exit codes.
    """
    causes = Counter(f"{end.reason}: {shorten(end.message)}" for end in ends if end.message or not end.failed)
    causes.update(
        f"{each.container} ended with exit code {in_words(each.exit_code, each.reason, resume=resume, permanent=permanent)}"
        for end in ends
        for each in end.failed
        if not end.message
    )
    return "; ".join(what if count == 1 else f"{what}, {count} times" for what, count in causes.items())


def line(end: PodEnd) -> str:
    """Evidence of one pod: "pod/x-0-abcde: index 0 failed: Error: driver 1"."""
    codes = ", ".join(f"{each.container} {in_words(each.exit_code, each.reason)}" for each in end.failed)
    messages = [shorten(each) for each in (end.message, *(container.message for container in end.failed))]
    return ": ".join(filter(None, (f"pod/{end.name}", f"index {end.index} {end.cause}", end.reason, codes, *messages)))


def look_at(failed: FailedContainer) -> str:
    """Where to find out why."""
    if failed.reason in _NEVER_RAN:
        return f"Correct the command of container {failed.container}: {shorten(failed.message)}"
    return f"The last lines of container {failed.container} in pod {failed.pod} say why."
