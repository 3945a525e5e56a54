"""Two transactions never both change the rows of one table.

DuckLake lets transactions that began together delete and insert in the same table as long as no row is deleted twice. Two that
replace the same empty partition (DELETE, then INSERT) both commit, and the partition holds every row twice. In BigQuery:

- a transaction may DELETE, UPDATE, MERGE or TRUNCATE a table only when no other transaction has done so since it began,
  committed or not; otherwise it fails with "Transaction is aborted due to concurrent update" ("Multi-statement transactions");
- such a statement outside a transaction waits until no transaction holds the table, and fails after a while with "Could not
  serialize access" ("Troubleshoot queries"; BigQuery reruns it three times, and only if both change one partition);
- at most 2 of these run on one table, and 20 wait ("Data manipulation language"); here one runs at a time;
- an INSERT conflicts with nothing, and neither does the creation of a table;
- what else a transaction may contain: `transaction_statements`.

Jobs that replace whole tables (WRITE_TRUNCATE, CREATE OR REPLACE) are not covered.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb
from local_bigquery import errors
from local_bigquery.engine import sessions
from local_bigquery.errors import BigQueryError
from local_bigquery.jobs import merge, query
from local_bigquery.sql import script
from sqlglot import exp

from local.bigquery import limits, transaction_statements

MUTATIONS = (exp.Delete, exp.Update, exp.Merge, exp.TruncateTable)
STATEMENT_TYPES = {
    exp.Transaction: "BEGIN_TRANSACTION",
    exp.Commit: "COMMIT_TRANSACTION",
    exp.Rollback: "ROLLBACK_TRANSACTION",
}

# How long a statement outside a transaction is tried again after others have overtaken it.
OVERTAKEN_TIMEOUT_S = 60
OVERTAKEN_PAUSE_S = 0.05

TableName = tuple[str, ...]

_run, _execute, _abort_session, _from_duckdb = query._run, query.execute, sessions.abort, errors.from_duckdb
_assert, _merge = script.Interpreter.check, merge.run


@dataclass
class Transaction:
    """``began``: how many changes were committed when it began; ``tables``: those it has changed."""

    began: int
    tables: set[TableName] = field(default_factory=set)


class Conflicts:
    """Who holds which table, and when each was last changed. Transactions are named by the id of their cursor."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._committed = 0
        self._last_change: dict[TableName, int] = {}
        self._open: dict[int, Transaction] = {}
        self._outstanding: Counter[TableName] = Counter()

    def begin(self, key: int) -> None:
        with self._changed:
            self._open[key] = Transaction(self._committed)

    def end(self, key: int, *, committed: bool) -> None:
        """Does nothing if there is no such transaction."""
        with self._changed:
            ended = self._open.pop(key, None)
            if ended and committed and ended.tables:
                self._note_change(ended.tables)
            self._changed.notify_all()

    @contextlib.contextmanager
    def changing(self, key: int, table: TableName) -> Iterator[None]:
        """Around one statement that changes rows of ``table``. Raises BigQueryError if the transaction must be aborted."""
        with self._changed:
            transaction = self._open.get(key)
            if transaction is not None:
                if self._held(table, key) or self._last_change.get(table, 0) > transaction.began:
                    raise _aborted(table)
                transaction.tables.add(table)
        if transaction is not None:
            yield
            return
        with self._queued(table):
            with self._changed:
                if not self._changed.wait_for(lambda: not self._held(table, key), limits.of(table).conflict_wait_s):
                    raise _not_serialized(table)
            yield
            with self._changed:
                self._note_change({table})

    @contextlib.contextmanager
    def _queued(self, table: TableName) -> Iterator[None]:
        """Around a statement outside of transactions, from its arrival to its end."""
        queue = limits.of(table).dml_queued
        with self._changed:
            if self._outstanding[table] >= limits.of(table).dml_running + queue:
                raise BigQueryError(
                    "resourcesExceeded",
                    "Resources exceeded during query execution: Too many DML statements outstanding against table "
                    f"{_label(table)}, limit is {queue}.",
                )
            self._outstanding[table] += 1
        try:
            yield
        finally:
            with self._changed:
                self._outstanding[table] -= 1

    def changed_by(self, key: int) -> TableName:
        """One of the tables that the transaction has changed."""
        with self._changed:
            return min(self._open[key].tables, default=())

    def in_transaction(self, key: int) -> bool:
        with self._changed:
            return key in self._open

    def _held(self, table: TableName, key: int) -> bool:
        return any(table in other.tables for owner, other in self._open.items() if owner != key)

    def _note_change(self, tables: set[TableName]) -> None:
        self._committed += 1
        self._last_change.update(dict.fromkeys(tables, self._committed))


