"""Sealing a run: prove conservation over the committed chunks, then write `manifest.json`, once.

Conservation: every ordinal of the plan is in exactly one committed chunk, as a prediction or as a dead letter. The proof
reads each chunk's ordinals; counts claimed by a worker are checked against them, never trusted. The manifest names the version
of each object that was read, so that publishing can check that it still loads the same ones (`nightshift.run.sealed_objects`).

A manifest that exists is compared with what is proven now, never believed.

A run that cannot be sealed, because it has more dead letters than its job tolerates, can be *closed* for a redo that completes
it: what is committed by then is proven in the same way, with gaps. What is committed later does not count.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from obstore.store import ObjectStore

from nightshift.fields.text import n
from nightshift.run import chunks, parquet_rows, tolerance
from nightshift.run.answers.tally import Tally
from nightshift.run.inputs import InputBroken, InputChanged, InputReader
from nightshift.run.ledger import ForeignObject, Ledger
from nightshift.run.manifest import CompletedRun, RunManifest, SealedChunk, load_completed, load_manifest, read_manifest
from nightshift.run.names import RunRef, canonical_json
from nightshift.run.pins import UNPINNED, Pins
from nightshift.run.plan import Plan
from nightshift.run.redo import redo_rows
from nightshift.run.redo.redo import Redo
from nightshift.spec import JobSpec, columns
from nightshift.store import ObjectStorage, ObjectTooLarge, create_or_read

READERS: Final = 8
"""Chunks read in parallel, if they are small."""
READ_BYTES: Final = 64 << 20
"""Of chunks read in parallel; a larger one is read alone."""
NAMED: Final = 5
"""How many offenders an error message names."""

Measure = Callable[[Sequence[chunks.Part]], Mapping[str, Any]]
"""`RunManifest.measured`, from what each attempt contributed to the chunks."""

COMPARED: Final = (
    *("run_id", "job", "partition", "generation", "opening", "plan"),
    *("rows", "predictions", "dead_letters", "dead_reasons", "duplicates", "completes", "merkle_root", "chunks"),
)
"""The entries of a manifest that are proven. The others are attempts' claims, and times."""


class ConservationError(ValueError):
    """Rows in are not predictions plus dead letters: something is missing, duplicated or foreign. Nothing was sealed."""


@dataclass(frozen=True)
class _Checked:
    """What one verified chunk adds to the manifest."""

    entry: SealedChunk
    reasons: Counter[str]
    parts: tuple[chunks.Part, ...]
    widths: frozenset[int]
    tally: Tally


def seal(
    store: ObjectStore,
    run: RunRef,
    spec: JobSpec,
    plan: Plan,
    pins: Pins = UNPINNED,
    redo: Redo | None = None,
    *,
    measure: Measure | None = None,
) -> RunManifest:
    """Proves the run complete and returns its manifest. The store is rooted at the bucket. pins: of the run, for the manifest.

    redo: what the run is, if it completes an earlier one: then its rows are proven to be that run's dead letters. measure: for
    the manifest's times and machines (`nightshift.planner.measured`); None: nothing.
    A run that is already sealed is proven again, and its manifest must match; whether it has too many dead letters was decided
    then. Raises ConservationError, ToleranceExceeded, NotRedone, and StoreUnavailable if the store cannot be read.
    """
    sealed = load_manifest(store, run)
    manifest = _proven(store, run, spec, plan, pins, redo, measure=measure, judged=sealed is None)
    if sealed is None:
        sealed = read_manifest(create_or_read(store, run.manifest_path, canonical_json(manifest.to_json())), run)
    _compare(run, sealed, manifest)
    return sealed


def close(store: ObjectStore, run: RunRef, spec: JobSpec, plan: Plan, pins: Pins, redo: Redo | None) -> RunManifest:
    """The closing of a run that is not sealed: what it has committed by now, proven. Written by `keep_closing`.

    The same chunks give the same document. Raises ConservationError for chunks that are not the run's, NotRedone,
    StoreUnavailable.
    """
    return replace(_proven(store, run, spec, plan, pins, redo, gaps=True), sealed_at="")


def keep_closing(store: ObjectStore, run: RunRef, closing: RunManifest) -> RunManifest:
    """Writes a closing, as often as one likes; returns it with its digest. Raises StoreUnavailable."""
    body = canonical_json(closing.to_json())
    path = run.closed_path(hashlib.sha256(body).hexdigest())
    return read_manifest(create_or_read(store, path, body), run)


