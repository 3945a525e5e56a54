"""DML, MERGE, scripts and multi-statement transactions: what publish and audit rest on."""

from __future__ import annotations

import datetime
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from google.api_core.exceptions import BadRequest, Conflict
from google.cloud import bigquery

from local.bigquery.tests.support import DAY, Warehouse, new_job_id, parameters

pytestmark = pytest.mark.integration

PUBLISH = """
BEGIN TRANSACTION;
DELETE FROM `{target}` WHERE day = @partition;
INSERT INTO `{target}` (name, day) SELECT name, @partition FROM `{staging}`;
{before_commit}
COMMIT TRANSACTION;
"""


@pytest.fixture
def target(warehouse: Warehouse) -> str:
    """The name of a partitioned table; beside it lies `staging` with the names a and b."""
    name = warehouse.name("target")
    warehouse.run(f"CREATE TABLE `{name}` (name STRING, day DATE) PARTITION BY day")
    warehouse.run(f"CREATE TABLE `{warehouse.name('staging')}` AS SELECT name FROM UNNEST(['a', 'b']) AS name")
    return name


def publish_sql(warehouse: Warehouse, before_commit: str = "") -> str:
    names = {"target": warehouse.name("target"), "staging": warehouse.name("staging")}
    return PUBLISH.format(**names, before_commit=before_commit)


def published(warehouse: Warehouse) -> list[tuple[str, datetime.date]]:
    return [tuple(row) for row in warehouse.rows(f"SELECT name, day FROM `{warehouse.name('target')}` ORDER BY day, name")]


@pytest.mark.gate
def test_merge_updates_and_inserts(warehouse: Warehouse) -> None:
    name = warehouse.name("t")
    warehouse.run(f"CREATE TABLE `{name}` AS SELECT 1 AS id, 'a' AS v UNION ALL SELECT 2, 'b'")

    job = warehouse.run(
        f"MERGE `{name}` T USING (SELECT 2 AS id, 'B' AS v UNION ALL SELECT 3, 'c') S ON T.id = S.id "
        "WHEN MATCHED THEN UPDATE SET v = S.v WHEN NOT MATCHED THEN INSERT (id, v) VALUES (S.id, S.v)"
    )

    assert warehouse.rows(f"SELECT * FROM `{name}` ORDER BY id") == [(1, "a"), (2, "B"), (3, "c")]
    assert job.num_dml_affected_rows == 2
    assert job.dml_stats is not None
    assert (job.dml_stats.inserted_row_count, job.dml_stats.updated_row_count) == (1, 1)


def test_merge_inserts_whole_rows_into_partitions(warehouse: Warehouse, target: str) -> None:
    warehouse.run(f"INSERT INTO `{target}` VALUES ('a', '2026-01-01')")

    warehouse.run(
        f"MERGE `{target}` T USING (SELECT 'a' AS name, DATE '2026-01-01' AS day UNION ALL SELECT 'b', '2026-02-02') S "
        "ON T.name = S.name AND T.day = S.day WHEN NOT MATCHED THEN INSERT ROW"
    )

    assert published(warehouse) == [("a", DAY), ("b", datetime.date(2026, 2, 2))]


def test_merge_refuses_two_source_rows_for_one_target_row(warehouse: Warehouse) -> None:
    name = warehouse.name("t")
    warehouse.run(f"CREATE TABLE `{name}` AS SELECT 1 AS id, 'a' AS v")

    with pytest.raises(BadRequest, match="at most one source row"):
        warehouse.run(
            f"MERGE `{name}` T USING (SELECT 1 AS id, 'x' AS v UNION ALL SELECT 1, 'y') S ON T.id = S.id "
            "WHEN MATCHED THEN UPDATE SET v = S.v"
        )

    assert warehouse.rows(f"SELECT v FROM `{name}`") == [("a",)]


