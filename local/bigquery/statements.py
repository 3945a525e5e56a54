"""A statement is checked before it runs, and in a dry run: the types of its expressions, and the names of its columns.

- *Types*: `signatures`.
- *Partitions of a new table*: an INT64 column for RANGE_BUCKET ("Create partitioned tables"), and at most 10,000 of them
  ("Quotas and limits").
- *Temporary tables*: in a script or a session ("Multi-statement queries").
- *Names of a result's columns.* Two columns may not have one name, whatever its case; DuckDB would rename the second. BigQuery
  says so of any query, since each result is a table. No name of a table's column begins with a reserved prefix ("Specify a
  schema", column names): not in a result, in CREATE TABLE, through the API or in a load. Each column of CREATE TABLE AS has
  a name; only a result's are called f0_ and so on.
"""

from __future__ import annotations

from typing import Any, Final

import duckdb
import sqlglot
from local_bigquery.catalog import names, tables
from local_bigquery.engine import types
from local_bigquery.errors import BigQueryError
from local_bigquery.jobs import load, query
from local_bigquery.sql.translate import translate
from sqlglot import exp

from local.bigquery import signatures

PREFIXES: Final = ("_PARTITION", "_TABLE_", "_FILE_", "_ROW_TIMESTAMP", "__ROOT__", "_COLIDENTIFIER")
PARTITIONS_MOST: Final = 10_000
"""Of a table."""

_fields = names.fields


def install() -> None:
    """Call last: it wraps what the other corrections have made of local-bigquery's execution of a statement."""
    run = query._run

    def checked(
        cursor: Any, tree: exp.Expression, context: Any, destination: Any, config: Any, dry_run: bool, isolated: bool
    ) -> Any:
        if not isinstance(tree, exp.Command):
            check_types(tree, context)
            check_names(cursor, tree, context)
            check_table(cursor, tree, context, alone=not isolated)
        return run(cursor, tree, context, destination, config, dry_run, isolated)

    project = load._projection

    def projected(config: Any, schema: list[Any], columns: list[str]) -> Any:
        for name in [field.name or "" for field in schema] or columns:
            check_prefix(name, "invalid")
        return project(config, schema, columns)

    query._run = checked
    names.fields = fields
    load._projection = projected


def check_types(tree: exp.Expression, context: Any) -> None:
    """Raises BigQueryError `invalidQuery` for what `signatures` finds."""
    written = _as_written(tree, context)
    if written is None:
        return
    known = {name.lower(): kind for name, text in context.parameters.items() if (kind := _parameter_type(text)) is not None}
    _name_in_full(written, context)
    if (problem := signatures.problem(written, _columns, known)) is not None:
        raise BigQueryError("invalidQuery", problem)


def _as_written(tree: exp.Expression, context: Any) -> exp.Expression | None:
    """The statement as sqlglot itself parses it, so that functions have their types; None if it cannot.

    local-bigquery's own parser replaces functions by macros of no type. Nodes have places only in the text of the statement.
    """
    texts = (
        context.system.get("statement_text") or "",
        tree.sql(dialect="bigquery").replace("bq.main.", "").replace("BQ.MAIN.", ""),
    )
    for text in texts:
        try:
            found = [each for each in sqlglot.parse(text, dialect="bigquery") if each is not None]
        except Exception:  # of sqlglot, about what it does not understand
            continue
        if len(found) == 1 and type(found[0]) is type(tree):
            return found[0]
    return None


def _parameter_type(text: str) -> exp.DataType | None:
    """Of a parameter as local-bigquery binds it: ``CAST(... AS type)`` in DuckDB's SQL."""
    cast = sqlglot.parse_one(text, dialect="duckdb")
    return cast.to if isinstance(cast, exp.Cast) else None


def _name_in_full(tree: exp.Expression, context: Any) -> None:
    """Adds project and dataset to the names of tables that are known. A name of two parts may also be an array in a table."""
    local = {cte.alias.casefold() for cte in tree.find_all(exp.CTE)} | context.temporary
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or (not table.db and table.name.casefold() in local):
            continue
        project_id, dataset_id, table_id = names.reference(table, context.project_id, context.dataset_id)
        if dataset_id and _columns(project_id, dataset_id, table_id):
            table.set("db", exp.to_identifier(dataset_id))
            table.set("catalog", exp.to_identifier(project_id))


def _columns(project_id: str, dataset_id: str, table_id: str) -> dict[str, str]:
    try:
        return {field.name: types.bigquery_type(field) for field in tables.columns(project_id, dataset_id, table_id)}
    except (BigQueryError, duckdb.Error):
        return {}


