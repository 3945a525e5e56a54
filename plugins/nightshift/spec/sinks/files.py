"""The section of the sink `nightshift.stream.files`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from nightshift.fields.mistakes import FieldPath, Finding
from nightshift.fields.section import ColumnName, Moment
from nightshift.fields.values import moment_seconds
from nightshift.spec import stream_files
from nightshift.spec.document import Document
from nightshift.spec.model import FolderUrl, TableName
from nightshift.spec.sinks.base import SinkSection


class FileSink(SinkSection):
    """Where the predictions go: Parquet files on Cloud Storage, which a loader brings into a table of BigQuery."""

    KEY: ClassVar = "files"
    MODULE: ClassVar = "files"
    CLAIMS: ClassVar = ("files", "bigquery")
    UNORDERED: ClassVar = "Files have no order"

    files: FolderUrl = Field(
        description="The folder of the files: gs://BUCKET/FOLDER. Answers and dead letters have folders of their own in it.",
        examples=["gs://catalog-streams/package-texts"],
    )
    column: ColumnName = Field(description="The column that holds the prediction.", examples=["embedding"])
    rows: int = Field(
        default=10_000,
        ge=1,
        le=100_000,
        description="A file is written as soon as it has this many rows, or 64 MiB of messages and answers.",
        examples=[10_000],
    )
    every: Moment = Field(
        default="30s",
        description="How long a row may wait for others of its file: 10s, 1m.",
        examples=["30s"],
    )
    bigquery: TableName | None = Field(
        default=None,
        description="dataset.table or project.dataset.table, into which `nightshift stream load` merges the files. "
        "By default it has nothing to do.",
        examples=["catalog.package_vectors"],
    )

    @property
    def place(self) -> str:
        return self.files

    @property
    def dead_letters_place(self) -> str:
        return f"the folder {self.files}/{stream_files.DEAD}"

    @property
    def loaded_into(self) -> str | None:
        return self.bigquery

    @property
    def every_seconds(self) -> float:
        return moment_seconds(self.every)

    def clash(self, other: SinkSection, file: Path) -> Iterator[Finding]:
        if isinstance(other, FileSink) and _nested(self.files, other.files):
            problem = (
                f"The folder {self.files} is already that of {file}, or one is inside the other: their files would be mixed"
            )
            yield Finding(("sink", "files"), problem, "Give each stream a folder of its own")

    @classmethod
    def check(cls, document: Document, key: Sequence[str]) -> Iterator[Finding]:
        files, watched = document.get("sink", "files"), document.get("source", "prefix")
        if isinstance(files, str) and isinstance(watched, str) and _nested(files.rstrip("/"), watched.rstrip("/")):
            problem = (
                f"The stream would watch its own files: {files} and {watched} are the same folder, or one is inside the other"
            )
            yield Finding(("sink", "files"), problem, "Write another folder")
        yield from _same_columns(document.get("sink", "column"), key)


def _nested(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or other.startswith(f"{one}/")


def _same_columns(column: object, key: Sequence[str]) -> Iterator[Finding]:
    """BigQuery reads the files, and ignores the case of columns."""
    places: list[tuple[FieldPath, str]] = [(("source", "key", index), name) for index, name in enumerate(key)]
    if isinstance(column, str):
        places.append((("sink", "column"), column))
    seen: dict[str, str] = {}
    for path, name in places:
        if name.casefold() in stream_files.FOLDER_COLUMNS:
            yield Finding(path, f"{name!r} is a column that the folders of the files add", "Choose another name")
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            yield Finding(path, f"{name!r} and {other!r} are one column to BigQuery, which ignores case", "Choose another name")
