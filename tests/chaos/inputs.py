"""Real text for a soak, and the runs that are made of it."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import random
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import obstore
from obstore.store import ObjectStore

from local.environments import ROOT, python_of
from nightshift.planner.bills import seal_measured
from nightshift.run import chunks, ledger, opening
from nightshift.run.names import RunRef
from nightshift.run.plan import Plan, save_plan
from nightshift.spec import JobSpec
from nightshift.store import ObjectStorage
from tests.builders import a_spec, bound, write_input
from tests.chaos.book import Book
from tests.integration.driver.vllm import MINILM

SEED: Final = 1852
SEED_VARIABLE: Final = "NIGHTSHIFT_CHAOS_SEED"
"""Set to another seed by who wants a random one."""
CHUNK_ROWS: Final = 24
OWNERS: Final = 2
BAD_SHARE: Final = 0.03
TOLERANCE: Final = 1e-5
"""Of one number of a vector of length 1: rows that share a batch with others differ in the last bits of a float32."""
JOB: Final[dict[str, Any]] = {**MINILM, "dead_letters__tolerate": "20%"}
_DOCSTRINGS: Final = (
    "import json; from local.models import corpus; print(json.dumps([entry.text for entry in corpus.entries()]))"
)

Vector = list[float]


def chaos_seed() -> int:
    """Always the same, unless `SEED_VARIABLE` says another one."""
    return int(os.environ.get(SEED_VARIABLE) or SEED)


def a_job() -> JobSpec:
    return a_spec(**JOB)


def real_texts(count: int, seed: int) -> list[str]:
    """Different docstrings of the packages on this machine, from 5 to some 50 words, in an order drawn from the seed."""
    done = subprocess.run([python_of("server"), "-c", _DOCSTRINGS], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = sorted({text for text in json.loads(done.stdout) if text.strip()})
    rng = random.Random(f"texts {seed}")
    rng.shuffle(texts)
    # Most docstrings are a line: some are put together, so that lengths differ as people's rows do.
    longer = [" ".join(texts[at : at + 4])[:250] for at in range(0, len(texts) - 4, 8)]
    texts = list(dict.fromkeys(texts + longer))
    rng.shuffle(texts)
    return texts[:count]


@dataclass(frozen=True)
class Input:
    """The rows of one run. dead: which of them must become dead letters, and why."""

    texts: tuple[str | None, ...]
    dead: dict[int, str]

    @classmethod
    def of(cls, good: Sequence[str], rng: random.Random) -> Input:
        """The good rows with some bad ones between them."""
        rows: list[tuple[str | None, str | None]] = [(text, None) for text in good]
        for number in range(max(4, int(len(good) * BAD_SHARE))):
            bad = (
                (None, "bad_input"),
                ("", "bad_input"),
                (" \n\t" * (number + 1), "bad_input"),
                (f"too long, {number}: " + "the same words again and again " * 60, "too_long"),
            )[number % 4]
            rows.insert(rng.randint(0, len(rows)), bad)
        return cls(tuple(text for text, _ in rows), {ordinal: why for ordinal, (_, why) in enumerate(rows) if why is not None})

    def ordinals(self) -> dict[str, int]:
        """Which row each text is that may be sent."""
        return {
            text: ordinal
            for ordinal, text in enumerate(self.texts)
            if text is not None and self.dead.get(ordinal) != "bad_input"
        }


@dataclass
class Verdict:
    """What became of a run. problems: in words, empty when all is well. vectors: of each text that has one.

    lost, duplicated: rows. worst: largest difference of any number of any vector to the reference.
    """

    problems: list[str]
    vectors: dict[str, Vector]
    lost: int
    duplicated: int
    worst: float

    def take(self, row: dict[str, Any], rows: Input, reference: dict[str, Vector] | None) -> None:
        """Judges one committed row."""
        ordinal, text, vector = row["ordinal"], rows.texts[row["ordinal"]], row["prediction"]
        if row["dead_reason"] != rows.dead.get(ordinal) or row["id"] != ordinal:
            self.problems.append(f"row {ordinal} ended as {row['dead_reason']}, {row['dead_message']}: {text!r:.60}")
        elif text is not None and vector is not None:
            self.vectors[text] = vector
            if reference is not None:
                self.worst = max(self.worst, *(abs(a - b) for a, b in zip(vector, reference[text], strict=True)))


@dataclass(frozen=True)
class Prepared:
    """A frozen run in a bucket."""

    store: ObjectStore
    run: RunRef
    spec: JobSpec
    plan: Plan

    @classmethod
    def make(
        cls, store: ObjectStore, spec: JobSpec, number: int, rows: Input, chunk_rows: int = CHUNK_ROWS, owners: int = OWNERS
    ) -> Prepared:
        partition = (datetime.date(2026, 1, 1) + datetime.timedelta(days=number)).isoformat()
        run = opening.open_run(store, spec, partition, opened_by="soak")
        files = write_input(store, run, rows.texts, per_file=200, per_group=60)
        plan = save_plan(store, run, bound(store, run, Plan(run.run_id, len(rows.texts), chunk_rows, owners, files)))
        return cls(store, run, spec, plan)

    def missing(self, index: int | None) -> int:
        """How many chunks of a worker's home are not in the ledger; for None: of the run."""
        chunks_ = range(self.plan.chunk_count) if index is None else self.plan.shard(index)
        return asyncio.run(ledger.Ledger(ObjectStorage(self.store), self.run, self.plan).committed()).count_missing(chunks_)

    def verdict(self, rows: Input, book: Book, reference: dict[str, Vector] | None) -> Verdict:
        """Reads the finished run back from the store, seals it and compares every row."""
        try:
            manifest = seal_measured(self.store, self.run, self.spec, self.plan)
        except ValueError as error:
            return Verdict([f"not sealed: {error}"], {}, len(rows.texts), 0, 0.0)
        found = Verdict([], {}, 0, 0, 0.0)
        if manifest.rows != len(rows.texts) or manifest.dead_letters != len(rows.dead):
            found.problems.append(f"the manifest counts {manifest.rows} rows and {manifest.dead_reasons}")
        seen: list[int] = []
        for entry in manifest.chunks:
            known = book.commits.get(entry.chunk)
            if known is not None and known.sha256 not in (None, entry.sha256):
                found.problems.append(f"chunk {entry.chunk} is not what {known.life} committed")
            table, _ = chunks.decode(bytes(obstore.get(self.store, entry.path).bytes()))
            seen += table.column("ordinal").to_pylist()
            for row in table.to_pylist():
                found.take(row, rows, reference)
        found.lost = len(rows.texts) - len(set(seen))
        found.duplicated = len(seen) - len(set(seen))
        if found.lost or found.duplicated:
            found.problems.append(f"{found.lost} rows are lost, {found.duplicated} stand there again")
        if found.worst > TOLERANCE:
            found.problems.append(f"a prediction differs by {found.worst:.2g} from that of the run which nobody disturbed")
        return found