def check_names(cursor: Any, tree: exp.Expression, context: Any) -> None:
    """Raises BigQueryError `invalidQuery` for a name that a result's column or a new table's may not have."""
    if isinstance(tree, exp.Create) and isinstance(tree.this, exp.Schema):
        for column in tree.this.find_all(exp.ColumnDef):
            check_prefix(column.name, "invalidQuery")
    creates = isinstance(tree, exp.Create) and (tree.args.get("kind") or "").upper() == "TABLE"
    result = tree.this if isinstance(tree, exp.Export) else tree.expression if creates else tree
    if not isinstance(result, exp.Query) or (creates and isinstance(tree.this, exp.Schema)):
        return
    if creates and (place := _unnamed(result)):
        raise BigQueryError("invalidQuery", f"CREATE TABLE columns must be named, but column {place} has no name")
    found: dict[str, str] = {}
    duplicates = []
    for name, _ in _result_columns(cursor, result, context):
        check_prefix(name, "invalidQuery")
        if name.casefold() in found:
            duplicates.append(name)
        found.setdefault(name.casefold(), name)
    if duplicates and creates:
        raise BigQueryError("invalidQuery", f"CREATE TABLE has columns with duplicate name {duplicates[0]}")
    if duplicates:
        listed = ", ".join(dict.fromkeys(duplicates))
        raise BigQueryError(
            "invalidQuery", f"Duplicate column names in the result are not supported. Found duplicate(s): {listed}"
        )


def _unnamed(query: exp.Query) -> int:
    """The place of the first column of a result that has no name of its own, counted from 1; 0 if all have one."""
    place = 0
    for column in query.selects:
        if not column.is_star:
            place += 1
            if not isinstance(column, (exp.Alias, exp.Column, exp.Dot)):
                return place
            continue
        for source in query.find_all(exp.Subquery):
            if source.parent_select is query and (inner := _unnamed(source.this)):
                return place + inner
    return 0


def check_table(cursor: Any, tree: exp.Expression, context: Any, *, alone: bool) -> None:
    """Raises BigQueryError for a table that may not be created so. alone: the statement is in no script and no session."""
    if not isinstance(tree, exp.Create) or (tree.args.get("kind") or "").upper() != "TABLE":
        return
    if alone and tree.find(exp.TemporaryProperty) is not None:
        raise BigQueryError("invalid", "Use of CREATE TEMPORARY TABLE requires a script or session")
    by = tree.find(exp.PartitionedByProperty)
    # local-bigquery has functions of its own for these two.
    if by is None or not isinstance(by.this, exp.Anonymous) or not by.this.name.endswith("range_bucket"):
        return
    column, ranges = by.this.expressions
    first, end, *steps = (int(bound.sql()) for bound in ranges.expressions)
    step = steps[0] if steps else 1
    if step < 1 or -(-(end - first) // step) > PARTITIONS_MOST:
        raise BigQueryError("invalidQuery", f"Too many partitions: an integer range has at most {PARTITIONS_MOST}")
    kinds = {column.name.casefold(): column.kind.sql("duckdb") for column in tree.find_all(exp.ColumnDef) if column.kind}
    if isinstance(tree.expression, exp.Query):
        kinds.update((name.casefold(), kind) for name, kind in _result_columns(cursor, tree.expression, context))
    if not isinstance(column, exp.Column) or kinds.get(column.name.casefold()) != "BIGINT":
        raise BigQueryError(
            "invalidQuery",
            "PARTITION BY expression must be DATE(<timestamp_column>), DATE(<datetime_column>), a DATE column, or "
            "RANGE_BUCKET(<int64_column>, GENERATE_ARRAY(<int64_value>, <int64_value>[, <int64_value>]))",
        )


def _result_columns(cursor: Any, result: exp.Query, context: Any) -> list[tuple[str, str]]:
    """Their names and DuckDB's types."""
    position = context.position
    sql, bound = translate(result, context)
    context.position = position  # of the next parameter without a name
    return [(row[0], row[1]) for row in cursor.execute(f"DESCRIBE {sql}", bound).fetchall()]


def fields(schema: list[Any]) -> None:
    """local-bigquery's check of the names in a schema."""
    _fields(schema)
    for field in schema:
        check_prefix(field.name or "", "invalid")


def check_prefix(name: str, reason: str) -> None:
    if name.upper().startswith(PREFIXES):
        raise BigQueryError(
            reason,
            f'Invalid field name "{name}". Field names are not allowed to start with the (case-insensitive) prefixes '
            f"{', '.join(PREFIXES[:-1])} and {PREFIXES[-1]}",
        )
