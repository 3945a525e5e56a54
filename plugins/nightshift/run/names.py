"""A run's name and where its objects are: a pure function of job, partition and frozen spec.

So a retry, a clear or a second trigger all find the same folder. Airflow alone writes there::

    JOB/PARTITION/RUN/
      spec.json                               the frozen spec, created once
      inputs/1-part-000000000000.parquet      the exported rows, by export attempt; 1-part-00007-... of bucket 7, if sorted
      decisions/DIGEST.json                   what the task plan decided; the DAG run names the one that holds
      plan.json                               created once: it fixes the ordinals
      pauses/00000002.json                    a request to pause or resume the run; the highest number counts
      endings/00000001.json                   how a night of the run ended; the highest number is the last
      starts/JOBSET.json                      how long the pods of an ended JobSet took to start
      starts/JOBSET.now.json                  where its pods are now, replaced while it runs
      (`nightshift.run.observed.pods_now`) closed/DIGEST.json                      what an unsealed run had committed when a
      redo was opened that completes it source/1-part-000000000000.parquet      of a redo with corrected rows: the rows of its
      query, by export attempt source/1-refused                        the rows of this export attempt could not be matched
      manifest.json                           created once, by the seal prompts/DIGEST.parquet                  what the dead
      letters were asked, for their table

Workers write under a prefix of their own, where their rights end. PLAN is the `uid` of `plan.json`, which is random, so
leftovers of another plan, or of another run that had this name, are never found::

    _workers/JOB/PARTITION/RUN/PLAN/
      ledger/chunk-00000012.parquet           committed, create-only
      partials/chunk-00000013/ATTEMPT.parquet finished rows of an open chunk, saved by a drain
      notes/dead/chunk-00000012-3             a committed chunk has 3 dead letters
      notes/lost/chunk-00000012/ATTEMPT-500   an attempt computed 500 rows that another committed
      attempts/ATTEMPT/00000007.json          what an attempt has done so far; the one with the highest number counts

What an engine has compiled is for later runs of the job, too (`nightshift.run.models.compile_cache`)::

    _workers/JOB/compile-cache/KEY.tar        no partition has this name
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Final

WORKERS: Final = "_workers"
"""The prefix below which workers create objects, and nowhere else. No job has this name."""
CHUNKS_MAX: Final = 10**8
"""As many as the eight digits in a chunk's name can number."""
PUBLISHED: Final = "published"
FAILED: Final = "failed"
"""How a night of a run ended (`nightshift.run.observed.endings`), in the tables too."""
_CHUNK: Final = re.compile(r"/ledger/chunk-(\d{8})\.parquet")
_PARTIAL: Final = re.compile(r"/partials/chunk-(\d{8})/([^/]+)\.parquet")
_DEAD: Final = re.compile(r"/notes/dead/chunk-\d{8}-(\d+)")
_LOST: Final = re.compile(r"/notes/lost/chunk-(\d{8})/([^/]+)-(\d+)")
_HEARTBEAT: Final = re.compile(r"/attempts/([^/]+)/(\d{8})\.json")
_PAUSE: Final = re.compile(r"/pauses/([0-9]+)\.json")
_NOW: Final = ".now.json"
_ENDING: Final = re.compile(r"/endings/([0-9]+)\.json")
_EXPORTED: Final = re.compile(r"/inputs/(\d+)-part-[^/]*\.parquet")
_SOURCE: Final = re.compile(r"/source/(\d+)-(?:part-[^/]*\.parquet|refused)")


