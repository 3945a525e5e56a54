"""The workers of a run, from the newest heartbeat of each attempt: what each does now and how fast it is.

While they are few, one LIST has them all. Later an attempt's heartbeats are listed from the last one that is known, and no
longer once it has said how it ended: a look at W running attempts then costs about 2 W small requests, however many they have
written.
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import obstore
from obstore.store import ObjectStore

from nightshift.planner.measured import Seen
from nightshift.run.answers.bounded import as_json
from nightshift.run.ledger import PAGE
from nightshift.run.names import Work
from nightshift.run.observed.heartbeats import BYTES_MOST, Ended, Heartbeat, NotAHeartbeat
from nightshift.run.observed.pod_startup import Starts
from nightshift.run.observed.pods_now import waited_s
from nightshift.status.chunk_footer import asked
from nightshift.status.readers import readers

ATTEMPTS_MOST: Final = 2_000
"""Attempts that are looked at; the others are only counted."""
WHOLE_PAGES: Final = 3
"""Heartbeats of all attempts are listed together as long as they fit so many pages of a thousand; then each attempt alone."""
PAGES_MOST: Final = 20
"""Of one attempt's heartbeats, at one look: those of two weeks."""
SILENT: Final = 3.0
"""Periods without a heartbeat after which an attempt counts as silent."""
GONE_S: Final = 600.0
"""After this long in silence an attempt is only looked for again as often."""


@dataclass(frozen=True)
class Worker:
    """An attempt, as its newest heartbeat has it. stage: `weights` (its engine does not answer yet), `warm_up` (no request
    yet), `works`, `silent` (no heartbeat when one was due), or how it ended: `done`, `drained`, `gave_up`, `cannot_continue`,
    `failed`. stage_s: how long it has been in that stage, as far as it is known. seen_s: since the heartbeat, by this
    machine's clock.
    """

    beat: Heartbeat
    stage: str
    stage_s: float | None
    seen_s: float

    @property
    def attempt(self) -> str:
        return self.beat.attempt

    @property
    def rows(self) -> int:
        """Computed by it, dead letters too."""
        return self.beat.rows_answered + self.beat.rows_dead

    @property
    def rows_per_s(self) -> float | None:
        """Of its time of work."""
        return self.beat.rows_answered / self.beat.work_s if self.beat.work_s else None

    @property
    def running(self) -> bool:
        return self.stage in ("weights", "warm_up", "works")

    def to_json(self) -> dict[str, Any]:
        seen = {"stage": self.stage, "stage_s": self.stage_s, "seen_s": self.seen_s, "running": self.running}
        return {**as_json(self.beat), **seen, "rows": self.rows, "rows_per_s": self.rows_per_s}


