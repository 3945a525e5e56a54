"""A run in a folder, for the tests of `nightshift status`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
from obstore.store import ObjectStore

from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result
from nightshift.run.names import canonical_json
from nightshift.status.overview import Overview, RunLook
from nightshift.store import open_store
from tests.builders import RUN, WORK, a_chunk, a_plan

PLAN = a_plan(10, 4, 2)
SPEC = {"version": 1, "spec": {"task": "embedding", "model": {"name": "m"}}}

KEYS = {
    *("version", "run", "job", "partition", "run_id", "task", "model", "state", "observed_at", "sealed_at"),
    *("rows_total", "rows_done", "rows_saved", "rows_left", "rows_bad", "predictions", "dead_letters", "dead_reasons"),
    *("chunks_total", "chunks_committed", "chunks_read", "chunks_left", "chunks_bad", "partials", "partials_bad"),
    *(
        "foreign_objects",
        "unanswered",
        "prompt_tokens",
        "output_tokens",
        "rate_rows_per_s",
        "mean_rows_per_s",
        "elapsed_s",
        "seconds_left",
    ),
    *("last_commit", "workers_planned", "attempts", "waste_rows", "waste_lost_rows", "waste_partial_rows"),
    *("waste_percent", "problems", "paused", "measured", "cost", "night"),
}
"""Of the JSON object that `--json` prints."""


class Run:
    """A run in a folder, with the writes that workers make, at times that the test sets."""

    def __init__(self, folder: Path, *, planned: bool = True) -> None:
        self.folder = folder
        self.url = f"file://{folder}/{RUN.prefix}"
        self.store: ObjectStore = open_store(f"file://{folder}")
        self.put("spec.json", canonical_json(SPEC))
        if planned:
            self.put("plan.json", canonical_json(PLAN.to_json()))

    def put(self, name: str, body: bytes, at: float | None = None) -> None:
        obstore.put(self.store, f"{RUN.prefix}/{name}", body)
        if at is not None:
            os.utime(self.folder / RUN.prefix / name, (at, at))

    def put_work(self, name: str, body: bytes, at: float | None = None) -> None:
        """As `put`, below the prefix of its workers."""
        obstore.put(self.store, f"{WORK.prefix}/{name}", body)
        if at is not None:
            os.utime(self.folder / WORK.prefix / name, (at, at))

    def commit(self, chunk: int, body: bytes | None = None, at: float | None = None) -> None:
        self.put_work(f"ledger/chunk-{chunk:08d}.parquet", a_chunk(RUN, PLAN, chunk) if body is None else body, at)

    def look(self) -> Overview:
        return RunLook(self.store, RUN, self.url).look()

    def status(self) -> dict[str, Any]:
        """The JSON object."""
        return self.look().status()


def made_by(attempt: str, ordinals: Sequence[int], *, reasons: dict[int, str] | None = None, **provenance: Any) -> bytes:
    """A chunk or partial of `attempt`. reasons: the dead letters by ordinal; provenance: fields of `Provenance`."""
    dead = reasons or {}
    results = [Result(row, None if row in dead else [0.5], dead.get(row), dead.get(row) and "no", 1) for row in ordinals]
    given = Provenance(
        **{
            "run_id": RUN.run_id,
            "plan_uid": PLAN.uid,
            "chunk": 0,
            "attempt": attempt,
            "node": f"node-of-{attempt}",
            "model": {"name": "m"},
            "engine_version": "0",
            "started": "2026-11-20T00:00:00+00:00",
            "finished": "2026-11-20T00:00:10+00:00",
            "predictions": len(ordinals) - len(dead),
            "dead_letters": len(dead),
            "prompt_tokens": 10,
            **provenance,
        }
    )
    return chunks.encode(pa.table({"id": pa.array(ordinals, pa.int64())}), results, pa.list_(pa.float32()), given)