def test_an_audit_row_is_merged_by_its_run(warehouse: Warehouse) -> None:
    name = warehouse.name("audit")
    warehouse.run(f"CREATE TABLE IF NOT EXISTS `{name}` (run_id STRING, rows_in INT64, detail JSON) CLUSTER BY run_id")
    merge = (
        f"MERGE `{name}` T USING (SELECT @run_id AS run_id, @rows_in AS rows_in, PARSE_JSON(@detail) AS detail) S "
        "ON T.run_id = S.run_id WHEN MATCHED THEN UPDATE SET rows_in = S.rows_in, detail = S.detail "
        "WHEN NOT MATCHED THEN INSERT (run_id, rows_in, detail) VALUES (S.run_id, S.rows_in, S.detail)"
    )

    for rows_in in (1, 2):
        warehouse.run(merge, parameters(run_id="r1", rows_in=rows_in, detail='{"why": "\\"quoted\\" \\u0000 🦆"}'))

    assert warehouse.rows(f"SELECT * FROM `{name}`") == [("r1", 2, {"why": '"quoted" \x00 🦆'})]


def test_delete_tells_how_many_rows(warehouse: Warehouse, target: str) -> None:
    warehouse.run(f"INSERT INTO `{target}` VALUES ('a', '2026-01-01'), ('b', '2026-01-01'), ('c', '2026-01-02')")

    job = warehouse.run(f"DELETE FROM `{target}` WHERE day = @partition", parameters(partition=DAY))

    assert (job.num_dml_affected_rows, warehouse.count("target")) == (2, 1)


@pytest.mark.gate
def test_publishing_replaces_one_partition_and_can_be_repeated(warehouse: Warehouse, target: str) -> None:
    warehouse.run(f"INSERT INTO `{target}` VALUES ('stale', '2026-01-01'), ('kept', '2026-01-02')")

    for _ in range(2):
        job = warehouse.run(publish_sql(warehouse), parameters(partition=DAY), new_job_id())

    assert published(warehouse) == [("a", DAY), ("b", DAY), ("kept", DAY + datetime.timedelta(days=1))]
    children = {child.statement_type: child.num_dml_affected_rows for child in warehouse.client.list_jobs(parent_job=job)}
    assert children == {"BEGIN_TRANSACTION": None, "DELETE": 2, "INSERT": 2, "COMMIT_TRANSACTION": None}


def test_a_publishing_job_id_runs_once(warehouse: Warehouse, target: str) -> None:
    job_id = new_job_id()
    warehouse.run(publish_sql(warehouse), parameters(partition=DAY), job_id)
    warehouse.run(f"INSERT INTO `{target}` VALUES ('later', @partition)", parameters(partition=DAY))

    with pytest.raises(Conflict):
        warehouse.client.query(publish_sql(warehouse), job_config=parameters(partition=DAY), job_id=job_id, job_retry=None)

    assert [name for name, _ in published(warehouse)] == ["a", "b", "later"]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("before_commit", "message"),
    [
        ("SELECT ERROR('stopped here');", "stopped here"),
        ("SELECT IF((SELECT COUNT(*) FROM `{target}`) = 77, 1, ERROR('counts differ'));", "counts differ"),
        ("INSERT INTO `{target}` (no_such_column) SELECT 1;", "no_such_column"),
        ("RAISE USING MESSAGE = 'raised';", "raised"),
    ],
)
def test_an_error_in_a_transaction_undoes_all_of_it(
    warehouse: Warehouse, target: str, before_commit: str, message: str
) -> None:
    warehouse.run(f"INSERT INTO `{target}` VALUES ('old', '2026-01-01')")
    sql = publish_sql(warehouse, before_commit.format(target=target))

    with pytest.raises(BadRequest, match=message):
        warehouse.run(sql, parameters(partition=DAY))

    assert published(warehouse) == [("old", DAY)]


def test_a_transaction_that_is_never_committed_is_undone(warehouse: Warehouse, target: str) -> None:
    warehouse.run(f"BEGIN TRANSACTION; INSERT INTO `{target}` VALUES ('a', '2026-01-01');")

    assert published(warehouse) == []


def test_a_handler_can_roll_back_and_raise_again(warehouse: Warehouse, target: str) -> None:
    warehouse.run(f"INSERT INTO `{target}` VALUES ('old', '2026-01-01')")

    with pytest.raises(BadRequest, match="caught: stopped here"):
        warehouse.run(
            f"BEGIN BEGIN TRANSACTION; DELETE FROM `{target}` WHERE TRUE; SELECT ERROR('stopped here'); COMMIT TRANSACTION; "
            "EXCEPTION WHEN ERROR THEN ROLLBACK TRANSACTION; RAISE USING MESSAGE = CONCAT('caught: ', @@error.message); END;"
        )

    assert published(warehouse) == [("old", DAY)]