def canonical_json(value: Any) -> bytes:
    """The one byte string for a JSON value: sorted keys, no spaces, UTF-8. Digests are computed from it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: Any) -> str:
    """16 hex digits of a JSON value."""
    return hashlib.sha256(canonical_json(value)).hexdigest()[:16]


def run_digest(job: str, partition: str, semantic_spec: dict[str, Any], project: str = "") -> str:
    """First 16 hex digits of sha256 over job, partition and the part of the spec that decides answers (`JobSpec.semantic`).

    project: where the query's tables are that do not name a project; empty if the run reads no tables.
    """
    named = {"job": job, "partition": partition, "spec": semantic_spec}
    return digest_of({**named, "project": project} if project else named)


@dataclass(frozen=True)
class RunRef:
    """Names one run and its objects. ``generation`` counts from 1; `fresh` opens the next one, in a new folder.

    Paths are relative to the bucket. ``..._path`` and ``..._folder`` make them; ``parse_...`` reads them back and returns
    None for a path that is not such an object of this run.
    """

    job: str
    partition: str
    digest: str
    generation: int = 1

    @property
    def run_id(self) -> str:
        return self.digest if self.generation == 1 else f"{self.digest}-g{self.generation}"

    @property
    def prefix(self) -> str:
        """The run's folder, without a slash at its end."""
        return f"{self.job}/{self.partition}/{self.run_id}"

    @classmethod
    def from_prefix(cls, prefix: str) -> RunRef:
        """Inverse of `prefix`. Raises ValueError for anything else."""
        match = re.fullmatch(r"([^/]+)/([^/]+)/([0-9a-f]{16})(?:-g([2-9]|[1-9]\d{1,8}))?", prefix.strip("/"))
        if match is None:
            raise ValueError(f"{prefix!r} is not JOB/PARTITION/RUN")
        job, partition, digest, generation = match.groups()
        return cls(job, partition, digest, int(generation or 1))

    def url(self, bucket: str) -> str:
        return f"gs://{bucket}/{self.prefix}"

    @property
    def spec_path(self) -> str:
        return f"{self.prefix}/spec.json"

    def decision_path(self, digest: str) -> str:
        """digest: of the decision itself, so that each is written once and a retry finds it."""
        return f"{self.prefix}/decisions/{digest}.json"

    @property
    def plan_path(self) -> str:
        return f"{self.prefix}/plan.json"

    @property
    def manifest_path(self) -> str:
        return f"{self.prefix}/manifest.json"

    def closed_path(self, digest: str) -> str:
        """digest: of the document itself (`nightshift.run.manifest.RunManifest.digest`), so it is written once."""
        return f"{self.prefix}/closed/{digest}.json"

    @property
    def source_folder(self) -> str:
        return f"{self.prefix}/source"

    def source_pattern(self, attempt: int) -> str:
        """Like `export_pattern`: the whole query, of which a redo takes the corrected rows."""
        return f"{self.source_folder}/{attempt}-part-*.parquet"

    def refused_path(self, attempt: int) -> str:
        """Exists if the rows of this export attempt could not be matched."""
        return f"{self.source_folder}/{attempt}-refused"

    def parse_source(self, path: str) -> int | None:
        """The export attempt that wrote a file of `source_folder`, or that was refused."""
        return _number(self.prefix, _SOURCE, path)

    @property
    def inputs_folder(self) -> str:
        return f"{self.prefix}/inputs"

    def export_pattern(self, attempt: int, bucket: int | None = None) -> str:
        """The files of an export attempt, with one ``*``. They never overwrite those of earlier attempts.

        bucket: of rows that are sorted in several; their files sort by it.
        """
        return f"{self.inputs_folder}/{attempt}-part-{'' if bucket is None else f'{bucket:05d}-'}*.parquet"

    def parse_export(self, path: str) -> int | None:
        """The export attempt that wrote a file."""
        return _number(self.prefix, _EXPORTED, path)

    @property
    def pauses_folder(self) -> str:
        return f"{self.prefix}/pauses"

    def pause_path(self, number: int) -> str:
        """Pause requests count from 1; each is created once."""
        return f"{self.pauses_folder}/{number:08d}.json"

    def parse_pause(self, path: str) -> int | None:
        """The number of a request."""
        return _number(self.prefix, _PAUSE, path)

    def prompts_path(self, name: str) -> str:
        """What the run's dead letters were asked, for their table; name: of the set of chunks that has them."""
        return f"{self.prefix}/prompts/{name}.parquet"

    @property
    def endings_folder(self) -> str:
        return f"{self.prefix}/endings"

    def ending_path(self, number: int) -> str:
        """Endings count from 1; each is created once."""
        return f"{self.endings_folder}/{number:08d}.json"

    def parse_ending(self, path: str) -> int | None:
        """The number of an ending."""
        return _number(self.prefix, _ENDING, path)

    @property
    def starts_folder(self) -> str:
        return f"{self.prefix}/starts"

    def starts_path(self, jobset: str) -> str:
        return f"{self.starts_folder}/{jobset}.json"

    def now_path(self, jobset: str) -> str:
        return f"{self.starts_folder}/{jobset}{_NOW}"

    def is_now(self, path: str) -> bool:
        """Whether it is a `now_path`."""
        return path.startswith(f"{self.starts_folder}/") and path.endswith(_NOW)

    def work(self, plan_uid: str) -> Work:
        """What workers write of the plan with this `uid`."""
        return Work(self, plan_uid)


