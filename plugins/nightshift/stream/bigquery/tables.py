"""The tables that a stream's files are loaded into, as BigQuery schemas. No API call is made here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from nightshift.spec import stream_files
from nightshift.spec.columns import REASONING
from nightshift.spec.sinks.base import DEAD_LETTERS
from nightshift.warehouse import schema
from nightshift.warehouse.errors import WarehouseError

if TYPE_CHECKING:
    import pyarrow as pa
    from google.cloud.bigquery import SchemaField, Table

    from nightshift.settings import Settings
    from nightshift.spec import StreamSpec

FILES: Final = "stream_files"
"""In nightshift's own dataset: which files are in which table."""
CLUSTERED_BY_MOST: Final = 4
"""Columns that BigQuery clusters a table by."""


class StreamTables:
    """Names and columns of one stream's tables. Raises WarehouseError if its files are not to be loaded."""

    def __init__(self, spec: StreamSpec, settings: Settings) -> None:
        from nightshift.tasks.base import load_kind

        if spec.sink.loaded_into is None:
            raise WarehouseError(f"The stream {spec.job} has no sink.bigquery, so there is no table to load its files into.")
        self.stream = spec.job
        self.folder = spec.sink.place
        self.keyed = bool(spec.source.key)
        self.keys = spec.source.key or (stream_files.MESSAGE_ID,)
        self.destination = schema.full_name(spec.sink.loaded_into, settings)
        self.dead = f"{self.destination}{DEAD_LETTERS}"
        self.files = schema.own_table(settings, FILES)
        prediction = load_kind(spec).prediction_type
        self.written = (spec.sink.column, REASONING)
        reasoning = spec.request.keeps_reasoning
        answers = stream_files.answer_schema(spec.source.key, spec.sink.column, prediction, reasoning=reasoning)
        self.answer_fields = _fields(answers)
        self.dead_fields = _fields(stream_files.dead_schema(spec.source.key))
        self._settings = settings

    def staging(self, batch: str, kind: str) -> str:
        """batch: its digest. kind: `stream_files.ANSWERS` or DEAD."""
        return schema.own_table(self._settings, f"{schema.STAGING}{self._settings.deployment}_{batch}_{kind}")

    def fields(self, kind: str) -> list[SchemaField]:
        return self.answer_fields if kind == stream_files.ANSWERS else self.dead_fields

    def as_created(self) -> list[Table]:
        """The destination, its dead letters, and the table of files."""
        answers = schema.day_table(self.destination, self.answer_fields, stream_files.PUBLISH_TIME)
        answers.clustering_fields = list(self.keys[:CLUSTERED_BY_MOST])
        dead = schema.day_table(self.dead, self.dead_fields, "publish_time", cluster_by="message_id")
        fields = schema.scalar_fields(
            {
                "stream": "STRING",
                "destination": "STRING",
                "file": "STRING",
                "day": "DATE",
                "batch": "STRING",
                "loaded_at": "TIMESTAMP",
            }
        )
        return [answers, dead, schema.day_table(self.files, fields, "day", cluster_by="stream")]


def _fields(of: pa.Schema) -> list[SchemaField]:
    import pyarrow as pa
    from google.cloud.bigquery import SchemaField

    kinds = {pa.timestamp("us", "UTC"): "TIMESTAMP", pa.binary(): "BYTES"}
    return [
        SchemaField(field.name, kinds[field.type]) if field.type in kinds else schema.arrow_field(field.name, field.type)
        for field in of
    ]
