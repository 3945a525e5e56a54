"""EXPORT DATA keeps BigQuery's two rules about its ``uri`` option, which local-bigquery does not know.

- It holds exactly one ``*``. local-bigquery takes a plain name, so a mistake would be found in production only.
- Unless ``overwrite=true`` is said, no object may be there yet that the wildcard matches. local-bigquery overwrites silently.
"""

from __future__ import annotations

from typing import Any

from local_bigquery.errors import BigQueryError
from local_bigquery.jobs import extract
from sqlglot import exp

from local.bigquery import objects

_export_config = extract.export_config


def install() -> None:
    extract.export_config = export_config


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


def _overwrites(tree: exp.Expression) -> bool:
    for option in tree.args["options"].expressions:
        if option.name.lower() == "overwrite":
            return str(option.args["value"].this).lower() == "true"
    return False
