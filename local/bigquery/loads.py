"""A BYTES column of a Parquet, Avro or ORC file holds bytes; local-bigquery would read them as base64, as in text files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from local_bigquery.engine import types
from local_bigquery.engine.database import quote
from local_bigquery.jobs import load

_projection = load._projection


def install() -> None:
    load._projection = projection


def projection(config: Any, fields: Sequence[Any], columns: Sequence[str]) -> tuple[str, str]:
    """The select list of a load, and the condition of a bad row."""
    if not fields or (config.sourceFormat or "CSV") in load.TEXT_FORMATS:
        both: tuple[str, str] = _projection(config, fields, columns)
        return both
    casts = [f"CAST({quote(field.name)} AS {types.duckdb_type(field)}) AS {quote(field.name)}" for field in fields]
    if config.hivePartitioningOptions:
        declared = {field.name.casefold() for field in fields}
        casts += [quote(column) for column in columns if column.casefold() not in declared]
    return ", ".join(casts), "false"
