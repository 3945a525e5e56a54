"""What keeps a command from its bucket or its warehouse, in words that say what to do."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import obstore

import nightshift
from nightshift import exits
from nightshift.store import StoreUnavailable, open_store, refusal_of, what_to_do

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

EMULATORS: Final = ("STORAGE_EMULATOR_HOST", "BIGQUERY_EMULATOR_HOST")
ACCOUNTS: Final = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
"""Variables of a key, as the store's client reads them."""
METADATA: Final = ("169.254.169.254", 80)
"""Gives a machine of Google's its account."""
METADATA_S: Final = 2.0
LOGIN: Final = "Log in with `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"


OF_ERRORS: Final = {
    "UnfitRows": exits.FAILED,
    **dict.fromkeys(("NoRows", "NotATune", "PricesError", "SettingsError", "SpecErrors", "Wrong"), exits.BAD_INPUT),
    **dict.fromkeys(
        ("Elsewhere", "EngineGone", "NoMachine", "RuntimeUnavailable", "StoreUnavailable", "WarehouseUnavailable"), exits.RESUME
    ),
    **dict.fromkeys(
        ("NoAccount", "NoAirflow", "NoCredentials", "NoEngine", "RequestRefused", "UnfitEngine", "WarehouseError"), exits.CONFIG
    ),
}
"""What keeps a command from its work, and its exit code then. By their names: the classes come with packages of extras."""
FILES_OWN: Final = ("PricesError", "SpecErrors")
"""Of these: they name the file that is wrong."""


class NoAccount(Exception):
    """There is nothing by which Google could know who asks. The message says what to do."""


def open_bucket(url: str) -> ObjectStore:
    """As `open_store`; raises NoAccount at once, and ValueError.

    The client would ask Google's metadata server for two minutes, which is not there outside Google.
    """
    if url.startswith("gs://") and not (os.environ.get(EMULATORS[0]) or _has_key() or _on_google()):
        raise NoAccount(f"{url} cannot be read: there are no Google credentials here. {LOGIN}.{beside_the_stack()}")
    return open_store(url)


def beside_the_stack() -> str:
    """A sentence for a shell in a clone that has not been told of the local stack; "" elsewhere."""
    clone = Path(nightshift.__file__).parents[2]
    if any(os.environ.get(name) for name in EMULATORS) or not (clone / "local" / "stack").is_dir():
        return ""
    return ' To use the local stack: make up, then eval "$(make env)".'


def of_store(error: StoreUnavailable) -> tuple[str, int]:
    """What a command says of a store that it cannot use, and its exit code: CONFIG if trying again cannot help."""
    cause = error.__cause__
    if advice := what_to_do(cause):
        if refusal_of(cause):
            return f"the store refuses: {advice}. It said: {error}", exits.CONFIG
        return f"the store gets no credentials: {advice}.{beside_the_stack()} It said: {error}", exits.CONFIG
    emulator = os.environ.get(EMULATORS[0])
    if emulator and isinstance(cause, obstore.exceptions.GenericError):
        return (
            f"the store at {emulator} does not answer: make up starts the stack, if it is down. It said: {error}",
            exits.RESUME,
        )
    return f"the store cannot be read: {error}", exits.RESUME


def tell(command: str, error: Exception) -> int:
    """Says on standard error why a command cannot do its work; its exit code.

    error: of `OF_ERRORS`, or a LookupError or ValueError of what the command was given.
    """
    name, code = type(error).__name__, _code_of(error) or exits.BAD_INPUT
    said, code = of_store(error) if isinstance(error, StoreUnavailable) else (str(error), code)
    hint = beside_the_stack() if name in ("NoCredentials", "SettingsError") else ""
    print(said if name in FILES_OWN else f"nightshift {command}: {said}{hint}", file=sys.stderr)
    return code


def guarded(command: str, work: Callable[[], int]) -> int:
    """The exit code of the work, or of what kept it from being done, which is said on standard error."""
    try:
        return work()
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except Exception as error:
        if _code_of(error) is None:
            raise
        return tell(command, error)


def _code_of(error: Exception) -> int | None:
    return next((OF_ERRORS[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in OF_ERRORS), None)


def apart(work: Callable[[], T]) -> T:
    """What the work gives. If it imports Airflow, the handler that this puts on Python's log writes to standard error: standard
    output is the command's own, and may be one JSON object."""
    with redirect_stdout(sys.stderr):
        return work()


def warehouse_of(connect: Callable[[], T]) -> T:
    """What connects to BigQuery over Airflow's connection.

    Raises WarehouseError, also if the connection gives no credentials, and WarehouseUnavailable.
    """
    stand_in_answers()
    try:
        return apart(connect)
    except ImportError:
        raise
    except Exception as error:
        from nightshift.hooks.credentials import NoCredentials, has_no_login
        from nightshift.warehouse import WarehouseError

        if isinstance(error, NoCredentials):
            raise WarehouseError(f"{error}{beside_the_stack()}") from error
        if has_no_login(error):
            raise WarehouseError(
                f"BigQuery cannot be asked: there are no Google credentials here. {LOGIN}.{beside_the_stack()}"
            ) from error
        raise


def stand_in_answers() -> None:
    """Raises WarehouseUnavailable if this shell has BigQuery's stand-in, and it is down: the client would try for long."""
    if not (host := os.environ.get(EMULATORS[1])):
        return
    where = urlsplit(host if "//" in host else f"//{host}")
    try:
        socket.create_connection((where.hostname or "", where.port or 80), METADATA_S).close()
    except (OSError, ValueError) as error:
        from nightshift.warehouse import WarehouseUnavailable

        raise WarehouseUnavailable(
            f"BigQuery's stand-in at {host} does not answer: make up starts the stack, if it is down. It said: {error}"
        ) from error


def _has_key() -> bool:
    login = Path.home() / ".config" / "gcloud" / "application_default_credentials.json"
    return login.exists() or any(os.environ.get(name) for name in ACCOUNTS)


def _on_google() -> bool:
    try:
        socket.create_connection(METADATA, METADATA_S).close()
    except OSError:
        return False
    return True
