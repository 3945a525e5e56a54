"""A sink's connection to its database: one transaction at a time, each with the settings that it relies on."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from nightshift.stream.google_login import Token
from nightshift.stream.ports import Locked, Unavailable, Unwritable
from nightshift.stream.sink_address import ENCRYPTED, Address

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

T = TypeVar("T")
Connection = psycopg.AsyncConnection[TupleRow]

CONNECT_S: Final = 10
STATEMENT_S: Final = 30
"""A statement that takes longer is broken off, and tried again."""
TRANSACTION_S: Final = STATEMENT_S + 5
"""A transaction of which nothing is heard for so long has lost its server: the connection is given up."""
LOCK_S: Final = 1
"""How long a statement waits for what another transaction holds."""
_AWAY: Final = ("08", "25", "28", "3D", "40", "53", "57", "58")
"""Classes of SQLSTATE that tell of the server's state, or of other transactions; all others refuse what was asked."""
_LOCK_NOT_AVAILABLE: Final = "55P03"
_LOCKED: Final = re.compile(
    r'authentication failed|no pg_hba\.conf entry for|role ".*" (?:does not exist|is not permitted to log in)'
    r'|database ".*" does not exist|no password supplied'
)
_CONNECTION: Final[dict[str, Any]] = {
    "connect_timeout": CONNECT_S,
    "application_name": "nightshift",
    "client_encoding": "utf8",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
"""libpq's parameters, unless the address has them. tcp_user_timeout: in milliseconds."""
_LIMITS: Final = {
    "statement_timeout": f"{STATEMENT_S}s",
    "idle_in_transaction_session_timeout": f"{STATEMENT_S}s",
    "lock_timeout": f"{LOCK_S}s",
}
"""The server's settings in each transaction, unless the address has them in `options`."""
_DURABLE: Final = (
    # An answer is acknowledged when its commit is answered, so that must mean that it is on a disk.
    "set_config('synchronous_commit', "
    "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
)
_OURS: Final = (
    # Behind pg_catalog and all others: by default another client's temporary table or type comes before both.
    "set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), 'pg_temp'), true), "
    f"{_DURABLE}, "
    # Begun as read-write, which others may have switched off for the session, unless that is how the database or role is.
    "set_config('transaction_read_only', current_setting('default_transaction_read_only'), true), "
    "set_config('client_encoding', 'UTF8', true), set_config('quote_all_identifiers', 'off', true)"
)
"""Of settings that a transaction has as the database, the role or the address says, those that must differ from it."""
_END: Final = f"SET CONSTRAINTS ALL IMMEDIATE; SET LOCAL synchronous_commit TO DEFAULT; SELECT {_DURABLE}; COMMIT".encode()
"""How each transaction ends, in one message. A trigger may have changed the setting, and one that is deferred has run then."""


class Blocked(Unavailable):
    """Another transaction holds what is needed."""


class BrokenOff(Unavailable):
    """The server ended the transaction, or took too long for it: it may have time for a smaller one."""


class Session:
    """One connection, opened when it is needed and again when it breaks; one transaction at a time.

    Nothing outlives a transaction, neither a setting nor a prepared statement, so that a pool such as PgBouncer may give each
    one another connection of the server's. And nothing is taken over from who had that connection before: each transaction
    begins with all settings that any user may change as a new connection has them, and with no other's temporary objects
    before the names that it uses.

    credentials: of a Google account that logs in; by default the environment's.
    """

    def __init__(self, address: Address, credentials: Credentials | None = None) -> None:
        self._url = address.url
        self._parameters = {name: value for name, value in _CONNECTION.items() if name not in address.given}
        self._token = Token(credentials) if address.google_account else None
        if self._token and not address.is_local and not address.sslmode:
            self._parameters["sslmode"] = ENCRYPTED[0]
        self._limits = {name: value for name, value in _LIMITS.items() if name not in str(address.given.get("options") or "")}
        self._begin = b""
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Does some work in one transaction. Raises Unavailable, or Unwritable if the server refuses what is asked."""
        async with self._lock:
            begun = False
            try:
                async with asyncio.timeout(TRANSACTION_S):
                    connection = self._connection = self._connection or await self._connect()
                    await connection.execute(self._begin)
                    begun = True
                    done = await work(connection)
                    await connection.execute(_END)
                    return done
            except Unwritable:
                await self._roll_back()
                raise
            except UnicodeError as error:
                await self._roll_back()
                raise Unwritable(said(error)) from error
            except (psycopg.Error, OSError) as error:
                if begun and isinstance(error, psycopg.Error) and _is_refusal(error):
                    await self._roll_back()
                    raise Unwritable(said(error)) from error
                if getattr(error, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                    await self._roll_back()
                    raise Blocked(said(error)) from error
                await self._drop()
                raise _unavailable(error, begun=begun) from error
            except BaseException:
                # What the server still does of it must not meet the next transaction.
                await self._drop()
                raise

    async def close(self) -> None:
        async with self._lock:
            await self._drop()

    async def _connect(self) -> Connection:
        login: dict[str, Any] = {"password": await self._token.read()} if self._token else {}
        connection = await psycopg.AsyncConnection.connect(
            self._url, autocommit=True, prepare_threshold=None, **self._parameters, **login
        )
        connection.add_notice_handler(lambda _: None)
        found = await connection.execute("SELECT name, context FROM pg_catalog.pg_settings")
        self._begin = self._beginning([name for name, context in await found.fetchall() if context == "user"])
        return connection

    def _beginning(self, names: Sequence[str]) -> bytes:
        """How each transaction begins, in one message. names: of the settings that any user may change."""
        # What may end it first, then whose rights count, which the server does not list.
        reset = [*_LIMITS, "session_authorization", "role", *(name for name in names if not name.startswith("transaction_"))]
        parts = {
            # An extension's setting has a prefix.
            "reset": sql.SQL("; ").join(
                sql.SQL("SET LOCAL {} TO DEFAULT").format(sql.Identifier(*name.split("."))) for name in reset
            ),
            "limits": sql.SQL("").join(sql.SQL("set_config({}, {}, true), ").format(*each) for each in self._limits.items()),
            "ours": sql.SQL(_OURS),
        }
        # Each statement must see what was committed before it, whatever the database's default is.
        begin = sql.SQL("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE NOT DEFERRABLE; {reset}; SELECT {limits}{ours}")
        return begin.format(**parts).as_bytes(None)

    async def _roll_back(self) -> None:
        """Nothing is left of what was refused, and the connection is kept. If that fails, the next transaction notices."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                await self._connection.rollback()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _is_refusal(error: psycopg.Error) -> bool:
    """Whether the server, or the library in its place, refuses what was asked, and will again."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.DataError | psycopg.ProgrammingError | psycopg.NotSupportedError)
    return error.sqlstate[:2] not in _AWAY and error.sqlstate != _LOCK_NOT_AVAILABLE


def _unavailable(error: BaseException, *, begun: bool) -> Unavailable:
    if isinstance(error, TimeoutError):
        return BrokenOff(f"the server has not answered for {TRANSACTION_S} s")
    if _is_locked(error):
        return Locked(said(error))
    return (BrokenOff if begun and getattr(error, "sqlstate", None) else Unavailable)(said(error))


def _is_locked(error: BaseException) -> bool:
    """Whether the server itself says that it will not let us in: a connection that fails has no SQLSTATE, only its words.

    Of the classes 28, invalid authorization, and 3D, no such database (PostgreSQL's "Error Codes"). libpq does not hand on the
    code of a connection that was refused, so the words decide; those of a server that speaks another language do not.
    """
    return isinstance(error, psycopg.OperationalError) and _LOCKED.search(str(error)) is not None


def said(error: BaseException) -> str:
    """The server's words, or the library's. The first line: the rest repeats the statement with its values."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
