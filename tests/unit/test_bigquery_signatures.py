"""The emulator's rules of types, without the emulator: what GoogleSQL takes is taken, what it refuses is refused."""

from __future__ import annotations

import pytest
import sqlglot
from sqlglot import exp

from local.bigquery import signatures

pytestmark = [pytest.mark.unit, pytest.mark.gate]

COLUMNS = {
    "i": "INT64",
    "f": "FLOAT64",
    "n": "NUMERIC",
    "s": "STRING",
    "b": "BYTES",
    "yes": "BOOL",
    "day": "DATE",
    "civil": "DATETIME",
    "at": "TIMESTAMP",
    "clock": "TIME",
    "j": "JSON",
    "words": "ARRAY<STRING>",
    "pair": "STRUCT<x INT64, y STRING>",
    "span": "INTERVAL",
}
PARAMETERS = {
    "partition": exp.DataType.build("DATE"),
    "start": exp.DataType.build("TIMESTAMPTZ"),
    "text": exp.DataType.build("TEXT"),
}


def problem(sql: str) -> str | None:
    tree = sqlglot.parse_one(sql, dialect="bigquery")
    return signatures.problem(tree, lambda *table: COLUMNS if table == ("p", "d", "t") else {}, PARAMETERS)


@pytest.mark.parametrize(
    "condition",
    [
        "day = @partition",
        "DATE(at) = @partition",
        "EXTRACT(DATE FROM at) = @partition",
        "TIMESTAMP(@partition) <= at AND at < TIMESTAMP_ADD(TIMESTAMP(@partition), INTERVAL 1 DAY)",
        "at >= @start AND at < '2026-01-02'",
        "civil >= @partition AND civil < DATE_ADD(@partition, INTERVAL 1 DAY)",
        "day = '2026-01-01' AND day = @text AND at = @text AND clock < '12:00'",
        "day BETWEEN DATE_SUB(@partition, INTERVAL 7 DAY) AND @partition",
        "i = 1.5 AND n > f AND i IN (1, 2.5, NULL)",
        "s = @text AND s IN ('a', NULL) AND s IN UNNEST(words)",
        "b = b'a'",
        "JSON_VALUE(j, '$.a') = 'x' AND j.a IS NOT NULL AND INT64(j.n) = 1",
        "pair = (1, 'a') AND pair.x = 1",
        "at - at > INTERVAL 1 DAY",
        "day - day > span AND at - INTERVAL 1 DAY < at AND day + 1 = @partition",
        "COALESCE(i, 2.5) > 1 AND IFNULL(s, '') != '' AND NULLIF(n, 1) > 0",
        "IF(yes, NULL, s) = 'a' AND CASE WHEN yes THEN day ELSE '2026-01-01' END = @partition",
        "CASE s WHEN 'a' THEN 1 ELSE 2.5 END > 0",
        "GREATEST(day, @partition) = LEAST(day, '2026-01-01')",
        "s LIKE 'a%' AND b LIKE b'a%'",
        "i IN (SELECT i FROM p.d.t) AND EXISTS (SELECT 1)",
        "unknown = 1 AND unknown = 'a' AND MY_FUNCTION(at) = @partition",
        "CONCAT(s, i) = 'a1' AND ARRAY_LENGTH(words || ['a']) > 1",
        "IF(@@row_count = 1, NULL, ERROR('x')) IS NULL",
    ],
)
def test_a_condition_that_bigquery_takes_is_taken(condition: str) -> None:
    assert problem(f"SELECT s FROM p.d.t WHERE {condition}") is None


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("at = @partition", "operator = for argument types: TIMESTAMP, DATE"),
        ("s = @partition", "operator = for argument types: STRING, DATE"),
        ("@partition != at", "operator != for argument types: DATE, TIMESTAMP"),
        ("civil < @start", "operator < for argument types: DATETIME, TIMESTAMP"),
        (
            "at BETWEEN @partition AND DATE_ADD(@partition, INTERVAL 1 DAY)",
            "operator BETWEEN for argument types: TIMESTAMP, DATE, DATE",
        ),
        ("at IN (@partition)", r"operator IN for argument types TIMESTAMP and {DATE}"),
        ("at IN (SELECT day FROM p.d.t)", r"operator IN for argument types TIMESTAMP and {DATE}"),
        ("i IN UNNEST(words)", r"operator IN for argument types INT64 and {STRING}"),
        ("at IS NOT DISTINCT FROM @partition", "operator IS DISTINCT FROM for argument types: TIMESTAMP, DATE"),
        ("i = '1'", "operator = for argument types: INT64, STRING"),
        ("i = @text", "operator = for argument types: INT64, STRING"),
        ("yes = 1", "operator = for argument types: BOOL, INT64"),
        ("b = 'a'", "operator = for argument types: BYTES, STRING"),
        ("j = '1'", "Equality is not defined for arguments of type JSON"),
        ("words = ['a']", "Equality is not defined for arguments of type ARRAY"),
        ("pair < pair", "< is not defined for arguments of type STRUCT"),
        ("i LIKE '1%'", "operator LIKE for argument types: INT64, STRING"),
        ("i", "WHERE clause should return type BOOL, but returns type INT64"),
        ("yes AND i", "operator AND for argument types: BOOL, INT64"),
        ("at - day > span", "operator - for argument types: TIMESTAMP, DATE"),
        ("at + 1 > at", "operator + for argument types: TIMESTAMP, INT64"),
        ("s + i > 1", "operator + for argument types: STRING, INT64"),
        ("pair.x = 'a'", "operator = for argument types: INT64, STRING"),
    ],
)
def test_a_condition_that_bigquery_refuses_is_refused(condition: str, said: str) -> None:
    found = problem(f"SELECT s FROM p.d.t WHERE {condition}")

    assert found is not None
    assert said in found


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT IFNULL(i, '') FROM p.d.t", "function COALESCE\n  Argument types: INT64, STRING"),
        ("SELECT NULLIF(i, '') FROM p.d.t", "function NULLIF\n  Argument types: INT64, STRING"),
        ("SELECT GREATEST(at, @partition) FROM p.d.t", "function GREATEST\n  Argument types: TIMESTAMP, DATE"),
        ("SELECT IF(yes, i, s) FROM p.d.t", "function IF\n  Argument types: BOOL, INT64, STRING"),
        ("SELECT IF(i, 1, 2) FROM p.d.t", "function IF\n  Argument types: INT64, INT64, INT64"),
        ("SELECT CASE WHEN yes THEN 1 ELSE 'x' END FROM p.d.t", "operator CASE; all THEN/ELSE arguments must be coercible"),
        ("SELECT CASE s WHEN 1 THEN 2 END FROM p.d.t", "operator CASE for argument types: STRING, INT64"),
        ("SELECT CASE WHEN i THEN 2 END FROM p.d.t", "CASE WHEN condition should return type BOOL"),
        ("SELECT [i, s] FROM p.d.t", "Array elements of types {INT64, STRING} do not have a common supertype"),
        (
            "SELECT i, s FROM p.d.t UNION ALL SELECT s, s FROM p.d.t",
            "Column 1 in UNION ALL has incompatible types: INT64, STRING",
        ),
        (
            "SELECT day FROM p.d.t EXCEPT DISTINCT SELECT at FROM p.d.t",
            "Column 1 in EXCEPT DISTINCT has incompatible types: DATE, TIMESTAMP",
        ),
        (
            "SELECT s FROM p.d.t INTERSECT DISTINCT SELECT 1",
            "Column 1 in INTERSECT DISTINCT has incompatible types: STRING, INT64",
        ),
        (
            "(SELECT NULL UNION ALL SELECT 1) UNION ALL SELECT 'a'",
            "Column 1 in UNION ALL has incompatible types: INT64, INT64, STRING",
        ),
        ("SELECT a.s FROM p.d.t AS a JOIN p.d.t AS b ON a.i = b.s", "operator = for argument types: INT64, STRING"),
        ("SELECT a.s FROM p.d.t AS a JOIN p.d.t AS b ON a.i", "JOIN ON clause should return type BOOL"),
        (
            "SELECT s FROM (SELECT at AS day, s FROM p.d.t) WHERE day = @partition",
            "operator = for argument types: TIMESTAMP, DATE",
        ),
        (
            "WITH x AS (SELECT * FROM p.d.t) SELECT s FROM x WHERE at = @partition",
            "operator = for argument types: TIMESTAMP, DATE",
        ),
        ("SELECT s FROM p.d.t, UNNEST(words) AS w WHERE w = 1", "operator = for argument types: STRING, INT64"),
        ("EXPORT DATA OPTIONS(uri='gs://b/*') AS SELECT s FROM p.d.t WHERE at = @partition", "operator = for argument types"),
        ("CREATE TABLE p.d.x AS SELECT COALESCE(i, s) AS c FROM p.d.t", "function COALESCE"),
        (
            "INSERT INTO p.d.t (s, day) SELECT s, at FROM p.d.t",
            "Query column 2 has type TIMESTAMP which cannot be inserted into column day",
        ),
        (
            "INSERT INTO p.d.t (i) VALUES (1), (2.5)",
            "Value has type FLOAT64 which cannot be inserted into column i, which has type INT64",
        ),
        ("UPDATE p.d.t SET i = 'a' WHERE TRUE", "Value of type STRING cannot be assigned to i, which has type INT64"),
        ("DELETE FROM p.d.t WHERE at = @partition", "operator = for argument types: TIMESTAMP, DATE"),
        (
            "MERGE INTO p.d.t AS t USING (SELECT 1 AS a) AS x ON t.s = x.a WHEN MATCHED THEN DELETE",
            "operator = for argument types",
        ),
        (
            "MERGE INTO p.d.t AS t USING (SELECT 1 AS a) AS x ON t.i = x.a WHEN MATCHED THEN UPDATE SET s = x.a",
            "Value of type INT64 cannot be assigned to s, which has type STRING",
        ),
    ],
)
def test_a_statement_that_bigquery_refuses_is_refused(sql: str, said: str) -> None:
    found = problem(sql)

    assert found is not None
    assert said in found


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT NULL UNION ALL SELECT 'a' UNION ALL SELECT NULL",
        "SELECT x FROM (SELECT NULL AS x UNION ALL SELECT 'a') WHERE x = 'a'",
        "SELECT x FROM (SELECT '2026-01-01' AS x UNION ALL SELECT day FROM p.d.t) WHERE x = @partition",
        "SELECT i FROM p.d.t UNION ALL SELECT f FROM p.d.t UNION ALL SELECT n FROM p.d.t",
        "SELECT day FROM p.d.t UNION ALL SELECT civil FROM p.d.t",
        "SELECT * FROM p.d.t PIVOT(SUM(i) FOR s IN ('a', 'b'))",
        "SELECT [1, 2.5, NULL], ['a', NULL], [day, '2026-01-01'] FROM p.d.t",
        "INSERT INTO p.d.t (n, f, civil, day, s) SELECT 1.5, i, day, '2026-01-01', NULL FROM p.d.t",
        "UPDATE p.d.t SET day = '2026-01-01', s = NULL, f = 1 WHERE s = 'a'",
        "SELECT s FROM p.other.t WHERE at = @partition",
        "CREATE FUNCTION p.d.same(a ANY TYPE, b ANY TYPE) AS (a = b)",
        "SELECT a.s FROM p.d.t AS a JOIN p.d.t AS b USING (i, s)",
    ],
)
def test_a_statement_that_bigquery_takes_is_taken(sql: str) -> None:
    assert problem(sql) is None


def test_a_refusal_is_worded_and_placed_as_by_bigquery() -> None:
    assert problem("SELECT s\nFROM p.d.t\nWHERE at >= @partition") == (
        "No matching signature for operator >= for argument types: TIMESTAMP, DATE\n"
        "  Signature: T1 >= T1\n"
        "    Unable to find common supertype for templated argument <T1>\n"
        "      Input types for <T1>: {DATE, TIMESTAMP} at [3:7]"
    )
