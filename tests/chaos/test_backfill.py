"""Days that were never computed, by hand, as `airflow backfill create` does it."""

from pathlib import Path

import pytest

from local.demo import catalog
from local.demo.__main__ import JOB_FILE
from local.environments import environment_dir
from local.stack import Stack
from nightshift.spec import load
from tests.chaos.nights import Night, own_dags, wait_until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1700)]

SPEC = load(JOB_FILE)


def test_the_command_line_backfills_three_days_beside_a_broken_job(tmp_path: Path) -> None:
    days = ["2026-11-16", "2026-11-17", "2026-11-18"]
    dags = own_dags(tmp_path / "dags")
    # One engine to start for each day.
    good = JOB_FILE.read_text().replace("workers: 2", "workers: 1")
    assert good != JOB_FILE.read_text()
    (dags / "jobs" / "good.yaml").write_text(good)
    broken = good.replace("max_num_seqs: 64", "max_num_seq: 64").replace("job: package", "job: broken")
    (dags / "jobs" / "broken.yaml").write_text(broken)
    with Stack(tmp_path / "state", dags=dags) as stack:
        night = Night(stack, SPEC.job)
        for day in days:
            catalog.load(night.client, day, [environment_dir("driver")])
        night.api.wait_for_dag(SPEC.job)

        [message] = wait_until("the broken job's import error", night.api.import_errors)
        assert "broken.yaml:" in message
        assert "engine.max_num_seq: " in message
        assert "Did you mean 'max_num_seqs'?" in message

        night.airflow("backfill", "create", "--dag-id", SPEC.job, "--from-date", days[0], "--to-date", days[-1])
        wait_until("three successful runs", lambda: [run["state"] for run in night.api.dag_runs(SPEC.job)] == ["success"] * 3)

        rows = night.query(
            f"SELECT CAST({SPEC.destination.partition_column} AS STRING) AS day, COUNT(*) AS n "
            f"FROM `{SPEC.destination.table}` GROUP BY 1 ORDER BY 1"
        )
        assert [row["day"] for row in rows] == days
        assert len({row["n"] for row in rows}) == 1
        assert rows[0]["n"] > 0