class Attempts:
    """Of one plan of a run. Safe to share between threads."""

    def __init__(self, store: ObjectStore, work: Work) -> None:
        self._store, self._work = store, work
        self._lock = threading.Lock()
        self._newest: dict[str, str] = {}
        self._beats: dict[str, Heartbeat] = {}
        self._looked: dict[str, float] = {}
        self.not_looked_at = 0

    def look(self, now: float | None = None) -> list[Worker]:
        """Those that were seen last first. Raises StoreUnavailable."""
        at = time.time() if now is None else now
        with self._lock:
            try:
                due = asked(self._work.attempts_folder, lambda: self._find(at))
            except FileNotFoundError:
                due = []
            self._looked.update(dict.fromkeys(due, at))
            seen = {name: max(0.0, waited_s(beat.at, at)) for name, beat in self._beats.items()}
            workers = [Worker(beat, *_stage(beat, seen[name]), seen[name]) for name, beat in self._beats.items()]
        return sorted(workers, key=lambda each: (not each.running, each.seen_s, each.attempt))

    def seen(self, starts: Starts) -> Seen:
        """What is known after the last look, as the planner adds it up."""
        with self._lock:
            return Seen(tuple(self._beats.values()), frozenset(self._newest), starts)

    def worked(self) -> tuple[float, float] | None:
        """The first request and the newest heartbeat of all, Unix time by workers' clocks; None before the first request."""
        with self._lock:
            beats = [each for each in self._beats.values() if "warm_up" in each.start_up_s]
        if not beats:
            return None
        born = {each.attempt: -waited_s(each.born_at, 0.0) for each in beats}
        return min(born[each.attempt] + sum(each.start_up_s.values()) for each in beats), max(
            born[each.attempt] + each.age_s for each in beats
        )

    def by_pod(self) -> dict[str, Heartbeat]:
        """The newest heartbeat of each pod, as of the last look."""
        with self._lock:
            return {beat.pod: beat for beat in sorted(self._beats.values(), key=lambda each: each.born_at)}

    def _find(self, now: float) -> list[str]:
        """Reads the newest heartbeats; returns the attempts that were looked at."""
        whole = self._listed()
        if whole is not None:
            self.not_looked_at = max(0, len(whole) - ATTEMPTS_MOST)
            due = [name for name in sorted(whole)[:ATTEMPTS_MOST] if whole[name] != self._newest.get(name)]
            list(readers().map(lambda name: self._read(name, whole[name]), due))
            return due
        folders = obstore.list_with_delimiter(self._store, self._work.attempts_folder)["common_prefixes"]
        names = sorted(path.rstrip("/").rsplit("/", 1)[-1] for path in folders)
        self.not_looked_at = max(0, len(names) - ATTEMPTS_MOST)
        due = [name for name in names[:ATTEMPTS_MOST] if self._is_due(name, now)]
        list(readers().map(self._look_for, due))
        return due

    def _listed(self) -> dict[str, str] | None:
        """The path of each attempt's newest heartbeat, if all of them are few enough for one LIST."""
        newest: dict[str, str] = {}
        for number, page in enumerate(obstore.list(self._store, self._work.attempts_folder, chunk_size=PAGE)):
            if number == WHOLE_PAGES:
                return None
            for meta in page:
                if (found := self._work.parse_mark(meta["path"])) and meta["path"] > newest.get(found[0], ""):
                    newest[found[0]] = meta["path"]
        return newest

    def _is_due(self, name: str, now: float) -> bool:
        beat = self._beats.get(name)
        if beat is None:
            return True
        if beat.ended is not None:
            return False
        return waited_s(beat.at, now) < GONE_S or now - self._looked.get(name, 0.0) >= GONE_S

    def _look_for(self, name: str) -> None:
        folder = f"{self._work.attempts_folder}/{name}"
        newest = known = self._newest.get(name, "")
        # What a worker may write has no bound; the next look goes on.
        pages = obstore.list(self._store, folder, offset=known or None, chunk_size=PAGE)
        for page in itertools.islice(pages, PAGES_MOST):
            # A local folder is listed in no particular order.
            newest = max([newest, *(meta["path"] for meta in page if self._work.parse_mark(meta["path"]))])
        if newest != known:
            self._read(name, newest)

    def _read(self, name: str, path: str) -> None:
        self._newest[name] = path
        result = obstore.get(self._store, path)
        if result.meta["size"] <= BYTES_MOST:
            # Of one that is no heartbeat, those before it still count.
            with suppress(NotAHeartbeat):
                beat = Heartbeat.from_bytes(bytes(result.bytes()))
                if beat.attempt == name:
                    self._beats[name] = beat


def _stage(beat: Heartbeat, seen_s: float) -> tuple[str, float | None]:
    if beat.ended is not None:
        return str(Ended(beat.ended)), seen_s
    if seen_s > SILENT * max(beat.next_s, 5.0):
        return "silent", seen_s
    if "weights" not in beat.start_up_s:
        return "weights", beat.age_s + seen_s
    if "warm_up" not in beat.start_up_s:
        return "warm_up", beat.age_s - beat.start_up_s["weights"] + seen_s
    return "works", beat.work_s or None