def test_a_transaction_can_check_its_own_counts(warehouse: Warehouse, target: str) -> None:
    rows = warehouse.rows(
        f"""DECLARE deleted, inserted INT64;
        BEGIN TRANSACTION;
        DELETE FROM `{target}` WHERE day = @partition; SET deleted = @@row_count;
        INSERT INTO `{target}` SELECT name, @partition FROM `{warehouse.name("staging")}`; SET inserted = @@row_count;
        SELECT IF(inserted = (SELECT COUNT(*) FROM `{warehouse.name("staging")}`), NULL, ERROR('counts differ'));
        COMMIT TRANSACTION;
        SELECT deleted, inserted;""",
        parameters(partition=DAY),
    )

    assert rows == [(0, 2)]


@pytest.mark.gate
def test_racing_transactions_never_double_a_partition(warehouse: Warehouse, target: str) -> None:
    """Some may be aborted, as in BigQuery; each that commits leaves the partition whole."""

    def publish(_: int) -> str | None:
        try:
            warehouse.run(publish_sql(warehouse), parameters(partition=DAY))
        except BadRequest as error:
            return str(error)
        return None

    with ThreadPoolExecutor(6) as pool:
        errors = list(pool.map(publish, range(6)))

    assert published(warehouse) == [("a", DAY), ("b", DAY)]
    assert None in errors
    assert all("concurrent update" in error for error in errors if error is not None)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("CREATE TABLE `{d}.made` (a INT64)", "CREATE TABLE"),
        ("CREATE OR REPLACE TABLE `{d}.made` AS SELECT 1 AS a", "CREATE TABLE AS SELECT"),
        ("CREATE VIEW `{d}.made` AS SELECT 1 AS a", "CREATE VIEW"),
        ("CREATE FUNCTION `{d}.made`(a INT64) AS (a + 1)", "CREATE FUNCTION"),
        ("ALTER TABLE `{d}.target` ADD COLUMN made INT64", "ALTER TABLE"),
        ("DROP TABLE `{d}.target`", "DROP TABLE"),
        ("EXPORT DATA OPTIONS(uri='gs://b/*.parquet', format='PARQUET') AS SELECT 1 AS a", "EXPORT DATA"),
        ("ASSERT TRUE AS 'public scripts have it'", "ASSERT"),
    ],
)
def test_a_transaction_takes_only_the_statements_that_are_documented(
    warehouse: Warehouse, target: str, statement: str, named: str
) -> None:
    statement = statement.replace("{d}", f"{warehouse.client.project}.{warehouse.dataset}")

    with pytest.raises(BadRequest, match=f"{named} is not supported inside a transaction"):
        warehouse.run(f"BEGIN TRANSACTION; INSERT INTO `{target}` VALUES ('a', '2026-01-01'); {statement}; COMMIT TRANSACTION;")

    assert published(warehouse) == []
    assert {table.table_id for table in warehouse.client.list_tables(warehouse.dataset)} == {"target", "staging"}


