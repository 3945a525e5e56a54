"""What keeps a command from its bucket or its warehouse, in words that say what to do."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import obstore

import nightshift
from nightshift import exits
from nightshift.store import StoreUnavailable, open_store, refusal_of, what_to_do

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from nightshift.hooks.connections import AirflowConnections
    from nightshift.warehouse import Warehouse

EMULATORS: Final = ("STORAGE_EMULATOR_HOST", "BIGQUERY_EMULATOR_HOST")
ACCOUNTS: Final = ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH")
"""Variables of a key, as the store's client reads them."""
METADATA: Final = ("169.254.169.254", 80)
"""Gives a machine of Google's its account."""
METADATA_S: Final = 2.0
LOGIN: Final = "Log in with `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS"


class NoAccount(Exception):
    """There is nothing by which Google could know who asks. The message says what to do."""


def open_bucket(url: str) -> ObjectStore:
    """As `open_store`; raises NoAccount at once, and ValueError.

    The client would ask Google's metadata server for two minutes, which outside Google nobody hears.
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
            return f"the store refuses: {advice}. Its words: {error}", exits.CONFIG
        return f"the store gets no credentials: {advice}.{beside_the_stack()} Its words: {error}", exits.CONFIG
    emulator = os.environ.get(EMULATORS[0])
    if emulator and isinstance(cause, obstore.exceptions.GenericError):
        return (
            f"the store at {emulator} does not answer: make up starts the stack, if it is down. Its words: {error}",
            exits.RESUME,
        )
    return f"the store cannot be read: {error}", exits.RESUME


def tell(command: str, error: Exception) -> int:
    """Says on standard error why a command cannot have its run or its bucket; its exit code.

    error: NoAccount, StoreUnavailable, or a LookupError or ValueError of what the command was given.
    """
    said, code = of_store(error) if isinstance(error, StoreUnavailable) else (str(error), exits.BAD_INPUT)
    print(f"nightshift {command}: {said}", file=sys.stderr)
    return exits.CONFIG if isinstance(error, NoAccount) else code


def warehouse_of(connections: AirflowConnections, **labels: str) -> Warehouse:
    """labels: of its jobs (`nightshift.hooks.warehouse`).

    Raises WarehouseError, also if Airflow's connection gives no credentials, and WarehouseUnavailable.
    """
    stand_in_answers()
    try:
        return connections.warehouse(**labels)
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
            f"BigQuery's stand-in at {host} does not answer: make up starts the stack, if it is down. Its words: {error}"
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
