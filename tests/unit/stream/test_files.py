"""Files as a sink: what is in them, what they are called, when they are written, and what the sink knows afterwards."""

from __future__ import annotations

import asyncio
import io
import json
from array import array
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from nightshift import __version__
from nightshift.run.chunks import check_footer
from nightshift.spec import StreamSpec, load_stream
from nightshift.store import ObjectStorage, StoreUnavailable
from nightshift.stream.files import FileSink
from nightshift.stream.messages import Answered, Dead, Message
from nightshift.stream.parquet import Format
from nightshift.stream.ports import Collect, Locked, SinkRefused, Standing, Unavailable, Unwritable
from nightshift.stream.remembered_ids import RememberedIds
from tests.unit.spec.test_stream import stream
from tests.unit.spec_file import write
from tests.unit.stream_bench import Bench, run

pytestmark = pytest.mark.unit

BEGAN = datetime(2026, 11, 20, 13, 30, tzinfo=UTC)
VECTORS = pa.list_(pa.float32())
FILES = {"files": "gs://bucket/texts", "column": "embedding"}


def spec(folder: Path, **changes: Any) -> StreamSpec:
    return load_stream(write(folder, stream(**{"sink": FILES, **changes})))


def a_message(name: str, minutes: float = 0.0) -> Message:
    return Message(name, b"data", {"tenant": "t"}, "", BEGAN + timedelta(minutes=minutes))


def an_answer(name: str, minutes: float = 0.0, prediction: Any = None) -> Answered:
    return Answered(a_message(name, minutes), (name, "1"), array("f", [1, 2]) if prediction is None else prediction, 1)


def a_death(name: str, minutes: float = 0.0, key: tuple[str, ...] | None = None) -> Dead:
    return Dead(a_message(name, minutes), "rejected", "no \ud800", 400, 2, key)


