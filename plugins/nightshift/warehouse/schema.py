"""The tables that nightshift writes, as BigQuery schemas: names, types, DDL. No API call is made here."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from nightshift.warehouse.errors import WarehouseError

if TYPE_CHECKING:
    import pyarrow as pa
    from google.cloud.bigquery import ScalarQueryParameter, SchemaField, Table

    from nightshift.run.names import RunRef
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec

RUN_ID_COLUMN: Final = "nightshift_run_id"
ORDINAL_COLUMN: Final = "nightshift_ordinal"
"""Two columns of every destination: they lead from a prediction back to its run, chunk and attempt."""

OWN_PARTITION: Final = "partition_date = @partition_date AND partition_time IS NOT DISTINCT FROM @partition_time"
"""A partition in nightshift's own tables. Parameters: `partition_parameters`."""

STAGING: Final = "staging_"
"""What the names of staging tables begin with."""

CARRIED_TYPES: Final = frozenset(
    {"BIGNUMERIC", "BOOL", "BYTES", "DATE", "DATETIME", "FLOAT64", "INT64", "NUMERIC", "STRING", "TIME", "TIMESTAMP"}
)
"""Types that can be sorted and that survive a round trip through Parquet."""

_STANDARD: Final = {"INTEGER": "INT64", "FLOAT": "FLOAT64", "BOOLEAN": "BOOL", "RECORD": "STRUCT"}


def sql_type(field: SchemaField) -> str:
    """A field's type as GoogleSQL writes it, for example ``ARRAY<FLOAT64>`` or ``STRUCT<`label` STRING, `score` FLOAT64>``.

    A struct's own names are quoted: a job's JSON schema may have a property ``order``, which is a keyword.
    """
    name = _STANDARD.get(field.field_type, field.field_type)
    if name == "STRUCT":
        name = f"STRUCT<{', '.join(f'{quoted(part.name)} {sql_type(part)}' for part in field.fields)}>"
    return f"ARRAY<{name}>" if field.mode == "REPEATED" else name


def arrow_field(name: str, arrow: pa.DataType) -> SchemaField:
    """The BigQuery column for a task's prediction type. Raises ValueError for a type that no task should use."""
    import pyarrow as pa
    from google.cloud.bigquery import SchemaField

    if pa.types.is_list(arrow):
        inner = arrow_field(name, arrow.value_type)
        return SchemaField(name, inner.field_type, "REPEATED", fields=inner.fields)
    if pa.types.is_struct(arrow):
        return SchemaField(name, "RECORD", fields=[arrow_field(part.name, part.type) for part in arrow])
    tests = (
        (pa.types.is_floating, "FLOAT"),
        (pa.types.is_integer, "INTEGER"),
        (pa.types.is_boolean, "BOOLEAN"),
        (pa.types.is_string, "STRING"),
    )
    for holds, bigquery_type in tests:
        if holds(arrow):
            return SchemaField(name, bigquery_type)
    raise ValueError(f"{arrow} has no column type in BigQuery")


def prediction_field(spec: JobSpec, name: str) -> SchemaField:
    """The column that holds the predictions of `spec`'s task, called `name`."""
    from nightshift.tasks import base

    return arrow_field(name, base.load_kind(spec).prediction_type)


def carried_fields(spec: JobSpec, columns: Mapping[str, str]) -> list[SchemaField]:
    """The columns that come from the query, with its types; `columns` are those of `nightshift.run.plan.ExportedSource`."""
    return scalar_fields({name: columns[name] for name in spec.source.carried})


def staging_fields(spec: JobSpec, columns: Mapping[str, str]) -> list[SchemaField]:
    """What a chunk object holds (`nightshift.run.chunks`)."""
    from nightshift.spec.columns import ATTEMPTS, DEAD_MESSAGE, DEAD_REASON, ORDINAL, PREDICTION, REASONING, with_carried

    types = {ORDINAL: "INT64", DEAD_REASON: "STRING", DEAD_MESSAGE: "STRING", ATTEMPTS: "INT64", REASONING: "STRING"}
    fields = [*scalar_fields(types), *carried_fields(spec, columns), prediction_field(spec, PREDICTION)]
    named = {field.name: field for field in fields}
    return [named[name] for name in with_carried(spec.source.carried, reasoning=spec.request.keeps_reasoning)]


