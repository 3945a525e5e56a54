"""Where the pods of a run are, and the last words of engines that could not start: ``nightshift status --engines``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nightshift import exits
from nightshift.cli.terminal import paint
from nightshift.run.observed.pods_kept import load
from nightshift.run.observed.pods_now import Acts, JobSetNow, PodNow, in_words

if TYPE_CHECKING:
    from nightshift.cli.target import Target


def engines(found: Target, *, as_json: bool) -> int:
    """Raises StoreUnavailable."""
    jobsets = load(found.store, found.run)
    if as_json:
        print(json.dumps({"run": found.run.prefix, "jobsets": [each.to_json() for each in jobsets]}))
    elif jobsets:
        print(*(line for each in jobsets for line in _jobset(each)), sep="\n")
    else:
        print(f"{found.run.prefix}: nothing is known of its pods. The task infer writes it, about once a minute.")
    return exits.DONE


def _jobset(now: JobSetNow) -> Iterator[str]:
    profile = f" on {now.profile}" if now.profile else ""
    yield f"{now.name}{profile}, at {now.at}: {in_words(now)}"
    for pod in now.pods:
        yield from _pod(pod)


def _pod(pod: PodNow) -> Iterator[str]:
    state = f"{pod.ending}" if pod.ending else f"{pod.stage}".replace("_", "-")
    acts = f", to act: {pod.acts.words}" if pod.acts is not Acts.NOBODY else ""
    waits = f", waits for {pod.waits_for}" if pod.waits_for else ""
    yield f"  {pod.name}: {paint(state, 'red' if pod.words else None)} since {pod.since}{acts}{waits}"
    if words := pod.words:
        when = f" at {words.at}" if words.at else ""
        yield f"    last words of {words.container}, which exited with {words.exit_code} ({words.reason}){when}:"
        yield from (f"      {line}" for line in words.lines or (words.said,))
