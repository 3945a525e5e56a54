"""A watched folder as a source: rows of objects as messages, and objects that are done when their rows are."""

from __future__ import annotations

import asyncio
import io
import json
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from nightshift.spec import load_stream
from nightshift.store import StoreUnavailable
from nightshift.stream import folder_objects as rows_module
from nightshift.stream import folder_source
from nightshift.stream.decoding import Decoder
from nightshift.stream.folder_objects import WatchedFolder, rows
from nightshift.stream.folder_source import BrokenObject, Found, Watched
from nightshift.stream.messages import PROBLEM, Delivery, Message
from nightshift.stream.ports import Unavailable
from nightshift.tasks.base import BadInput
from tests.unit.spec.test_stream import stream
from tests.unit.spec_file import write

pytestmark = pytest.mark.unit

EVERY_S = 10.0


class Place(WatchedFolder):
    """A folder in memory. away: nothing is answered. cut: reading fails so many times, each after one row."""

    def __init__(self, form: str = "json") -> None:
        self.store = MemoryStore()
        super().__init__(self.store, "texts", form)
        self.away = False
        self.cut = 0
        self.listings = 0

    def put(self, path: str, *lines: Any) -> None:
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        obstore.put(self.store, path, body)

    @property
    def markers(self) -> list[dict[str, Any]]:
        found = [meta["path"] for page in obstore.list(self.store, "_nightshift") for meta in page]
        return [json.loads(bytes(obstore.get(self.store, path).bytes())) for path in found]

    async def found(self) -> list[Found]:
        self.listings += 1
        self._answer()
        return await super().found()

    async def finish(self, marker: str, body: bytes) -> None:
        self._answer()
        await super().finish(marker, body)

    def read(self, found: Found) -> Iterator[bytes]:
        for data in super().read(found):
            yield data
            if self.cut:
                self.cut -= 1
                raise StoreUnavailable("cut off")

    def _answer(self) -> None:
        if self.away:
            raise StoreUnavailable("away")


class Reader:
    """A source over a folder, with a clock that stands still."""

    def __init__(self, place: Place, seed: int = 1) -> None:
        self.now = 1000.0
        self.source = Watched(place, every_s=EVERY_S, rng=random.Random(seed), steady=lambda: self.now)

    async def pull(self, most: int = 100) -> list[Delivery]:
        """All that a pull brings now, without waiting for the next listing."""
        self.now += EVERY_S
        return await self.source.pull(most)

    async def all(self) -> list[Delivery]:
        found: list[Delivery] = []
        while some := await self.pull():
            found += some
        return found

    async def acknowledge(self, *deliveries: Delivery) -> None:
        await self.source.acknowledge([each.ack_id for each in deliveries])


@pytest.fixture
def place() -> Place:
    return Place()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_source, "WAIT_S", 0.0)


