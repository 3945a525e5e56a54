"""EXPORT DATA and extract jobs write BigQuery's types, and EXPORT DATA keeps its two rules about the ``uri`` option.

- It has exactly one ``*`` ("Export statements"). local-bigquery accepts a plain name: a mistake would show only in production.
- Without ``overwrite=true``, no object may exist that the wildcard matches. local-bigquery overwrites silently.
- Parquet has BigQuery's types, and several files (`parquet_export`). In the other formats there is one file.
"""

from __future__ import annotations

from typing import Any

from local_bigquery.engine import types
from local_bigquery.engine.database import quote
from local_bigquery.errors import BigQueryError
from local_bigquery.jobs import extract
from sqlglot import exp

from local.bigquery import objects, parquet_export
from local.bigquery.parquet_export import Exported

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


def write(cursor: Any, query: str, params: dict[str, Any], config: Any) -> list[Exported]:
    """local-bigquery's export of a query; keeps the order of the rows. Returns what was written to each destination URI.

    `local.bigquery.sources` adapts the two callers, who expect a number of rows.
    """
    if (config.destinationFormat or "").upper() == "PARQUET":
        return [parquet_export.export(cursor, query, params, uri, config.compression) for uri in extract._uris(config)]
    relation = cursor.sql(query, params=params)
    columns = ", ".join(
        f"{types.cast(quote(name), type_)} AS {quote(name)}"
        for name, type_ in zip(relation.columns, relation.types, strict=True)
    )
    rows: int = _write(cursor, f"SELECT {columns} FROM ({query})", params, config)
    return [Exported(rows, 1) for _ in extract._uris(config)]


def _overwrites(tree: exp.Expression) -> bool:
    for option in tree.args["options"].expressions:
        if option.name.lower() == "overwrite":
            return str(option.args["value"].this).lower() == "true"
    return False
