"""What the tables and folders of a run are called in lineage, and which columns come from which. Pure; no OpenLineage here.

Names follow the OpenLineage naming rules. For Cloud Storage they match Airflow's Google provider, so the graph joins with
what other tasks report.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from nightshift.run.names import WORKERS

if TYPE_CHECKING:
    from nightshift.run.names import RunRef


@dataclass(frozen=True)
class DatasetName:
    """A dataset's identity in OpenLineage."""

    namespace: str
    name: str


@dataclass(frozen=True)
class ColumnName:
    """One column of a dataset."""

    dataset: DatasetName
    column: str


def bigquery_table(table: str, default_project: str) -> DatasetName:
    """``[project.]dataset.table``, without the decorator of a partition."""
    parts = table.partition("$")[0].rsplit(".", 2)
    return DatasetName("bigquery", ".".join(parts if len(parts) == 3 else [default_project, *parts]))


def gcs_path(bucket: str, path: str) -> DatasetName:
    """An object, a folder or a wildcard of objects; the last two become the folder, as in Airflow's Google provider."""
    path = path.partition("*")[0]
    last = PurePosixPath(path).name if not path.endswith("/") else ""
    if "." not in last.rstrip(".") and not path.endswith("/"):
        path = PurePosixPath(path).parent.as_posix()
    name = path.strip("/")
    return DatasetName(f"gs://{bucket}", "/" if name in ("", ".") else name)


def inputs_folder(bucket: str, run: RunRef) -> DatasetName:
    return gcs_path(bucket, f"{run.inputs_folder}/*.parquet")


def ledger_folder(bucket: str, run: RunRef) -> DatasetName:
    """Of whichever plan of the run."""
    return gcs_path(bucket, f"{WORKERS}/{run.prefix}/*")


def source_tables(query: str, default_project: str) -> list[str]:
    """The tables that a query reads, as ``project.dataset.table``, sorted. Empty for SQL that sqlglot does not understand.

    Names of CTEs are not tables; names without a dataset (such as INFORMATION_SCHEMA of a region) are left out.
    """
    from sqlglot import exp

    tree = _parse(query)
    if tree is None:
        return []
    local_names = {cte.alias_or_name.lower() for cte in tree.find_all(exp.CTE)}
    found = {_table_name(table, default_project) for table in tree.find_all(exp.Table) if table.name.lower() not in local_names}
    return sorted(name for name in found if name is not None)


def column_sources(query: str, default_project: str, columns: Iterable[str]) -> dict[str, tuple[ColumnName, ...]]:
    """Which source columns each of `columns` is made from, if that is plain: one SELECT from one table.

    Empty for anything else (joins, CTEs, unions, subqueries, ``* EXCEPT``): a wrong edge in a lineage graph is worse than none.
    """
    from sqlglot import exp

    tree = _parse(query)
    if not isinstance(tree, exp.Select) or len(list(tree.find_all(exp.Select))) > 1 or tree.args.get("joins"):
        return {}
    tables = list(tree.find_all(exp.Table))
    name = _table_name(tables[0], default_project) if len(tables) == 1 else None
    if name is None or tree.find(exp.Unnest):
        return {}
    dataset = bigquery_table(name, default_project)
    stars = [item for item in tree.expressions if item.is_star]
    if any(star.sql(dialect="bigquery") != "*" for star in stars):
        return {}
    made = {
        item.alias_or_name: sorted({column.name for column in item.find_all(exp.Column)})
        for item in tree.expressions
        if not item.is_star
    }
    found = {column: made.get(column, [column] if stars else []) for column in columns}
    return {column: tuple(ColumnName(dataset, source) for source in sources) for column, sources in found.items() if sources}


def _parse(query: str) -> Any:
    from nightshift.spec import sql

    try:
        return sql.parse(query).tree
    except sql.BadQuery:
        return None


def _table_name(table: Any, default_project: str) -> str | None:
    parts = [part.name for part in table.parts]
    whole = ".".join(parts)
    return bigquery_table(whole, default_project).name if whole.count(".") >= 1 else None
