"""Airflow's place for settings that are code; the stack copies this file into AIRFLOW_HOME/config.

`airflow backfill create` reads within a savepoint before it writes. pysqlite opens no transaction for a savepoint, so SQLite
opens one at that read; if another component then writes first, SQLite refuses the command's write at once ("database is
locked"), whatever the timeout, because what was read is outdated. If the write lock is taken first, the timeout applies.
Sources: sqlite.org/isolation.html; SQLAlchemy on pysqlite, "Serializable isolation / Savepoints / Transactional DDL".
"""

from typing import Final

from sqlalchemy import Connection, Engine, event

# Nothing here overrides a name in airflow.settings.
__all__: Final[list[str]] = []


@event.listens_for(Engine, "savepoint")
def lock_before_reading(connection: Connection, name: str) -> None:
    """BEGIN IMMEDIATE if a savepoint would otherwise start the transaction."""
    if not connection.connection.driver_connection.in_transaction:  # type: ignore[union-attr]
        connection.exec_driver_sql("BEGIN IMMEDIATE")
