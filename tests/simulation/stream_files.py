"""A stream's files in memory: what a reader of the folder sees, and what must be true of it after each put.

The subscriber's own `nightshift.stream.files` and its Parquet are used; only the store is simulated, behind the same networks
as Pub/Sub and the database (`stream_parts`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.spec import StreamSpec, stream_files
from nightshift.store import StoreUnavailable
from nightshift.stream.files import FileSink
from nightshift.stream.messages import Answered, Dead, Message
from nightshift.stream.parquet import Format
from nightshift.stream.ports import Unavailable, Unwritable
from tests.simulation.stream_parts import Database, Network, age
from tests.simulation.virtual import VirtualLoop

COLUMN: Final = "answer"
SPEC: Final = StreamSpec.model_validate(
    {
        "job": "simulated",
        "owner": "tests",
        "source": {"subscription": "messages", "key": ["name"]},
        "task": "completion",
        "request": {"prompt": "{{ text }}"},
        "model": {"name": "m", "uri": "hf://a/b", "revision": "1"},
        "engine": {"max_num_seqs": 8},
        "latency": {"target": "60s"},
        "sink": {"files": "gs://bucket/messages", "column": COLUMN},
        "dead_letters": {"topic": "dead"},
        "compute": {"profile": "cpu"},
    }
)


class Folder(Database):
    """What the files say. fail(invariant, what): called for what must not be."""

    def __init__(self, now: Callable[[], float], fail: Callable[[str, str], None]) -> None:
        super().__init__(frozenset(), now)
        self._clock = now
        self._fail = fail
        self.files: dict[str, bytes] = {}
        self.copies: Counter[str] = Counter()
        """Of each message, in how many files it is."""
        self.written_by: dict[str, dict[str, float]] = defaultdict(dict)
        """Of each process, the messages in its files, with the time of the first put that made one."""

    def create(self, path: str, body: bytes, who: str) -> bool:
        """A put that takes effect: makes the object unless it is there."""
        fresh = path not in self.files
        rows = _rows(body)
        ids = sorted(map(_id, rows))
        if not fresh and sorted(map(_id, _rows(self.files[path]))) != ids:
            self._fail("twice", f"{path} is to have other messages than it has")
        for message in ids:
            earlier = self.written_by[who].setdefault(message, self._clock())
            if fresh and earlier < self._clock():
                self._fail("twice", f"{who} writes {message} into {path}, and had written it before")
        if fresh:
            self.files[path] = body
            for row in rows:
                self._keep(path, row)
        return fresh

    def _keep(self, path: str, row: dict[str, Any]) -> None:
        kind, expected = path.split("/")[0], row.get(stream_files.PUBLISH_TIME) or row["publish_time"]
        message = Message(_id(row), b"", {}, "", expected)
        self.copies[message.id] += 1
        self.since.setdefault(message.id, self._clock())
        if not path.startswith(f"{stream_files.folder(kind, expected)}/"):
            self._fail("folder", f"{message.id}, published at {expected}, is in {path}")
        if kind == stream_files.DEAD:
            key = None if row["key_name"] is None else (row["key_name"],)
            self.dead[message.id] = Dead(message, row["reason"], row["text"], row["status"], row["tries"], key)
            self.given_up.setdefault(message.id, self.dead[message.id])
            self.outcomes.setdefault(message.id, "dead")
        else:
            answer = Answered(message, (row["name"],), row[COLUMN], row[stream_files.TRIES])
            self.outcomes[message.id] = row[COLUMN]
            if answer.key not in self.rows or age(message) > age(self.rows[answer.key].message):
                self.rows[answer.key] = answer
        if message.id in self.dead and self.outcomes[message.id] != "dead":
            self._fail("answered once", f"{message.id} has an answer, and is a dead letter")


class Objects:
    """The store as one process sees it."""

    def __init__(self, folder: Folder, network: Network, who: str) -> None:
        self._folder = folder
        self._network = network
        self._who = who

    async def create(self, path: str, body: bytes) -> bool:
        try:
            return await self._network.call(lambda: self._folder.create(path, body, self._who))
        except Unavailable as error:
            raise StoreUnavailable(str(error)) from error

    async def read(self, path: str) -> bytes | None:
        raise AssertionError("a subscriber reads only as it starts")

    def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        raise AssertionError("a subscriber lists nothing")


class _Format(Format):
    """Refuses the answers of some messages, as a column does whose type they do not have."""

    def __init__(self, unwritable: frozenset[str]) -> None:
        super().__init__(SPEC, pa.string(), "m@1")
        self._unwritable = unwritable

    def answers(self, answered: Sequence[Answered], now: datetime) -> bytes:
        if bad := [each.message.id for each in answered if each.message.id in self._unwritable]:
            raise Unwritable(f"the column does not take {bad}")
        return super().answers(answered, now)


def sink(
    folder: Folder,
    network: Network,
    who: str,
    *,
    unwritable: frozenset[str],
    rows: int,
    every_s: float,
    loop: VirtualLoop,
    began: datetime,
) -> FileSink:
    """`nightshift.stream.ports.Sink` of one process."""
    return FileSink(
        Objects(folder, network, who),
        _Format(unwritable),
        rows=rows,
        every_s=every_s,
        now=lambda: began + timedelta(seconds=loop.time()),
    )


def _rows(body: bytes) -> list[dict[str, Any]]:
    return list(pq.ParquetFile(pa.BufferReader(body)).read(use_threads=False).to_pylist())


def _id(row: dict[str, Any]) -> str:
    return str(row.get(stream_files.MESSAGE_ID) or row["message_id"])
