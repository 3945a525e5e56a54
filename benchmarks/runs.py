"""Runs for measures: frozen specs, real Parquet inputs of any size, plans, in a folder store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import obstore
import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.run import opening
from nightshift.run.names import RunRef
from nightshift.run.plan import InputFile, Plan, save_plan
from nightshift.spec import JobSpec
from nightshift.store import open_store
from tests.builders import a_spec, bound

SHORT: Final = "package {n} reads settings files and checks each value"
"""About 14 tokens for MiniLM."""
ROWS_PER_FILE: Final = 1_000_000
SENTENCE: Final = "package {n}: a parser for configuration files that checks each value and says where it was wrong"


@dataclass(frozen=True)
class Run:
    """A planned run in a bucket that is a folder."""

    bucket: Path
    run: RunRef
    spec: JobSpec
    plan: Plan

    @property
    def url(self) -> str:
        return f"file://{self.bucket}/{self.run.prefix}"

    @property
    def folder(self) -> Path:
        return self.bucket / self.run.prefix

    def committed_rows(self) -> int:
        """Rows in the ledger, according to the files' footers."""
        ledger = self.bucket / self.run.work(self.plan.uid).ledger_folder
        return sum(pq.read_metadata(path).num_rows for path in ledger.glob("*.parquet"))

    def check(self, code: int) -> None:
        """Raises AssertionError unless the driver reported that it is done and the ledger has each row."""
        found = self.committed_rows()
        assert (code, found) == (0, self.plan.rows), f"exit code {code}, {found:,} of {self.plan.rows:,} rows"


def sentences(ordinals: range) -> list[str]:
    return [SENTENCE.format(n=n) for n in ordinals]


def short_sentences(ordinals: range) -> list[str]:
    return [SHORT.format(n=n) for n in ordinals]


def prepare(
    bucket: Path,
    rows: int,
    *,
    chunk_rows: int,
    per_group: int = 10_000,
    texts: Callable[[range], Sequence[str]] = sentences,
    workers: int = 1,
    **changes: Any,
) -> Run:
    """A run of `rows` rows ``id, text``. The bucket is a folder; changes: of the spec, as in tests.builders."""
    spec = a_spec(**changes)
    store = open_store(f"file://{bucket}")
    run = opening.open_run(store, spec, "2026-11-20", opened_by="benchmark")
    (bucket / run.prefix / "inputs").mkdir(parents=True, exist_ok=True)
    files = []
    for start in range(0, rows, ROWS_PER_FILE):
        ordinals = range(start, min(start + ROWS_PER_FILE, rows))
        path = f"inputs/part-{start // ROWS_PER_FILE:05d}.parquet"
        groups = write(bucket / run.prefix / path, ordinals, per_group, texts)
        meta = obstore.head(store, f"{run.prefix}/{path}")
        files.append(InputFile(path, len(ordinals), groups, meta["size"], str(meta["e_tag"])))
    plan = save_plan(store, run, bound(store, run, Plan(run.run_id, rows, chunk_rows, workers, tuple(files))))
    return Run(bucket, run, spec, plan)


def write(path: Path, ordinals: range, per_group: int, texts: Callable[[range], Sequence[str]]) -> tuple[int, ...]:
    """One Parquet file; returns the rows of its row groups."""
    groups = []
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(ordinals.start, ordinals.stop, per_group):
            part = range(start, min(start + per_group, ordinals.stop))
            writer.write_table(pa.table({"id": pa.array(part, pa.int64()), "text": pa.array(texts(part), pa.string())}))
            groups.append(len(part))
    return tuple(groups)