class Objects(ObjectStorage):
    """In memory. error: what a create raises."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.bodies: dict[str, bytes] = {}
        self.error: Exception | None = None
        self.creates: list[str] = []

    async def create(self, path: str, body: bytes) -> bool:
        self.creates.append(path)
        if self.error is not None:
            raise StoreUnavailable("create") from self.error
        fresh = await super().create(path, body)
        if fresh:
            self.bodies[path] = body
        return fresh

    def rows(self, kind: str = "answers") -> dict[str, list[dict[str, Any]]]:
        """Of each file of a kind, its rows."""
        return {
            path: pq.read_table(io.BytesIO(body)).to_pylist() for path, body in self.bodies.items() if path.startswith(kind)
        }


class Folder:
    """A sink over a folder in memory."""

    def __init__(self, form: Format, objects: Objects | None = None) -> None:
        self.objects = objects or Objects()
        self.sink = FileSink(self.objects, form, rows=3, every_s=10, now=lambda: BEGAN)

    async def knows(self, name: str) -> bool:
        (standing,) = await self.sink.known([(a_message(name), None)])
        return standing is Standing.OVER


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(Format(spec(tmp_path), VECTORS, "m@1"))


def does(main: Coroutine[Any, Any, object]) -> None:
    asyncio.run(main)


class TestAFile:
    def test_has_the_keys_the_prediction_and_where_they_come_from(self, folder: Folder) -> None:
        does(folder.sink.write([an_answer("b"), an_answer("a")]))

        ((path, rows),) = folder.objects.rows().items()
        assert path.startswith("answers/dt=2026-11-20/hour=13/")
        assert rows[0] == {
            "name": "a",
            "version": "1",
            "embedding": [1.0, 2.0],
            "nightshift_message_id": "a",
            "nightshift_publish_time": BEGAN,
            "nightshift_model": "m@1",
            "nightshift_tries": 1,
            "nightshift_answered_at": BEGAN,
        }
        assert [row["name"] for row in rows] == ["a", "b"]

    def test_tells_an_altered_byte(self, folder: Folder) -> None:
        does(folder.sink.write([an_answer("a")]))

        (body,) = folder.objects.bodies.values()
        metadata = pq.ParquetFile(io.BytesIO(body)).metadata.metadata
        assert json.loads(metadata[b"nightshift.stream"]) == {
            "version": 1,
            "written_by": __version__,
            "stream": "package-texts",
            "model": "m@1",
        }
        size = int.from_bytes(body[-8:-4], "little") + 8
        check_footer(metadata, body[-size:])

    def test_of_dead_letters_has_the_whole_message_and_its_key_if_it_could_be_read(self, folder: Folder) -> None:
        does(self._bury(folder))

        ((path, rows),) = folder.objects.rows("dead_letters").items()
        assert path.startswith("dead_letters/dt=2026-11-20/hour=13/")
        assert [(row["message_id"], row["key_name"], row["key_version"]) for row in rows] == [
            ("a", "x", "2"),
            ("b", None, None),
        ]
        assert (rows[0]["data"], rows[0]["attributes"], rows[0]["status"]) == (b"data", '{"tenant": "t"}', 400)
        assert rows[0]["text"] == "no ?"

    async def _bury(self, folder: Folder) -> None:
        assert await folder.sink.write_dead_letters([a_death("b"), a_death("a", key=("x", "2"))]) == frozenset()

    def test_holds_messages_of_one_hour(self, folder: Folder) -> None:
        does(folder.sink.write([an_answer("late", -60), an_answer("now"), an_answer("next", 30)]))

        found = {path.rpartition("/")[0]: [row["name"] for row in rows] for path, rows in folder.objects.rows().items()}
        assert found == {
            "answers/dt=2026-11-20/hour=12": ["late"],
            "answers/dt=2026-11-20/hour=13": ["now"],
            "answers/dt=2026-11-20/hour=14": ["next"],
        }

    def test_without_key_columns_has_only_the_ids(self, tmp_path: Path) -> None:
        source = {"subscription": "texts", "format": "text"}
        folder = Folder(Format(spec(tmp_path, source=source, request={"input": "{{ text }}"}), VECTORS, "m@1"))
        does(folder.sink.write([Answered(a_message("a"), ("a",), array("f", [1]), 1)]))

        ((_, (row,)),) = folder.objects.rows().items()
        assert list(row)[:2] == ["embedding", "nightshift_message_id"]


class TestTheName:
    """Whatever is repeated must not make a second file."""

    def test_follows_from_the_messages_whatever_their_order(self, folder: Folder, tmp_path: Path) -> None:
        form = Format(spec(tmp_path), VECTORS, "m@1")
        some = [an_answer("a"), an_answer("b")]

        assert form.name("answers", some) == form.name("answers", some[::-1])

    def test_differs_for_other_messages_another_model_and_another_column(self, tmp_path: Path) -> None:
        plain, some = Format(spec(tmp_path), VECTORS, "m@1"), [an_answer("a"), an_answer("b")]
        column = Format(spec(tmp_path, sink={**FILES, "column": "v"}), VECTORS, "m@1")
        names = {
            plain.name("answers", some),
            plain.name("answers", some[:1]),
            plain.name("dead_letters", some),
            Format(spec(tmp_path), VECTORS, "m@2").name("answers", some),
            column.name("answers", some),
        }

        assert len(names) == 5

    def test_two_ids_are_not_one(self, tmp_path: Path) -> None:
        form = Format(spec(tmp_path), VECTORS, "m@1")

        assert form.name("answers", [an_answer("a"), an_answer("b")]) != form.name("answers", [an_answer("ab")])


class TestWhatIsKnown:
    def test_is_bounded(self, folder: Folder) -> None:
        folder.sink._written = RememberedIds(2)

        async def main() -> None:
            await folder.sink.write([an_answer(name) for name in "abc"])
            assert [await folder.knows(name) for name in "abc"] == [False, True, True]

        does(main())


class TestRefusals:
    def test_a_prediction_that_does_not_fit_is_refused_with_nothing_written(self, folder: Folder) -> None:
        with pytest.raises(Unwritable, match="the prediction does not fit the column embedding"):
            does(folder.sink.write([an_answer("a"), an_answer("b", 60, prediction="text")]))

        assert folder.objects.creates == []

    def test_the_folder_says_what_its_files_are_of(self, folder: Folder) -> None:
        does(folder.sink.open())
        does(folder.sink.open())

        said = json.loads(folder.objects.bodies["stream.json"])
        assert said == {"stream": "package-texts", "task": "embedding", "key": ["name", "version"], "column": "embedding"}

    def test_another_streams_folder_is_refused(self, folder: Folder, tmp_path: Path) -> None:
        does(folder.sink.open())
        other = Folder(Format(spec(tmp_path, job="other"), VECTORS, "m@1"), folder.objects)

        with pytest.raises(
            SinkRefused, match=r"the folder has another stream's files, or other columns: .*package-texts.*sink\.files"
        ):
            does(other.sink.open())

    @pytest.mark.parametrize(("error", "kind"), [(FileNotFoundError("no bucket"), Locked), (OSError("no route"), Unavailable)])
    def test_a_store_that_says_no_is_not_one_that_is_away(
        self, folder: Folder, error: Exception, kind: type[Exception]
    ) -> None:
        folder.objects.error = error
        with pytest.raises(Unavailable) as caught:
            does(folder.sink.open())

        assert type(caught.value) is kind


class TestCollecting:
    """The subscriber with a sink that collects."""

    def test_rows_wait_until_there_are_enough(self) -> None:
        async def main(loop: Any) -> None:
            bench = Bench(loop, collect=Collect(rows=6, size=1e9, age_s=100))
            bench.start()
            bench.deliver(*"abcd")
            await asyncio.sleep(10)
            assert (bench.sink.writes, bench.source.acknowledged) == ([], [])
            bench.deliver(*"ef")
            await bench.until(lambda: len(bench.source.acknowledged) == 6)
            assert [sorted(each) for each in bench.sink.writes] == [list("abcdef")]
            await bench.end()

        run(main)

    def test_the_oldest_waits_no_longer_than_it_may_and_stays_leased(self) -> None:
        async def main(loop: Any) -> None:
            bench = Bench(loop, collect=Collect(rows=6, size=1e9, age_s=100))
            bench.start()
            bench.deliver("a")
            await bench.until(lambda: bench.source.acknowledged)
            assert 100 < loop.time() < 102
            assert len(bench.source.extended) >= 3
            await bench.end()

        run(main)

    def test_bytes_fill_a_file_too(self) -> None:
        async def main(loop: Any) -> None:
            bench = Bench(loop, collect=Collect(rows=100, size=20, age_s=1000))
            bench.start()
            bench.deliver(*(letter * 5 for letter in "abcd"))
            await bench.until(lambda: len(bench.source.acknowledged) == 4)
            # The text and its answer: two of them have twenty bytes.
            assert [len(each) for each in bench.sink.writes] == [2, 2]
            await bench.end()

        run(main)

    def test_what_only_waits_for_the_sink_leaves_room_for_others(self) -> None:
        async def main(loop: Any) -> None:
            bench = Bench(loop, collect=Collect(rows=500, size=1e9, age_s=1000))
            bench.start()
            bench.deliver(*(f"t{n}" for n in range(500)))
            await bench.until(lambda: len(bench.source.acknowledged) == 500)
            assert len(bench.sink.writes) == 1
            await bench.end()

        run(main)

    def test_but_not_without_end(self) -> None:
        """While the sink is away, messages with their answers fill the bytes, whatever a file may have."""

        async def main(loop: Any) -> None:
            bench = Bench(loop, collect=Collect(rows=10_000, size=1000, age_s=10), buffer_bytes=1 << 20)
            bench.start()
            bench.sink.away = True
            bench.deliver(*(f"{n:050}" for n in range(5000)))
            await asyncio.sleep(300)
            assert 0.8 * (1 << 20) < bench.stats.held_bytes <= 1 << 20
            bench.sink.away = False
            await bench.until(lambda: len(bench.source.acknowledged) == 5000)
            # A text and its answer have a hundred bytes: ten rows are a file.
            assert max(len(each) for each in bench.sink.writes) == 10
            await bench.end()

        run(main)

    def test_a_file_is_written_before_it_is_full_if_it_would_be_in_the_way(self) -> None:
        async def main(loop: Any) -> None:
            bench = Bench(loop, collect=Collect(rows=10_000, size=1e9, age_s=1000), buffer_bytes=1 << 20)
            bench.start()
            bench.deliver(*(f"{n:050}" for n in range(5000)))
            await bench.until(lambda: len(bench.source.acknowledged) > 4700)
            assert loop.time() < 60, "no time is waited for"
            assert min(len(each) for each in bench.sink.writes) > 100
            await bench.end()

        run(main)

    def test_a_drain_waits_for_nobody(self) -> None:
        async def main(loop: Any) -> None:
            bench = Bench(loop, collect=Collect(rows=500, size=1e9, age_s=1000))
            bench.start()
            bench.deliver(*"abc")
            await bench.until(lambda: len(bench.engine.asked) > 0)
            await asyncio.sleep(5)
            began = loop.time()
            assert await bench.end() == 0
            assert loop.time() - began < 15
            assert bench.sink.rows.keys() == set("abc")
            assert len(bench.source.acknowledged) == 3

        run(main)

    def test_a_dead_letter_that_another_has_answered_is_none(self) -> None:
        async def main(loop: Any) -> None:
            bench = Bench(loop)
            bench.start()
            bench.sink.answered_elsewhere = frozenset({"?"})
            bench.deliver("?", "?2")
            await bench.until(lambda: len(bench.source.acknowledged) == 2)
            assert [each.message.id for each in bench.topic.published] == ["?2"]
            assert (bench.stats.dead, bench.stats.over) == (1, 1)
            await bench.end()

        run(main)
