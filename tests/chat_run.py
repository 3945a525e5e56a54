"""Whole runs of a chat job in a store, with exported rows, chunks, dead letters, notes and heartbeats: for those who show runs.

``python -m tests.chat_run FOLDER --chunks 10000 --chunk-rows 10000`` makes a run of 100 million rows in 10,000 chunks, whose
exported rows are only those of the first chunks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import obstore
import pyarrow as pa
from obstore.store import ObjectStore

from nightshift.formats import CHUNK
from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result
from nightshift.run.manifest import RunManifest, SealedChunk
from nightshift.run.names import RunRef, Work, canonical_json
from nightshift.run.observed.heartbeats import Ended, Heartbeat
from nightshift.run.plan import Plan
from nightshift.run.seal import merkle_root
from nightshift.spec import JobSpec
from nightshift.store import open_store, version_of
from tests.builders import PLAN_UID, a_manifest, a_record, a_spec, write_input

OPENED = datetime(2026, 11, 21, 1, tzinfo=UTC)

Answer = Callable[[int], str | None]
"""The answer to a row; None for a dead letter."""


def a_chat_spec(job: str = "tickets", **changes: Any) -> JobSpec:
    request = {"system": "You label tickets.", "user": "Label this: {{ text }}", "max_tokens": 64, "temperature": 0}
    return a_spec(job=job, task="chat", request=request, destination={"table": "d.out", "column": "label"}, **changes)


@dataclass
class ChatRun:
    """A run that is planned. Every method writes what one of its programs would."""

    store: ObjectStore
    run: RunRef
    spec: JobSpec
    plan: Plan

    @property
    def work(self) -> Work:
        return self.run.work(self.plan.uid)

    def put(self, path: str, body: bytes) -> None:
        obstore.put(self.store, path, body)

    def commit(
        self,
        number: int,
        answer: Answer = lambda row: f"answer {row}",
        *,
        truncated: int = 0,
        reason: str = "bad_input",
        attempt: str = "pod-0",
        note: bool = True,
    ) -> None:
        """A chunk, and the note of its dead letters."""
        ordinals = self.plan.chunk_range(number)
        answers = [answer(row) for row in ordinals]
        dead = sum(each is None for each in answers)
        results = [
            Result(row, each, reason if each is None else None, f"row {row} has no text" if each is None else None, 1)
            for row, each in zip(ordinals, answers, strict=True)
        ]
        provenance = self.provenance(number, len(answers) - dead, dead, truncated=truncated, attempt=attempt)
        keys = pa.table({"id": pa.array(ordinals, pa.int64())})
        self.put(self.work.chunk_path(number), chunks.encode(keys, results, pa.string(), provenance))
        if dead and note:
            self.put(self.work.dead_note_path(number, dead), canonical_json({reason: dead}))

    def commit_alike(self, numbers: Iterable[int]) -> None:
        """Chunks that differ only in their ordinals and their attempts, for large runs: 3 ms each. Every tenth one has a dead
        letter in its first row."""
        length = self.plan.chunk_rows
        labels = [f"label {row % 7}" for row in range(length)]
        answers = {dead: pa.array([None, *labels[1:]] if dead else labels, pa.string()) for dead in (True, False)}
        nothing, ones = pa.nulls(length, pa.string()), pa.array([1] * length, pa.int32())
        reasons = pa.array(["bad_input", *[None] * (length - 1)], pa.string())
        messages = pa.array(["the row has no text", *[None] * (length - 1)], pa.string())
        for number in numbers:
            dead = number % 10 == 0
            provenance = self.provenance(number, length - dead, int(dead), attempt=f"pod-{number % self.plan.workers}")
            ordinals = pa.array(self.plan.chunk_range(number), pa.int64())
            columns = {
                "ordinal": ordinals,
                "id": ordinals,
                "prediction": answers[dead],
                "dead_reason": reasons if dead else nothing,
                "dead_message": messages if dead else nothing,
                "attempts": ones,
            }
            table = pa.table(columns)
            said = {
                chunks.METADATA_KEY: chunks.claims_of(provenance),
                chunks.PARTS_KEY: json.dumps([asdict(part) for part in provenance.parts]).encode(),
                chunks.FORMAT_KEY: json.dumps(CHUNK.stamp()).encode(),
            }
            self.put(self.work.chunk_path(number), chunks.to_parquet(table.schema.with_metadata(said), [table]))
            if dead:
                self.put(self.work.dead_note_path(number, 1), canonical_json({"bad_input": 1}))

    def provenance(self, number: int, predictions: int, dead: int, *, truncated: int = 0, attempt: str = "pod-0") -> Provenance:
        """What an attempt claims of a chunk: 12 tokens in and 5 out for each row."""
        return Provenance(
            run_id=self.run.run_id,
            chunk=number,
            attempt=attempt,
            node="node",
            model={"name": "m", "uri": "hf://org/m", "revision": "r1"},
            engine_version="0.32.0",
            started="2026-11-21T01:10:00+00:00",
            finished="2026-11-21T01:10:10+00:00",
            predictions=predictions,
            dead_letters=dead,
            prompt_tokens=12 * (predictions + dead),
            output_tokens=5 * (predictions + dead),
            truncated=truncated,
            plan_uid=self.plan.uid,
        )

    def beat(self, name: str, number: int = 0, *, at: datetime | None = None, ended: Ended | None = None, **more: Any) -> None:
        """A heartbeat of an attempt that works; `more` changes it."""
        now = at or datetime.now(UTC)
        beat = Heartbeat(
            attempt=name,
            profile="cpu",
            role="owner",
            index=0,
            node="node",
            pod=f"{name}-pod",
            cpus=2.0,
            born_at=(now - timedelta(seconds=100)).isoformat(timespec="seconds"),
            at=now.isoformat(timespec="seconds"),
            age_s=100.0,
            next_s=0.0 if ended else 5.0,
            ended=ended,
            rows_answered=50,
            work_s=25.0,
            start_up_s={"weights": 40.0, "warm_up": 1.0},
        )
        self.put(self.work.mark_path(name, number), replace(beat, **more).to_bytes())

    def seal(self, **changes: Any) -> RunManifest:
        """The run manifest over the chunks that are there."""
        sealed, reasons = [], dict[str, int]()
        truncated = 0
        for number in range(self.plan.chunk_count):
            path = self.work.chunk_path(number)
            body = bytes(obstore.get(self.store, path).bytes())
            table, provenance = chunks.decode(body)
            for value in table.column("dead_reason").drop_null().to_pylist():
                reasons[value] = reasons.get(value, 0) + 1
            truncated += provenance.truncated
            version = version_of(obstore.head(self.store, path))
            sealed.append(
                SealedChunk(
                    number,
                    path,
                    hashlib.sha256(body).hexdigest(),
                    table.num_rows,
                    provenance.predictions,
                    provenance.dead_letters,
                    version,
                )
            )
        made: Mapping[str, Any] = {
            "run_id": self.run.run_id,
            "job": self.run.job,
            "partition": self.run.partition,
            "generation": self.run.generation,
            "rows": self.plan.rows,
            "predictions": sum(each.predictions for each in sealed),
            "dead_letters": sum(each.dead_letters for each in sealed),
            "dead_reasons": reasons,
            "truncated": truncated,
            "merkle_root": merkle_root([each.sha256 for each in sealed]),
            "chunks": tuple(sealed),
        }
        manifest = a_manifest(**{**made, **changes})
        self.put(self.run.manifest_path, canonical_json(manifest.to_json()))
        return manifest


def a_chat_run(
    store: ObjectStore,
    *,
    job: str = "tickets",
    partition: str = "2026-11-20",
    digest: str = "0123456789abcdef",
    rows: int = 40,
    chunk_rows: int = 10,
    opened_at: datetime = OPENED,
    exported: int | None = None,
    workers: int = 1,
    spec: JobSpec | None = None,
    **record: Any,
) -> ChatRun:
    """A run with its record, its rows and its plan. exported: rows that are really there, for a run that is too large."""
    run = RunRef(job, partition, digest)
    spec = spec or a_chat_spec(job)
    body = a_record(spec, **{"opened_at": opened_at.isoformat(), "seeds": "key", "rendering": "sql", **record})
    obstore.put(store, run.spec_path, body)
    texts = [f"text of row {row}" for row in range(rows if exported is None else exported)]
    files = write_input(store, run, texts, per_file=max(1, len(texts)), per_group=max(1, chunk_rows))
    if exported is not None and exported < rows:
        rest = rows - exported
        files = (*files, replace(files[0], path="inputs/not-there.parquet", rows=rest, row_groups=(rest,)))
    plan = Plan(run.run_id, rows, chunk_rows, workers, files, uid=PLAN_UID)
    obstore.put(store, run.plan_path, canonical_json(plan.to_json()))
    return ChatRun(store, run, spec, plan)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--chunk-rows", type=int, default=10_000)
    parser.add_argument("--committed", type=int, help="chunks that are committed (default: all)")
    parser.add_argument("--seal", action="store_true")
    options = parser.parse_args(arguments)
    rows = options.chunks * options.chunk_rows
    store = open_store(f"file://{options.folder}")
    made = a_chat_run(store, rows=rows, chunk_rows=options.chunk_rows, exported=20 * options.chunk_rows, workers=100)
    made.commit_alike(range(options.chunks if options.committed is None else options.committed))
    for number in range(100):
        made.beat(f"pod-{number}")
    if options.seal:
        made.seal()
    print(made.run.prefix)


if __name__ == "__main__":
    main(sys.argv[1:])