def _proven(
    store: ObjectStore,
    run: RunRef,
    spec: JobSpec,
    plan: Plan,
    pins: Pins,
    redo: Redo | None,
    *,
    measure: Measure | None = None,
    judged: bool = False,
    gaps: bool = False,
) -> RunManifest:
    """judged: whether its dead letters must be tolerated. gaps: whether chunks may be missing."""
    completes = redo_rows.prove(store, run, spec.source.key, plan, redo) if redo else ()
    keys = _Keys(store, run, plan, spec.source.carried)
    optional = (columns.REASONING,) if spec.request.keeps_reasoning else ()
    checked = asyncio.run(_check_all(ObjectStorage(store), run, plan, keys, optional, gaps=gaps))
    if spec.request.ONE_WIDTH:
        _check_widths(checked, _widths_before(store, run, completes))
    dead = sum(item.entry.dead_letters for item in checked)
    unanswered = plan.rows - sum(item.entry.rows for item in checked)
    reasons: Counter[str] = sum((item.reasons for item in checked), Counter())
    if judged:
        _judge(spec, plan, dead, reasons)
    parts = [part for item in checked for part in item.parts]
    tally = Tally.of(item.tally for item in checked)
    return RunManifest(
        run_id=run.run_id,
        job=run.job,
        partition=run.partition,
        generation=run.generation,
        opening=plan.opening,
        plan=plan.uid,
        pins=pins,
        rows=plan.rows,
        predictions=plan.rows - unanswered - dead,
        dead_letters=dead,
        dead_reasons=dict(sorted(reasons.items())),
        duplicates=0,
        completes=completes,
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        output_tokens=sum(part.output_tokens for part in parts),
        truncated=sum(part.truncated for part in parts),
        attempts=tuple(sorted({part.attempt for part in parts})),
        engine_versions=_engine_versions(parts),
        measured=None if measure is None else measure(parts),
        merkle_root=merkle_root([item.entry.sha256 for item in checked]),
        chunks=tuple(item.entry for item in checked),
        sealed_at=datetime.now(UTC).isoformat(timespec="seconds"),
        unanswered=unanswered,
        empty=tally.empty if tally.known else None,
        equal=tally.equal if tally.known else None,
    )


def _compare(run: RunRef, sealed: RunManifest, proven: RunManifest) -> None:
    """Raises ConservationError unless the existing manifest matches what was proven now."""
    differ = [name for name in COMPARED if getattr(sealed, name) != getattr(proven, name)]
    if differ:
        raise ConservationError(
            f"{run.manifest_path} does not say what the ledger proves now: {', '.join(differ)} differ. The manifest or a chunk "
            "was replaced after the run was sealed. Nothing is published. Find out who may write into the bucket, then trigger "
            "the DAG with fresh."
        )


def merkle_root(digests: Sequence[str]) -> str:
    """Root over chunk digests (hex) in chunk order: pairs are hashed with RFC 9162's 0x01 node prefix, an odd one moves up.

    The root of an empty list is the sha256 of nothing.
    """
    level = [bytes.fromhex(digest) for digest in digests]
    if not level:
        return hashlib.sha256().hexdigest()
    while len(level) > 1:
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [hashlib.sha256(b"\x01" + pair[0] + pair[1]).digest() if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0].hex()


async def _check_all(
    objects: ObjectStorage, run: RunRef, plan: Plan, keys: _Keys, optional: Sequence[str], *, gaps: bool
) -> list[_Checked]:
    work = run.work(plan.uid)
    try:
        committed = await Ledger(objects, run, plan).committed()
    except ForeignObject as error:
        raise ConservationError(str(error)) from error
    missing = [chunk for chunk in range(plan.chunk_count) if chunk not in committed]
    if missing and not gaps:
        rows = sum(len(plan.chunk_range(chunk)) for chunk in missing)
        named = ", ".join(str(chunk) for chunk in missing[:NAMED]) + (", ..." if len(missing) > NAMED else "")
        raise ConservationError(
            f"{len(missing)} of {n(plan.chunk_count, 'chunk')} are not committed ({named}): "
            f"{rows} of {n(plan.rows, 'row')} have no answer. Repeat the task 'infer': it computes only these."
        )
    checked: dict[int, _Checked] = {}
    present = [chunk for chunk in range(plan.chunk_count) if chunk in committed]
    numbers = iter(present)
    largest = 0

    async def check(chunk: int) -> None:
        nonlocal largest
        path = work.chunk_path(chunk)
        try:
            found = await objects.read_version(path)
        except ObjectTooLarge as error:
            raise ConservationError(f"{error}: it is not a chunk") from error
        if found is None:
            raise ConservationError(f"chunk {chunk} vanished while it was read: nothing may be deleted from the ledger")
        body, version = found
        largest = max(largest, len(body))
        item = await asyncio.to_thread(_check_chunk, path, body, chunk, run, plan, keys, optional)
        checked[chunk] = replace(item, entry=replace(item.entry, object_version=version))
        # Arrow keeps the memory that each thread has released.
        pa.default_memory_pool().release_unused()

    async def reader(number: int) -> None:
        # A run's chunks are about equally large. Larger ones are read by fewer readers.
        while number * largest < READ_BYTES and (chunk := next(numbers, None)) is not None:
            await check(chunk)

    # The first one is read alone: it shows how many fit the memory at once. Reader 0 always continues.
    for chunk in itertools.islice(numbers, 1):
        await check(chunk)
    await asyncio.gather(*(reader(number) for number in range(READERS)))
    return [checked[chunk] for chunk in present]


