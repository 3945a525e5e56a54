"""One answer of a run, found by its row's key and explained: what was asked of which model and engine, and where the proof
is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import ObjectStore

from nightshift.fields.text import n
from nightshift.run.answers.bounded import as_json, cut
from nightshift.run.chunks import NotAChunk
from nightshift.run.inputs import InputBroken, InputChanged, InputReader
from nightshift.run.names import RunRef
from nightshift.run.plan import InputFile, Plan
from nightshift.spec.columns import DEAD_MESSAGE, DEAD_REASON, ORDINAL
from nightshift.status.chunk_footer import asked
from nightshift.status.folder import Chunk, RunFolder
from nightshift.status.prompts import Prompts
from nightshift.status.samples import Sample, sample_of
from nightshift.status.source_rows import SourceRows
from nightshift.store import ObjectChanged, ObjectFile
from nightshift.tasks._sampling import row_seed
from nightshift.tasks.base import row_name

SECONDS: Final = 20.0
"""How long a key is looked for; then the error says where to go on."""
FOUND_MOST: Final = 5
ROWS_AT_ONCE: Final = 4_096


class NoSuchRow(LookupError):
    """No row with this key was found; the message says where it was looked for."""


@dataclass(frozen=True)
class Explanation:
    """One row of a run, and all that decided its answer.

    sample: the row, its prompt and its answer. dead_reason, dead_message: if it is a dead letter, and so has no answer. seed:
    the row's own, of its first try (later ones only follow invalid answers); None if the job sends none. engine_version,
    attempt: of the attempt that wrote the chunk; several: other attempts have computed some of its rows. chunk_path,
    chunk_sha256: the object, as it is now. sealed_sha256: as the run manifest has it; None if the run is not sealed.
    merkle_root: of the run manifest, over the digests of all chunks in order. input: the file with the exported row.
    """

    run: str
    sample: Sample
    dead_reason: str | None
    dead_message: str | None
    task: str
    model: Mapping[str, str]
    request: Mapping[str, Any]
    seed: int | None
    engine_version: str
    attempt: str
    several: bool
    chunk_path: str
    chunk_sha256: str
    sealed_sha256: str | None
    manifest_path: str | None
    manifest_sha256: str | None
    merkle_root: str | None
    spec_path: str
    input: str

    @property
    def proven(self) -> bool:
        """Whether the chunk is the object that was sealed."""
        return self.sealed_sha256 == self.chunk_sha256

    def to_json(self) -> dict[str, Any]:
        return {**as_json(self), "sample": self.sample.to_json(), "proven": self.proven}


def explain(
    store: ObjectStore, run: RunRef, *, key: Mapping[str, str] | None = None, ordinal: int | None = None
) -> Explanation:
    """The row with this key (each key column's value as text), or with this ordinal. Of several with one key, the first.

    Raises NoSuchRow, NotAChunk if its chunk is not committed or not readable, and what `RunFolder` raises.
    """
    folder = RunFolder(store, run)
    plan = folder.planned
    if key is not None:
        ordinal = ordinals_of(folder, key)[0]
    if ordinal is None or not 0 <= ordinal < plan.rows:
        raise NoSuchRow(f"{run.prefix} has the rows 0 to {plan.rows - 1:,}; there is no row {ordinal}.")
    chunk = folder.chunk(ordinal // plan.chunk_rows)
    place = ordinal - plan.chunk_range(chunk.number).start
    one = chunk.table.slice(place, 1)
    if one.column(ORDINAL).to_pylist() != [ordinal]:
        raise NotAChunk("its rows are not those of the plan, in their order")
    return _explained(folder, chunk, one)


def _explained(folder: RunFolder, chunk: Chunk, one: pa.Table) -> Explanation:
    spec, manifest, run = folder.spec, folder.manifest, folder.run
    sample = sample_of(chunk, one, spec.source.key, SourceRows(folder.store, run, folder.planned), Prompts(spec))
    [dead_reason], [dead_message] = (one.column(name).to_pylist() for name in (DEAD_REASON, DEAD_MESSAGE))
    sealed = next((each for each in manifest.chunks if each.chunk == chunk.number), None) if manifest else None
    seed = getattr(spec.request, "seed", None) if spec.request.seeded else None
    by_key = folder.record.stored.get("seeds") is not None
    names = [one.column(name)[0].as_py() for name in spec.source.key]
    file, _, _ = next(iter(folder.planned.locate(range(sample.ordinal, sample.ordinal + 1))))
    provenance = chunk.provenance
    return Explanation(
        run=run.prefix,
        sample=sample,
        dead_reason=dead_reason,
        dead_message=dead_message and cut(dead_message),
        task=spec.task,
        model=provenance.model,
        request=spec.request.model_dump(mode="json"),
        seed=None if seed is None else row_seed(seed, row_name(names) if by_key else sample.ordinal, 0),
        engine_version=provenance.engine_version,
        attempt=provenance.attempt,
        several=bool(provenance.taken),
        chunk_path=chunk.path,
        chunk_sha256=chunk.sha256,
        sealed_sha256=sealed.sha256 if sealed else None,
        manifest_path=run.manifest_path if manifest else None,
        manifest_sha256=manifest.digest if manifest else None,
        merkle_root=manifest.merkle_root if manifest else None,
        spec_path=run.spec_path,
        input=f"{run.prefix}/{file.path}",
    )


def key_of(text: str, columns: tuple[str, ...]) -> dict[str, str]:
    """A key as a person writes it: its value, or NAME=VALUE,NAME=VALUE for several columns. Raises ValueError."""
    if len(columns) == 1:
        return {columns[0]: text.removeprefix(f"{columns[0]}=")}
    found = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
    if set(found) != set(columns):
        wanted = ",".join(f"{name}=VALUE" for name in columns)
        raise ValueError(f"the key of this job has {n(len(columns), 'column')}: write {wanted}")
    return {name: found[name] for name in columns}


def ordinals_of(folder: RunFolder, key: Mapping[str, str], *, seconds: float = SECONDS) -> list[int]:
    """The ordinals of the rows with this key in the first row group that has any; at most `FOUND_MOST`.

    Reads the key columns of one row group after another, without those whose statistics show that it is not there. Raises
    NoSuchRow, also when the time is over, and what `RunFolder` raises.
    """
    spec, plan, run = folder.spec, folder.planned, folder.run
    if set(key) != set(spec.source.key):
        raise NoSuchRow(f"The key of {run.job} is {', '.join(spec.source.key)}, not {', '.join(key)}.")
    end = time.monotonic() + seconds
    found: list[int] = []
    said = ", ".join(f"{name} {value}" for name, value in key.items())
    try:
        reader = InputReader(folder.store, run, plan, spec.source.key)
        for start, count in _groups_with(folder.store, run, plan, key):
            if time.monotonic() > end:
                raise NoSuchRow(
                    f"No row with {said} among the first {start:,} of {n(plan.rows, 'row')}; there was no time to look on. "
                    "Name the row's ordinal instead, which dead letters and samples have, and the destination table has not."
                )
            for first in range(start, start + count, ROWS_AT_ONCE):
                table = reader.rows(range(first, min(first + ROWS_AT_ONCE, start + count)))
                columns = [[_text(value) for value in table.column(name)] for name in key]
                wanted = tuple(key.values())
                found += [first + place for place, values in enumerate(zip(*columns, strict=True)) if values == wanted]
            if found:
                return found[:FOUND_MOST]
    except (InputChanged, InputBroken, ObjectChanged) as error:
        raise NoSuchRow(f"The exported rows of {run.prefix} cannot be searched: {error}") from error
    raise NoSuchRow(f"None of the {n(plan.rows, 'row')} of {run.prefix} has {said}.")


def _text(value: pa.Scalar) -> str:
    try:
        found = value.as_py()
    except (ValueError, OverflowError, pa.ArrowException):
        return ""
    return found.hex() if isinstance(found, bytes) else str(found)


def _groups_with(store: ObjectStore, run: RunRef, plan: Plan, key: Mapping[str, str]) -> Iterator[tuple[int, int]]:
    """The first ordinal and the number of rows of each row group that may hold the key."""
    start = 0
    for file in plan.files:
        metadata = _metadata(store, run, file)
        for number, count in enumerate(file.row_groups):
            if _may_hold(metadata.row_group(number), key):
                yield start, count
            start += count


def _metadata(store: ObjectStore, run: RunRef, file: InputFile) -> pq.FileMetaData:
    path = f"{run.prefix}/{file.path}"
    try:
        return asked(path, lambda: pq.ParquetFile(ObjectFile(store, path, file.size, file.etag)).metadata)
    except ObjectChanged as error:
        raise InputChanged(f"{path} was overwritten or deleted after it was planned") from error
    except pa.ArrowException as error:
        raise InputBroken(f"{path} is not readable Parquet: {error}") from error


def _may_hold(group: pq.RowGroupMetaData, key: Mapping[str, str]) -> bool:
    """By the statistics of texts and whole numbers; those of a long text may be cut."""
    for index in range(group.num_columns):
        leaf = group.column(index)
        value, known = key.get(leaf.path_in_schema), leaf.statistics
        if value is None or known is None or not known.has_min_max:
            continue
        least, most = known.min, known.max
        if isinstance(least, str) and isinstance(most, str) and (value[: len(least)] < least or value[: len(most)] > most):
            return False
        if type(least) is int and type(most) is int and value.lstrip("-").isdigit() and not least <= int(value) <= most:
            return False
    return True