def does(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


class TestRows:
    def test_each_line_is_a_message_with_a_name_that_stays(self, place: Place) -> None:
        place.put("a/b.json", {"n": 0}, {"n": 1})

        async def main() -> None:
            first, again = await Reader(place).all(), await Reader(place, 2).all()
            assert [json.loads(each.message.data) for each in first] == [{"n": 0}, {"n": 1}]
            assert [each.message for each in first] == [each.message for each in again]
            ids = [each.message.id for each in first]
            assert [name.startswith("a/b.json#") for name in ids] == [True, True]
            assert [name.rpartition("/")[2] for name in ids] == ["0", "1"]
            age = datetime.now(UTC) - first[0].message.published
            assert 0 <= age.total_seconds() < 60
            assert first[0].message.attributes == {"object": "a/b.json"}

        does(main())

    def test_several_pulls_at_once_take_each_row_once(self, place: Place) -> None:
        """A subscriber pulls as often as its room needs, and an object is read by a thread."""
        place.put("a.json", *({"n": n} for n in range(40)))
        read = place.read

        def slowly(found: Found) -> Iterator[bytes]:
            for data in read(found):
                time.sleep(0.002)
                yield data

        place.read = slowly  # type: ignore[method-assign]

        async def main() -> None:
            reader = Reader(place)
            replies = await asyncio.gather(*(reader.pull(10) for _ in range(6)))
            assert [json.loads(each.message.data)["n"] for reply in replies for each in reply] == list(range(40))
            assert place.listings <= 3

        does(main())

    def test_nor_more_than_ten_megabytes_at_once(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder_source, "PULL_BYTES_MOST", 20)
        place.put("a.json", *({"n": n} for n in range(5)))

        async def main() -> None:
            reader = Reader(place)
            assert [len(await reader.pull()) for _ in range(4)] == [3, 2, 0, 0]

        does(main())

    def test_what_is_hidden_is_left_alone(self, place: Place) -> None:
        for path in ("_tmp/a.json", ".hidden", "a/_part/b.json", "shown.json"):
            place.put(path, {"n": 0})

        async def main() -> None:
            found = await Reader(place).all()
            assert [each.message.attributes["object"] for each in found] == ["shown.json"]

        does(main())

    def test_a_replaced_object_has_other_messages(self, place: Place) -> None:
        place.put("a.json", {"n": 0})

        async def main() -> None:
            reader = Reader(place)
            old = await reader.all()
            await reader.acknowledge(*old)
            place.put("a.json", {"n": 1})
            new = await reader.all()
            assert [json.loads(each.message.data) for each in new] == [{"n": 1}]
            assert old[0].message.id != new[0].message.id

        does(main())


class TestWhenAnObjectIsDone:
    def test_it_is_when_each_of_its_rows_is(self, place: Place) -> None:
        place.put("a.json", {"n": 0}, {"n": 1})

        async def main() -> None:
            reader = Reader(place)
            one, two = await reader.all()
            await reader.acknowledge(one)
            assert place.markers == []
            await reader.acknowledge(two)
            (marker,) = place.markers
            assert (marker["object"], marker["rows"]) == ("a.json", 2)
            assert await Reader(place, 2).all() == []

        does(main())

    def test_the_last_row_may_be_done_before_the_end_is_seen(self, place: Place) -> None:
        place.put("a.json", {"n": 0}, {"n": 1})

        async def main() -> None:
            reader = Reader(place)
            await reader.acknowledge(*await reader.pull(2))
            assert place.markers == []
            assert await reader.pull(2) == []
            assert len(place.markers) == 1

        does(main())

    def test_one_without_rows_is_done_at_once(self, place: Place) -> None:
        place.put("empty.json")

        async def main() -> None:
            assert await Reader(place).all() == []
            assert [marker["rows"] for marker in place.markers] == [0]

        does(main())

    def test_a_marker_that_cannot_be_made_is_made_later(self, place: Place) -> None:
        place.put("a.json", {"n": 0})

        async def main() -> None:
            reader = Reader(place)
            (only,) = await reader.pull()
            assert await reader.all() == []
            place.away = True
            with pytest.raises(Unavailable):
                await reader.acknowledge(only)
            with pytest.raises(Unavailable):
                await reader.pull()
            place.away = False
            await reader.acknowledge(only)
            await reader.all()
            assert [marker["object"] for marker in place.markers] == ["a.json"]

        does(main())

    def test_two_processes_may_finish_the_same_one(self, place: Place) -> None:
        place.put("a.json", {"n": 0})

        async def main() -> None:
            readers = [Reader(place), Reader(place, 2)]
            for reader, found in [(reader, await reader.all()) for reader in readers]:
                await reader.acknowledge(*found)
            assert len(place.markers) == 1

        does(main())


class TestWhatComesAgain:
    def test_a_row_that_is_given_back_comes_again_when_it_was_said(self, place: Place) -> None:
        place.put("a.json", {"n": 0})

        async def main() -> None:
            reader = Reader(place)
            (first,) = await reader.all()
            await reader.source.extend([first.ack_id], 60)
            assert await reader.pull() == []
            reader.now += 60
            (again,) = await reader.pull()
            assert again.message == first.message
            assert again.ack_id != first.ack_id
            await reader.acknowledge(first)
            assert place.markers == []
            await reader.acknowledge(again)
            assert len(place.markers) == 1

        does(main())

    def test_an_object_whose_reading_is_cut_off_is_read_again_and_nothing_is_missed(self, place: Place) -> None:
        place.put("a.json", *({"n": n} for n in range(3)))
        place.cut = 1

        async def main() -> None:
            reader = Reader(place)
            found = await reader.pull()
            with pytest.raises(Unavailable):
                await reader.pull()
            found += await reader.all()
            assert {json.loads(each.message.data)["n"] for each in found} == {0, 1, 2}
            assert len({each.message.id for each in found}) == 3
            await reader.acknowledge(*found)
            assert len(place.markers) == 1

        does(main())

    def test_the_folder_is_listed_no_more_often_than_it_was_said(self, place: Place) -> None:
        async def main() -> None:
            reader = Reader(place)
            await reader.pull()
            for _ in range(3):
                await reader.source.pull(1)
            assert place.listings == 1

        does(main())


class TestABrokenObject:
    def test_is_one_dead_letter_and_done_with_it(self) -> None:
        place = Place("parquet")
        obstore.put(place.store, "a.parquet", b"not Parquet")

        async def main() -> None:
            reader = Reader(place)
            (found,) = await reader.all()
            assert found.message.attributes[PROBLEM].startswith("the object a.parquet cannot be read: it is not parquet: ")
            assert found.message.data == b""
            await reader.acknowledge(found)
            assert len(place.markers) == 1

        does(main())

    def test_has_the_rows_before_its_fault(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rows_module, "LINE_BYTES_MOST", 20)
        place.put("a.json", {"n": 0}, {"n": "x" * 30}, {"n": 2})

        async def main() -> None:
            reader = Reader(place)
            good, broken = await reader.all()
            assert json.loads(good.message.data) == {"n": 0}
            said = broken.message.attributes[PROBLEM]
            assert said == "the object a.json cannot be read after its row 0: its line 2 has more than 20 bytes"
            assert broken.message.id.endswith("/1")

        does(main())


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def avro(schema: dict[str, Any], *records: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, schema, list(records))
    return sink.getvalue()


class TestFormats:
    def read(self, body: bytes, form: str) -> list[bytes]:
        return list(rows(io.BytesIO(body), form))  # type: ignore[arg-type]

    def test_lines(self) -> None:
        assert self.read(b'{"a": 1}\r\n\n{"b": 2}', "json") == [b'{"a": 1}', b'{"b": 2}']
        assert self.read("ä\nb\n".encode(), "text") == ["ä".encode(), b"b"]

    def test_parquet_as_json_with_every_type_that_json_lacks(self) -> None:
        moment = datetime(2026, 11, 20, 1, 2, 3, tzinfo=UTC)
        table = pa.table(
            {
                "n": [1],
                "t": ["x"],
                "d": [date(2026, 11, 20)],
                "m": [moment],
                "x": [Decimal("1.50")],
                "b": [b"\xff"],
                "l": [[1.5]],
            }
        )
        (row,) = self.read(parquet(table), "parquet")

        assert json.loads(row) == {
            "n": 1,
            "t": "x",
            "d": "2026-11-20",
            "m": "2026-11-20T01:02:03+00:00",
            "x": "1.50",
            "b": "/w==",
            "l": [1.5],
        }

    def test_avro(self) -> None:
        schema = {"type": "record", "name": "r", "fields": [{"name": "t", "type": "string"}]}

        assert self.read(avro(schema, {"t": "x"}, {"t": "y"}), "avro") == [b'{"t":"x"}', b'{"t":"y"}']

    @pytest.mark.parametrize("form", ["parquet", "avro"])
    @pytest.mark.parametrize("body", [b"", b"PAR1", b"Obj\x01", b"\0" * 100])
    def test_what_is_not_of_its_format_is_said(self, form: str, body: bytes) -> None:
        with pytest.raises(BrokenObject, match=f"it is not {form}"):
            self.read(body, form)

    def test_avro_that_breaks_in_the_middle(self) -> None:
        schema = {"type": "record", "name": "r", "fields": [{"name": "t", "type": "string"}]}
        body = avro(schema, *({"t": "x" * 1000} for _ in range(100)))

        taken: list[bytes] = []
        with pytest.raises(BrokenObject):
            taken.extend(rows(io.BytesIO(body[: len(body) // 2]), "avro"))  # type: ignore[arg-type]


class TestDecoding:
    @pytest.fixture
    def decoder(self, tmp_path: Path) -> Callable[..., Decoder]:
        def make(form: str) -> Decoder:
            template = "{{ text }}"
            file = write(tmp_path, stream(source={"prefix": "gs://bucket/in", "format": form}, request={"input": template}))
            return Decoder(load_stream(file), ("text",))

        return make

    def a_message(self, data: bytes, **attributes: str) -> Message:
        return Message("a/0", data, attributes, "", datetime(2026, 11, 20, tzinfo=UTC))

    @pytest.mark.parametrize("form", ["json", "parquet", "avro"])
    def test_rows_are_json(self, decoder: Callable[..., Decoder], form: str) -> None:
        assert decoder(form).row(self.a_message(b'{"text": "x"}'))["text"] == "x"

    def test_lines_are_text(self, decoder: Callable[..., Decoder]) -> None:
        assert decoder("text").row(self.a_message(b"{x}")) == {"text": "{x}"}

    def test_a_broken_object_is_bad_input(self, decoder: Callable[..., Decoder]) -> None:
        with pytest.raises(BadInput, match="the object a is broken"):
            decoder("json").row(self.a_message(b"", **{PROBLEM: "the object a is broken"}))

    def test_the_row_has_the_keys_that_are_asked_for(self, decoder: Callable[..., Decoder]) -> None:
        with pytest.raises(BadInput, match="the message has no 'text'; it has other"):
            decoder("json").row(self.a_message(b'{"other": 1}'))
