"""The dead letters of a run, for people: by reason, searched, and a page of them with their prompts and rows.

Only chunks with dead letters are read: a sealed run's manifest says which they are; of an open one, and of one that failed, the
notes that workers leave (`nightshift.run.ledger`). A worker that is killed between a commit and its note leaves none, so an
open run may have a few more. Once its night has failed, which counts them all, they are looked for in the footers of all
chunks.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from obstore.store import ObjectStore

from nightshift.run.answers.bounded import as_json, cut, shown
from nightshift.run.chunks import NotAChunk
from nightshift.run.names import RunRef, Work
from nightshift.run.observed import endings
from nightshift.run.observed.progress import listed
from nightshift.run.parquet_rows import pieces
from nightshift.spec.columns import ATTEMPTS, CHUNK_COLUMNS, DEAD_MESSAGE, DEAD_REASON, ORDINAL, REASONING
from nightshift.status.chunk_footer import chunks_listed, footers
from nightshift.status.folder import RunFolder
from nightshift.status.prompts import Prompts, PromptText
from nightshift.status.readers import readers
from nightshift.status.source_rows import SourceRows
from nightshift.store import get_bytes, reaching

PAGE_ROWS: Final = 50
CHUNKS_AT_ONCE: Final = 32
"""Chunks that one page reads at most; then it says where to go on."""
READ_AHEAD: Final = 4
"""Chunks that are read at once: each may take `nightshift.status.folder.CHUNK_BYTES_MOST` for a moment."""
SEARCHED_AT_ONCE: Final = 2_000
"""Dead letters of which one page reads the prompts at most, to search them; then it says where to go on."""
KEPT_ROWS: Final = 20_000
"""Dead letters that are remembered between pages."""
NOTES_S: Final = 1.0
"""How long one page reads notes, to count reasons; the next page goes on."""
NOTES_AT_ONCE: Final = 256
NOTE_BYTES_MOST: Final = 4 << 10


@dataclass(frozen=True)
class DeadLetter:
    """key: the key columns. message: the engine's own words, or what is wrong with the row. attempts: requests that it was part
    of. attempt: the worker that gave it up. row: the columns of the exported row; if it is gone, those that the chunk has;
    row_problem: why."""

    ordinal: int
    key: Mapping[str, Any]
    reason: str
    message: str | None
    attempts: int
    chunk: int
    attempt: str
    prompt: PromptText
    row: Mapping[str, Any]
    row_problem: str | None

    def to_json(self) -> dict[str, Any]:
        return {**as_json(self), "prompt": self.prompt.to_json()}


@dataclass(frozen=True)
class DeadLetterPage:
    """Some dead letters of a run, by their ordinals.

    total: of the whole run; reasons: of `reasons_of` of them, all but for a first look at thousands of chunks. proven: the run
    is sealed, so the counts are the seal's; else they are what workers noted. not_tried: rows that had no result when the run's
    last night failed: there may be more dead letters among them; 0 if it has not failed, or if that is not known. chunks: that
    have dead letters; read: of these, for this page. after: where the next page begins; None if this is the last one. problems:
    chunks that could not be read, by path.
    """

    run: str
    total: int
    reasons: Mapping[str, int]
    reasons_of: int
    proven: bool
    not_tried: int
    chunks: int
    read: int
    rows: tuple[DeadLetter, ...]
    after: int | None
    problems: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        return {**as_json(self), "rows": [each.to_json() for each in self.rows]}


@dataclass(frozen=True)
class _Counts:
    total: int
    reasons: Counter[str]
    chunks: list[int]
    proven: bool
    not_tried: int = 0


@dataclass
class Note:
    """Of one chunk. count: in its name. reasons: None until they are read."""

    path: str
    count: int
    size: int
    reasons: Counter[str] | None = None

    def read(self, store: ObjectStore) -> None:
        body = get_bytes(store, self.path) if self.size <= NOTE_BYTES_MOST else None
        self.reasons = _reasons(body, self.count)


def names_of_notes(store: ObjectStore, work: Work, chunks: int) -> dict[int, Note]:
    """By chunk. chunks: of the plan. A second note of a chunk, or one of a chunk that the plan lacks, is not by ours: workers
    write notes. Raises StoreUnavailable."""
    found: dict[int, Note] = {}
    for entry in itertools.chain.from_iterable(listed(store, work.dead_notes_folder)):
        chunk = int(entry.path.rsplit("/chunk-", 1)[1][:8]) if (count := work.parse_dead_note(entry.path)) else chunks
        if count and chunk < chunks:
            found.setdefault(chunk, Note(entry.path, count, entry.size))
    return found


class Notes:
    """The notes of one run, each of which is read once. They count no dead letter twice; a worker that is killed between a
    commit and its note leaves none."""

    def __init__(self, store: ObjectStore, work: Work, chunks: int) -> None:
        self._store, self._work, self._chunks = store, work, chunks
        self.by_chunk: dict[int, Note] = {}

    @property
    def total(self) -> int:
        return sum(note.count for note in self.by_chunk.values())

    @property
    def reasons(self) -> Counter[str]:
        """Of those that are read."""
        return sum((note.reasons for note in self.by_chunk.values() if note.reasons), Counter[str]())

    def read(self, within_s: float) -> None:
        """The names of all, and the reasons in as many as there is time for. Raises StoreUnavailable."""
        self.by_chunk = {**names_of_notes(self._store, self._work, self._chunks), **self.by_chunk}
        until = time.monotonic() + within_s
        new = [note for note in self.by_chunk.values() if note.reasons is None]
        with reaching(f"read {self._work.dead_notes_folder}"):
            for start in range(0, len(new), NOTES_AT_ONCE):
                list(readers().map(lambda note: note.read(self._store), new[start : start + NOTES_AT_ONCE]))
                if time.monotonic() > until:
                    break


@dataclass(frozen=True)
class _Dead:
    """carried: the columns that the chunk has of the source, `shown`."""

    ordinal: int
    carried: Mapping[str, Any]
    reason: str
    message: str | None
    attempts: int
    chunk: int
    attempt: str

    def has(self, text: str) -> bool:
        return any(text in str(each).casefold() for each in (*self.carried.values(), self.message or "", self.reason))


class DeadLetters:
    """Of one run. Remembers the chunks that it has read, up to `KEPT_ROWS`. Safe to share between threads."""

    def __init__(self, store: ObjectStore, run: RunRef, folder: RunFolder | None = None) -> None:
        """folder: of the run, if somebody has it already."""
        self._folder = folder or RunFolder(store, run)
        self._lock = threading.Lock()
        self._notes: Notes | None = None
        self._kept: OrderedDict[int, tuple[_Dead, ...]] = OrderedDict()
        self._problems: dict[str, str] = {}
        self._all_read = False

    def chunks(self) -> list[int]:
        """The numbers of the chunks that have dead letters. Raises what `RunFolder` raises."""
        with self._lock:
            return [] if self._folder.plan is None else self._counted().chunks

    def page(self, *, reason: str | None = None, search: str = "", after: int = -1, count: int = PAGE_ROWS) -> DeadLetterPage:
        """The next dead letters whose ordinal is above `after`.

        reason: only this one. search: only those whose key, message or prompt has this text, whatever its case.
        Raises what `RunFolder` raises.
        """
        with self._lock:
            return self._page(reason, search.casefold().strip(), after, max(1, count))

    def _page(self, reason: str | None, search: str, after: int, count: int) -> DeadLetterPage:
        folder = self._folder
        if folder.plan is None:
            return DeadLetterPage(folder.run.prefix, 0, {}, 0, False, 0, 0, 0, (), None, {})
        counts = self._counted()
        source = SourceRows(folder.store, folder.run, folder.planned)
        rendered = Prompts(folder.spec)
        found: list[DeadLetter] = []
        read = searched = 0
        end = None
        left = [chunk for chunk in counts.chunks if chunk >= max(0, after + 1) // folder.planned.chunk_rows]
        if len(left) > CHUNKS_AT_ONCE:
            end = folder.planned.chunk_range(left[CHUNKS_AT_ONCE]).start - 1
        full = False
        for dead in self._each(left[:CHUNKS_AT_ONCE]):
            read += 1
            for each in dead:
                if each.ordinal <= after or (reason is not None and each.reason != reason):
                    continue
                if len(found) == count or searched == SEARCHED_AT_ONCE:
                    end, full = each.ordinal - 1, True
                    break
                known = not search or each.has(search)
                searched += not known
                letter = self._shown(each, source, rendered)
                if known or search in letter.prompt.text.casefold():
                    found.append(letter)
            if full:
                break
        return DeadLetterPage(
            folder.run.prefix,
            counts.total,
            dict(counts.reasons.most_common()),
            counts.reasons.total(),
            counts.proven,
            counts.not_tried,
            len(counts.chunks),
            read,
            tuple(found),
            end,
            dict(self._problems),
        )

    def _shown(self, each: _Dead, source: SourceRows, rendered: Prompts) -> DeadLetter:
        row = source.row(each.ordinal)
        prompt = rendered.of(row.values) if row.values else PromptText({}, row.problem)
        return DeadLetter(
            each.ordinal,
            {name: each.carried.get(name) for name in self._folder.spec.source.key},
            each.reason,
            each.message and cut(each.message),
            each.attempts,
            each.chunk,
            each.attempt,
            prompt,
            {**each.carried, **row.shown()},
            row.problem,
        )

    def _counted(self) -> _Counts:
        manifest = self._folder.manifest
        if manifest is not None:
            chunks = [each.chunk for each in manifest.chunks if each.dead_letters]
            return _Counts(manifest.dead_letters, Counter(manifest.dead_reasons), chunks, True)
        if self._notes is None:
            self._notes = Notes(self._folder.store, self._folder.work, self._folder.planned.chunk_count)
        self._notes.read(NOTES_S)
        ending = endings.latest(self._folder.store, self._folder.run)
        self._read_what_was_not_noted(self._notes, ending)
        return _Counts(self._notes.total, self._notes.reasons, sorted(self._notes.by_chunk), False, self._not_tried(ending))

    def _not_tried(self, ending: endings.Ending | None) -> int:
        if ending is None or ending.state != endings.FAILED or ending.rows_committed is None:
            return 0
        return max(0, self._folder.planned.rows - ending.rows_committed)

    def _read_what_was_not_noted(self, notes: Notes, ending: endings.Ending | None) -> None:
        """If a night has counted more dead letters than were noted, looks for them in the footers of the other chunks, once."""
        folder = self._folder
        if self._all_read or ending is None or (ending.dead_letters or 0) <= notes.total:
            return
        others = {
            number: entry
            for number, entry in chunks_listed(folder.store, folder.work, folder.planned)
            if number not in notes.by_chunk
        }
        for number, footer in footers(folder.store, list(others.items())):
            if footer is not None and footer.reasons:
                path, size = others[number].path, others[number].size
                notes.by_chunk[number] = Note(path, footer.reasons.total(), size, footer.reasons)
        self._all_read = True

    def _each(self, chunks: Sequence[int]) -> Iterator[tuple[_Dead, ...]]:
        """The dead letters of each chunk, read some chunks ahead."""
        for start in range(0, len(chunks), READ_AHEAD):
            part = chunks[start : start + READ_AHEAD]
            new = [number for number in part if number not in self._kept]
            for number, dead in zip(new, readers().map(self._read, new), strict=True):
                if dead is not None:
                    self._kept[number] = dead
            yield from [self._kept.get(number, ()) for number in part]
            while len(self._kept) > READ_AHEAD and sum(map(len, self._kept.values())) > KEPT_ROWS:
                self._kept.popitem(last=False)

    def _read(self, number: int) -> tuple[_Dead, ...] | None:
        try:
            return tuple(_dead_of(self._folder, number))
        except NotAChunk as error:
            self._problems[self._folder.work.chunk_path(number)] = str(error)
            return None


def _dead_of(folder: RunFolder, number: int) -> Iterator[_Dead]:
    chunk = folder.chunk(number)
    table: pa.Table = chunk.table.filter(pc.is_valid(chunk.table.column(DEAD_REASON)))
    copied = [name for name in table.column_names if name not in (*CHUNK_COLUMNS, REASONING)]
    parts = pieces(table.select([ORDINAL, *copied, DEAD_REASON, DEAD_MESSAGE, ATTEMPTS]))
    for row in itertools.chain.from_iterable(part.to_pylist() for part in parts):
        key = {name: shown(row[name]) for name in copied}
        yield _Dead(row[ORDINAL], key, row[DEAD_REASON], row[DEAD_MESSAGE], row[ATTEMPTS], number, chunk.provenance.attempt)


def _reasons(body: bytes | None, count: int) -> Counter[str]:
    """The reasons in a note, whose name has their number. A note that says something else counts as unknown."""
    try:
        value = json.loads(body or b"")
        if all(type(each) is int and each > 0 for each in value.values()) and sum(value.values()) == count:
            return Counter(value)
    except (AttributeError, ValueError, RecursionError):
        pass
    return Counter({"unknown": count})
