"""The transaction that brings a batch of a stream's files into its tables: pure SQL text and its parameters.

Each part of it changes nothing if it is repeated, so a batch may be merged twice, and a file may be in two batches:

- of the answers to one key the newest stays, by publish time and then by message id, whichever batch comes first: Pub/Sub's
  ids are numbers, so the longer one is the later one;
- a message that has an answer is not a dead letter: one that was is removed, and one that would be is left out;
- a dead letter stands once;
- the files of the batch are noted, so that they are not loaded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nightshift.spec import stream_files
from nightshift.spec.stream_files import ANSWERED_AT, ANSWERS, DEAD, KEY, MESSAGE_ID, PUBLISH_TIME
from nightshift.warehouse.schema import quoted

if TYPE_CHECKING:
    from datetime import datetime

    from google.cloud.bigquery import ArrayQueryParameter, ScalarQueryParameter

    from nightshift.stream.bigquery.tables import StreamTables


def script(tables: StreamTables, batch: str, kinds: Sequence[str]) -> str:
    """The whole script, for tables that exist. kinds: which the batch has files of. Parameters: see `parameters`."""
    statements = []
    if ANSWERS in kinds:
        staged = quoted(tables.staging(batch, ANSWERS))
        statements += [_merge_answers(tables, staged), _raise_the_dead(tables, staged)]
    if DEAD in kinds:
        statements.append(_merge_dead(tables, quoted(tables.staging(batch, DEAD))))
    return "\n".join(["BEGIN TRANSACTION;", *statements, _note_files(tables), "COMMIT TRANSACTION;"])


def _merge_answers(tables: StreamTables, staged: str) -> str:
    names = [field.name for field in tables.answer_fields]
    same = [f"t.{quoted(key)} = s.{quoted(key)}" for key in tables.keys]
    if not tables.keyed:
        # All copies of a message have one publish time: other partitions need not be read.
        same.append(f"t.{PUBLISH_TIME} BETWEEN @first AND @last")
    updates = ", ".join(f"{quoted(name)} = s.{quoted(name)}" for name in names)
    return f"""\
MERGE {quoted(tables.destination)} AS t
USING (
  SELECT * FROM {staged} WHERE TRUE
  QUALIFY ROW_NUMBER() OVER (
    PARTITION BY {_listed(tables.keys)}
    ORDER BY {PUBLISH_TIME} DESC, LENGTH({MESSAGE_ID}) DESC, {MESSAGE_ID} DESC, {ANSWERED_AT}
  ) = 1
) AS s
ON {" AND ".join(same)}
WHEN MATCHED AND {_newer(_answer("s"), _answer("t"))} THEN UPDATE SET {updates}
WHEN NOT MATCHED THEN INSERT ({_listed(names)}) VALUES ({", ".join(f"s.{quoted(name)}" for name in names)});"""


def _newer(one: tuple[str, str], other: tuple[str, str]) -> str:
    """Whether one message is newer than the other. Each is a publish time and a message id, as SQL."""
    (time, name), (before, than) = one, other
    later = f"(LENGTH({name}) > LENGTH({than}) OR (LENGTH({name}) = LENGTH({than}) AND {name} > {than}))"
    return f"({time} > {before} OR ({time} = {before} AND {later}))"


def _answer(table: str) -> tuple[str, str]:
    """An answer's publish time and message id. table: its alias."""
    return f"{table}.{PUBLISH_TIME}", f"{table}.{MESSAGE_ID}"


def _raise_the_dead(tables: StreamTables, staged: str) -> str:
    return f"""\
DELETE FROM {quoted(tables.dead)}
WHERE publish_time BETWEEN @first AND @last AND message_id IN (SELECT {MESSAGE_ID} FROM {staged});"""


def _merge_dead(tables: StreamTables, staged: str) -> str:
    names = [field.name for field in tables.dead_fields]
    return f"""\
MERGE {quoted(tables.dead)} AS t
USING (
  SELECT {_listed(names)} FROM {staged}
  WHERE message_id NOT IN ({" UNION ALL ".join(_answered(tables, staged))})
  QUALIFY ROW_NUMBER() OVER (PARTITION BY message_id ORDER BY dead_at, reason) = 1
) AS s
ON t.message_id = s.message_id AND t.publish_time BETWEEN @first AND @last
WHEN NOT MATCHED THEN INSERT ({_listed(names)}) VALUES ({", ".join(f"s.{quoted(name)}" for name in names)});"""


def _answered(tables: StreamTables, staged: str) -> Iterator[str]:
    """Queries of the ids of messages that have an answer, or whose key has a newer one."""
    destination = quoted(tables.destination)
    yield f"SELECT {MESSAGE_ID} FROM {destination} WHERE {PUBLISH_TIME} BETWEEN @first AND @last"
    if tables.keyed:
        same = " AND ".join(f"d.{quoted(KEY + key)} = a.{quoted(key)}" for key in tables.keys)
        newer = _newer(_answer("a"), ("d.publish_time", "d.message_id"))
        yield f"SELECT d.message_id FROM {staged} AS d JOIN {destination} AS a ON {same} WHERE {newer}"


def _note_files(tables: StreamTables) -> str:
    return f"""\
MERGE {quoted(tables.files)} AS t
USING (
  SELECT file, PARSE_DATE('%Y-%m-%d', REGEXP_EXTRACT(file, r'/{stream_files.DAY}=([0-9-]+)/')) AS day
  FROM UNNEST(@files) AS file
) AS s
ON t.file = s.file AND t.day = s.day AND t.destination = @destination
WHEN NOT MATCHED THEN INSERT (stream, destination, file, day, batch, loaded_at)
  VALUES (@stream, @destination, s.file, s.day, @batch, CURRENT_TIMESTAMP());"""


def parameters(
    tables: StreamTables, batch: str, files: Sequence[str], first: datetime, last: datetime
) -> list[ScalarQueryParameter | ArrayQueryParameter]:
    """files: their URLs. first, last: between them all their messages were published."""
    from google.cloud.bigquery import ArrayQueryParameter, ScalarQueryParameter

    return [
        ScalarQueryParameter("stream", "STRING", tables.stream),
        ScalarQueryParameter("destination", "STRING", tables.destination),
        ScalarQueryParameter("batch", "STRING", batch),
        ScalarQueryParameter("first", "TIMESTAMP", first),
        ScalarQueryParameter("last", "TIMESTAMP", last),
        ArrayQueryParameter("files", "STRING", list(files)),
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))