def partition_type(name: str) -> str:
    """What the destination's partition column holds for a partition of this name: its day, or the start of its period."""
    from nightshift.spec import periods

    return "DATE" if periods.is_day(name) else "TIMESTAMP"


def partition_value(name: str) -> str:
    """A value of `partition_type`, as BigQuery reads it."""
    from nightshift.spec import periods

    return name if periods.is_day(name) else periods.bounds(name, None)[0].isoformat()


def partition_parameters(name: str) -> list[ScalarQueryParameter]:
    """@partition, of the destination; @partition_date and @partition_time, of nightshift's own tables."""
    from nightshift.spec import periods

    own = periods.columns(name)
    return scalar_parameters(
        ("partition", partition_type(name), partition_value(name)),
        ("partition_date", "DATE", own["partition_date"]),
        ("partition_time", "TIMESTAMP", own["partition_time"]),
    )


def scalar_parameters(*values: tuple[str, str, Any]) -> list[ScalarQueryParameter]:
    """Parameters of a statement: name, GoogleSQL type and value of each."""
    from google.cloud.bigquery import ScalarQueryParameter

    return [ScalarQueryParameter(*each) for each in values]


def destination_fields(spec: JobSpec, columns: Mapping[str, str]) -> list[SchemaField]:
    from nightshift.spec.columns import REASONING

    added = {spec.destination.partition_column: "TIMESTAMP" if spec.every else "DATE"}
    added |= {RUN_ID_COLUMN: "STRING", ORDINAL_COLUMN: "INT64"}
    return [
        *carried_fields(spec, columns),
        prediction_field(spec, spec.destination.column),
        *scalar_fields(({REASONING: "STRING"} if spec.request.keeps_reasoning else {}) | added),
    ]


def destination(spec: JobSpec, columns: Mapping[str, str], settings: Settings) -> Table:
    """The destination, as it is created. columns: of the query, as in `carried_fields`."""
    return day_table(destination_table(spec, settings), destination_fields(spec, columns), spec.destination.partition_column)


def scalar_fields(types: Mapping[str, str]) -> list[SchemaField]:
    """Columns by their names and GoogleSQL types."""
    from google.cloud.bigquery import SchemaField

    return [SchemaField(name, kind) for name, kind in types.items()]


def quoted(name: str) -> str:
    """A name in backquotes. Raises ValueError for one that could escape them; specs and settings have none."""
    if "`" in name or "\\" in name:
        raise ValueError(f"{name!r} cannot be quoted")
    return f"`{name}`"


def union(tables: Iterable[str]) -> str:
    """A FROM clause: the rows of all these tables (``project.dataset.table``)."""
    return "(" + " UNION ALL ".join(f"SELECT * FROM {quoted(table)}" for table in tables) + ")"


def day_table(name: str, fields: Sequence[SchemaField], partition_column: str, *, cluster_by: str | None = None) -> Table:
    """A table that is partitioned by day, as it is created. name: ``project.dataset.table``."""
    from google.cloud.bigquery import Table, TimePartitioning, TimePartitioningType

    table = Table(name, fields)
    table.time_partitioning = TimePartitioning(TimePartitioningType.DAY, partition_column)
    if cluster_by:
        table.clustering_fields = [cluster_by]
    return table


def own_day_table(settings: Settings, name: str, columns: Mapping[str, str], *, cluster_by: str) -> Table:
    """A table of nightshift's own dataset, as it is created."""
    return day_table(own_table(settings, name), scalar_fields(columns), "partition_date", cluster_by=cluster_by)


