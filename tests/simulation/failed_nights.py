"""Nights that end without publishing, among the schedules of `publishing`: what they leave in the table of dead letters.

Invariant, beside those of `publishing`:

failed    what a night has left that failed is what its run had committed by then, each row once, with the prompts that were
          kept, and it is there when the task ends, unless the run was published; a run that was published, by itself or by a
          redo, has left nothing once its tasks have ended; a publication leaves nothing that failed nights had left of its
          partition before
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import obstore
import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.run.names import FAILED
from nightshift.warehouse import Warehouse, WarehouseUnavailable, dead_letters
from nightshift.warehouse.dead_letters import Prompts
from nightshift.warehouse.failed_nights import DeadChunks
from tests.simulation.bigquery import Job

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from nightshift.run.plan import ExportedSource
    from tests.simulation.publishing import World
    from tests.simulation.publishing_audit import Sealed
    from tests.simulation.publishing_scenario import Scenario

PROMPTS_MOST: Final = 2
Key = tuple[str, str, str, str]
"""Table, bucket, job and day."""


def with_failures(rng: random.Random, scenario: Scenario) -> Scenario:
    """More dead letters, and nights that fail."""
    asked = tuple(
        replace(each, dead=each.dead | {n for n in range(each.rows) if n and rng.random() < 0.5}) for each in scenario.asked
    )
    failures = [(rng.randrange(20, 400), "fail") for _ in range(rng.choice((2, 4, 6, 8)))]
    return replace(scenario, asked=asked, events=tuple(sorted((*scenario.events, *failures))), failures=rng.choice((0, 1, 2)))


def key_of(sealed: Sealed) -> Key:
    settings = sealed.asked.settings
    return (dead_letters.table(settings), settings.bucket, sealed.run.job, sealed.run.partition)


@dataclass(frozen=True)
class Failure:
    """What one night of a run leaves: by ordinal, the prompt."""

    sealed: Sealed
    rows: dict[int, str | None]

    @classmethod
    def of(cls, sealed: Sealed, chunks: int) -> Failure:
        """Of a run that has committed this many chunks."""
        ordinals = sorted(n for n in sealed.dead if n < chunks * sealed.asked.chunk_rows)
        return cls(sealed, {n: f"asked {n}" if place < PROMPTS_MOST else None for place, n in enumerate(ordinals)})

    def chunks(self, store: ObjectStore, committed: int) -> DeadChunks:
        """As the task audit_failure finds them."""
        sealed = self.sealed
        found = [(each.path, each.rows) for each in sealed.manifest.chunks if each.dead_letters and each.chunk < committed]
        asked = {n: prompt for n, prompt in self.rows.items() if prompt is not None}
        if not asked:
            return DeadChunks(tuple(found))
        body, path = io.BytesIO(), sealed.run.prompts_path(str(committed))
        pq.write_table(pa.table({"ordinal": pa.array(list(asked), pa.int64()), "prompt": list(asked.values())}), body)
        obstore.put(store, path, body.getvalue())
        return DeadChunks(tuple(found), Prompts(path, len(asked)))


class JobFailed(Exception):
    """A load job failed."""


def leave(
    warehouse: Warehouse, failure: Failure, dead: DeadChunks, source: ExportedSource, wait: Callable[[list[str]], list[Job]]
) -> None:
    """What the task audit_failure does. Raises WarehouseUnavailable for what is worth another try, else JobFailed."""
    sealed, nights = failure.sealed, warehouse.failed_nights
    jobs = wait(nights.start(sealed.asked.spec, sealed.run, source, dead))
    for job in jobs:
        state = warehouse.job(job.job_id)
        if state.error is not None:
            raise WarehouseUnavailable(state.error) if state.retryable else JobFailed(state.error)
    nights.keep(sealed.asked.spec, sealed.run, dead)


@dataclass
class FailedAudit:
    """Holds the rows of failed nights to the invariant. abandoned: runs whose tasks were killed for good."""

    world: World
    may_leave: dict[tuple[str, str], list[dict[int, str | None]]] = field(default_factory=dict)
    abandoned: set[tuple[str, str]] = field(default_factory=set)
    _ever: set[tuple[str, str]] = field(default_factory=set)
    """The runs that were published, by themselves or by a redo."""
    _seen: dict[tuple[Key, str], int] = field(default_factory=dict)
    """The commit that the rows of a run were seen after first."""
    _rows: dict[tuple[Key, str], dict[int, str | None]] = field(default_factory=dict)

    def begins(self, failure: Failure) -> None:
        sealed = failure.sealed
        self.may_leave.setdefault((sealed.asked.settings.bucket, sealed.run.run_id), []).append(failure.rows)

    def look(self, tables: set[str], sealed: dict[tuple[str, str], Sealed]) -> None:
        """After each commit."""
        database = self.world.service.database
        found: dict[tuple[Key, str], list[tuple[int, str | None]]] = {}
        for table in sorted(tables):
            if database.fields(table) is None:
                continue
            for row in database.tables.run(f"SELECT * FROM \"{table}\" WHERE state = '{FAILED}'"):
                key = (table, row["bucket"], row["job"], row["partition_date"])
                found.setdefault((key, row["run_id"]), []).append((row["ordinal"], row["prompt"]))
        for (key, run_id), rows in found.items():
            if max(Counter(ordinal for ordinal, _ in rows).values()) > 1:
                self.world.fail("failed", f"run {run_id} has a row twice: {sorted(rows)}")
            if dict(rows) not in self.may_leave.get((key[1], run_id), []):
                self.world.fail("failed", f"run {run_id} has left {sorted(rows)}, which no night of it had")
        now = {place: dict(rows) for place, rows in found.items()}
        self._seen = {
            place: self._seen[place] if self._rows.get(place) == rows else database.commits for place, rows in now.items()
        }
        self._rows = now

    def published(self, sealed: Sealed) -> None:
        """A transaction was committed just now."""
        shown: Sealed | None = sealed
        while shown is not None:
            self._ever.add((shown.asked.settings.bucket, shown.run.run_id))
            shown = shown.completes
        began = self.world.service.database.last_began
        for (key, run_id), since in self._seen.items():
            if key == key_of(sealed) and since <= began:
                self.world.fail("failed", f"the publication of run {sealed.run.run_id} leaves the rows that {run_id} had left")

    def ended(self, failure: Failure, publications: int) -> None:
        """A task has ended well. publications: of the partition, when it began."""
        if not failure.rows or self.world.audit.publications_of(key_of(failure.sealed)) != publications:
            return
        run = failure.sealed.run.run_id
        # Another night of the run that has seen fewer chunks, or none, may end later.
        others = self.may_leave[failure.sealed.asked.settings.bucket, run]
        found = self._rows.get((key_of(failure.sealed), run))
        if found is None and {} not in others and not self._is_published(failure.sealed):
            self.world.fail("failed", f"run {failure.sealed.run.run_id} has left nothing of {failure.rows}")

    def _is_published(self, sealed: Sealed) -> bool:
        return (sealed.asked.settings.bucket, sealed.run.run_id) in self._ever

    def at_the_end(self, sealed: dict[tuple[str, str], Sealed]) -> None:
        for place, run_id in self._rows:
            run = sealed[place[1], run_id]
            if (place[1], run_id) not in self.abandoned and self._is_published(run):
                self.world.fail("failed", f"run {run_id} was published and has rows that failed nights have left")
