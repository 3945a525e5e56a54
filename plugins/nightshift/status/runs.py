"""The runs of a bucket: listed page by page, those that need attention marked, and found by the names that people use.

A listing asks for the folders of each job, then for those of the newest partitions, and reads a few small objects of each run.
What never changes is remembered, so a later look asks less. The number of requests is part of each answer.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import obstore
from obstore.store import ObjectStore

from nightshift.fields.mistakes import nearest
from nightshift.fields.text import n
from nightshift.run.answers.bounded import as_json
from nightshift.run.names import RunRef
from nightshift.run.observed.shown import Known, read, whole
from nightshift.run.opening import NoSuchRun
from nightshift.status.chunk_footer import asked
from nightshift.status.readers import READERS, readers
from nightshift.status.summary import Summarizer, Summary
from nightshift.store import StoreUnavailable

T = TypeVar("T")
U = TypeVar("U")

PAGE_RUNS: Final = 50
LOOKED_AT: Final = 2_000
"""Partitions in which a run's id is looked for, the newest of all jobs first."""
NAMED: Final = 8
"""How many names an error message has."""
FOLDERS_A_PAGE: Final = 1000
"""Of a LIST of Cloud Storage."""
_PARTITION: Final = re.compile(r"\d{4}-\d\d-\d\d(T\d{4})?")
_RUN: Final = re.compile(r"[0-9a-f]{4,16}(-g\d+)?")


@dataclass(frozen=True)
class RunPage:
    """Runs of the newest partitions first; of one partition by job, the run that was asked for last first.

    after: pass it for the next page; None if this is the last one. jobs: all that were listed. requests: to the store.
    """

    runs: tuple[Summary, ...]
    after: str | None
    jobs: tuple[str, ...]
    requests: int

    @property
    def by_attention(self) -> tuple[Summary, ...]:
        """Those that need attention first, of these the one that was opened last; then those that work, then the others."""
        newest = sorted((each for each in self.runs if each.attention), key=lambda each: each.opened_at, reverse=True)
        return (*newest, *sorted((each for each in self.runs if not each.attention), key=lambda each: not each.working))

    def to_json(self) -> dict[str, Any]:
        return {**as_json(self), "runs": [each.to_json() for each in self.runs]}


class Runs:
    """Of one bucket, at which the store is rooted. Remembers up to `kept` runs. Safe to share between threads."""

    def __init__(self, store: ObjectStore, *, kept: int = 2_000) -> None:
        self._store = store
        self._kept = kept
        self._lock = threading.Lock()
        self._seen: OrderedDict[RunRef, Summarizer] = OrderedDict()

    def page(self, *, jobs: Collection[str] | None = None, after: str | None = None, count: int = PAGE_RUNS) -> RunPage:
        """At least `count` runs if there are as many: those of one job and partition stay together.

        jobs: only these, which need not exist. Raises StoreUnavailable, and NoSuchRun if there is no such bucket.
        """
        asked = _Asked(self._store)
        names = sorted(asked.jobs() if jobs is None else set(jobs))
        days = sorted(self._days(asked, names), key=lambda each: each[0], reverse=True)
        days = [each for each in days if after is None or _after(each, after)]
        found: list[Summary] = []
        end = None
        # As many folders at once as runs are missing: most have one run.
        while days and len(found) < count:
            part, days = days[: max(1, count - len(found))], days[max(1, count - len(found)) :]
            for summaries in self._map(lambda day: self._of_day(asked, *day), part):
                found += summaries
            end = f"{part[-1][0]}/{part[-1][1]}" if days else None
        return RunPage(tuple(found), end, tuple(names), asked.requests)

    def jobs(self) -> frozenset[str]:
        """All that have a folder. Raises StoreUnavailable."""
        return frozenset(_Asked(self._store).jobs())

    def _days(self, asked: _Asked, names: Sequence[str]) -> list[tuple[str, str]]:
        listed = self._map(asked.partitions, names)
        return [(day, job) for job, days in zip(names, listed, strict=True) for day in days]

    def _of_day(self, asked: _Asked, day: str, job: str) -> list[Summary]:
        """The runs of a job and partition, the one that was asked for last first. A folder without a record is no run."""
        made = [summary for run in asked.runs(job, day) if (summary := self._summarizer(run).summary(asked.note)) is not None]
        made.sort(key=lambda each: each.known.asked_at, reverse=True)
        return [each.beside([other.known for other in made]) for each in made]

    def _summarizer(self, run: RunRef) -> Summarizer:
        with self._lock:
            made = self._seen.get(run)
            if made is None:
                made = self._seen[run] = Summarizer(self._store, run)
            self._seen.move_to_end(run)
            while len(self._seen) > self._kept:
                self._seen.popitem(last=False)
            return made

    def _map(self, do: Callable[[T], U], each: Iterable[T]) -> list[U]:
        return list(readers().map(do, each))


