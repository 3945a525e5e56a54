"""The database of a stream's sink over an Airflow connection."""

from __future__ import annotations

from typing import Final

from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException

INSTALL: Final = (
    "Install psycopg[binary] 3.2 or later where Airflow's workers run (Cloud Composer: as a PyPI package of the environment; "
    "the extra stream has it, too)"
)


def database_address(conn_id: str) -> str:
    """What psycopg and libpq take, of a connection: host, port, login, password, and its schema as the database's name.

    Its extra may hold libpq's own settings (``sslmode``, ``sslrootcert``, ``options``, ...). Raises AirflowFailException for
    any other, for a connection that is not there, and if psycopg is not installed.
    """
    try:
        from psycopg import conninfo, pq
    except ImportError as error:
        raise AirflowFailException(f"The package psycopg cannot be used ({error}). {INSTALL}.") from None
    from airflow.sdk import Connection

    try:
        connection = Connection.get(conn_id)
    except AirflowNotFoundException:
        raise AirflowFailException(
            f"There is no connection {conn_id!r}. Add one to the database of the streams, for example as the variable "
            f"AIRFLOW_CONN_{conn_id.upper()}=postgres://USER:PASSWORD@HOST/DATABASE, or name it in NIGHTSHIFT_POSTGRES_CONN_ID."
        ) from None
    extra = connection.extra_dejson
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()} - {"host", "port", "user", "password", "dbname"}
    if unknown := sorted(set(extra) - known):
        raise AirflowFailException(
            f"The extra of the connection {conn_id!r} has {', '.join(unknown)}, which libpq does not know. Remove it, or name "
            "another connection in NIGHTSHIFT_POSTGRES_CONN_ID."
        )
    parts = {
        "host": connection.host,
        "port": connection.port,
        "user": connection.login,
        "password": connection.password,
        "dbname": connection.schema,
    }
    return conninfo.make_conninfo(**{name: value for name, value in parts.items() if value}, **extra)