conflicts = Conflicts()


def install() -> None:
    query._run = run
    query.execute = execute
    script.Interpreter.check = check_assertion
    merge.run = run_merge
    sessions.abort = abort_session
    errors.STATUSES["backendError"] = (503, "UNAVAILABLE")
    errors.from_duckdb = query.from_duckdb = from_duckdb


def run(cursor: Any, tree: exp.Expression, context: Any, destination: Any, config: Any, dry_run: bool, isolated: bool) -> Any:
    """local-bigquery's execution of one statement."""
    arguments = (cursor, tree, context, destination, config, dry_run, isolated)
    if dry_run:
        return _run(*arguments)
    if conflicts.in_transaction(id(cursor)):
        transaction_statements.check(tree, context)
    if isinstance(tree, MUTATIONS):
        with conflicts.changing(id(cursor), query._target(tree, context)):
            return _run(*arguments)
    if type(tree) not in STATEMENT_TYPES:
        return _run(*arguments) if conflicts.in_transaction(id(cursor)) else _until_committed(*arguments)
    if isinstance(tree, exp.Transaction):
        conflicts.begin(id(cursor))
        statistics = _run(*arguments)
    else:
        try:
            statistics = _run(*arguments)
        except (BigQueryError, duckdb.Error) as error:
            if isinstance(tree, exp.Commit) and _overtaken(error):
                raise _aborted(conflicts.changed_by(id(cursor))) from error
            raise
        conflicts.end(id(cursor), committed=isinstance(tree, exp.Commit))
    return statistics.replace(statementType=STATEMENT_TYPES[type(tree)])


def _until_committed(*arguments: Any) -> Any:
    """Runs one statement that is not part of a transaction, again if it was overtaken: in BigQuery it would have waited."""
    deadline = time.monotonic() + OVERTAKEN_TIMEOUT_S
    while True:
        try:
            return _run(*arguments)
        except (BigQueryError, duckdb.Error) as error:
            if not _overtaken(error) or time.monotonic() > deadline:
                raise
            time.sleep(OVERTAKEN_PAUSE_S)


def _overtaken(error: Exception) -> bool:
    """Whether DuckLake has rolled a change back because another was committed meanwhile, for example a table was created."""
    return "Failed to commit" in str(error)


class _Begun:
    """A cursor inside a transaction. DuckDB aborts the transaction when another one is begun in it; this one only refuses."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def execute(self, sql: str, *arguments: Any) -> Any:
        if sql == "BEGIN":
            raise duckdb.TransactionException("a transaction has begun")
        return self._cursor.execute(sql, *arguments)


def run_merge(cursor: Any, tree: exp.Expression, context: Any) -> Any:
    """local-bigquery's MERGE, which tries to begin a transaction of its own."""
    return _merge(_Begun(cursor) if conflicts.in_transaction(id(cursor)) else cursor, tree, context)


def check_assertion(interpreter: Any, statement: Any) -> None:
    """local-bigquery's ASSERT."""
    if conflicts.in_transaction(id(interpreter.cursor)):
        transaction_statements.refuse("ASSERT")
    _assert(interpreter, statement)


def execute(cursor: Any, project_id: str, job_id: str | None, config: Any, dry_run: bool = False, session: Any = None) -> Any:
    """local-bigquery's execution of a query job. A transaction that the job leaves open is rolled back with its cursor."""
    try:
        return _execute(cursor, project_id, job_id, config, dry_run, session)
    finally:
        if session is None:
            conflicts.end(id(cursor), committed=False)


def from_duckdb(error: Exception, *details: Any) -> BigQueryError:
    """local-bigquery's translation. A change that was overtaken may be tried again, which Google's clients do by themselves."""
    if _overtaken(error):
        return BigQueryError("backendError", f"The change was overtaken by another one: {error}")
    return _from_duckdb(error, *details)


def abort_session(session_id: str) -> None:
    if session := sessions._sessions.get(session_id):
        conflicts.end(id(session.cursor), committed=False)
    _abort_session(session_id)


def _aborted(table: TableName) -> BigQueryError:
    return BigQueryError("invalidQuery", f"Transaction is aborted due to concurrent update against table {_label(table)}.")


def _not_serialized(table: TableName) -> BigQueryError:
    return BigQueryError("invalidQuery", f"Could not serialize access to table {_label(table)} due to concurrent update")


def _label(table: TableName) -> str:
    project, *rest = table or ("unknown",)
    return f"{project}:{'.'.join(rest)}"
