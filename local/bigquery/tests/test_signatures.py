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
        "b = b || b'x' AND words[OFFSET(0)] = (words || words)[OFFSET(1)]",
        "i IN (SELECT i FROM p.d.t) AND EXISTS (SELECT 1)",
        "unknown = 1 AND unknown = 'a' AND MY_FUNCTION(at) = @partition",
        "CONCAT(s, i) = 'a1' AND ARRAY_LENGTH(words || ['a']) > 1",
        "IF(@@row_count = 1, NULL, ERROR('x')) IS NULL",
        "day = (SELECT MAX(day) FROM p.d.t)",
        "(i, s) IN (SELECT (1, 'a'))",
        "(i, s) IN ((1, 'a'), (2, 'b'))",
        "at > TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL 7 DAY)",
        "SAFE_CAST(s AS INT64) = i",
        "DATE_DIFF(@partition, day, DAY) <= 7",
        "FORMAT_DATE('%Y', day) = '2026'",
        "EXTRACT(DAYOFWEEK FROM day) IN (1,7)",
        "day >= DATE_TRUNC(@partition, MONTH) AND day = @partition - 1",
        "at BETWEEN TIMESTAMP(@partition) AND TIMESTAMP(DATE_ADD(@partition, INTERVAL 1 DAY))",
        "TIMESTAMP(day) = at AND DATETIME(at) = civil AND CAST(at AS DATE) = @partition",
        "IF(yes, 'a', CAST(i AS STRING)) = s",
        "COALESCE(JSON_VALUE(j,'$.a'), s, '') = ''",
        "ARRAY_LENGTH(SPLIT(s, ',')) > 1",
        "SPLIT(s, ',')[OFFSET(0)] = 'a' AND SPLIT(s, ',')[SAFE_OFFSET(1)] IN ('a')",
        "UNIX_SECONDS(at) - UNIX_SECONDS(TIMESTAMP(@partition)) < 3600",
        "at >= CAST(@partition AS TIMESTAMP) AND DATE(at, 'Europe/Berlin') = @partition",
        "CASE WHEN s IS NULL THEN NULL ELSE i END > 0",
        "IFNULL(yes, FALSE)",
        "yes IS TRUE AND NOT yes AND yes IS NOT NULL AND yes IS NOT FALSE",
        "(SELECT TRUE)",
        "IF(yes, TRUE, NULL)",
        "COALESCE(NULL, yes)",
        "SAFE_CAST(s AS BOOL)",
        "IS_INF(f) OR IS_NAN(f)",
        "s LIKE ANY ('a%', 'b')",
        "CONTAINS_SUBSTR(s, 'a') AND ENDS_WITH(s, 'a') AND REGEXP_CONTAINS(s, r'a')",
        "EDIT_DISTANCE(s, 'a') < 3",
        "CAST(NULL AS STRING) = s",
        "MOD(i, 2) = 0 AND MOD(ABS(FARM_FINGERPRINT(s)), 100) < 10",
        "RAND() < 0.1",
        "FARM_FINGERPRINT(CONCAT(s, CAST(i AS STRING))) > 0",
        "pair.x = 1 AND pair.y = 'a' AND pair = STRUCT(1 AS x, 'a' AS y)",
        "'a' IN UNNEST(words)",
        "EXISTS (SELECT 1 FROM UNNEST(words) AS e WHERE e = 'x')",
        "(SELECT COUNT(*) FROM UNNEST(words) AS e WHERE e LIKE 'x%') > 1",
        "i IN (SELECT DISTINCT x.i FROM p.d.t AS x WHERE x.day = @partition)",
        "LOWER(s) = 'x' AND TRIM(s) != '' AND LENGTH(s) > 1 AND b = b'x' AND TO_HEX(MD5(s)) = 'x'",
        "n * 2 > 1.5 AND i / 2 > 1 AND f = 1 AND n = NUMERIC '1.5' AND SAFE_DIVIDE(i, 2) > 0.5",
        "ROUND(f, 2) = 1.25 AND TRUNC(n) = 1 AND CAST(f AS INT64) = 1",
        "PARSE_TIMESTAMP('%F', s) > at AND PARSE_DATE('%F', s) = day AND SAFE.PARSE_DATE('%F', s) = day",
        "LAST_DAY(day) = day AND DATE_FROM_UNIX_DATE(i) = day AND TIMESTAMP_MILLIS(i) = at",
        "TIMESTAMP_TRUNC(at, DAY) = TIMESTAMP(@partition) AND DATE_TRUNC(day, WEEK(MONDAY)) = day",
        "EXTRACT(TIME FROM at) = clock AND TIME(at) < '12:00:00' AND EXTRACT(DATE FROM civil) = day",
        "CURRENT_DATE() - day < INTERVAL 3 DAY",
        "DATE_ADD(day, INTERVAL i DAY) = day AND day + i = day",
        "JSON_QUERY(j, '$.a') IS NOT NULL AND JSON_TYPE(j) = 'string'",
        "LAX_INT64(j.a) = 1 AND STRING(j.a) = 'x' AND BOOL(j.b)",
        "JSON_VALUE_ARRAY(j, '$.a')[SAFE_OFFSET(0)] = 'x' AND 'a' IN UNNEST(JSON_VALUE_ARRAY(j))",
        "STRING(at) = '2026' AND STRING(day) = 'x' AND FORMAT('%d', i) = '1' AND FORMAT('%t', at) = 'x'",
        "GREATEST(i, 1.5) > 0 AND LEAST(n, i) > 0",
        "ARRAY(SELECT e FROM UNNEST(words) AS e ORDER BY e)[OFFSET(0)] = 'a'",
        "i IS NOT DISTINCT FROM NULL AND s IS DISTINCT FROM 'a'",
        "i BETWEEN 0 AND 9.5 AND s BETWEEN 'a' AND 'b' AND day BETWEEN '2026-01-01' AND @partition",
        "span > INTERVAL 1 HOUR AND at + span > at AND at - at > INTERVAL 1 MINUTE",
        "i & 1 = 1 AND i | 2 > 0 AND (i << 1) > 0 AND BIT_COUNT(i) > 1",
        "-i < 0 AND +f > 0 AND ABS(n) > 1",
        "COALESCE(s, NULL) = 'a' AND NULLIF(s, '') IS NOT NULL AND NULLIF(i, 0) > 1",
        "SESSION_USER() = 'x' AND GENERATE_UUID() != s",
        "MAX(day) OVER () = day",
        "ANY_VALUE(s) OVER (PARTITION BY i) = 'a'",
        "LAG(at) OVER (ORDER BY at) < at",
        "ARRAY_TO_STRING(words, ',') = 'x' AND ARRAY_CONCAT(words, ['x'])[OFFSET(0)] = 'x'",
        "NET.REG_DOMAIN(s) = 'x'",
        "CAST(day AS STRING) = '2026-01-01' AND CAST(day AS DATETIME) = civil AND CAST(civil AS DATE) = @partition",
        "'x' || s = 'xy' AND CONCAT('x', s) = s",
        "ST_DISTANCE(ST_GEOGPOINT(f, f), ST_GEOGPOINT(f, f)) < 10",
        "COSINE_DISTANCE([1.0], [2.0]) < 0.5",
        "POW(i, 2) = 4 AND SQRT(i) = 2 AND LOG(i) = 1 AND EXP(i) > 1",
        "SIGN(i) = 1 AND CEIL(f) = 1 AND FLOOR(f) = 1 AND IEEE_DIVIDE(i, 1) = 1",
        "DATETIME_ADD(civil, INTERVAL 1 DAY) = civil",
        "DATETIME_TRUNC(civil, DAY) = DATETIME(@partition) AND DATETIME(at, 'UTC') = civil",
        "TIMESTAMP_DIFF(at, at, SECOND) > 1 AND TIMESTAMP_ADD(at, INTERVAL 1 DAY) > at",
        "BYTE_LENGTH(b) > 1 AND SHA256(s) = b AND FROM_HEX(s) = b AND CAST(s AS BYTES) = b",
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
        (
            "EXPORT DATA OPTIONS(uri='gs://b/*') AS SELECT s FROM p.d.t ORDER BY words",
            "ORDER BY does not support expressions of type ARRAY",
        ),
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
        (
            "SELECT s, COUNTIF(yes) AS c, SUM(IF(yes, 1, 0)) / COUNT(*) AS r FROM p.d.t GROUP BY s HAVING COUNT(*) "
            "> 1 AND MAX(day) = @partition"
        ),
        "SELECT * FROM p.d.t QUALIFY ROW_NUMBER() OVER (PARTITION BY s ORDER BY at DESC) = 1",
        (
            "WITH a AS (SELECT s, ARRAY_AGG(STRUCT(i, at) ORDER BY at LIMIT 1)[OFFSET(0)] AS top FROM p.d.t GROUP "
            "BY s) SELECT * FROM a WHERE top.i = 1 AND top.at > CURRENT_TIMESTAMP()"
        ),
        "SELECT a.*, b.s AS s2 FROM p.d.t AS a LEFT JOIN p.d.t AS b ON a.i = b.i AND b.day = @partition",
        "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r WHERE n = 1",
        "SELECT x.n FROM UNNEST([STRUCT(1 AS n, 'a' AS t)]) AS x WHERE x.t = 'a'",
        "SELECT d FROM UNNEST(GENERATE_DATE_ARRAY('2026-01-01', @partition)) AS d WHERE d = @partition",
        "SELECT * FROM (SELECT s, i FROM p.d.t) PIVOT (SUM(i) FOR s IN ('a', 'b'))",
        "SELECT * FROM p.d.t UNPIVOT (v FOR k IN (i, n))",
        "SELECT s FROM p.d.t UNION ALL SELECT NULL UNION ALL SELECT CAST(i AS STRING) FROM p.d.t",
        "SELECT 1 AS a, 'x' AS b UNION ALL BY NAME SELECT 'y' AS b, 2 AS a",
        "SELECT IF(yes, [1], []) AS l, IF(yes, STRUCT(1 AS a), NULL) AS st, COALESCE(a, []) AS x FROM p.d.t",
        "SELECT CASE WHEN yes THEN DATE '2026-01-01' WHEN NOT yes THEN day ELSE NULL END FROM p.d.t",
        "SELECT s, i FROM p.d.t ORDER BY 1, 2",
        "SELECT s AS da FROM p.d.t WHERE day = @partition",
        "SELECT s AS x FROM p.d.t GROUP BY x HAVING x = 'a'",
        "SELECT i + 1 AS s FROM p.d.t WHERE s = 'a'",
        "SELECT CAST(i AS STRING) AS i FROM p.d.t WHERE i = 1 ORDER BY i",
        "SELECT MAX(i) AS i FROM p.d.t GROUP BY s HAVING MAX(i) > 1",
        (
            "MERGE INTO p.d.t AS t USING p.d.t AS s ON t.i = s.i AND t.day = @partition WHEN MATCHED AND s.yes "
            "THEN UPDATE SET s = s.s, at = CURRENT_TIMESTAMP() WHEN NOT MATCHED THEN INSERT (i, s, n) VALUES (s.i, "
            "s.s, 1.5) WHEN NOT MATCHED BY SOURCE THEN DELETE"
        ),
        "MERGE INTO p.d.t USING (SELECT 1 AS a) ON FALSE WHEN NOT MATCHED THEN INSERT ROW",
        "INSERT INTO p.d.t (a, pair) VALUES (['x'], (1, 'a')), ([], STRUCT(1, 'a')), (NULL, NULL)",
        "INSERT INTO p.d.t (i, s) SELECT * FROM (SELECT 1, 'a')",
        "INSERT INTO p.d.t (at) VALUES (CURRENT_TIMESTAMP()), ('2026-01-01'), (TIMESTAMP(@partition))",
        "UPDATE p.d.t SET pair.x = 1, i = i + 1, f = i, n = NULL, s = DEFAULT WHERE day = @partition",
        "UPDATE p.d.t AS t SET s = u.s FROM p.d.t AS u WHERE t.i = u.i",
        "INSERT INTO p.d.t (j, span, clock) SELECT TO_JSON(STRUCT(1 AS a)), INTERVAL 1 DAY, TIME '12:00:00'",
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