@dataclass(frozen=True)
class Work:
    """What workers write of one plan of a run, and where: named like the objects of a `RunRef`.

    plan_uid: of the plan (`nightshift.run.plan.Plan.uid`); empty for a run of release 0.2.0 and one of `nightshift batch`,
    whose workers write into the run's own folder.
    """

    run: RunRef
    plan_uid: str

    @property
    def prefix(self) -> str:
        """The folder, without a slash at its end."""
        return f"{WORKERS}/{self.run.prefix}/{self.plan_uid}" if self.plan_uid else self.run.prefix

    @property
    def ledger_folder(self) -> str:
        return f"{self.prefix}/ledger"

    def chunk_path(self, chunk: int) -> str:
        return f"{self.ledger_folder}/chunk-{chunk:08d}.parquet"

    def parse_chunk(self, path: str) -> int | None:
        """The number of a committed chunk."""
        return _number(self.prefix, _CHUNK, path)

    def partials_folder(self, chunk: int | None = None) -> str:
        """The partials of one chunk, or of all of them."""
        return f"{self.prefix}/partials" if chunk is None else f"{self.prefix}/partials/chunk-{chunk:08d}"

    def partial_path(self, chunk: int, attempt: str) -> str:
        return f"{self.partials_folder(chunk)}/{attempt}.parquet"

    def parse_partial(self, path: str) -> tuple[int, str] | None:
        """Chunk and attempt of a partial."""
        match = _below(self.prefix, _PARTIAL, path)
        return (int(match[1]), match[2]) if match else None

    @property
    def dead_notes_folder(self) -> str:
        return f"{self.prefix}/notes/dead"

    def dead_note_path(self, chunk: int, dead_letters: int) -> str:
        return f"{self.dead_notes_folder}/chunk-{chunk:08d}-{dead_letters}"

    def parse_dead_note(self, path: str) -> int | None:
        """How many dead letters a note counts."""
        return _number(self.prefix, _DEAD, path)

    @property
    def lost_notes_folder(self) -> str:
        return f"{self.prefix}/notes/lost"

    def lost_note_path(self, chunk: int, attempt: str, rows: int) -> str:
        return f"{self.lost_notes_folder}/chunk-{chunk:08d}/{attempt}-{rows}"

    def parse_lost_note(self, path: str) -> tuple[str, int] | None:
        """Which attempt computed how many rows for nothing."""
        match = _below(self.prefix, _LOST, path)
        return (match[2], int(match[3])) if match else None

    @property
    def attempts_folder(self) -> str:
        return f"{self.prefix}/attempts"

    def mark_path(self, attempt: str, number: int) -> str:
        """An attempt's heartbeats count from 0. A worker may not overwrite, so each has its own name."""
        return f"{self.attempts_folder}/{attempt}/{number:08d}.json"

    def parse_mark(self, path: str) -> tuple[str, int] | None:
        """Attempt and number of a heartbeat."""
        match = _below(self.prefix, _HEARTBEAT, path)
        return (match[1], int(match[2])) if match else None


def _below(prefix: str, pattern: re.Pattern[str], path: str) -> re.Match[str] | None:
    return pattern.fullmatch(path, len(prefix)) if path.startswith(prefix) else None


def _number(prefix: str, pattern: re.Pattern[str], path: str) -> int | None:
    match = _below(prefix, pattern, path)
    return int(match[1]) if match else None


def split_run_url(url: str) -> tuple[str, RunRef]:
    """``gs://BUCKET/JOB/PARTITION/RUN`` -> (URL of the store, the run in it). Raises ValueError for any other URL."""
    head, *tail = url.rstrip("/").rsplit("/", 3)
    if len(tail) != 3 or not head or head.endswith(":/"):
        raise ValueError(f"{url!r} is not the URL of a run: use gs://BUCKET/JOB/PARTITION/RUN")
    return head, RunRef.from_prefix("/".join(tail))
