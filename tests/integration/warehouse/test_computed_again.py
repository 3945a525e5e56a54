"""Days that are computed again: with fresh and redo through a DAG run that was used before, and when they are over at last.

Airflow uses the DAG run of a published day again for a backfill with ``--reprocess-behavior completed``: its id stays. Here the
real tasks run against the emulators, and the table is compared with the source.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from nightshift.operators import plan as plan_task
from nightshift.run import opening
from nightshift.run.names import RunRef
from nightshift.run.plan import load_plan
from tests.integration.warehouse.conftest import OTHER, PARTITION, TEXTS, Night
from tests.integration.warehouse.test_plan_operator import Planner, insert
from tests.integration.warehouse.test_plan_operator import planner as planner
from tests.integration.warehouse.test_redo_night import DAY as REDO_DAY
from tests.integration.warehouse.test_redo_night import Job, refusing
from tests.integration.warehouse.test_redo_night import job as job

pytestmark = pytest.mark.integration

SCHEDULED = "scheduled__2026-11-20"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Clock(datetime):
    """The clock of Airflow's worker."""

    moment = NOON

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return cls.moment.astimezone(tz)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(Clock, "moment", NOON)
    for module in (opening, plan_task):
        monkeypatch.setattr(module, "datetime", Clock)
    return Clock


def names_of(night: Night, day: str) -> list[str]:
    return [name for (name,) in night.rows(f"SELECT name FROM `{night.settings.bucket}.source` WHERE day = '{day}' ORDER BY 1")]


def run(
    night: Night, planner: Planner, day: str = PARTITION, *, dag_run: str = SCHEDULED, dead: int = 0, **params: Any
) -> RunRef:
    """All tasks of a DAG run; what the engine answers is made up. dead: how many of its rows it refuses."""
    told = planner.told(day, dag_run=dag_run, **params)
    found = RunRef.from_prefix(told["run_prefix"])
    if load_plan(night.store, found) is None:
        names = names_of(night, day)
        night.seal(found, names, bias=float(found.generation))
    planner.publish(told)
    return found


def shown(night: Night, day: str = PARTITION) -> tuple[set[str], list[str]]:
    """The runs that the day's rows name, and the rows' keys."""
    rows = night.rows(
        f"SELECT nightshift_run_id, name FROM `{night.destination}` WHERE snapshot_date = DATE '{day}' ORDER BY 2"
    )
    return {run_id for run_id, _ in rows}, [name for _, name in rows]


@pytest.mark.gate
def test_each_request_for_fresh_through_one_dag_run_computes_what_the_source_has_then(night: Night, planner: Planner) -> None:
    """The README's command changed nothing, and with the right option the old rows stayed."""
    first = run(night, planner)
    for number, name in ((2, "late"), (3, "later still")):
        insert(night, name, PARTITION)
        again = run(night, planner, fresh=True)

        assert (again.digest, again.generation) == (first.digest, number)
        assert shown(night) == ({again.run_id}, names_of(night, PARTITION))
    assert name in shown(night)[1]


def test_a_retry_and_a_clear_of_a_fresh_run_find_it_until_it_is_published(night: Night, planner: Planner) -> None:
    run(night, planner)
    second = planner.plan(PARTITION, dag_run=SCHEDULED, fresh=True)
    assert planner.plan(PARTITION, dag_run=SCHEDULED, fresh=True) == second
    assert run(night, planner, fresh=True) == second
    assert planner.plan(PARTITION, dag_run=SCHEDULED) == second, "the same DAG run, cleared without fresh"
    assert planner.plan(PARTITION, dag_run=SCHEDULED, fresh=True).generation == 3


def test_days_of_overlapping_backfills_show_the_later_request_whole(night: Night, planner: Planner) -> None:
    """The second one has the DAG runs of the first one, whose tasks are not done yet on one of the days."""
    for day in (PARTITION, OTHER):
        run(night, planner, day, dag_run=f"scheduled__{day}")
        insert(night, "late", day)
    slow = planner.told(OTHER, dag_run=f"scheduled__{OTHER}", fresh=True)
    done = run(night, planner, PARTITION, dag_run=f"scheduled__{PARTITION}", fresh=True)
    for day in (PARTITION, OTHER):
        insert(night, "later", day)

    again = {day: run(night, planner, day, dag_run=f"scheduled__{day}", fresh=True) for day in (PARTITION, OTHER)}

    assert again[PARTITION].generation == done.generation + 1
    assert again[OTHER].prefix == slow["run_prefix"], "it was open and is computed once"
    assert shown(night, PARTITION) == ({again[PARTITION].run_id}, names_of(night, PARTITION))
    assert shown(night, OTHER) == ({again[OTHER].run_id}, names_of(night, OTHER))


