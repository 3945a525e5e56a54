"""A run is published while a night of it fails: whichever of the two transactions ends later removes the failed night's rows.

Random schedules (`publishing`) rarely end one of them between the two last steps of the other; here it happens each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from nightshift.run import opening
from nightshift.run.redo.redo import Redo
from nightshift.run.sealed_objects import whole
from nightshift.settings import Settings
from nightshift.warehouse import Warehouse, publish
from nightshift.warehouse.dead_letters import table
from nightshift.warehouse.failed_nights import DeadChunks, FailedNights
from tests.simulation.bigquery import Client, Job
from tests.simulation.publishing import World
from tests.simulation.publishing_audit import Sealed
from tests.simulation.publishing_scenario import SOURCE, SPECS, Asked, Scenario

pytestmark = [pytest.mark.simulation, pytest.mark.gate]

SETTINGS = Settings(bucket="a", project="p", dataset="own")
ASKED = Asked(SETTINGS, SPECS[0], "2026-11-20", 0, 1, 0, fresh=False, again=False, rows=5, chunk_rows=2, dead=frozenset({1, 4}))
AT = "2026-11-22T01:00:00+00:00"


class Place:
    """A sealed run, and BigQuery, whose jobs go on whenever somebody waits for one; held: those that do not."""

    def __init__(self) -> None:
        self.world = World(Scenario(0, (ASKED,), 0, 0, 0, (), 0), lambda _: None)
        self.service = self.world.service
        store = self.world._stores["a"]
        run = opening.open_run(store, ASKED.spec, ASKED.day, opened_by="night")
        self.sealed: Sealed = self.world._night_sealed(ASKED, run)
        self.run, self.manifest = run, self.sealed.manifest
        self.held: list[Job] = []

    def redo(self) -> None:
        """From here on, what is published is a redo of the run that failed; nights that fail are still those of this run."""
        store = self.world._stores["a"]
        redo = Redo.after(self.manifest, shown="")
        self.run = opening.open_redo(store, self.sealed.run, ASKED.spec, redo, opened_by="redo")
        self.world.sealed["a", self.sealed.run.run_id] = self.sealed
        redone = self.world._redo_sealed(ASKED, self.run, redo)
        assert redone is not None
        self.manifest = whole(store, self.run, redone.manifest, redo)

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(Client(self.service, self._pause, lambda: False, lambda _: None), SETTINGS)  # type: ignore[arg-type]

    def _pause(self, _call: str) -> None:
        for job in self.service.running():
            if job not in self.held:
                job.step()

    def _finished(self, names: Iterable[str]) -> None:
        for name in names:
            while not self.service.jobs[name].done:
                self.service.jobs[name].step()
            assert self.service.jobs[name].error_result is None

    def publication(self) -> Job:
        """The transaction's job, as it is submitted."""
        self._finished(self.warehouse.start_staging(ASKED.spec, self.run, self.manifest, SOURCE, asked_at=AT))
        return self.service.jobs[self.warehouse.start_publish(ASKED.spec, self.run, self.manifest, SOURCE, asked_at=AT)]

    def finish(self, job: Job) -> None:
        self._finished([job.job_id])
        self.warehouse.finish_publish(ASKED.spec, self.run, self.manifest, SOURCE, asked_at=AT)

    def fails(self) -> None:
        """A night of the run fails when all of its chunks are committed."""
        chunks = tuple((each.path, each.rows) for each in self.sealed.manifest.chunks if each.dead_letters)
        nights, dead = self.warehouse.failed_nights, DeadChunks(chunks)
        self._finished(nights.start(ASKED.spec, self.sealed.run, SOURCE, dead))
        nights.keep(ASKED.spec, self.sealed.run, dead)

    def left(self) -> list[tuple[int, str]]:
        """Ordinal and state of each dead letter."""
        return sorted(map(tuple, self.service.database.tables.run(f'SELECT ordinal, state FROM "{table(SETTINGS)}"')))


@pytest.fixture
def place() -> Place:
    return Place()


def test_a_night_that_fails_leaves_its_dead_letters_and_a_publication_replaces_them(place: Place) -> None:
    for _ in range(2):
        place.fails()
        assert place.left() == [(1, "failed"), (4, "failed")]
    place.finish(place.publication())
    assert place.left() == [(1, "published"), (4, "published")]
    place.fails()
    assert place.left() == [(1, "published"), (4, "published")]


def test_chunks_of_several_load_jobs_are_all_in_the_table(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "URIS_PER_LOAD", 1)

    place.fails()

    assert place.left() == [(1, "failed"), (4, "failed")]


def test_a_publication_that_does_not_see_the_failed_night_removes_its_rows_afterwards(place: Place) -> None:
    job = place.publication()
    place.held.append(job)
    while not place.service.database._open:
        job.step()
    place.fails()
    while not job.done:
        job.step()
    assert place.left() == [(1, "failed"), (1, "published"), (4, "failed"), (4, "published")], "both were committed"

    place.finish(job)

    assert place.left() == [(1, "published"), (4, "published")]


def test_a_night_that_a_redo_has_completed_leaves_nothing(place: Place) -> None:
    """The task audit_failure of the night may be repeated long after the redo was published."""
    place.fails()
    place.redo()
    place.finish(place.publication())
    shown = place.left()
    assert {state for _, state in shown} <= {"published"}

    place.fails()

    assert place.left() == shown


def test_a_redo_that_does_not_see_the_failed_night_removes_its_rows_afterwards(place: Place) -> None:
    place.redo()
    job = place.publication()
    place.held.append(job)
    while not place.service.database._open:
        job.step()
    place.fails()
    while not job.done:
        job.step()
    assert "failed" in {state for _, state in place.left()}, "both were committed"

    place.finish(job)

    assert {state for _, state in place.left()} <= {"published"}


def test_a_failed_night_that_does_not_see_the_publication_removes_its_rows_afterwards(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: Callable[..., tuple[int, int, int]] = FailedNights._counted
    seen: list[tuple[int, int, int]] = []

    def count(nights: FailedNights, run: object) -> tuple[int, int, int]:
        found = counted(nights, run)
        seen.append(found)
        if len(seen) == 1:
            place.finish(place.publication())
        return found

    monkeypatch.setattr(FailedNights, "_counted", count)
    place.fails()

    assert seen == [(0, 0, 0), (2, 0, 1), (2, 2, 1)]
    assert place.left() == [(1, "published"), (4, "published")]
