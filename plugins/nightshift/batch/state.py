"""Where a batch keeps its progress: a run's folder with spec.json, plan.json, ledger/ and partials/, in a store.

The run is named by a digest of what decides the answers: the bytes of the input and the model given on the command line. So the
same command finds its run again, and another input, even under the same name, is never mixed with it. With `--retry-failed` it
is a further generation of that run, which has what the generation before it answered and sends the rest again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import obstore
import pyarrow as pa
from obstore.store import LocalStore, ObjectStore

from nightshift.batch.source import Index
from nightshift.batch.task_kind import KEY, results_with_status
from nightshift.formats import SPEC, UnreadableFormat
from nightshift.run import chunks
from nightshift.run.ledger import Ledger
from nightshift.run.names import RunRef, run_digest
from nightshift.run.opening import newest_generation, open_generation
from nightshift.run.plan import InputFile, Plan, load_plan, save_plan
from nightshift.run.record import RunRecord
from nightshift.spec import columns
from nightshift.spec.limits import chunk_rows_most
from nightshift.store import ObjectStorage, StoreUnavailable, get_bytes, open_store, reaching
from nightshift.tasks import request_model

SENDING: Final = 1
"""Increased when lines are sent or answered differently, so that such runs do not mix. Not a version of a format: the folder's
name has it in it (docs/operate/formats.md)."""
JOB: Final = "batch"
PARTITION: Final = "lines"
_RETRIED: Final = "retried"
"""The entry of spec.json that names the generation whose failed lines are repeated."""
CHUNKS: Final = 64
"""How many chunks a short file is cut into. A kill -9 costs the open chunks and the requests in flight."""
CHUNK_LINES: Final = (16, 1000)
CHUNK_BYTES: Final = 32 << 20
CHUNKS_MOST: Final = 100_000


class Damaged(ValueError):
    """Progress that cannot be read, after a power failure for instance."""


class OtherModel(ValueError):
    """The run was started with a different model than the server offers now, and its lines do not name one."""


def place_of(state: str | None, beside: str) -> str:
    """Folder or URL for --state, by default next to the file `beside`. Raises ValueError for a URL that is not a store."""
    place = state or f"{beside}.nightshift"
    if "://" not in place:
        return str(Path(place).absolute())
    open_store(place)
    return place


@contextlib.contextmanager
def kept_in(place: str) -> Iterator[None]:
    """Makes the folder of a local place, and removes it at the end if nothing is in it.

    Raises ValueError if progress cannot be kept there.
    """
    if "://" in place:
        yield
        return
    folder = Path(place)
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ValueError(f"progress cannot be kept in {place}: {error.strerror}. Name a folder for it with --state") from error
    try:
        yield
    finally:
        if made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _open(place: str) -> ObjectStore:
    # Not by a file:// URL: a folder's name may contain what a URL cannot.
    return open_store(place) if "://" in place else LocalStore(place, mkdir=True)


def chunk_lines(index: Index) -> int:
    """Lines per chunk: a 64th of a short file, at most a thousand, fewer where lines are long."""
    least, most = CHUNK_LINES
    wanted = min(max(math.ceil(index.lines / CHUNKS), least), most, chunk_lines_most(index))
    return max(wanted, math.ceil(index.lines / CHUNKS_MOST))


def chunk_lines_most(index: Index) -> int:
    """The most lines of a chunk: they and their replies are in memory until it is saved.

    A reply counts as an answer of a chat job that does not set ``max_tokens``.
    """
    replies = chunk_rows_most(request_model("chat"), {})
    return min(replies, max(1, CHUNK_BYTES * index.lines // index.size)) if index.lines else replies


class RetryLedger(Ledger):
    """The ledger of a run that repeats the failed lines of `earlier`, all of whose chunks are committed. plan: same chunks.

    Nothing is copied beforehand: a chunk of the earlier generation, without its failed lines, is read as a partial of this one.
    """

    def __init__(self, store: ObjectStore, run: RunRef, plan: Plan, earlier: RunRef, earlier_plan: Plan) -> None:
        super().__init__(ObjectStorage(store), run, plan)
        self._run_id = run.run_id
        self._earlier = earlier
        self._earlier_work = earlier.work(earlier_plan.uid)

    async def partials(self, chunk: int) -> dict[str, str]:
        return {self._earlier.run_id: self._earlier_work.chunk_path(chunk), **await super().partials(chunk)}

    async def read_partial(self, path: str) -> bytes | None:
        """Raises Damaged if an answer that was kept is gone: the line must not be paid for again without a word."""
        body = await super().read_partial(path)
        if self._earlier_work.parse_chunk(path) is None:
            return body
        try:
            return await asyncio.to_thread(self._answered, body or b"")
        except chunks.NotAChunk as error:
            problem = f"{path} cannot be read ({error}), and its answers are to be kept" if body else f"{path} is gone"
            raise Damaged(f"{problem}. To send all lines, use --fresh") from error

    def _answered(self, body: bytes) -> bytes:
        """The answered lines of an earlier chunk as a partial of this run; its tokens stay counted."""
        table, made = chunks.decode(body)
        if made.run_id != self._earlier.run_id:
            raise chunks.NotAChunk(f"it belongs to run {made.run_id}")
        results = results_with_status(table)
        places = [place for place, result in enumerate(results) if result.reason is None]
        provenance = replace(
            made,
            run_id=self._run_id,
            predictions=len(places),
            dead_letters=0,
            prompt_tokens=made.prompt_tokens_all,
            output_tokens=made.output_tokens_all,
            taken=(),
        )
        answered = [results[place] for place in places]
        keys = table.select(list(KEY)).take(pa.array(places, pa.int64()))
        return chunks.encode(keys, answered, pa.large_string(), provenance, optional=(chunks.STATUS,))


@dataclass(frozen=True)
class Batch:
    """An open run. place: the folder or URL of its store. retried: the finished generation whose failed lines it repeats."""

    store: ObjectStore
    place: str
    run: RunRef
    plan: Plan
    retried: Batch | None = None

    @property
    def url(self) -> str:
        """For `nightshift status`."""
        root = self.place.rstrip("/") if "://" in self.place else f"file://{self.place}"
        return f"{root}/{self.run.prefix}"

    @property
    def ledger(self) -> Ledger:
        if self.retried is None:
            return Ledger(ObjectStorage(self.store), self.run, self.plan)
        return RetryLedger(self.store, self.run, self.plan, self.retried.run, self.retried.plan)

    def remove(self) -> None:
        """Removes the folders of all generations, and the store's own folder if it is then empty.

        The newest one goes last: without it, the same command would take an earlier one for what it looks for.
        """
        generations = (replace(self.run, generation=number) for number in range(1, self.run.generation + 1))
        if isinstance(self.store, LocalStore):
            root = Path(self.place.removeprefix("file://"))
            for run in generations:
                shutil.rmtree(root / run.prefix, ignore_errors=run != self.run)
            folder = root / self.run.prefix
            for empty in (folder.parent, folder.parent.parent, root):
                if any(empty.iterdir()):
                    break
                empty.rmdir()
            return
        with reaching(f"remove {self.url}"):
            for run in generations:
                for page in obstore.list(self.store, f"{run.prefix}/"):
                    obstore.delete(self.store, [meta["path"] for meta in page])


async def lines_done(batch: Batch) -> tuple[int, int]:
    """How many lines the committed chunks have, and how many interrupted commands saved of others. Raises StoreUnavailable."""
    committed = await batch.ledger.committed()
    work = batch.run.work(batch.plan.uid)
    saved: set[int] = set()
    async for path in ObjectStorage(batch.store).list(work.partials_folder()):
        found = work.parse_partial(path)
        if found is None or found[0] in committed:
            continue
        try:
            table, _ = chunks.decode_outcomes(await batch.ledger.read_partial(path) or b"", rows=batch.plan.chunk_rows)
        except chunks.NotAChunk:
            continue
        saved.update(table.column(columns.ORDINAL).to_pylist())
    return sum(len(batch.plan.chunk_range(chunk)) for chunk in committed), len(saved)


@dataclass(frozen=True)
class Asked:
    """What a run is for. input: its name, for people. model: replaces the one that the lines name."""

    place: str
    index: Index
    input: str
    model: str | None
    opened_by: str

    @property
    def first(self) -> RunRef:
        """The first generation of the run."""
        # An option of a later release is left out as long as it has its default, so that runs are found again.
        semantic = {"version": SENDING, "input": self.index.sha256, "model": self.model}
        return RunRef(JOB, PARTITION, run_digest(JOB, PARTITION, semantic))


@contextlib.contextmanager
def _reading(place: str) -> Iterator[None]:
    try:
        yield
    except (obstore.exceptions.BaseError, OSError) as error:
        raise StoreUnavailable(f"{place}: {error}") from error
    except (Damaged, OtherModel, UnreadableFormat):
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the progress in {place} cannot be read ({error}). Remove it, or name another --state") from error


def find_batch(asked: Asked) -> Batch | None:
    """The newest generation of the run, if there is one. Creates nothing. Raises as `open_batch` does, but for OtherModel."""
    if "://" not in asked.place and not Path(asked.place).is_dir():
        return None
    with _reading(asked.place):
        store = _open(asked.place)
        run = newest_generation(store, asked.first)
        plan = load_plan(store, run) if run else None
    return Batch(store, asked.place, run, plan) if run and plan else None


def open_batch(
    asked: Asked, *, served: str, chunk_rows: int | None, fresh: bool = False, retried: Batch | None = None
) -> Batch:
    """Finds or creates the run of this input; `fresh` creates another one next to the existing ones.

    retried: the newest generation, finished; finds or creates the next one, which repeats its failed lines.
    served: the model that the server offers, "" if it is unknown or not the only one. Raises OtherModel,
    Damaged, StoreUnavailable, UnreadableFormat.
    """
    index = asked.index
    frozen = {
        "input": asked.input,
        "sha256": index.sha256,
        "bytes": index.size,
        "lines": index.lines,
        "model": asked.model,
        "served": served,
    }
    with _reading(asked.place):
        store = _open(asked.place)
        if retried is not None:
            before = json.loads(get_bytes(store, retried.run.spec_path) or b"{}")
            frozen |= {_RETRIED: retried.run.generation, "served": served or before["served"]}
        run, record = open_generation(
            store,
            asked.first,
            frozen,
            opened_by=asked.opened_by,
            fresh=fresh,
            superseded=lambda each: retried is not None and each == retried.run,
        )
        SPEC.check(record.stored, run.spec_path)
        started = record.stored["served"]
        if started and served and started != served:
            raise OtherModel(
                f"{asked.place} was started with {started}; the server now offers {served}. Use --fresh to start over"
            )
        file = InputFile(asked.input, index.lines, (index.lines,), index.size, index.sha256)
        earlier = _repeated(store, asked.place, run, record)
        rows = earlier.plan.chunk_rows if earlier else chunk_rows or chunk_lines(index)
        plan = save_plan(store, run, Plan(run.run_id, index.lines, rows, 1, (file,)))
    return Batch(store, asked.place, run, plan, earlier)


def _repeated(store: ObjectStore, place: str, run: RunRef, record: RunRecord) -> Batch | None:
    """The generation whose failed lines this one repeats."""
    if _RETRIED not in record.stored:
        return None
    earlier = replace(run, generation=record.stored[_RETRIED])
    if (plan := load_plan(store, earlier)) is None:
        raise Damaged(f"{run.prefix} keeps the answers of {earlier.prefix}, which is gone. To send all lines, use --fresh")
    return Batch(store, place, earlier, plan)
