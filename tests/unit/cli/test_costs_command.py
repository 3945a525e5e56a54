"""`nightshift costs` as a person types it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from google.cloud.bigquery import LoadJob, QueryJob

from nightshift.cli import main
from nightshift.hooks.deployment import Deployment
from nightshift.run.names import FAILED, PUBLISHED
from nightshift.settings import Settings
from nightshift.warehouse import WarehouseError
from nightshift.warehouse.audit import insert, money, state_of
from nightshift.warehouse.jobs import bytes_billed

pytestmark = pytest.mark.unit

ROW = {
    "job": "job",
    "run_id": "a",
    "by_dag_run_id": "night",
    "published_at": datetime(2026, 11, 20, tzinfo=UTC),
    "input_rows": 1000,
    "prompt_tokens": 1_000_000,
    "cost": 2.5,
    "currency": "USD",
    "machine_seconds": 7200.0,
}

Costs = Callable[..., tuple[int, str, str]]


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Costs:
    """The command, with a warehouse whose audit table has these rows; or which raises. Returns code, stdout and stderr."""

    def run(*words: str, rows: Any = (ROW,), **variables: str) -> tuple[int, str, str]:
        def audited(since: str, job: str | None) -> list[dict[str, Any]]:
            if isinstance(rows, Exception):
                raise rows
            return [dict(row) for row in rows if row["job"] in (job, row["job"] if job is None else None)]

        environment = {name: value for name, value in os.environ.items() if not name.startswith("NIGHTSHIFT_")}
        monkeypatch.setattr(os, "environ", {**environment, **variables})
        monkeypatch.setattr(Deployment, "warehouse", lambda self, **_: SimpleNamespace(audited=audited))
        try:
            code = main(["costs", *words])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capsys.readouterr()

    return run


DEPLOYED = {"NIGHTSHIFT_BUCKET": "runs", "NIGHTSHIFT_PROJECT": "acme"}


def test_a_table_and_json(costs: Costs) -> None:
    code, table, _ = costs("--since", "2026-11-01", **DEPLOYED)

    assert code == 0
    assert [line.split()[:5] for line in table.splitlines()[1:]] == [
        ["job", "1", "0", "2.00", "2.50"],
        ["total", "1", "0", "2.00", "2.50"],
    ]
    _, said, _ = costs("--since", "2026-11-01", "--json", **DEPLOYED)
    found = json.loads(said)
    assert (found["since"], found["jobs"]["job"], found["total"]["cost"]) == ("2026-11-01", found["total"], {"USD": 2.5})


def test_of_one_job_and_of_none(costs: Costs) -> None:
    assert costs("--since", "2026-11-01", "--job", "job", **DEPLOYED)[1].splitlines()[1].startswith("job ")
    code, said, _ = costs("--since", "2026-11-01", "--job", "other", **DEPLOYED)
    assert (code, said) == (0, "The audit table has no run of a partition from 2026-11-01 on.\n")


@pytest.mark.parametrize(
    ("words", "variables", "code", "problem"),
    [
        (("--since", "yesterday"), DEPLOYED, 2, "'yesterday' is not a day; write, for example, 2026-11-20"),
        (("--since", "2026-11-01"), {}, 2, "NIGHTSHIFT_BUCKET is not set"),
    ],
)
def test_bad_input_ends_with_2(
    costs: Costs, words: tuple[str, ...], variables: dict[str, str], code: int, problem: str
) -> None:
    ended, _, said = costs(*words, **variables)

    assert ended == code
    assert problem in said


def test_by_default_it_adds_up_the_last_month(costs: Costs) -> None:
    month = (datetime.now(UTC).date() - timedelta(days=30)).isoformat()

    assert costs("--job", "other", **DEPLOYED)[1] == f"The audit table has no run of a partition from {month} on.\n"


def test_a_total_that_lacks_a_price_is_unknown_and_says_what_to_set(costs: Costs) -> None:
    failed = {**ROW, "run_id": "b", "state": "failed", "failed_at": ROW["published_at"], "cost": 0.0}
    code, table, _ = costs("--since", "2026-11-01", rows=({**ROW, "cost": None}, failed), **DEPLOYED)

    assert code == 0
    assert [line.split()[4:6] for line in table.splitlines()[1:3]] == [["unknown", "unknown"]] * 2
    assert "Of 1 run the cost is unknown: there is no price for its machines; NIGHTSHIFT_PRICES" in table


def test_a_stack_that_is_down_is_said_at_once(costs: Costs) -> None:
    began = time.monotonic()
    code, _, said = costs("--since", "2026-11-01", BIGQUERY_EMULATOR_HOST="http://127.0.0.1:9", **DEPLOYED)

    assert code == 75
    assert "stand-in at http://127.0.0.1:9 does not answer: make up starts the stack" in said
    assert time.monotonic() - began < 10


def test_a_warehouse_that_refuses_ends_with_78(costs: Costs) -> None:
    code, _, said = costs("--since", "2026-11-01", rows=WarehouseError("Access Denied"), **DEPLOYED)

    assert (code, said) == (78, "nightshift costs: Access Denied\n")


class TestBytesBilled:
    """In the form of the reference of BigQuery's REST API: Job.statistics.query.totalBytesBilled, an int64 as text."""

    def job(self, kind: Any, **statistics: Any) -> Any:
        reference = {"projectId": "p", "jobId": "j", "location": "EU"}
        configuration = {"query": {"query": "SELECT 1"}} if kind is QueryJob else {"load": {"destinationTable": DESTINATION}}
        body = {"jobReference": reference, "configuration": configuration, "statistics": statistics}
        return kind.from_api_repr(body, SimpleNamespace(project="p", location="EU"))

    def test_of_a_query(self) -> None:
        assert bytes_billed(self.job(QueryJob, query={"totalBytesBilled": "10485760"})) == 10_485_760

    def test_of_a_query_that_does_not_say_it(self) -> None:
        assert bytes_billed(self.job(QueryJob, query={})) is None

    def test_a_load_is_free(self) -> None:
        assert bytes_billed(self.job(LoadJob, load={})) is None


DESTINATION = {"projectId": "p", "datasetId": "d", "tableId": "t"}


def test_what_identifies_a_row_depends_on_what_it_is_about() -> None:
    settings = Settings("runs", "acme")

    assert insert(settings, PUBLISHED).endswith("WHERE run_id = @run_id AND published_at = @published_at)")
    assert insert(settings, FAILED).endswith(
        "WHERE by_dag_run_id = @by_dag_run_id AND failed_task = @failed_task AND job = @job AND state = @state"
        " AND bucket = @bucket"
        " AND error IS NOT DISTINCT FROM @error AND machine_seconds IS NOT DISTINCT FROM @machine_seconds)"
    )
    assert (state_of({}), state_of({"state": None}), state_of({"state": "failed"})) == (PUBLISHED, PUBLISHED, FAILED)


def test_runs_whose_costs_are_not_known_have_no_columns_about_money() -> None:
    assert money(None) == {}