@pytest.mark.gate
def test_a_transaction_takes_every_statement_that_is_documented(warehouse: Warehouse, target: str) -> None:
    warehouse.run(
        f"""BEGIN TRANSACTION;
        CREATE TEMP FUNCTION longer(a STRING) AS (CONCAT(a, '!'));
        CREATE TEMP TABLE kept AS SELECT name FROM `{warehouse.name("staging")}`;
        TRUNCATE TABLE `{target}`;
        INSERT INTO `{target}` SELECT longer(name), DATE '2026-01-01' FROM kept;
        UPDATE `{target}` SET name = UPPER(name) WHERE name = 'a!';
        DELETE FROM `{target}` WHERE name = 'b!';
        MERGE `{target}` T USING (SELECT 'c' AS name) S ON T.name = S.name
        WHEN NOT MATCHED THEN INSERT (name, day) VALUES (S.name, DATE '2026-01-01');
        DROP TABLE kept;
        SELECT COUNT(*) FROM `{target}`;
        COMMIT TRANSACTION;"""
    )

    assert published(warehouse) == [("A!", DAY), ("c", DAY)]


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that has changed the target. A session keeps it open."""

    warehouse: Warehouse
    session: bigquery.ConnectionProperty

    def commit(self) -> None:
        self.warehouse.run("COMMIT TRANSACTION", bigquery.QueryJobConfig(connection_properties=[self.session]))


@pytest.fixture
def held(warehouse: Warehouse, target: str) -> OpenTransaction:
    warehouse.run(f"INSERT INTO `{target}` VALUES ('x', '2026-01-01')")
    opened = warehouse.run(
        f"BEGIN TRANSACTION; UPDATE `{target}` SET name = CONCAT(name, ' first') WHERE TRUE;",
        bigquery.QueryJobConfig(create_session=True),
    )
    assert opened.session_info is not None
    assert opened.session_info.session_id is not None
    return OpenTransaction(warehouse, bigquery.ConnectionProperty("session_id", opened.session_info.session_id))


@pytest.mark.gate
def test_a_transaction_holds_the_tables_that_it_has_changed(warehouse: Warehouse, target: str, held: OpenTransaction) -> None:
    """Another transaction is aborted; a single statement waits for the commit."""
    aborted = warehouse.start(publish_sql(warehouse), parameters(partition=DAY))
    table = f"{warehouse.client.project}:{warehouse.dataset}.target"
    with pytest.raises(BadRequest, match=f"Transaction is aborted due to concurrent update against table {table}"):
        aborted.result()
    assert warehouse.reason(aborted) == "invalidQuery"

    waiting = warehouse.start(f"UPDATE `{target}` SET name = CONCAT(name, ' second') WHERE TRUE")
    assert not waiting.done()
    held.commit()
    waiting.result()

    assert published(warehouse) == [("x first second", DAY)]


def test_a_statement_that_has_waited_too_long_for_a_transaction_fails(
    warehouse: Warehouse, target: str, held: OpenTransaction
) -> None:
    warehouse.limit(conflict_wait_s=0.1)
    late = warehouse.start(f"UPDATE `{target}` SET name = 'late' WHERE TRUE")
    table = f"{warehouse.client.project}:{warehouse.dataset}.target"

    with pytest.raises(BadRequest, match=f"Could not serialize access to table {table} due to concurrent update"):
        late.result()
    held.commit()

    assert warehouse.reason(late) == "invalidQuery"
    assert published(warehouse) == [("x first", DAY)]


def test_only_so_many_statements_wait_for_one_table(warehouse: Warehouse, target: str, held: OpenTransaction) -> None:
    warehouse.limit(dml_running=1, dml_queued=1)
    update, delete = f"UPDATE `{target}` SET name = CONCAT(name, ' +') WHERE TRUE", f"DELETE FROM `{target}` WHERE TRUE"
    outstanding = [warehouse.start(statement) for statement in (update, update, delete)]
    # Which of them comes last to the table is not for the client to say.
    while not (done := [job for job in outstanding if job.done()]):
        time.sleep(0.1)

    (one_more,) = done
    with pytest.raises(BadRequest, match=r"Too many DML statements outstanding against table .*target, limit is 1\."):
        one_more.result()
    held.commit()
    for job in outstanding:
        if job is not one_more:
            job.result()

    assert warehouse.reason(one_more) == "resourcesExceeded"
    assert published(warehouse) == ([("x first + +", DAY)] if one_more is outstanding[-1] else [])


def test_a_statement_outside_of_transactions_waits_for_its_turn(warehouse: Warehouse, target: str) -> None:
    warehouse.run(f"INSERT INTO `{target}` VALUES ('a', '2026-01-01')")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: warehouse.run(f"UPDATE `{target}` SET name = CONCAT(name, '{n}') WHERE TRUE"), range(4)))

    ((name, _),) = published(warehouse)
    assert sorted(name) == ["0", "1", "2", "3", "a"]


def test_scripts_have_variables_and_assertions(warehouse: Warehouse) -> None:
    assert warehouse.rows("DECLARE n INT64 DEFAULT 2; ASSERT n = 2 AS 'bad'; SELECT n * 2 AS y;") == [(4,)]