def add_columns(table: str, fields: Sequence[SchemaField]) -> str:
    """Adds columns to a table; those that it has stay as they are."""
    added = ", ".join(f"ADD COLUMN IF NOT EXISTS {quoted(field.name)} {sql_type(field)}" for field in fields)
    return f"ALTER TABLE {quoted(table)} {added}"


def destination_table(spec: JobSpec, settings: Settings) -> str:
    """``project.dataset.table`` of the destination."""
    return full_name(spec.destination.table, settings)


def full_name(table: str, settings: Settings) -> str:
    """``project.dataset.table`` of a name that may lack its project."""
    parts = table.rsplit(".", 2)
    return ".".join(parts if len(parts) == 3 else [settings.project, *parts])


def own_table(settings: Settings, name: str) -> str:
    """``project.dataset.table`` of a table in nightshift's own dataset."""
    return f"{settings.project}.{settings.dataset}.{name}"


def staging_table(settings: Settings, run: RunRef, ending: str = "") -> str:
    """``project.dataset.table`` of a staging table of a run's."""
    return own_table(settings, f"{STAGING}{settings.deployment}_{run.run_id.replace('-', '_')}{ending}")


def check_compatible(table: Table, wanted: Sequence[SchemaField], answers: Container[str], partition_column: str) -> None:
    """Raises WarehouseError if predictions cannot be written into an existing destination, or would be altered there.

    answers: the columns that hold what the model wrote.
    """
    name = f"{table.project}.{table.dataset_id}.{table.table_id}"
    remedy = "Write another destination.table, or drop this one if it is not needed: nightshift creates it again."
    if table.table_type != "TABLE":
        raise WarehouseError(f"The destination {name} is a {table.table_type.lower()}, not a table. {remedy}")
    there = {field.name.lower(): field for field in table.schema}
    for field in wanted:
        found = there.pop(field.name.lower(), None)
        if found is None:
            raise WarehouseError(
                f"The destination {name} has no column {field.name}. Add it: ALTER TABLE {quoted(name)} "
                f"ADD COLUMN {quoted(field.name)} {sql_type(field)}. Or: {remedy}"
            )
        if sql_type(found) != sql_type(field):
            raise WarehouseError(
                f"The destination {name} has the column {field.name} as {sql_type(found)}; "
                f"this job writes {sql_type(field)}. {remedy}"
            )
        if harm := _narrowed(found, answers=field.name in answers):
            raise WarehouseError(
                f"The destination {name} has a limit on the column {field.name}: BigQuery {harm}. Lift it: ALTER TABLE "
                f"{quoted(name)} ALTER COLUMN {quoted(field.name)} SET DATA TYPE {sql_type(field)}. Or: {remedy}"
            )
    required = [field.name for field in there.values() if field.mode == "REQUIRED"]
    if required:
        raise WarehouseError(
            f"The destination {name} requires the column {required[0]}, which this job does not write. "
            f"Allow NULL: ALTER TABLE {quoted(name)} ALTER COLUMN {quoted(required[0])} DROP NOT NULL. Or: {remedy}"
        )
    partitioning, column = table.time_partitioning, partition_column
    if partitioning is None or (partitioning.field or "").lower() != column.lower() or partitioning.type_ != "DAY":
        raise WarehouseError(f"The destination {name} is not partitioned by day on {column}. {remedy}")


def _narrowed(field: SchemaField, *, answers: bool) -> str | None:
    """What BigQuery does to values that a column of this type could hold, but this column cannot; None if there are none.

    answers: whether it holds what the model wrote, which may be of any length. A key that is too long is left to BigQuery: its
    length is the table's own business, and BigQuery never cuts it.
    """
    if field.precision is not None:
        return f"rounds what is stored in {field.field_type}({field.precision}, {field.scale or 0})"
    if answers and field.max_length is not None:
        return f"refuses the whole run for one answer of more than {field.max_length} characters"
    return next(filter(None, (_narrowed(part, answers=answers) for part in field.fields)), None)
