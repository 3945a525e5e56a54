"""How far a run is and how fast: one measurement, for every list, page, watch, log and gauge that shows a run.

While a run is open it is made from one LIST of its ledger (a page for each thousand chunks), the names of the notes of its dead
letters, and the forecast that the trigger of its task `infer` has left. No chunk is read. Once a run is sealed, its manifest
has the counts, and there is no rate.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import obstore
from obstore.store import ObjectStore

from nightshift.run.ledger import PAGE
from nightshift.run.names import Work
from nightshift.run.observed.pods_now import JobSetNow, forecast_end
from nightshift.store import reaching

WINDOW_S: Final = 300.0
STALLED_S: Final = 900.0
"""Without a commit for this long, a run that is open stands still: three windows of the rate."""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """One object of a listing. modified: seconds since 1970 by the store's clock, which all objects share."""

    path: str
    size: int
    modified: float


@dataclass(frozen=True)
class Progress:
    """rows, chunks: committed. oldest, newest: times of the first and the last commit, Unix time by the store's clock; None
    before the first. rate: rows per second as `measured` has it. recent: rows committed after the moment that was asked for.
    now: by this machine's clock, never before `newest`.
    """

    rows: int
    chunks: int
    oldest: float | None
    newest: float | None
    rate: float | None
    recent: int
    now: float

    def seconds_left(self, rows: int, jobsets: Iterable[JobSetNow] = ()) -> float | None:
        """Until all `rows` of the plan are committed: by the trigger's forecast, which knows of pods that still start; without
        a fresh one (`nightshift.run.observed.pods_now.FORECAST_S`) at the current rate. None if neither is known."""
        if self.rows >= rows:
            return 0.0
        if (end := forecast_end(jobsets, self.now)) is not None:
            return max(0.0, end - self.now)
        return (rows - self.rows) / self.rate if self.rate else None


def measured(commits: Iterable[tuple[int, float]], now: float, since: float = 0.0) -> Progress:
    """Counts and rate of a run. commits: rows and time of each committed chunk, in any order. now: Unix time. since: from when
    on rows are `recent`.

    The rate is over the last `WINDOW_S`. It counts rows of committed chunks, those taken over from partials too, and no rows of
    open chunks. The window begins later if the work began, or went on after a break of a whole window, within it: at the first
    commit from then on, whose own rows do not count, because nobody knows how long they took. With fewer than two commits in
    the window the rate is that of the last chunk, since the one before it, so it falls while nothing is committed. It is
    unknown (None) before the second commit, and while no time has passed.
    """
    rows = chunks = recent = 0
    oldest: float | None = None
    inside: list[tuple[float, int]] = []
    before: list[tuple[float, int]] = []
    for count, at in commits:
        rows, chunks, recent = rows + count, chunks + 1, recent + (count if at > since else 0)
        oldest = at if oldest is None else min(oldest, at)
        if at > now - WINDOW_S:
            inside.append((at, count))
        elif len(before) < 2:
            heapq.heappush(before, (at, count))
        else:
            heapq.heappushpop(before, (at, count))
    known = sorted([*before, *inside])
    newest = known[-1][0] if known else None
    # This machine's clock may be behind the store's.
    end = max(now, newest or now)
    return Progress(rows, chunks, oldest, newest, _rate(known, end), recent, end)


def _rate(known: list[tuple[float, int]], end: float) -> float | None:
    """known: commits in the order of their times, at least those of the window and the two before it."""
    if len(known) < 2:
        return None
    first = next((place for place, (at, _) in enumerate(known) if at > end - WINDOW_S), len(known))
    if len(known) - first < 2:
        first, start = len(known) - 1, known[-2][0]
    elif first and known[first][0] - known[first - 1][0] <= WINDOW_S:
        start = end - WINDOW_S
    else:
        first, start = first + 1, known[first][0]
    return sum(rows for _, rows in known[first:]) / (end - start) if end > start else None


def progress(store: ObjectStore, work: Work, rows: int, chunk_rows: int, now: float, since: float = 0.0) -> Progress:
    """As `measured`, from one LIST. rows, chunk_rows: the plan's. Names that are no chunks of the plan do not count: the seal
    complains about them. Raises StoreUnavailable."""
    last = (rows - 1) // chunk_rows

    def commits() -> Iterator[tuple[int, float]]:
        for entry in itertools.chain.from_iterable(listed(store, work.ledger_folder)):
            number = work.parse_chunk(entry.path)
            if number is not None and number <= last:
                yield chunk_rows if number < last else rows - last * chunk_rows, entry.modified

    return measured(commits(), now, since)


def listed(store: ObjectStore, folder: str) -> Iterator[list[ListedObject]]:
    """The objects of a folder, page by page. Raises StoreUnavailable."""
    with reaching(f"list {folder}"):
        for page in obstore.list(store, folder, chunk_size=PAGE):
            yield [ListedObject(meta["path"], meta["size"], meta["last_modified"].timestamp()) for meta in page]
