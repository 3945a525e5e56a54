"""A night with too many dead letters, mended and redone alone: 600 rows of which 75 have no text, and a job that tolerates 5%.

The tasks are the shipped ones, on the emulators, with a real driver; the engine's answers are made up.
"""

from __future__ import annotations

import pytest
from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators.extract import ExtractOperator
from nightshift.operators.seal import SealOperator
from nightshift.run.manifest import load_manifest
from nightshift.run.names import RunRef
from nightshift.run.plan import load_plan
from tests.integration.emulators import PROJECT
from tests.integration.warehouse.conftest import Night
from tests.integration.warehouse.test_plan_operator import Planner
from tests.integration.warehouse.test_plan_operator import planner as planner
from tests.integration.warehouse.test_redo_night import DAY, Job

pytestmark = pytest.mark.integration

ROWS, BAD = 600, range(100, 175)


@pytest.fixture
def job(night: Night, planner: Planner) -> Job:
    night.spec = night.spec.model_copy(update={"dead_letters": night.spec.dead_letters.model_copy(update={"tolerate": "5%"})})
    return Job(night, planner)


def texts(job: Job, sql: str) -> None:
    job.night.rows(f"UPDATE `{PROJECT}.{job.night.settings.bucket}.source` SET {sql}")


@pytest.mark.gate
def test_mended_rows_are_redone_alone_and_published_with_the_others(job: Job) -> None:
    job.fill(ROWS, bad=BAD)
    texts(job, f"text = NULL WHERE version BETWEEN {BAD.start} AND {BAD.stop - 1}")
    first = job.prepare()
    night = RunRef.from_prefix(first["run_prefix"])
    job.compute(night)
    with pytest.raises(AirflowFailException, match=r"75 of 600 rows are dead letters \(75 bad_input\); the job tolerates 30"):
        job.task(SealOperator, first).execute({})
    with pytest.raises(AirflowFailException, match="Write dead_letters or corrected, or nothing"):
        job.planner.told(DAY, dag_run="typo", redo="corect")

    # One of them is not put right, but deleted: nothing is computed, and the message names it.
    texts(job, f"text = 'mended' WHERE version BETWEEN {BAD.start} AND {BAD.stop - 2}")
    job.night.rows(f"DELETE FROM `{job.night.settings.bucket}.source` WHERE version = {BAD.stop - 1}")
    told = job.planner.told(DAY, dag_run="redo", redo="corrected")
    assert told["rows"] == 75
    extract = job.task(ExtractOperator, told, decision=told["decision"])
    with pytest.raises(AirflowFailException, match=r"1 row .* is missing in .*\(name: 'row 00174', version: 174\)\. Put"):
        extract.execute({})
    job.night.rows(
        f"INSERT INTO `{job.night.settings.bucket}.source` (name, version, text, day) "
        f"VALUES ('row 00174', 174, 'mended', DATE '{DAY}')"
    )
    assert job.task(ExtractOperator, told, decision=told["decision"]).execute({})["rows"] == 75
    redo = RunRef.from_prefix(told["run_prefix"])
    job.compute(redo)
    assert job.sent == ["mended"] * 75, "these alone, each once"
    job.task(SealOperator, told).execute({})

    published = job.planner.publish(told)

    assert {name: published[name] for name in ("rows", "predictions", "dead_letters")} == {
        "rows": 600,
        "predictions": 600,
        "dead_letters": 0,
    }
    assert job.shown() == {night.run_id: 525, redo.run_id: 75}
    names = job.night.rows(
        f"SELECT COUNT(*), COUNT(DISTINCT name), COUNT(DISTINCT version) FROM `{job.night.destination}` "
        f"WHERE snapshot_date = DATE '{DAY}'"
    )
    assert names == [(600, 600, 600)]
    mended = job.night.rows(
        f"SELECT version, nightshift_ordinal FROM `{job.night.destination}` WHERE nightshift_run_id = '{redo.run_id}'"
    )
    assert sorted(version for version, _ in mended) == list(BAD)
    assert sorted(ordinal for _, ordinal in mended) == list(range(75))
    row = job.audit(told, published)
    assert (row["completes"], row["input_rows"], row["dead_letters"]) == (night.run_id, 600, 0)
    assert load_manifest(job.night.store, night) is None
    assert load_plan(job.night.store, redo) is not None
    job.planner.publish(job.planner.told(DAY, dag_run="again", republish=redo.run_id))
    assert job.shown() == {night.run_id: 525, redo.run_id: 75}