def find(store: ObjectStore, text: str) -> RunRef:
    """The run that a person means: JOB (its newest run), JOB/DAY (the newest of that day), JOB/DAY/RUN, or RUN, an id or the
    beginning of one.

    The newest run is the one that was asked for last (`nightshift.run.observed.shown`) in the newest partition. The store is
    rooted at the bucket. Raises NoSuchRun, which says what there is instead; StoreUnavailable.
    """
    asked = _Asked(store)
    parts = [part for part in text.strip().split("/") if part]
    jobs = sorted(asked.jobs())
    if not parts or not jobs:
        raise NoSuchRun("The bucket has no runs yet." if not jobs else "Name a job, JOB/DAY, or the id of a run.")
    job = parts[0]
    if job not in jobs:
        if len(parts) == 1 and _RUN.fullmatch(job):
            return _by_id(asked, jobs, job)
        raise NoSuchRun(f"There is no job {job!r} in this bucket. {_instead(job, jobs, 'It has the jobs')}")
    days = sorted(asked.partitions(job), reverse=True)
    if not days:
        raise NoSuchRun(f"The job {job} has no runs in this bucket.")
    if len(parts) == 1:
        for day in days:
            if runs := _newest_first(store, asked.runs(job, day)):
                return runs[0]
        raise NoSuchRun(f"The job {job} has no runs in this bucket.")
    if parts[1] not in days:
        raise NoSuchRun(f"The job {job} has no run for {parts[1]!r}. {_instead(parts[1], days, 'Its newest days are')}")
    runs = _newest_first(store, asked.runs(job, parts[1]))
    if not runs:
        raise NoSuchRun(f"The job {job} has no run for {parts[1]!r}.")
    if len(parts) == 2:
        return runs[0]
    ids = [run.run_id for run in runs]
    alike = [run for run in runs if run.run_id == parts[2]] or [run for run in runs if run.run_id.startswith(parts[2])]
    if len(parts) > 3 or len(alike) != 1:
        what = "There is no run" if not alike else "There are several runs"
        raise NoSuchRun(f"{what} {'/'.join(parts[2:])!r} of {job}/{parts[1]}. {_instead(parts[2], ids, 'There are')}")
    return alike[0]


def _by_id(asked: _Asked, jobs: Sequence[str], text: str) -> RunRef:
    """The run whose id begins with the text; of several generations the newest, unless the text names one."""
    listed = readers().map(lambda job: [(day, job) for day in asked.partitions(job)], jobs)
    days = sorted((each for found in listed for each in found), reverse=True)
    looked_at = days[:LOOKED_AT]
    found: set[RunRef] = set()
    for start in range(0, len(looked_at), 8 * READERS):
        part = looked_at[start : start + 8 * READERS]
        runs = readers().map(lambda each: asked.runs(each[1], each[0]), part)
        found |= {run for each in runs for run in each if run.run_id.startswith(text)}
        if found and len(text.partition("-")[0]) == 16:
            break  # A whole id is in one place only.
    digests = {(run.job, run.partition, run.digest) for run in found}
    if len(digests) == 1:
        exact = [run for run in found if run.run_id == text and "-g" in text]
        return exact[0] if exact else max(found, key=lambda run: run.generation)
    where = f"{f'the newest {len(looked_at):,} of ' if len(days) > len(looked_at) else ''}{n(len(days), 'day')}"
    if not found:
        raise NoSuchRun(
            f"There is no job {text!r}, and no run whose id begins so, in {where} of {n(len(jobs), 'job')}. "
            f"{_instead(text, jobs, 'The jobs are')}"
        )
    raise NoSuchRun(
        f"{len(digests):,} runs have an id that begins with {text!r}: {_listed(sorted(run.prefix for run in found))}. "
        "Write more of it."
    )


