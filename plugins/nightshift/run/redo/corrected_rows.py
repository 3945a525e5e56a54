"""The rows of a corrected redo (`nightshift.run.redo.redo`): those of the query as it is now whose keys the earlier run has
left.

A row is matched by its key, so each of these keys must name one row: of the night, and of the source as it is now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import obstore
import pyarrow as pa
import pyarrow.compute as pc
from obstore.store import ObjectStore

from nightshift.fields.text import n
from nightshift.run.inputs import DECLARED
from nightshift.run.manifest import RunManifest
from nightshift.run.names import RunRef
from nightshift.run.parquet_cost import TooLarge
from nightshift.run.parquet_rows import RowGroups, plain
from nightshift.run.redo.redo import NotRedone, Redo
from nightshift.run.redo.redo_rows import ORDINAL, key_bytes, left_rows, load_earlier, night_keys, write_rows
from nightshift.spec import columns
from nightshift.store import ObjectChanged, ObjectFile, StoreUnavailable, create_or_read, list_numbered

MOST: Final = 1_000_000
"""How many rows are matched: their keys are in memory, a few hundred bytes each."""
NAMED: Final = 3
"""How many keys an error message names."""


class NotMatched(NotRedone):
    """A key does not name one row. The source was read; another try reads it again."""


def exported(store: ObjectStore, run: RunRef, attempt: int) -> list[str]:
    """Paths of the files of an export attempt, sorted by name; empty if its rows were refused."""
    found = sorted(path for number, path, _ in list_numbered(store, run.source_folder, run.parse_source) if number == attempt)
    return [] if run.refused_path(attempt) in found else found


def take_corrected(
    store: ObjectStore, run: RunRef, redo: Redo, keys: Sequence[str], types: Mapping[str, str], *, attempt: int
) -> None:
    """Writes the input files of the redo `run`: of the exported rows those whose keys the earlier run has left.

    keys: names of the key columns. types: GoogleSQL types of the query's columns. attempt: of the export that has succeeded.
    Each row gets the ordinal of the earlier run (`ORDINAL`). Safe to repeat: the same export gives the same files. Memory: the
    keys, one row group, and one file. Raises NotMatched, after which the source is exported again; NotRedone; StoreUnavailable.
    """
    earlier, plan, manifest = load_earlier(store, run, redo)
    if redo.left > MOST:
        raise too_many(redo)
    left = pa.concat_tables([table for _, table in left_rows(store, earlier, plan, manifest, keys)])
    files = exported(store, run, attempt)
    try:
        wanted = key_bytes(left, keys)
        first = first_run(earlier, manifest)
        _check_night(left, keys, _counted(wanted, night_keys(store, first, keys)))
        _check_source(left, keys, _counted(wanted, (found for _, found in _parts(store, files, keys, types))))
    except NotMatched:
        create_or_read(store, run.refused_path(attempt), b"{}")
        raise
    ordinals = left.column(columns.ORDINAL).combine_chunks()
    write_rows(store, run, _matched(_parts(store, files, keys, types), wanted, ordinals))


def first_run(run: RunRef, manifest: RunManifest) -> RunRef:
    """The run of the chain that has all rows of the partition."""
    return RunRef.from_prefix(f"{run.job}/{run.partition}/{manifest.completes[-1].run_id}") if manifest.completes else run


def _counted(wanted: pa.Array, found: Iterable[pa.Array]) -> Counter[int]:
    """How often each of the wanted keys occurs, by its place."""
    times: Counter[int] = Counter()
    for keys in found:
        times.update(pc.index_in(keys, value_set=wanted).drop_null().to_pylist())
    return times


def too_many(redo: Redo) -> NotRedone:
    return NotRedone(
        f"Run {redo.run_id} has left {n(redo.left, 'row')} without an answer, and at most {MOST:,} can be matched with the "
        "source. Trigger the DAG with fresh to compute all rows."
    )


def _matched(
    parts: Iterable[tuple[Callable[[], pa.Table], pa.Array]], wanted: pa.Array, ordinals: pa.Array
) -> Iterator[list[pa.Table]]:
    for rows, keys in parts:
        found = pc.index_in(keys, value_set=wanted)
        if found.null_count < len(found):
            yield [rows().filter(pc.is_valid(found)).append_column(ORDINAL, ordinals.take(found.drop_null()))]


def _parts(
    store: ObjectStore, files: Sequence[str], keys: Sequence[str], types: Mapping[str, str]
) -> Iterator[tuple[Callable[[], pa.Table], pa.Array]]:
    """All rows, a part at a time: what reads all their columns as they were exported, packed, and their keys (`key_bytes`) of
    the types that the query declares. types: GoogleSQL types of columns."""
    for path in files:
        with _reading(path):
            meta = obstore.head(store, path)
            file = ObjectFile(store, path, meta["size"], str(meta["e_tag"]))
            groups, only_keys = RowGroups(file), RowGroups(file, keys)
        for number, offsets in only_keys.parts():
            with _reading(path):
                table = only_keys.rows(number, offsets)
            kinds = {each.name: DECLARED.get(types.get(each.name, ""), plain(each.type)) for each in table.schema}
            yield partial(_rows, path, groups, number, offsets), key_bytes(table.cast(pa.schema(kinds)), keys)


def _rows(path: str, groups: RowGroups, number: int, offsets: range) -> pa.Table:
    with _reading(path):
        return groups.rows(number, offsets).replace_schema_metadata(None)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (obstore.exceptions.BaseError, ObjectChanged, TooLarge, pa.ArrowException, OSError) as error:
        raise StoreUnavailable(f"read {path}: {error}") from error


def _check_night(left: pa.Table, keys: Sequence[str], times: Mapping[int, int]) -> None:
    """times: how many rows of the night have the key of each row that was left, by its place."""
    if twice := sorted(place for place, count in times.items() if count > 1):
        raise NotMatched(
            f"{n(len(twice), 'key')} of rows without an answer {_are(len(twice))} not unique: the night has several rows "
            f"with {_named(left, keys, twice)}. So these rows cannot be matched with the source. Trigger the DAG with fresh to "
            "compute all rows, or with redo: dead_letters to compute the same rows again."
        )


def _check_source(left: pa.Table, keys: Sequence[str], times: Mapping[int, int]) -> None:
    """times: of the source as it is now."""
    if never := [place for place in range(len(left)) if place not in times]:
        raise NotMatched(
            f"{n(len(never), 'row')} without an answer {_are(len(never))} missing in the source as it is now: "
            f"{_named(left, keys, never)}. Put them back and trigger the DAG with redo: corrected again. If they are gone for "
            "good, trigger it with fresh to compute all rows that there are."
        )
    if twice := sorted(place for place, count in times.items() if count > 1):
        raise NotMatched(
            f"{n(len(twice), 'key')} of rows without an answer {_are(len(twice))} not unique in the source as it is now: "
            f"{_named(left, keys, twice)}. Delete the copies and trigger the DAG with redo: corrected again. If they are "
            "wanted, trigger it with fresh to compute all rows that there are."
        )


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _named(left: pa.Table, keys: Sequence[str], places: Sequence[int]) -> str:
    rows = left.select(list(keys)).take(pa.array(places[:NAMED])).to_pylist()
    named = ["(" + ", ".join(f"{name}: {row[name]!r}" for name in keys) + ")" for row in rows]
    return ", ".join(named) + (", ..." if len(places) > NAMED else "")
