"""DuckDB's extensions come from PyPI packages instead of the network.

DuckDB downloads an extension, above all ducklake, into the user's home when it is first needed. The `duckdb-extension-*`
packages contain the same signed files, which are loaded from there. Everything else is switched off: no waiting for a
network, and no extension that another program left in the user's home.

There is no such package for `spatial`: the GEOGRAPHY functions are missing.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import duckdb
from local_bigquery.engine import database

EXTENSIONS = ("ducklake", "avro")
_connect = duckdb.connect


def install() -> None:
    duckdb.connect = connect
    database.FUNCTIONS = [path for path in database.FUNCTIONS if path.name != "geography.sql"]


def connect(
    database: str = ":memory:", read_only: bool = False, config: dict[str, Any] | None = None, **options: Any
) -> duckdb.DuckDBPyConnection:
    """`duckdb.connect`, with the extensions loaded and without any use of the network."""
    settings = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        # Otherwise DuckDB looks for a table that does not exist among the variables of its caller, by name.
        "python_enable_replacements": False,
    } | (config or {})
    # As a start option, TimeZone is looked up before any extension is loaded, which means a download.
    time_zone = settings.pop("TimeZone", None)
    connection = _connect(database, read_only, settings, **options)
    for name in EXTENSIONS:
        connection.execute(f"LOAD '{_file(name)}'")
    if time_zone:
        connection.execute(f"SET GLOBAL TimeZone = '{time_zone}'")
    return connection


def _file(name: str) -> Path:
    """The extension's file in its package, for this version of DuckDB. Raises RuntimeError if it is missing."""
    package = importlib.util.find_spec(f"duckdb_extension_{name}")
    folders = package.submodule_search_locations if package else None
    file = Path(folders[0] if folders else ".", "extensions", f"v{duckdb.__version__}", f"{name}.duckdb_extension")
    if not file.exists():
        raise RuntimeError(f"duckdb-extension-{name}=={duckdb.__version__} is not installed")
    return file
