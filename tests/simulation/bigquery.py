"""BigQuery in virtual steps: the shipped SQL over SQLite, jobs that run statement by statement, and a client that starts them.

SQL is translated by sqlglot, one statement at a time. Transactions follow BigQuery's rules, as `local/bigquery/transactions.py`
states them: each sees the tables as they were when it began; two that DELETE in one table are not both committed; an INSERT
conflicts with nothing. A load job reads one object after the other, whenever its turn comes, and replaces its table at its end.

Not there: types beyond text and numbers, UPDATE, MERGE and TRUNCATE, statements outside a transaction that wait for one.
"""

from __future__ import annotations

import functools
import io
import itertools
import re
import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import obstore
import pyarrow.parquet as pq
import sqlglot
from google.api_core.exceptions import BadRequest, Conflict, NotFound, ServiceUnavailable
from google.cloud.bigquery import Dataset, LoadJobConfig, QueryJobConfig, Row, ScalarQueryParameter, SchemaField, Table
from obstore.store import ObjectStore
from sqlglot import exp

LOCATION: Final = "US"
EPOCH: Final = datetime(2026, 11, 22, 0, 0, 0, 1, UTC)
_moments: Final = itertools.count()
"""What CURRENT_TIMESTAMP says, in microseconds after `EPOCH`: each time a later one."""
QUERIES: Final = frozenset({"Select", "Union"})
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00")
_ASSERT: Final = re.compile(r"ASSERT\s(.*)\sAS\s('[^']*')", re.DOTALL)


class Refused(Exception):
    """Why a job failed, in BigQuery's words."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Statement:
    """kind: sqlglot's name of the statement. table: what a CREATE, INSERT or DELETE is about. fields: of a CREATE."""

    kind: str
    sql: str
    table: str = ""
    fields: tuple[SchemaField, ...] = ()


@functools.cache
def statements(script: str) -> tuple[Statement, ...]:
    return tuple(_statement(text) for text in re.split(r";\s*(?:\n|$)", script) if text.strip())


@functools.cache
def _statement(text: str) -> Statement:
    if match := _ASSERT.fullmatch(text.strip()):
        text = f"SELECT IF({match[1]}, NULL, ERROR({match[2]}))"
    tree = sqlglot.parse_one(text, read="bigquery")
    fields: tuple[SchemaField, ...] = ()
    if isinstance(tree, exp.Create):
        tree.set("properties", None)
        columns = tree.this.expressions
        fields = tuple(SchemaField(each.name, each.kind.sql("bigquery")) for each in columns)
    tree = tree.transform(_for_sqlite)
    target = tree.find(exp.Table) if isinstance(tree, exp.Create | exp.Insert | exp.Delete) else None
    return Statement(type(tree).__name__, tree.sql("sqlite"), target.name if target else "", fields)


def _for_sqlite(node: exp.Expression) -> exp.Expression:
    if isinstance(node, exp.Table) and node.catalog:
        name = exp.to_identifier(f"{node.catalog}.{node.db}.{node.name}", quoted=True)
        return exp.Table(this=name, alias=node.args.get("alias"))
    if isinstance(node, exp.JSONFormat):
        pairs = [(exp.Literal.string(each.name), each.expression) for each in node.this.expressions]
        return exp.Anonymous(this="json_object", expressions=[part for pair in pairs for part in pair])
    if isinstance(node, exp.Parameter) and isinstance(node.this, exp.Parameter) and node.this.name == "row_count":
        return exp.Anonymous(this="changes")
    if isinstance(node, exp.CurrentTimestamp):
        return exp.Anonymous(this="NOW_")
    if isinstance(node, exp.BitwiseOrAgg | exp.BitwiseCount):
        return exp.Anonymous(this="BIT_OR" if isinstance(node, exp.BitwiseOrAgg) else "BIT_COUNT", expressions=[node.this])
    if isinstance(node, exp.CountIf):
        # sqlglot makes a SUM of it, which is NULL for no rows.
        return exp.Count(this=exp.Case().when(node.this, exp.Literal.number(1)))
    return node


class _BitOr:
    """BigQuery's BIT_OR; SQLite has none."""

    def __init__(self) -> None:
        self._bits = 0

    def step(self, value: int | None) -> None:
        self._bits |= value or 0

    def finalize(self) -> int:
        return self._bits


