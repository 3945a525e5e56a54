"""What a job wants of its rows, asked by the task plan of the BigQuery emulator: some, enough, and each key once."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from nightshift.run.names import RunRef
from nightshift.run.opening import load_run
from nightshift.run.plan import load_plan
from tests.integration.warehouse.conftest import PARTITION, TEXTS, Night
from tests.integration.warehouse.test_plan_operator import LATE, Planner, insert, planner

__all__ = ["planner"]

pytestmark = [pytest.mark.integration, pytest.mark.gate]


def wants(night: Night, **source: Any) -> None:
    night.spec = night.spec.model_copy(update={"source": night.spec.source.model_copy(update=source)})


def test_a_day_without_rows_fails_if_the_job_wants_some_and_is_computed_once_it_has_rows(
    night: Night, planner: Planner
) -> None:
    wants(night, empty="fail")

    for _ in range(2):
        with pytest.raises(AirflowFailException, match=f"no rows for {LATE}, and source.empty is fail"):
            planner.plan(LATE)
        assert planner.task.empty.startswith(f"The query has no rows for {LATE}")
    insert(night, "late", LATE)

    late = planner.plan(LATE)
    assert planner.task.empty == ""
    assert (late.generation, planner.extract(late)) == (1, 1)


@pytest.mark.parametrize("empty", [None, "publish"])
def test_a_day_without_rows_is_published_and_warned_of_only_if_the_job_does_not_say_so(
    night: Night, planner: Planner, empty: str | None
) -> None:
    wants(night, empty=empty)
    planner.plan(LATE)

    assert "will be published without rows" in planner.task.empty
    assert any("will be published without rows" in line for line in planner.warnings) == (empty is None)
    assert ("Write source.empty: fail or publish" in planner.log) == (empty is None)


def test_an_empty_run_that_was_planned_before_the_job_said_fail_is_not_published_again(night: Night, planner: Planner) -> None:
    assert planner.extract(planner.plan(LATE)) == 0
    wants(night, empty="fail")

    with pytest.raises(AirflowFailException, match=r"source\.empty is fail"):
        planner.plan(LATE)


def test_fewer_rows_than_the_job_wants_fail_and_a_run_with_its_plan_keeps_its_rows(night: Night, planner: Planner) -> None:
    wants(night, rows_min=len(TEXTS) + 1)
    with pytest.raises(AirflowFailException, match=r"source\.rows_min is 6: nothing is computed"):
        planner.plan(PARTITION)
    assert planner.task.empty == ""
    wants(night, rows_min=len(TEXTS))
    run = planner.plan(PARTITION)
    planner.extract(run)
    night.rows(f"DELETE FROM `{night.settings.bucket}.source` WHERE name != 'alpha'")

    assert planner.plan(PARTITION) == run
    night.rows(f"DELETE FROM `{night.settings.bucket}.source` WHERE TRUE")
    wants(night, empty="fail", unique=True)
    assert planner.plan(PARTITION) == run


ROWS = """
  ('a', 1, 0.0, b'\\x00'), ('a', 2, 0.0, b'\\x00'), ('b', NULL, CAST('-0' AS FLOAT64), NULL), ('b', NULL, 0.0, b'\\x01'),
  (NULL, NULL, CAST('nan' AS FLOAT64), b'\\x01'), (NULL, NULL, CAST('nan' AS FLOAT64), b'\\x02')
"""


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (("one",), (3, 6, ('{"one":"a"}', '{"one":"b"}', '{"one":null}'))),
        (("two",), (1, 4, ('{"two":null}',))),
        (("one", "two"), (2, 4, ('{"one":"b","two":null}', '{"one":null,"two":null}'))),
        (("three",), (2, 6, ('{"three":0}', '{"three":"NaN"}'))),
        (("four",), (2, 4, ('{"four":"AA=="}', '{"four":"AQ=="}'))),
        (("one", "two", "three"), (2, 4, ('{"one":"b","two":null,"three":0}', '{"one":null,"two":null,"three":"NaN"}'))),
        (("one", "two", "three", "four"), (0, 0, ())),
    ],
)
def test_one_count_finds_the_keys_that_stand_in_several_rows(night: Night, key: tuple[str, ...], found: Any) -> None:
    table = f"`{night.settings.bucket}.keyed`"
    night.rows(f"CREATE OR REPLACE TABLE {table} (one STRING, two INT64, three FLOAT64, four BYTES)")
    night.rows(f"INSERT INTO {table} (one, two, three, four) VALUES {ROWS}")
    wants(night, query=f"SELECT *, 1 AS nightshift_key FROM {table} WHERE @partition IS NOT NULL", key=key)

    repeated, rows, named = night.warehouse.keys.repeated(night.spec, PARTITION)
    assert (repeated, rows, sorted(named)) == (*found[:2], sorted(found[2]))


def test_keys_that_are_not_unique_fail_the_night_before_anything_is_exported(night: Night, planner: Planner) -> None:
    wants(night, unique=True)
    planner.plan(PARTITION)
    assert "The keys are counted (source.unique), which scans" in planner.log
    night.rows(
        f"INSERT INTO `{night.settings.bucket}.source` SELECT * FROM `{night.settings.bucket}.source` WHERE name = 'alpha'"
    )

    with pytest.raises(AirflowFailException, match=r'1 key of 2026-11-20 stands in 2 rows.*"name":"alpha"') as refused:
        planner.plan(PARTITION)
    assert "Remove the copies" in str(refused.value)
    run = RunRef.from_prefix(night.run.prefix)
    assert load_run(night.store, run)[0].source.unique
    assert load_plan(night.store, run) is None
    wants(night, unique=None)
    assert planner.plan(PARTITION) == run


def test_the_sampled_rows_show_what_a_template_writes_of_a_null(night: Night, planner: Planner) -> None:
    planner.plan(PARTITION)
    assert "1 row of 5 sampled would be asked without a value" in " ".join(planner.warnings)
    assert "(text in 1)" in planner.log

    night.spec = night.spec.model_copy(update={"request": night.spec.request.model_copy(update={"nulls": "empty"})})
    planner.plan(PARTITION)
    assert "sampled" not in " ".join(planner.warnings)
