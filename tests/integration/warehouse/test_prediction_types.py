"""What each task kind predicts goes all the way: ledger chunk, load job, transaction, and out again as BigQuery's types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nightshift.warehouse import WarehouseError
from tests.builders import a_spec
from tests.integration.warehouse.conftest import PARTITION, Night

pytestmark = pytest.mark.integration

NAMES = ["alpha", "beta", "gamma"]
SCHEMA = {
    "type": "object",
    "properties": {
        "order": {"type": "string", "enum": ["first", "last"]},
        "group": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"select": {"type": "string"}, "weights": {"type": "array", "items": {"type": "number"}}},
            },
        },
        "inner": {"type": "object", "properties": {"count": {"type": ["integer", "null"]}, "sure": {"type": "boolean"}}},
    },
}
STRUCTURED = (
    "STRUCT<`order` STRING, `group` ARRAY<STRUCT<`select` STRING, `weights` ARRAY<FLOAT64>>>, "
    "`inner` STRUCT<`count` INT64, `sure` BOOL>>"
)
TEXT = {"user": "{{ text }}"}
ODD = "nul \x00 <b>\N{GRINNING FACE}</b> \u2028\ufeff\uffff u\u0308 \U0010ffff \r\n\x85"
CASES: dict[str, tuple[str, dict[str, Any], str, list[Any]]] = {
    "chat": ("chat", TEXT, "STRING", ["", ODD, "x" * 100_000]),
    "classify": (
        "classify",
        {"input": "{{ text }}"},
        "STRUCT<`label` STRING, `score` FLOAT64, `scores` ARRAY<FLOAT64>>",
        [{"label": f"L{number}", "score": 0.75, "scores": [0.25, 0.75]} for number in range(3)],
    ),
    "score": ("score", {"text_1": "{{ text }}", "text_2": "{{ name }}"}, "FLOAT64", [0.5, -1.25, 0.0]),
    "rerank": (
        "rerank",
        {"query": "{{ text }}", "documents": "parts"},
        "ARRAY<FLOAT64>",
        [[0.5], [0.25, -1.0], [1.0, 2.0, 3.0]],
    ),
    "structured": (
        "chat",
        {**TEXT, "json_schema": SCHEMA},
        STRUCTURED,
        [
            {
                "order": "first",
                "group": [{"select": "a", "weights": [0.5]}, {"select": "\N{GRINNING FACE}", "weights": []}],
                "inner": {"count": 7, "sure": True},
            },
            {"order": None, "group": [], "inner": {"count": None, "sure": False}},
            {"order": "last", "group": [{"select": None, "weights": [1.0, 2.0]}], "inner": None},
        ],
    ),
    "list of objects": (
        "completion",
        {
            "prompt": "{{ text }}",
            "json_schema": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
        },
        "ARRAY<STRUCT<`name` STRING>>",
        [[], [{"name": "a"}, {"name": None}], [{"name": "b"}]],
    ),
}


def a_night(night: Night, task: str, request: dict[str, Any]) -> Night:
    spec = night.spec.model_dump(mode="json", include={"source", "destination"})
    return replace(night, spec=a_spec(task=task, request=request, **spec))


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.gate) if name == "structured" else name for name in CASES]
)
def test_a_prediction_comes_out_as_it_went_in(night: Night, case: str) -> None:
    task, request, _, predictions = CASES[case]
    night = a_night(night, task, request)
    night.publish(night.run, night.seal(night.run, NAMES, predictions=predictions))

    assert [row[2] for row in night.shown()] == predictions


@pytest.mark.parametrize("case", CASES)
def test_a_second_night_writes_into_the_table_of_the_first(night: Night, case: str) -> None:
    """The table that publishing made is one that it finds good, and its rows are replaced as a whole, dead letters apart."""
    task, request, _, predictions = CASES[case]
    night = a_night(night, task, request)
    night.publish(night.run, night.seal(night.run, NAMES, predictions=predictions))
    night.warehouse.check_query(night.spec, PARTITION)
    again = night.run_of(PARTITION, generation=2)
    night.publish(again, night.seal(again, NAMES, dead=[1], predictions=predictions))

    assert [row[2] for row in night.shown()] == [predictions[0], predictions[2]]
    assert [row[5] for row in night.dead_letters()] == ["too_long"]


@pytest.mark.parametrize(
    ("task", "request_", "message"),
    [
        (
            "rerank",
            {"query": "{{ text }}", "documents": "text"},
            "request.documents names the column text of type STRING; it takes ARRAY",
        ),
        (
            "chat",
            {"messages_column": "version"},
            "request.messages_column names the column version of type INT64; it takes ARRAY",
        ),
        (
            "image",
            {"image": "parts", "user": "?"},
            "request.image names the column parts of type ARRAY<STRING>; it takes BYTES or STRING",
        ),
        ("image", {"image": "photo", "user": "?"}, "request.image names the column photo, which source.query does not return"),
        ("chat", {"user": "{{ txt }}"}, r"request.user names the column txt, .*did you mean text\?"),
    ],
)
def test_a_column_that_the_request_cannot_take(night: Night, task: str, request_: dict[str, Any], message: str) -> None:
    with pytest.raises(WarehouseError, match=message):
        a_night(night, task, request_).warehouse.check_query(a_night(night, task, request_).spec, PARTITION)


@pytest.mark.parametrize("case", CASES)
def test_a_destination_of_another_type_is_named_with_both_types(night: Night, case: str) -> None:
    task, request, sql, _ = CASES[case]
    night = a_night(night, task, request)
    table = night.spec.destination.table
    night.rows(
        f"CREATE TABLE `{table}` (name STRING, version INT64, vector BYTES, snapshot_date DATE) PARTITION BY snapshot_date"
    )

    with pytest.raises(WarehouseError) as caught:
        night.warehouse.check_query(night.spec, PARTITION)

    assert f"has the column vector as BYTES; this job writes {sql}." in str(caught.value)
