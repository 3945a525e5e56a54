"""GoogleSQL of many shapes: what BigQuery's reference allows is a valid source, and what is none is refused in clear words."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from nightshift.cli import main
from nightshift.spec import job_checks, lexer, one_select, sql
from nightshift.spec.document import Document
from nightshift.spec.sql import BadQuery
from nightshift.warehouse import query as source
from nightshift.warehouse.errors import WarehouseError
from tests.unit.spec_file import job, mistakes, write

pytestmark = pytest.mark.unit

W = "WHERE d = @partition"
VALID = [
    # Pipe syntax
    f"FROM s.t |> {W} |> SET a = a + 1, b = UPPER(b)",
    f"FROM s.t |> {W} |> DROP secret, other",
    f"FROM s.t |> {W} |> RENAME a AS b, c d",
    f"FROM s.t |> {W} |> EXTEND a + 1 AS b |> SELECT a, b",
    f"FROM s.t |> {W} |> AGGREGATE COUNT(*) AS n GROUP BY a |> ORDER BY n DESC |> LIMIT 10",
    f"FROM s.t |> {W} |> JOIN s.u USING (id) |> AS x |> SELECT x.a",
    f"FROM s.t |> {W} |> WINDOW ROW_NUMBER() OVER (ORDER BY a) AS n |> WHERE n = 1",
    f"FROM s.t |> {W} |> UNION ALL (SELECT * FROM s.u), (SELECT * FROM s.v)",
    f"FROM s.t |> {W} |> PIVOT(SUM(a) FOR b IN ('x', 'y')) |> DISTINCT",
    f"FROM s.t |> {W} |> CALL s.f() |> TABLESAMPLE SYSTEM (1 PERCENT)",
    f"SELECT * FROM (FROM s.t |> {W} |> SET a = 1)",
    f"WITH x AS (FROM s.t |> {W} |> DROP a) SELECT * FROM x",
    f"FROM s.t |> {W} |> INTERSECT DISTINCT (SELECT * FROM s.u) |> EXCEPT DISTINCT (SELECT * FROM s.v)",
    f"FROM s.t |> {W} |> UNPIVOT(a FOR b IN (c, d)) |> ASSERT a > 0, 'a is {{a}}'",
    # Table functions and history
    "SELECT * FROM APPENDS(TABLE s.t, TIMESTAMP(@partition), NULL)",
    "SELECT * FROM CHANGES(TABLE `p-q.s.t`, NULL, TIMESTAMP(@partition)) AS c WHERE c.x = 1",
    f"SELECT * FROM s.t FOR SYSTEM_TIME AS OF TIMESTAMP_SUB(CURRENT_TIMESTAMP(), INTERVAL 1 HOUR) {W}",
    f"SELECT * FROM ML.PREDICT(MODEL s.m, (SELECT a FROM s.t {W}))",
    f"SELECT * FROM ML.GENERATE_EMBEDDING(MODEL s.m, (SELECT a AS content FROM s.t {W}), STRUCT(TRUE AS flatten_json_output))",
    f"SELECT * FROM VECTOR_SEARCH(TABLE s.t, 'v', (SELECT v FROM s.u {W}), top_k => 5, distance_type => 'COSINE')",
    "SELECT * FROM s.events_* WHERE _TABLE_SUFFIX = FORMAT_DATE('%Y%m%d', @partition)",
    f"SELECT * FROM EXTERNAL_QUERY('us.c', '''SELECT 1; SELECT 2''') {W}",
    f"SELECT * FROM s.t TABLESAMPLE SYSTEM (10 PERCENT) {W}",
    "SELECT * FROM UNNEST(GENERATE_DATE_ARRAY(@partition, @partition)) AS d WITH OFFSET AS o",
    f"SELECT * FROM GAP_FILL(TABLE s.t, ts_column => 'd', bucket_width => INTERVAL 1 DAY) {W}",
    # Privacy, patterns, graphs
    f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS(epsilon=1, privacy_unit_column=id) a, COUNT(*) FROM s.t {W} GROUP BY a",
    f"SELECT WITH AGGREGATION_THRESHOLD OPTIONS(threshold=50) a, COUNT(*) AS n FROM s.t {W} GROUP BY a",
    "SELECT * FROM s.t MATCH_RECOGNIZE (ORDER BY at MEASURES 1 AS x PATTERN (a b+? (c|d)* e{1,3}) DEFINE a AS d = @partition)",
    "SELECT * FROM GRAPH_TABLE(s.g MATCH (a:Person {id: 1})-[e:Knows]->(b) WHERE a.d = @partition COLUMNS (b.name))",
    "SELECT * FROM GRAPH_TABLE(s.g MATCH (a)<-[e:!Blocked & %]-{1,3}(b) WHERE a.d = @partition RETURN a.id, b.id)",
    # Expressions
    f"SELECT WITH(a AS '123', b AS CONCAT(a, '456'), b || a) AS r FROM s.t {W}",
    f"SELECT ARRAY_FILTER(a, e -> e > 1) AS x, ARRAY_TRANSFORM(a, (e, i) -> e + i) AS y FROM s.t {W}",
    f"SELECT a[OFFSET(0)], a[SAFE_ORDINAL(1)], j.k[0].v, JSON_VALUE(j, '$.a') FROM s.t {W}",
    f"SELECT IF(a IS NOT DISTINCT FROM b, 1, 0) AS x, a IS DISTINCT FROM b AS y FROM s.t {W}",
    f"SELECT ANY_VALUE(a HAVING MAX b) AS x, ARRAY_AGG(a IGNORE NULLS ORDER BY b LIMIT 3) AS y FROM s.t {W}",
    f"SELECT STRUCT<a INT64, b ARRAY<STRING>>(1, ['x']) AS s, ARRAY<STRUCT<INT64, STRING>>[(1, 'a')] AS t FROM s.t {W}",
    f"SELECT CAST(a AS STRING FORMAT 'YYYY'), SAFE_CAST(b AS DATE), EXTRACT(DATE FROM c AT TIME ZONE 'UTC') FROM s.t {W}",
    f"SELECT INTERVAL '1-2' YEAR TO MONTH AS i, RANGE<DATE> '[2026-01-01, UNBOUNDED)', JSON '{{}}' FROM s.t {W}",
    f"SELECT a LIKE ANY ('x%', 'y%') AS x, b NOT LIKE ALL UNNEST(c) AS y, NOT a IN (1) AS z FROM s.t {W}",
    f"SELECT a BETWEEN 1 AND 2 AND NOT b AS x, CASE a WHEN 1 THEN 2 ELSE 3 END AS y, -a, +a, ~a, a << 1 FROM s.t {W}",
    f"SELECT p.d.f(a), SAFE.PARSE_DATE('%Y', b), NET.HOST(c), KEYS.NEW_KEYSET('AEAD_AES_GCM_256') FROM s.t {W}",
    f"SELECT (SELECT AS STRUCT 1 AS a, 2 AS b) AS s, ARRAY(SELECT AS STRUCT x FROM UNNEST(c) AS x) AS l FROM s.t {W}",
    f"SELECT AS VALUE STRUCT(a AS a) FROM s.t {W}",
    f"SELECT DISTINCT AS STRUCT a FROM s.t {W}",
    f"SELECT @@time_zone AS zone, SESSION_USER() AS u FROM s.t {W}",
    f"SELECT t.order, t.group.from, t.`select` FROM s.t {W}",
    # Clauses
    f"SELECT * EXCEPT (a) REPLACE (b + 1 AS b) FROM s.t {W}",
    f"SELECT a, COUNT(*) FROM s.t {W} GROUP BY ALL HAVING COUNT(*) > 1 QUALIFY RANK() OVER w = 1 WINDOW w AS (ORDER BY a)",
    f"SELECT a, b FROM s.t {W} GROUP BY GROUPING SETS ((a), ROLLUP(a, b), ())",
    f"SELECT a FROM s.t {W} ORDER BY a COLLATE 'und:ci' NULLS LAST LIMIT 10 OFFSET 5",
    f"(SELECT a FROM s.t {W}) UNION ALL BY NAME (SELECT a FROM s.u) ",
    f"SELECT a FROM s.t {W} FULL OUTER UNION ALL BY NAME ON (a) SELECT a FROM s.u",
    f"SELECT a FROM s.t {W} EXCEPT DISTINCT SELECT a FROM s.u",
    f"SELECT a FROM s.t {W} UNION ALL CORRESPONDING BY (a) SELECT a FROM s.u",
    f"WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT * FROM r, s.t {W}",
    f"SELECT * FROM s.t AS t, t.items AS i WITH OFFSET, UNNEST(i.more) LEFT JOIN s.u ON TRUE {W}",
    f"SELECT * FROM s.t PIVOT (SUM(a) AS s FOR q IN ('x' AS x)) {W}",
    f"SELECT * FROM s.t UNPIVOT INCLUDE NULLS (v FOR q IN (a AS 'x', b AS 'y')) {W}",
    f"SELECT a, b, FROM s.t {W}",
    f"SELECT a FROM s.t {W};",
    f"SELECT a FROM s.t {W} ; ; -- the end",
    f"SELECT a FROM `p-q.s.t` {W}",
    f"SELECT a FROM p-q.s.t {W}",
    f"SELECT a FROM s.t JOIN@{{join_method=hash}} s.u USING (id) {W}",
    "SELECT a FROM s.t WHERE d = @`partition`",
    # Texts, names and comments
    f"SELECT '{{{{name}}}}' AS a, \"{{% if %}}\" AS b FROM s.t {W}",
    f"SELECT r'{{{{[^}}]*}}}}' AS a, R\"{{%\" AS b, rb'{{{{' AS c, bR\"{{%\" AS d, b'{{{{' AS e FROM s.t {W}",
    f"SELECT a FROM s.t {W} AND a LIKE '{{%' AND a NOT LIKE '%{{%}}%' AND NOT REGEXP_CONTAINS(a, r'\\{{\\{{.*\\}}\\}}')",
    f'SELECT \'\'\'it\'s {{{{ x }}}}\'\'\' AS a, """a "quoted" {{% x %}}\n; DROP TABLE s.t""" AS b FROM s.t {W}',
    f"SELECT `{{{{a}}}}`, `b;c`, `d\\`e` FROM s.t {W}",
    f"SELECT a /* {{{{ ds }}}}; /* ' */ FROM s.t -- {{% it's %}} ;\n# \" {{{{ ;\n{W}",
    f"SELECT 'a;b' AS a, \"c\\\";d\" AS b, r'\\';' AS c, '' AS e, \"\" AS f, '''''' AS g FROM s.t {W}",
    f"SELECT 'don\\'t' AS a, '\\\\' AS b, 'x\\\ny' AS c FROM s.t {W}",
    f"SELECT 'größe' AS größe, 日付 FROM s.t {W}",
]
INSTEAD = [
    (f"CREATE TEMP FUNCTION f(x STRING) AS (UPPER(x)); SELECT f(a) AS b FROM s.t {W}", "CREATE FUNCTION DATASET.NAME"),
    ("create or replace temporary function f(x STRING) AS (UPPER(x))", "CREATE FUNCTION DATASET.NAME"),
    (f"CREATE TEMP TABLE x AS SELECT 1; SELECT a FROM s.t {W}", "as a WITH clause of the SELECT"),
    (f"DECLARE x INT64 DEFAULT 7; SELECT a FROM s.t {W}", "WITH v AS (SELECT 7 AS days)"),
    (f"DECLARE x INT64; SET x = 7; SELECT a FROM s.t {W}", "WITH v AS (SELECT 7 AS days)"),
]
REFUSED = [
    # Not one SELECT
    ("", "has no statement"),
    (" ; -- nothing", "has no statement"),
    (f"SELECT a FROM s.t {W}; SELECT 1", "has 2 statements"),
    (f"SELECT a FROM s.t {W}; DROP TABLE s.t", "has 2 statements"),
    (f"DECLARE x INT64; SELECT a FROM s.t {W}", "has 2 statements"),
    (f"BEGIN SELECT a FROM s.t {W}; END", "has 2 statements"),
    (f"IF TRUE THEN SELECT a FROM s.t {W}; END IF", "has 2 statements"),
    (f"INSERT INTO s.t SELECT a FROM s.t {W}", "is not a SELECT: it begins with INSERT"),
    (f"CREATE TABLE s.u AS SELECT a FROM s.t {W}", "is not a SELECT: it begins with CREATE"),
    (f"create or replace view s.u as select a from s.t {W}", "is not a SELECT: it begins with CREATE"),
    (f"DELETE FROM s.t {W}", "is not a SELECT: it begins with DELETE"),
    (f"UPDATE s.t SET a = 1 {W}", "is not a SELECT: it begins with UPDATE"),
    ("MERGE s.t USING s.u ON TRUE WHEN MATCHED THEN DELETE", "is not a SELECT: it begins with MERGE"),
    ("TRUNCATE TABLE s.t", "is not a SELECT: it begins with TRUNCATE"),
    ("CALL s.p(@partition)", "is not a SELECT: it begins with CALL"),
    ("EXECUTE IMMEDIATE 'SELECT 1' USING @partition", "is not a SELECT: it begins with EXECUTE"),
    (f"EXPORT DATA OPTIONS(uri='gs://b/*') AS SELECT a FROM s.t {W}", "is not a SELECT: it begins with EXPORT"),
    ("LOAD DATA INTO s.t FROM FILES(uris=['gs://b/*'])", "is not a SELECT: it begins with LOAD"),
    ("ASSERT @partition IS NOT NULL", "is not a SELECT: it begins with ASSERT"),
    (f"EXPLAIN SELECT a FROM s.t {W}", "is not a SELECT: it begins with EXPLAIN"),
    (f"SELEC a FROM s.t {W}", "is not a SELECT: it begins with SELEC"),
    ("GRAPH s.g MATCH (a) WHERE a.d = @partition RETURN a.id", "is not a SELECT: it begins with GRAPH"),
    (f"(INSERT INTO s.t SELECT 1 {W})", "is not a SELECT: it begins with INSERT"),
    (f"FROM s.t |> {W} |> SET a = 1 |> INSERT INTO s.u", "it has the pipe operator INSERT"),
    (f"FROM s.t |> {W} |> CREATE TABLE s.u", "it has the pipe operator CREATE"),
    (f"FROM s.t |> {W} |> EXPORT DATA OPTIONS(uri='gs://b/*')", "it has the pipe operator EXPORT"),
    # A template
    ("SELECT a FROM s.t WHERE d = {{ ds }}", "is not rendered as a template"),
    ("SELECT a FROM s.t WHERE d = '{{ ds }}'", "is not rendered as a template"),
    (f"SELECT a FROM {{% if x %}} s.t {{% endif %}} {W}", "is not rendered as a template"),
    # Not closed
    (f"SELECT 'a FROM s.t {W}", "the string is not closed"),
    (f"SELECT 'a\n' FROM s.t {W}", "the string is not closed"),
    (f"SELECT '''a' FROM s.t {W}", "the string is not closed"),
    (f"SELECT r'a\\' FROM s.t {W}", "the string is not closed"),
    (f"SELECT a FROM `s.t {W}", "the quoted name is not closed"),
    (f"SELECT a /* FROM s.t {W}", "the comment is not closed"),
    (f"SELECT COUNT(* FROM s.t {W}", "the bracket ( is not closed"),
    (f"SELECT COUNT(*)) FROM s.t {W}", "the bracket ) has no opening one"),
    (f"SELECT [1, 2) FROM s.t {W}", "the bracket ) has no opening one"),
    # Something is missing
    ("SELECT a FROM s.t WHERE d = = @partition", "near '=': something is missing"),
    ("SELECT a FROM s.t WHERE = @partition", "near '=': something is missing"),
    (f"SELECT FROM s.t {W}", "near 'FROM': something is missing"),
    (f"SELECT a FROM {W}", "near 'WHERE': something is missing"),
    (f"SELECT a FROM s.t {W} AND", "near 'AND': something is missing"),
    (f"SELECT a FROM s.t {W} AND OR b", "near 'OR': something is missing"),
    (f"SELECT a FROM s.t {W} GROUP BY", "near 'BY': something is missing"),
    (f"SELECT a FROM s.t JOIN s.u ON {W}", "near 'WHERE': something is missing"),
    (f"FROM s.t |> {W} |>", "near '|>': something is missing"),
    # Parameters
    ("SELECT a FROM s.t", "does not use @partition"),
    ("SELECT a FROM s.t -- @partition", "does not use @partition"),
    ("SELECT '@partition' AS a, `@partition` FROM s.t", "does not use @partition"),
    ("FROM s.t |> SET a = '@partition'", "does not use @partition"),
    (f"FROM s.t |> {W} |> SET a = @other", "uses @other"),
    (f"FROM s.t |> {W} |> SET a = ?", "uses the parameter '?'"),
    (f"SELECT ? AS a FROM s.t {W}", "uses the parameter '?'"),
    ("SELECT @@partition AS a FROM s.t", "does not use @partition"),
]


@pytest.mark.parametrize("query", VALID)
def test_valid_sql_is_a_source(query: str) -> None:
    parsed = sql.parse(query)

    assert list(sql.parameters(parsed)) == []
    assert parsed.tree is not None or parsed.unread
    assert lexer.words(source.bare_query(query)) == [word for word in parsed.words if word.text != ";"]


@pytest.mark.parametrize(("query", "said"), REFUSED)
def test_what_is_no_source_is_refused(query: str, said: str) -> None:
    try:
        problems = [error.problem for error in sql.parameters(sql.parse(query))]
    except sql.BadQuery as error:
        problems = [error.problem]

    assert len(problems) == 1
    assert said in problems[0]


SMUGGLED = [
    # In each, a parser that cuts the text otherwise than BigQuery sees one SELECT.
    f"SELECT a FROM s.t {W} /* /* */ ; DROP TABLE s.t -- */",
    f"SELECT a FROM s.t {W} -- \r; DROP TABLE s.t",
    f"SELECT a FROM s.t {W} # \r; DROP TABLE s.t",
    f"SELECT `x\\`` FROM s.t {W}; DROP TABLE s.t; -- `\nFROM s.t |> {W}",
    f"SELECT a FROM s.t {W} AND b = 'x\\\\'; DROP TABLE s.t -- '",
    f"SELECT a FROM s.t {W} AND b = r'x\\\\'; DROP TABLE s.t -- '",
    f"SELECT a FROM s.t {W} AND b = '''x'''; DROP TABLE s.t -- '''",
    f"SELECT a FROM s.t {W} AND b = ''''x'''; DROP TABLE s.t; SELECT '''",
    f'SELECT a FROM s.t {W} AND b = ""; DROP TABLE s.t -- "',
    f"FROM s.t |> {W} |> SET a = rb'\\\\'; DROP TABLE s.t -- '",
    "SELECT * FROM s.t MATCH_RECOGNIZE (PATTERN (a{# x\n2}) DEFINE a AS d = @partition); DROP TABLE s.t; SELECT '#}'",
    f"FROM s.t |> {W} |> SET a = 1\u2028; DROP TABLE s.t",
]


@pytest.mark.parametrize("query", SMUGGLED)
def test_no_text_hides_a_second_statement(query: str) -> None:
    with pytest.raises(sql.BadQuery, match=r"has [23] statements|is not closed"):
        sql.parse(query)
    with pytest.raises(WarehouseError, match=r"has [23] statements|cannot be read as SQL"):
        source.bare_query(query)


@pytest.mark.parametrize(
    "query", [f"SELECT a FROM s.t {W} -- '\n", f"SELECT a FROM s.t {W} /* ; */ ; # end", f"-- first\nSELECT a FROM s.t {W}\n;"]
)
def test_what_is_exported_ends_with_the_statement(query: str) -> None:
    """A comment at its end would comment out the bracket that closes the count of its rows."""
    bare = source.bare_query(query)

    assert bare.endswith("@partition")
    assert len(one_select.one_statement(lexer.words(f"SELECT COUNT(*) FROM ({bare})"))) > 0


def test_columns_and_tables_of_sql_that_is_not_understood_are_unknown(tmp_path: Path) -> None:
    query = f"FROM s.t |> {W} |> SET a = 1"

    assert sql.columns(sql.parse(query)) is None
    assert sql.tables(sql.parse(query)) == ()
    assert mistakes(tmp_path, job(source__query=query)) == []


def test_an_escaped_backquote_does_not_invent_columns() -> None:
    """sqlglot ends the name at it, and takes what follows for the name of a column."""
    parsed = sql.parse(f"SELECT `a\\`` , `b` FROM s.t {W}")

    assert sql.columns(parsed) is None
    assert sql.tables(parsed) == ()


def test_validate_says_what_only_bigquery_can_judge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, job(source__query=f"FROM s.t\n|> {W}\n|> SET a = 1"))

    assert main(["validate", str(path)]) == 0
    out, err = capsys.readouterr()
    assert f"{path}: valid: " in out
    assert err == (
        f"{path}: source.query is not understood here beyond line 3 near 'SET', so its columns are not checked. "
        "BigQuery judges it in the task plan, before anything is computed.\n"
    )


def test_words_stand_where_they_stand_in_the_query() -> None:
    query = "SELECT 'a\\'b', `c d` -- x\n/* y\n*/ , @p"

    found = lexer.words(query)
    assert [(word.kind.name, word.text, word.line) for word in found] == [
        ("WORD", "SELECT", 1),
        ("TEXT", "'a\\'b'", 1),
        ("SIGN", ",", 1),
        ("NAME", "`c d`", 1),
        ("SIGN", ",", 3),
        ("SIGN", "@", 3),
        ("WORD", "p", 3),
    ]
    assert all(query[word.start : word.end] == word.text for word in found)
    assert lexer.without_comments(query) == "SELECT 'a\\'b', `c d`     \n    \n   , @p"


@pytest.mark.parametrize(
    ("query", "sorted_"),
    [
        ("SELECT a FROM t", False),
        ("SELECT a FROM t ORDER BY a", True),
        ("(SELECT a FROM t ORDER BY a);", True),
        ("(SELECT a FROM t ORDER BY a) UNION ALL (SELECT b FROM u)", False),
        ("(SELECT a FROM t) UNION ALL (SELECT b FROM u) ORDER BY 1 -- all", True),
        ("WITH x AS (SELECT a FROM t ORDER BY a LIMIT 3) SELECT a FROM x", False),
        ("SELECT ARRAY_AGG(a ORDER BY a), SUM(b) OVER (ORDER BY c) FROM t", False),
        ("SELECT `order` AS a, by FROM t -- ORDER BY a", False),
        ("SELECT 'ORDER BY a' FROM t", False),
        ("FROM t |> ORDER BY a |> LIMIT 3", True),
    ],
)
def test_whether_a_query_sorts_its_result(query: str, sorted_: bool) -> None:
    assert one_select.is_sorted(lexer.words(query)) is sorted_


@pytest.mark.parametrize(("query", "way"), INSTEAD)
def test_a_script_gets_the_way_out(query: str, way: str) -> None:
    with pytest.raises(BadQuery) as caught:
        sql.parse(query)

    assert caught.value.remedy.startswith("Write exactly one SELECT. ")
    assert caught.value.remedy.count(way) == 1


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (f"SELECT id, UPPER(body) FROM s.t {W}", "UPPER(body) has no name in it: add AS. "),
        (f"(SELECT id, 1 + 2, 'x' FROM s.t {W})", "1 + 2, 'x' have no name in it: add AS. "),
        (f"SELECT COUNT(*) FROM s.t {W} UNION ALL SELECT 1", "COUNT(*) has no name in it: add AS. "),
        (f"SELECT id, UPPER(body) AS b, s.c, (x) FROM s.t {W}", ""),
        (f"SELECT * FROM s.t {W}", ""),
        (f"FROM s.t |> {W} |> SELECT id", ""),
    ],
)
def test_a_column_without_a_name_is_pointed_at(query: str, said: str) -> None:
    assert sql.unnamed(sql.parse(query)) == said


def test_a_template_that_uses_one_is_told_which_it_is() -> None:
    """f0_ is what BigQuery itself calls it."""
    query = f"SELECT id, UPPER(body) FROM s.t {W}"
    job_file = {"source": {"query": query, "key": ["id"]}, "task": "embedding", "request": {"input": "{{ f0_ }}"}}
    document = Document(yaml.safe_dump(job_file))

    (found,) = [each for each in job_checks.check(document) if "f0_" in each.problem]
    assert found.remedy.endswith("UPPER(body) has no name in it: add AS. The query returns id")