def published_before(store: ObjectStore, run: RunRef, *, days: int = 31) -> RunRef | None:
    """The run that this one has replaced in its partition, or would replace, else the one that the table shows of an earlier
    partition, within its last `days` ones; None if there is none.

    A redo does not replace what it completes. Of a release that did not record endings, a sealed run counts too. Raises
    StoreUnavailable.
    """
    known = {each.run.run_id: each for each in day_of(store, run)}
    own, of_it = known[run.run_id].published if run.run_id in known else None, whole(known, run.run_id)
    published = {each.published.at: each.run for each in known.values() if each.published and each.run.run_id not in of_it}
    if replaced := [at for at in published if own is None or at < own.at]:
        return published[max(replaced)]
    asked = _Asked(store)
    earlier = sorted((day for day in asked.partitions(run.job) if day < run.partition), reverse=True)
    for day in earlier[:days]:
        made = [Summarizer(store, each).summary(asked.note) for each in asked.runs(run.job, day)]
        shown = [each for each in made if each is not None and (each.published or each.state == "sealed")]
        if shown:
            return max(shown, key=lambda each: (each.published.at if each.published else "", each.opened_at)).run
    return None


def day_of(store: ObjectStore, run: RunRef) -> list[Known]:
    """The runs of its partition, for `Summary.beside`. Raises StoreUnavailable."""
    return _known(store, _Asked(store).runs(run.job, run.partition))


def _known(store: ObjectStore, runs: Iterable[RunRef]) -> list[Known]:
    return [known for run in runs if (known := read(store, run)) is not None]


def _newest_first(store: ObjectStore, runs: Iterable[RunRef]) -> list[RunRef]:
    return [each.run for each in sorted(_known(store, runs), key=lambda each: each.asked_at, reverse=True)]


def _instead(wrong: str, there: Sequence[str], what: str) -> str:
    near = nearest(wrong, there)
    return (f"Did you mean {near}? " if near else "") + f"{what} {_listed(there)}."


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _after(day: tuple[str, str], cursor: str) -> bool:
    """Whether a partition of a job comes after the cursor: PARTITION/JOB, in the order of pages."""
    partition, _, job = cursor.partition("/")
    return day[0] < partition or (day[0] == partition and day[1] > job)


class _Asked:
    """Lists folders and counts the requests."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.requests = 0

    def note(self, requests: int) -> None:
        with self._lock:
            self.requests += requests

    def jobs(self) -> list[str]:
        """Folders of nightshift's own begin with an underscore."""
        return [name for name in self._folders("") if not name.startswith(("_", "."))]

    def partitions(self, job: str) -> list[str]:
        return [name for name in self._folders(job) if _PARTITION.fullmatch(name)]

    def runs(self, job: str, partition: str) -> list[RunRef]:
        found = []
        for name in self._folders(f"{job}/{partition}"):
            try:
                found.append(RunRef.from_prefix(f"{job}/{partition}/{name}"))
            except ValueError:
                continue
        return found

    def _folders(self, prefix: str) -> list[str]:
        try:
            found = asked(prefix or "the bucket", lambda: obstore.list_with_delimiter(self._store, prefix or None))
            names = found["common_prefixes"]
        except FileNotFoundError:
            names = []
        except StoreUnavailable as error:
            # The client has no exception for this.
            if "NoSuchBucket" in str(error.__cause__):
                raise NoSuchRun("There is no bucket of this name, so there are no runs. Check NIGHTSHIFT_BUCKET.") from error
            raise
        self.note(1 + len(names) // FOLDERS_A_PAGE)
        return [path.rstrip("/").rsplit("/", 1)[-1] for path in names]
