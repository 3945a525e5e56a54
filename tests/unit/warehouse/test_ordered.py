"""The SQL of rows that are planned in an order, and what is kept of that order."""

from __future__ import annotations

import json

import pytest
from google.cloud.bigquery import SchemaField

from nightshift.run.names import RunRef
from nightshift.run.order import REMARK, Order, of_statement
from nightshift.run.plan import Plan
from nightshift.warehouse import JobState, WarehouseError, ordered, query
from tests.builders import RUN, a_plan, a_spec

pytestmark = pytest.mark.unit

TYPES = {"id": "INT64", "shelf": "STRING", "tags": "ARRAY<STRING>", "text": "STRING", "more": "JSON"}
SPEC = a_spec(
    source={"query": "SELECT * FROM `d.t` WHERE day = @partition -- all", "key": ["id"], "order": ["shelf", "tags"]},
    request__input="{{ shelf }} {{ tags }} {{ text }} {{ more }}",
)
SORT = "ORDER BY `shelf`, TO_JSON_STRING(`tags`), IFNULL(LENGTH(TO_JSON_STRING(`more`)), 0) + IFNULL(LENGTH(`text`), 0)"


def pattern(bucket: int | None) -> str:
    return RUN.export_pattern(3, bucket)


def test_few_rows_are_sorted_in_one_statement() -> None:
    sql = ordered.ordered_export(SPEC, "lake", pattern, Order(("shelf", "tags"), 1, 2), TYPES)

    assert sql.split("\n", 1)[1] == (
        f"EXPORT DATA OPTIONS (uri='gs://lake/{RUN.prefix}/inputs/3-part-*.parquet', format='PARQUET', "
        "compression='SNAPPY', overwrite=true) AS\n"
        f"SELECT * FROM (\nSELECT * FROM `d.t` WHERE day = @partition\n)\n{SORT}"
    )


def test_many_rows_are_sorted_bucket_by_bucket() -> None:
    types = TYPES | {"NIGHTSHIFT_bucket": "INT64"}
    sql = ordered.ordered_export(SPEC, "lake", pattern, Order(("shelf", "tags"), 2, 1), types)
    remark, script = sql.split("\n", 1)
    declare, create, counted, *exports, drop, result, end = f"{script}\n".split(";\n")

    assert remark.startswith(REMARK)
    assert create == (
        "CREATE TEMP TABLE nightshift_buckets PARTITION BY RANGE_BUCKET(nightshift_bucket_, GENERATE_ARRAY(0, 2, 1)) AS\n"
        "SELECT *, ABS(MOD(FARM_FINGERPRINT(TO_JSON_STRING(STRUCT(`shelf`))), 2)) AS nightshift_bucket_ FROM (\n"
        "SELECT * FROM `d.t` WHERE day = @partition\n)"
    )
    assert len(exports) == 2
    for number, export in enumerate(exports):
        assert f"inputs/3-part-0000{number}-*.parquet'" in export
        rows = f"SELECT * EXCEPT (nightshift_bucket_) FROM nightshift_buckets WHERE nightshift_bucket_ = {number}"
        assert export.endswith(f"AS\n{rows}\n{SORT}")
    assert (declare, counted) == (
        "DECLARE nightshift_rows INT64",
        "SET nightshift_rows = (SELECT COUNT(*) FROM nightshift_buckets)",
    )
    assert (drop, result, end) == ("DROP TABLE nightshift_buckets", "SELECT nightshift_rows AS exported_rows", "")


def test_files_sort_by_bucket_and_are_found_as_those_of_their_attempt() -> None:
    names = [RUN.export_pattern(3, bucket).replace("*", f"{number:012d}") for bucket in (0, 9, 10, 999) for number in (0, 11)]

    assert names == sorted(names)
    assert {RUN.parse_export(name) for name in names} == {3}
    assert RunRef.parse_export(RUN, RUN.export_pattern(4).replace("*", "000000000000")) == 4


def test_a_query_of_a_thousand_buckets_fits_the_text_that_bigquery_takes() -> None:
    sql = ordered.ordered_export(SPEC, "lake", pattern, Order(("shelf", "tags"), 1_000, 1), TYPES)

    assert len(sql) < 1 << 20


def test_leading_parts_are_counted_with_the_rows() -> None:
    found = ordered.prefix_counts(SPEC, ("shelf", "text"))
    one, two = (f"FARM_FINGERPRINT(TO_JSON_STRING(STRUCT({names})))" for names in ("`shelf`", "`shelf`, `text`"))

    assert found == (
        f"SELECT COUNT(*) AS total, APPROX_COUNT_DISTINCT({one}) AS distinct_1, "
        f"APPROX_TOP_COUNT({one}, 1)[SAFE_OFFSET(0)].count AS largest_1, APPROX_COUNT_DISTINCT({two}) AS distinct_2, "
        f"APPROX_TOP_COUNT({two}, 1)[SAFE_OFFSET(0)].count AS largest_2 FROM (\n"
        "SELECT * FROM `d.t` WHERE day = @partition\n)"
    )


def test_the_statement_says_its_order_and_only_a_statement_of_ours_does() -> None:
    order = Order(("shelf", "naïve \n"), 3, 1, "because")

    assert of_statement(f"{order.remark}EXPORT DATA") == Order(order.columns, 3, 1)
    assert order.remark.count("\n") == 1
    for other in ("", "EXPORT DATA", REMARK, f"{REMARK}[1]", f"{REMARK}{{}}\nEXPORT"):
        assert of_statement(other) is None


def test_a_plan_keeps_its_order_and_an_earlier_one_has_none() -> None:
    order = Order(("shelf",), 3, 1, "because")
    plan = Plan("r", 0, 1, 1, (), order=order)
    kept = json.loads(json.dumps(plan.to_json()))
    earlier = json.loads(json.dumps(a_plan(4).to_json()))
    del earlier["order"]

    assert Plan.from_json(kept) == plan
    assert Plan.from_json({**kept, "order": {**kept["order"], "novelty": 1}}) == plan
    assert Plan.from_json(earlier).order is None


@pytest.mark.parametrize(
    ("error", "retryable", "statistics", "without"),
    [
        ("Resources exceeded during query execution: ... ORDER BY operations: 99%", False, {"order": {}}, True),
        ("CREATE TABLE columns must be named, but column 2 has no name", False, {"order": {}}, True),
        ("Access Denied: bigquery.tables.create", False, {"order": {}}, True),
        ("An internal error occurred", True, {"order": {}}, False),
        ("Resources exceeded during query execution: ...", False, {}, False),
        (None, False, {"order": {}}, False),
    ],
)
def test_whatever_an_export_in_an_order_fails_of_it_is_done_without_one(
    error: str | None, retryable: bool, statistics: dict[str, object], without: bool
) -> None:
    assert JobState("job-1", True, error, retryable, statistics).cannot_be_ordered is without


def test_a_place_has_no_order() -> None:
    spec = a_spec(source__order=["spot"], source__query="SELECT id, text, spot FROM `d.t` WHERE day = @partition")
    fields = [SchemaField("id", "INT64"), SchemaField("text", "STRING"), SchemaField("spot", "GEOGRAPHY")]

    with pytest.raises(WarehouseError, match=r"source.order names the column spot of type GEOGRAPHY, which has no order"):
        query.check_columns(spec, fields)