class Tables:
    """Tables in memory; a copy of others, if there are others."""

    def __init__(self, others: Tables | None = None) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._said = ""
        if others is not None:
            others._connection.backup(self._connection)
        self._connection.create_function("ERROR", 1, self._error)
        self._connection.create_function("BIT_COUNT", 1, int.bit_count)
        self._connection.create_aggregate("BIT_OR", 1, _BitOr)
        self._connection.create_function("NOW_", 0, lambda: (EPOCH + timedelta(microseconds=next(_moments))).isoformat())

    def run(self, sql: str, values: Mapping[str, Any] | None = None) -> list[Row]:
        """Raises Refused, also for an ERROR that the statement calls."""
        self._said = ""
        try:
            cursor = self._connection.execute(sql, values or {})
            names = {each[0]: number for number, each in enumerate(cursor.description or ())}
            return [Row(tuple(map(_moment, row)), names) for row in cursor.fetchall()]
        except sqlite3.OperationalError as error:
            if self._said:
                raise Refused("invalidQuery", self._said) from None
            if "no such table" in str(error):
                raise Refused("notFound", f"Not found: {error}") from None
            raise

    def insert(self, table: str, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        into = f"{_quoted(table)} ({', '.join(map(_quoted, names))})"
        self._connection.executemany(f"INSERT INTO {into} VALUES ({', '.join('?' * len(names))})", rows)

    def delete(self, table: str, rows: Sequence[int]) -> None:
        self._connection.executemany(f"DELETE FROM {_quoted(table)} WHERE rowid = ?", [(row,) for row in rows])

    def content(self, table: str) -> set[tuple[Any, ...]]:
        """The rows, each after its number."""
        return set(self._connection.execute(f"SELECT rowid, * FROM {_quoted(table)}"))

    def _error(self, message: str) -> None:
        self._said = message
        raise ValueError(message)


class Database:
    """The tables as they are committed. commits: how often they have changed. last_began: the last commit that the transaction
    saw that was committed last."""

    def __init__(self) -> None:
        self.commits = self.last_began = 0
        self.tables = Tables()
        self._fields: dict[str, tuple[SchemaField, ...]] = {}
        self._deleted_from: dict[str, int] = {}
        """The commit that last deleted rows of a table."""
        self._open: list[Transaction] = []

    def fields(self, table: str) -> tuple[SchemaField, ...] | None:
        return self._fields.get(table)

    def create(self, table: str, fields: Sequence[SchemaField]) -> None:
        """Unless it exists."""
        if table not in self._fields:
            self._fields[table] = tuple(fields)
            self.tables.run(f"CREATE TABLE {_quoted(table)} ({', '.join(_quoted(each.name) for each in fields)})")

    def drop(self, table: str) -> None:
        if self._fields.pop(table, None) is not None:
            self.tables.run(f"DROP TABLE {_quoted(table)}")

    def replace(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """WRITE_TRUNCATE."""
        if table not in self._fields:
            raise Refused("notFound", f"Not found: Table {table}")
        self.tables.run(f"DELETE FROM {_quoted(table)}")
        self._insert(table, [[row[each.name] for each in self._fields[table]] for row in rows])
        self.commits += 1

    def begin(self) -> Transaction:
        transaction = Transaction(self)
        self._open.append(transaction)
        return transaction

    def end(self, transaction: Transaction) -> None:
        """Rolled back, unless it was committed."""
        if transaction in self._open:
            self._open.remove(transaction)

    def may_delete(self, transaction: Transaction, table: str) -> bool:
        others = any(table in other.deletes for other in self._open if other is not transaction)
        return not others and self._deleted_from.get(table, 0) <= transaction.began

    def commit(self, transaction: Transaction) -> None:
        self.end(transaction)
        self.commits += 1
        self.last_began = transaction.began
        self._deleted_from |= dict.fromkeys(transaction.deletes, self.commits)
        for table, (gone, new) in transaction.changes().items():
            self.tables.delete(table, [row[0] for row in gone])
            self._insert(table, [row[1:] for row in sorted(new)])

    def _insert(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        self.tables.insert(table, [each.name for each in self._fields[table]], rows)


class Transaction:
    """began: the last commit that it sees. deletes: the tables whose rows it has deleted, were there any."""

    def __init__(self, database: Database) -> None:
        self.began = database.commits
        self.deletes: set[str] = set()
        self._database = database
        self._tables = Tables(database.tables)
        self._before: dict[str, set[tuple[Any, ...]]] = {}

    def run(self, statement: Statement, values: Mapping[str, Any]) -> list[Row]:
        """Raises Refused."""
        if statement.kind in ("Insert", "Delete"):
            if statement.table not in self._before:
                self._before[statement.table] = self._tables.content(statement.table)
        elif statement.kind not in QUERIES:
            raise NotImplementedError(f"{statement.kind} in a transaction, where BigQuery documents queries and DML alone")
        if statement.kind == "Delete":
            if not self._database.may_delete(self, statement.table):
                raise Refused(
                    "invalidQuery", f"Transaction is aborted due to concurrent update against table {statement.table}."
                )
            self.deletes.add(statement.table)
        return self._tables.run(statement.sql, values)

    def changes(self) -> dict[str, tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]]:
        """By table, the rows that are gone and those that are new."""
        after = {table: self._tables.content(table) for table in self._before}
        return {table: (before - after[table], after[table] - before) for table, before in self._before.items()}


class Job:
    """A job, as Google's client shows it. Each `step` is one statement, one object of a load, or the moment after them."""

    def __init__(self, job_id: str, work: Generator[None, None, list[Row]], clock: Callable[[], datetime]) -> None:
        self.job_id = job_id
        self.state = "RUNNING"
        self.error_result: dict[str, str] | None = None
        self.errors: list[dict[str, str]] | None = None
        self.started = clock()
        self.ended: datetime | None = None
        self.rows: list[Row] = []
        self._properties: dict[str, Any] = {}
        self._work = work
        self._clock = clock

    @property
    def done(self) -> bool:
        return self.state == "DONE"

    def step(self) -> None:
        try:
            next(self._work)
        except StopIteration as end:
            self.rows = end.value
            self._end(None)
        except Refused as error:
            self._end({"reason": error.reason, "message": str(error)})

    def interrupt(self) -> None:
        """BigQuery loses it. What it has committed is committed."""
        self._work.close()
        self._end({"reason": "jobBackendError", "message": "The job encountered an internal error during execution."})

    def _end(self, error: dict[str, str] | None) -> None:
        self.state, self.ended, self.error_result, self.errors = "DONE", self._clock(), error, [error] if error else None


class BigQuery:
    """The service: its tables, its jobs, and the buckets that its loads read, by their names."""

    def __init__(self, buckets: Mapping[str, ObjectStore], clock: Callable[[], datetime]) -> None:
        self.database = Database()
        self.jobs: dict[str, Job] = {}
        self._buckets = buckets
        self._clock = clock

    def running(self) -> list[Job]:
        return [job for job in self.jobs.values() if not job.done]

    def submit(self, job_id: str, work: Generator[None, None, list[Row]]) -> Job:
        if job_id in self.jobs:
            work.close()
            raise Conflict(f"Already Exists: Job {job_id}")  # type: ignore[no-untyped-call]
        self.jobs[job_id] = Job(job_id, work, self._clock)
        return self.jobs[job_id]

    def script(self, sql: str, values: Mapping[str, Any]) -> Generator[None, None, list[Row]]:
        transaction: Transaction | None = None
        rows: list[Row] = []
        try:
            for statement in statements(sql):
                yield
                if statement.kind == "Create" and transaction is None:
                    self.database.create(statement.table, statement.fields)
                elif statement.kind == "Transaction":
                    transaction = self.database.begin()
                elif statement.kind == "Commit" and transaction is not None:
                    self.database.commit(transaction)
                    transaction = None
                elif transaction is not None:
                    rows = transaction.run(statement, values)
                elif statement.kind in QUERIES:
                    rows = self.database.tables.run(statement.sql, values)
                else:
                    raise NotImplementedError(f"{statement.kind} outside a transaction")
            yield
        finally:
            if transaction is not None:
                self.database.end(transaction)
        return rows

    def load(self, uris: Sequence[str], table: str) -> Generator[None, None, list[Row]]:
        rows: list[dict[str, Any]] = []
        for uri in uris:
            yield
            bucket, _, path = uri.removeprefix("gs://").partition("/")
            try:
                body = bytes(obstore.get(self._buckets[bucket], path).bytes())
            except FileNotFoundError:
                raise Refused("notFound", f"Not found: URI {uri}") from None
            rows += pq.read_table(io.BytesIO(body)).to_pylist()
        yield
        self.database.replace(table, rows)
        yield
        return []


class Client:
    """What `nightshift.warehouse` uses of Google's client, for one caller.

    pause(call): comes before each call, and may raise what a network does. lost(): whether the reply to a job that was
    submitted is lost. submitted(job_id): called for each job with an id.
    """

    def __init__(
        self,
        service: BigQuery,
        pause: Callable[[str], None],
        lost: Callable[[], bool],
        submitted: Callable[[str], None],
    ) -> None:
        self._service = service
        self._pause = pause
        self._lost = lost
        self._submitted = submitted

    def query(self, sql: str, *, job_config: QueryJobConfig, job_id: str | None, **_: Any) -> Query:
        self._pause("query")
        work = self._service.script(sql, {each.name: _value(each) for each in job_config.query_parameters})
        if job_config.dry_run:
            # Nothing is done; a table must be there.
            for table in [each.table for each in statements(sql) if each.kind not in QUERIES]:
                if self._service.database.fields(table) is None:
                    raise NotFound(f"Not found: Table {table}")  # type: ignore[no-untyped-call]
            return Query(Job("dry run", work, lambda: datetime.now(UTC)), self._pause)
        return Query(self._submit(job_id, work), self._pause)

    def load_table_from_uri(self, uris: Sequence[str], table: str, *, job_id: str, job_config: LoadJobConfig, **_: Any) -> None:
        self._pause("load")
        self._submit(job_id, self._service.load(uris, table))

    def get_job(self, job_id: str, **_: Any) -> Job:
        self._pause("get_job")
        if job_id not in self._service.jobs:
            raise NotFound(f"Not found: Job {job_id}")  # type: ignore[no-untyped-call]
        return self._service.jobs[job_id]

    def get_table(self, name: str, **_: Any) -> Table:
        self._pause("get_table")
        fields = self._service.database.fields(name)
        if fields is None:
            raise NotFound(f"Not found: Table {name}")  # type: ignore[no-untyped-call]
        dates = [each.name for each in fields if each.field_type == "DATE"]
        found = {
            "tableReference": dict(zip(("projectId", "datasetId", "tableId"), name.split("."), strict=True)),
            "schema": {"fields": [each.to_api_repr() for each in fields]},
            "timePartitioning": {"type": "DAY", "field": dates[0]} if dates else None,
            "type": "TABLE",
            "location": LOCATION,
        }
        return Table.from_api_repr(found)

    def get_dataset(self, name: str, **_: Any) -> Dataset:
        """Every dataset exists."""
        dataset = Dataset(name)
        dataset.location = LOCATION
        return dataset

    def create_table(self, table: Table, **_: Any) -> Table:
        """With exists_ok: one that exists is then looked at."""
        self._pause("create_table")
        name = str(table.reference)
        if self._service.database.fields(name) is not None:
            return self.get_table(name)
        self._service.database.create(name, table.schema)
        return table

    def delete_table(self, name: str, **_: Any) -> None:
        self._pause("delete_table")
        self._service.database.drop(name)

    def _submit(self, job_id: str | None, work: Generator[None, None, list[Row]]) -> Job:
        job = self._service.submit(job_id or f"anonymous-{len(self._service.jobs)}", work)
        if job_id is not None:
            self._submitted(job_id)
            if self._lost():
                # The client sends it again by itself, and then hears this.
                raise Conflict(f"Already Exists: Job {job_id}")  # type: ignore[no-untyped-call]
        return job


class Query:
    """A query job that its caller may wait for."""

    def __init__(self, job: Job, pause: Callable[[str], None]) -> None:
        self._job = job
        self._pause = pause

    def result(self, **_: Any) -> list[Row]:
        while not self._job.done:
            self._pause("result")
        if self._job.error_result is None:
            return self._job.rows
        error: Any = self._job.error_result
        kind = {"notFound": NotFound, "jobBackendError": ServiceUnavailable}.get(error["reason"], BadRequest)
        raise kind(error["message"], errors=[error])  # type: ignore[no-untyped-call]


def _value(parameter: ScalarQueryParameter) -> Any:
    """A timestamp is kept as text in UTC, whose order is that of time."""
    value = parameter.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return value.isoformat() if isinstance(value, date) else value


def _moment(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) and _TIMESTAMP.fullmatch(value) else value


def _quoted(name: str) -> str:
    return f'"{name}"'