@pytest.mark.gate
def test_a_second_redo_through_one_dag_run_computes_what_is_a_dead_letter_then(job: Job) -> None:
    job.fill(6, bad=range(3))
    first = job.run(refusing("bad"), dag_run=SCHEDULED)
    job.planner.publish(first)

    once = job.run(refusing("bad 00000", "bad 00001"), dag_run=SCHEDULED, redo="dead_letters")
    assert job.planner.told(REDO_DAY, dag_run=SCHEDULED, redo="dead_letters")["run_id"] == once["run_id"], "a clear"
    job.planner.publish(once)
    twice = job.run(dag_run=SCHEDULED, redo="dead_letters")
    job.planner.publish(twice)

    assert job.shown() == {first["run_id"]: 3, once["run_id"]: 1, twice["run_id"]: 2}
    with pytest.raises(AirflowSkipException, match="has no dead letters"):
        job.planner.told(REDO_DAY, dag_run=SCHEDULED, redo="dead_letters")
    insert(job.night, "late", REDO_DAY)
    fresh = job.run(dag_run=SCHEDULED, fresh=True)
    job.planner.publish(fresh)
    assert job.shown() == {fresh["run_id"]: 7}, "fresh does not find the redo of the same DAG run"


def test_a_redo_of_a_day_that_was_not_over_is_as_early_as_its_rows(job: Job, clock: type[Clock]) -> None:
    job.fill(6, bad=range(3))
    clock.moment = datetime(2026, 11, 22, 12, tzinfo=UTC)
    job.planner.publish(job.run(refusing("bad"), dag_run="by hand"))
    clock.moment += timedelta(hours=13)
    redo = job.run(dag_run="redo", redo="dead_letters")
    job.planner.publish(redo)
    insert(job.night, "evening", REDO_DAY)

    nightly = job.run(dag_run=SCHEDULED)
    job.planner.publish(nightly)

    assert job.shown() == {nightly["run_id"]: 7}


class TestADayThatIsNotOver:
    @pytest.mark.gate
    def test_the_first_run_after_its_end_computes_all_its_rows(
        self, night: Night, planner: Planner, clock: type[Clock]
    ) -> None:
        noon = run(night, planner, dag_run="by hand")
        for name in ("evening", "night"):
            insert(night, name, PARTITION)
        clock.moment = NOON + timedelta(hours=11)
        assert planner.plan(PARTITION, dag_run="at 23:00") == noon, "the day still is not over"
        clock.moment = NOON + timedelta(hours=14)

        nightly = run(night, planner)

        assert "was opened at 2026-11-20 12:00:00+00:00, before its partition was over at 2026-11-21 00:00" in planner.log
        assert (nightly.digest, nightly.generation) == (noon.digest, 2)
        assert shown(night) == ({nightly.run_id}, names_of(night, PARTITION))
        assert len(shown(night)[1]) == len(TEXTS) + 2
        assert run(night, planner, dag_run="once more") == nightly, "only the first one"

    def test_one_that_still_computes_when_the_day_is_over_shows_nothing_afterwards(
        self, night: Night, planner: Planner, clock: type[Clock]
    ) -> None:
        slow = planner.told(PARTITION, dag_run="by hand")
        night.seal(RunRef.from_prefix(slow["run_prefix"]), names_of(night, PARTITION))
        insert(night, "evening", PARTITION)
        clock.moment = NOON + timedelta(hours=14)
        nightly = run(night, planner)

        with pytest.raises(AirflowFailException, match=f"shows run {nightly.run_id}"):
            planner.publish(slow)
        assert shown(night) == ({nightly.run_id}, names_of(night, PARTITION))

    def test_a_source_that_has_expired_takes_nothing_away(self, night: Night, planner: Planner, clock: type[Clock]) -> None:
        noon = run(night, planner, dag_run="by hand")
        before = shown(night)
        night.rows(f"DELETE FROM `{night.settings.bucket}.source` WHERE day = '{PARTITION}'")
        clock.moment = NOON + timedelta(days=60)

        assert run(night, planner, dag_run="much later") == noon
        assert shown(night) == before


@pytest.mark.gate
def test_a_clock_that_was_fast_once_forbids_neither_republish_nor_fresh(
    night: Night, planner: Planner, clock: type[Clock]
) -> None:
    clock.moment = datetime.now(UTC)
    old = run(night, planner)
    clock.moment += timedelta(days=400)
    fast = run(night, planner, dag_run="fast", fresh=True)
    clock.moment -= timedelta(days=400)
    assert shown(night)[0] == {fast.run_id}

    assert run(night, planner, dag_run="back", republish=old.run_id) == old
    assert shown(night)[0] == {old.run_id}
    assert run(night, planner, dag_run="forth", republish=fast.run_id) == fast
    assert run(night, planner, dag_run="back again", republish=old.run_id) == old
    new = run(night, planner, dag_run="new", fresh=True)
    assert shown(night)[0] == {new.run_id}
