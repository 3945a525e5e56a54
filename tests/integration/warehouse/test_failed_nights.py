"""Nights that end without publishing: their dead letters are in the table, once, and the audit row says what is committed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from nightshift.operators import dead_letters
from nightshift.planner.bills import seal_measured
from nightshift.run.names import RunRef
from nightshift.run.plan import Plan
from tests.integration.emulators import PROJECT
from tests.integration.warehouse.conftest import TEXTS, prediction
from tests.integration.warehouse.test_audit_tasks import Desk, desk

__all__ = ["desk"]

pytestmark = pytest.mark.integration

NAMES = list(TEXTS)
COLUMNS = "run_id, ordinal, reason, message, attempts, state, prompt"


def left(desk: Desk) -> list[tuple[Any, ...]]:
    """The table of dead letters."""
    table = f"{PROJECT}.{desk.night.settings.dataset}.dead_letters"
    return desk.night.rows(f"SELECT {COLUMNS} FROM `{table}` ORDER BY ordinal, state")


def committed(desk: Desk, run: RunRef, dead: set[int], chunks: int | None = None) -> Plan:
    """What infer had committed when it failed: some chunks, or all. Rows 0, 2 and 3 have a text."""
    plan = desk.night.extract(run)
    values = [prediction(ordinal) for ordinal in range(plan.rows)]
    for chunk in range(plan.chunk_count if chunks is None else chunks):
        desk.night.commit(run, plan.uid, chunk, NAMES, plan.chunk_range(chunk), values=values, dead=sorted(dead))
    return plan


def stopped(run: RunRef, ordinal: int, state: str, prompt: str | None) -> tuple[Any, ...]:
    return (run.run_id, ordinal, "too_long", f"row {ordinal} is too long", 2, state, prompt)


@pytest.mark.gate
def test_a_dead_letter_whose_prompt_is_not_kept_is_in_the_table_without_one(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "PROMPTS_MOST", 1)
    run = desk.plan("night")
    committed(desk, run, {0, 1})

    desk.fails("night", "infer", "made to fail")

    assert left(desk) == [stopped(run, 0, "failed", "plain"), stopped(run, 1, "failed", None)]


@pytest.mark.gate
def test_a_night_that_its_tolerance_stopped_leaves_its_dead_letters_and_a_later_publication_replaces_them(desk: Desk) -> None:
    strict = desk.night.spec.model_copy(
        update={"dead_letters": desk.night.spec.dead_letters.model_copy(update={"tolerate": 1})}
    )
    desk.night = replace(desk.night, spec=strict)
    run = desk.plan("night")
    plan = committed(desk, run, {0, 1})
    for _ in range(2):
        desk.fails("night", "infer", "Raise dead_letters.tolerate: 2 of 5 rows are dead letters")
        assert left(desk) == [stopped(run, 0, "failed", "plain"), stopped(run, 1, "failed", "")]
    (row,) = desk.rows()
    (ending,) = desk.endings(run)

    assert (row["input_rows"], row["predictions"], row["dead_letters"]) == (5, 3, 2)
    assert json.loads(row["dead_reasons"]) == {"too_long": 2}
    assert (row["chunks"], row["attempts"], row["prompt_tokens"], row["truncated"]) == (plan.chunk_count, 1, 50, 0)
    assert json.loads(row["engine_versions"]) == {"0": 5}
    assert (ending.dead_letters, ending.dead_reasons, ending.rows_committed) == (2, {"too_long": 2}, 5)
    assert not [name for name in desk.night.tables() if name.startswith("staging_")]
    with pytest.raises(ValueError, match="2 of 5 rows are dead letters"):
        seal_measured(desk.night.store, run, strict, plan)

    tolerant = strict.model_copy(update={"dead_letters": strict.dead_letters.model_copy(update={"tolerate": 2})})
    seal_measured(desk.night.store, run, tolerant, plan)
    desk.plan("repair")
    desk.publish("repair")
    assert left(desk) == [stopped(run, 0, "published", "plain"), stopped(run, 1, "published", "")]
    published = desk.rows()[-1]
    assert (published["state"], published["prompt_digest"]) == ("published", row["prompt_digest"])
    assert (published["truncated"], published["empty_answers"], published["equal_answers"]) == (0, 0, 1)

    desk.fails("again", "publish")
    assert [each[5] for each in left(desk)] == ["published"] * 2, "the partition shows them"


@pytest.mark.gate
def test_of_a_night_that_stopped_early_what_is_committed_is_left_and_the_next_one_replaces_it(desk: Desk) -> None:
    run = desk.plan("night")
    committed(desk, run, {0, 4}, chunks=1)
    desk.fails("night", "infer", "JobSet job-1 found no machine")
    first = left(desk)
    committed(desk, run, {0, 4})
    desk.plan("again")
    desk.fails("again", "infer", "JobSet job-1 found no machine")

    assert first == [stopped(run, 0, "failed", "plain")]
    assert left(desk) == [stopped(run, 0, "failed", "plain"), stopped(run, 4, "failed", "")]
    one, all_of_it = desk.rows()
    assert (one["chunks"], one["dead_letters"], one["input_rows"]) == (1, 1, 5)
    assert (all_of_it["dead_letters"], all_of_it["by_dag_run_id"]) == (2, "again")


def test_another_run_that_fails_beside_a_published_one_touches_nothing_of_it(desk: Desk) -> None:
    run = desk.plan("night")
    desk.compute(run)
    desk.publish("night")
    published = left(desk)
    other = desk.plan("fresh", fresh=True)
    committed(desk, other, {2})
    desk.fails("fresh", "seal", "no")

    assert [each[0] for each in published] == [run.run_id] * 2
    assert [each for each in left(desk) if each[5] == "published"] == published
    assert [each for each in left(desk) if each[5] == "failed"] == [
        stopped(other, 2, "failed", "smile \N{GRINNING FACE} <b>html</b>")
    ]


def test_a_table_of_an_earlier_release_gets_the_columns_and_its_rows_count_as_published(desk: Desk) -> None:
    night, name = desk.night, f"{PROJECT}.{desk.night.settings.dataset}.dead_letters"
    night.warehouse.failed_nights._tables.ensure_own()
    for column in ("state", "prompt"):
        night.client.query(f"ALTER TABLE `{name}` DROP COLUMN {column}").result()
    columns = "job, partition_date, run_id, ordinal, key, reason, message, attempts, bucket"
    run = desk.plan("night")
    night.client.query(
        f"INSERT INTO `{name}` ({columns}) VALUES ('job', DATE '{run.partition}', 'old', 7, '{{}}', 'timeout', 'slow', 4, "
        f"'{night.settings.bucket}')"
    ).result()
    committed(desk, run, {0})
    desk.fails("night", "infer", "no")

    shown = night.rows(f"SELECT run_id FROM `{name}` WHERE IFNULL(state, 'published') = 'published'")
    assert shown == [("old",)]
    assert sorted(each[0] for each in left(desk)) == sorted([run.run_id, "old"])


@pytest.mark.gate
def test_a_night_without_dead_letters_leaves_none_and_loads_nothing(desk: Desk) -> None:
    run = desk.plan("night")
    committed(desk, run, set())
    desk.fails("night", "seal", "the disk is full")

    assert left(desk) == []
    (row,) = desk.rows()
    assert (row["dead_letters"], row["predictions"], row["dead_reasons"]) == (0, 5, "{}")