class _Keys:
    """The keys of the planned rows. Safe to ask from several threads."""

    def __init__(self, store: ObjectStore, run: RunRef, plan: Plan, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._reader = InputReader(store, run, plan, self.names, packed=True)
        self._lock = threading.Lock()

    def of(self, chunk: int) -> pa.Table:
        """Of a chunk's rows, in order. Raises ConservationError if they cannot be read any more; StoreUnavailable."""
        try:
            with self._lock:
                return self._reader.read(chunk)
        except (InputChanged, InputBroken) as error:
            raise ConservationError(
                f"the rows of chunk {chunk} cannot be compared with their answers: {error}. Trigger the DAG with fresh."
            ) from error


def _check_chunk(path: str, body: bytes, chunk: int, run: RunRef, plan: Plan, keys: _Keys, optional: Sequence[str]) -> _Checked:
    tally = Tally()
    try:
        table, provenance = chunks.decode_outcomes(
            body, keys.names, rows=len(plan.chunk_range(chunk)), optional=optional, tally=tally
        )
    except chunks.NotAChunk as error:
        raise ConservationError(f"{path}: {error}") from error
    if (provenance.run_id, provenance.plan_uid) != (run.run_id, plan.uid):
        raise ConservationError(f"{path} belongs to {provenance.whose}, not to run {run.run_id}, plan {plan.uid}")
    expected = plan.chunk_range(chunk)
    if table.column(columns.ORDINAL).combine_chunks() != pa.arange(expected.start, expected.stop):
        raise ConservationError(
            f"{path} must hold the ordinals {expected.start} to {expected.stop - 1}, each once and in order, but does not"
        )
    if differ := parquet_rows.other_columns(keys.of(chunk), table):
        raise ConservationError(
            f"{path} has other keys than the rows of {run.prefix} that it answers ({', '.join(differ)}). Nothing is published. "
            "Find out who may write into the bucket, then trigger the DAG with fresh."
        )
    reason = table.column(columns.DEAD_REASON)
    dead = table.filter(pc.is_valid(reason)) if reason.null_count < len(table) else table.slice(0, 0)
    predictions = pc.sum(table.column(columns.PREDICTION)).as_py() or 0
    if predictions + len(dead) != len(table) or pc.any(dead.column(columns.PREDICTION)).as_py():
        raise ConservationError(f"{path} has a row that is neither a prediction nor a dead letter, or both")
    entry = SealedChunk(chunk, path, hashlib.sha256(body).hexdigest(), len(table), predictions, len(dead))
    reasons = Counter(dead.column(columns.DEAD_REASON).to_pylist())
    widths = frozenset(pc.unique(table.column(chunks.WIDTH)).drop_null().to_pylist())
    return _Checked(entry, reasons, provenance.parts, widths, tally.trimmed())


def _widths_before(store: ObjectStore, run: RunRef, completes: Sequence[CompletedRun]) -> dict[int, str]:
    """The widths of the vectors beside which those of a redo will stand, each with an example."""
    for each in completes:
        earlier = RunRef.from_prefix(f"{run.job}/{run.partition}/{each.run_id}")
        manifest = load_completed(store, earlier, each.manifest_digest)
        if manifest and (found := redo_rows.widths_of(store, earlier, manifest)):
            return found
    return {}


def _check_widths(checked: Sequence[_Checked], before: dict[int, str]) -> None:
    """Attempts cannot see each other's vectors; a table with vectors of two models would look like any other."""
    examples = {width: item.entry.path for item in reversed(checked) for width in item.widths} | before
    if len(examples) > 1:
        listed = ", ".join(f"{width} in {path}" for width, path in sorted(examples.items()))
        raise ConservationError(
            f"the run's vectors have different numbers of dimensions ({listed}), so not one model made them. Nothing is "
            "published. Find out what the engine served, then trigger the DAG with fresh."
        )


def _engine_versions(parts: Sequence[chunks.Part]) -> dict[str, int]:
    versions: Counter[str] = Counter()
    for part in parts:
        versions[part.engine_version] += part.rows
    return dict(sorted(versions.items()))


def _judge(spec: JobSpec, plan: Plan, dead: int, reasons: Counter[str]) -> None:
    letters = spec.dead_letters
    advice = tolerance.what_to_do(str(letters.tolerate), reasons)
    tolerance.judge(dead, letters.allowed(plan.rows), tolerance.found(dead, plan.rows, reasons), advice)
