"""EXPORT DATA keeps BigQuery's types and its two rules about the ``uri`` option, which local-bigquery does not know.

- It has exactly one ``*``. local-bigquery accepts a plain name, so a mistake would show only in production.
- Without ``overwrite=true``, no object may exist that the wildcard matches. local-bigquery overwrites silently.
- Columns have BigQuery's types: an expression like ``1`` is INT64, where DuckDB would write an INT32 column.
"""

from __future__ import annotations

from typing import Any

from local_bigquery.engine import types
from local_bigquery.engine.database import quote
from local_bigquery.errors import BigQueryError
from local_bigquery.jobs import extract
from sqlglot import exp

from local.bigquery import objects

_export_config, _write = extract.export_config, extract.write


def install() -> None:
    extract.export_config = export_config
    extract.write = write


def export_config(tree: exp.Expression) -> Any:
    config = _export_config(tree)
    uri = config.destinationUri
    if uri.count("*") != 1:
        raise BigQueryError("invalidQuery", f"Option 'uri' value '{uri}' must be a single wildcard URI.")
    if not _overwrites(tree) and objects.in_emulator(uri) and objects.listed(uri):
        raise BigQueryError(
            "invalidQuery", f"Invalid option: files already exist at '{uri}'. Use the option overwrite=true to overwrite them."
        )
    return config


def write(cursor: Any, query: str, params: dict[str, Any], config: Any) -> int:
    """local-bigquery's export of a query; keeps the order of the rows. Returns their number."""
    relation = cursor.sql(query, params=params)
    columns = ", ".join(
        f"{types.cast(quote(name), type_)} AS {quote(name)}"
        for name, type_ in zip(relation.columns, relation.types, strict=True)
    )
    rows: int = _write(cursor, f"SELECT {columns} FROM ({query})", params, config)
    return rows


def _overwrites(tree: exp.Expression) -> bool:
    for option in tree.args["options"].expressions:
        if option.name.lower() == "overwrite":
            return str(option.args["value"].this).lower() == "true"
    return False
