"""Everything of obstore that a ledger needs, through its Cloud Storage client."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

import obstore
import pytest
from obstore.exceptions import AlreadyExistsError, NotModifiedError, PreconditionError
from obstore.store import GCSStore

pytestmark = pytest.mark.integration

CONTENT = os.urandom(12 << 20)


def read(store: GCSStore, path: str) -> bytes:
    return bytes(obstore.get(store, path).bytes())


@pytest.mark.gate
def test_a_put_can_be_read_back_whole_and_in_part(store: GCSStore) -> None:
    obstore.put(store, "a", b"hello world")

    assert read(store, "a") == b"hello world"
    assert bytes(obstore.get_range(store, "a", start=1, end=3)) == b"el"
    assert [bytes(part) for part in obstore.get_ranges(store, "a", starts=[0, 6], ends=[5, 11])] == [b"hello", b"world"]
    assert bytes(obstore.get(store, "a", options={"range": {"suffix": 5}}).bytes()) == b"world"
    assert bytes(obstore.get(store, "a", options={"range": {"offset": 6}}).bytes()) == b"world"


@pytest.mark.gate
def test_create_refuses_and_overwrite_does_not(store: GCSStore) -> None:
    obstore.put(store, "a", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "a", b"second", mode="create")
    assert read(store, "a") == b"first"

    obstore.put(store, "a", b"third", mode="overwrite")
    assert read(store, "a") == b"third"


@pytest.mark.gate
def test_an_update_needs_the_version_it_replaces(store: GCSStore) -> None:
    first = obstore.put(store, "a", b"first")
    obstore.put(store, "a", b"second", mode={"e_tag": first["e_tag"], "version": first["version"]})
    with pytest.raises(PreconditionError):
        obstore.put(store, "a", b"third", mode={"e_tag": first["e_tag"], "version": first["version"]})
    assert read(store, "a") == b"second"


def test_head_says_what_put_said(store: GCSStore) -> None:
    written = obstore.put(store, "a", b"hello")
    found = obstore.head(store, "a")

    assert (found["size"], found["e_tag"], found["version"]) == (5, written["e_tag"], written["version"])
    assert abs(datetime.now(UTC) - found["last_modified"]) < timedelta(minutes=10)


def test_attributes_are_kept(store: GCSStore) -> None:
    obstore.put(store, "a", b"x", attributes={"Content-Type": "text/x", "Cache-Control": "no-cache", "run": "r1"})

    assert obstore.get(store, "a").attributes == {"Content-Type": "text/x", "Cache-Control": "no-cache", "run": "r1"}


@pytest.mark.gate
def test_conditional_reads(store: GCSStore) -> None:
    written = obstore.put(store, "a", b"hello")
    now = datetime.now(UTC)

    assert bytes(obstore.get(store, "a", options={"if_match": written["e_tag"]}).bytes()) == b"hello"
    with pytest.raises(PreconditionError):
        obstore.get(store, "a", options={"if_match": '"other"'})
    with pytest.raises(NotModifiedError):
        obstore.get(store, "a", options={"if_none_match": written["e_tag"]})
    with pytest.raises(NotModifiedError):
        obstore.get(store, "a", options={"if_modified_since": now + timedelta(days=1)})
    with pytest.raises(PreconditionError):
        obstore.get(store, "a", options={"if_unmodified_since": now - timedelta(days=1)})


@pytest.mark.gate
def test_a_range_of_one_version_alone(store: GCSStore) -> None:
    written = obstore.put(store, "a", b"hello")
    etag = written["e_tag"] or ""

    assert bytes(obstore.get(store, "a", options={"range": (1, 3), "if_match": etag}).bytes()) == b"el"
    obstore.put(store, "a", b"HELLO")
    with pytest.raises(PreconditionError):
        obstore.get(store, "a", options={"range": (1, 3), "if_match": etag})


def test_a_version_can_be_asked_for(store: GCSStore) -> None:
    old = obstore.put(store, "a", b"old")
    new = obstore.put(store, "a", b"new")

    assert bytes(obstore.get(store, "a", options={"version": new["version"]}).bytes()) == b"new"
    with pytest.raises(FileNotFoundError):
        obstore.get(store, "a", options={"version": old["version"]})


@pytest.mark.gate
def test_what_is_missing_is_not_found(store: GCSStore) -> None:
    for operation in (obstore.get, obstore.head, obstore.delete):
        with pytest.raises(FileNotFoundError):
            operation(store, "missing")


def test_lists_over_many_pages(store: GCSStore) -> None:
    names = [f"l/{number % 5}/{number:05}" for number in range(2100)]
    for name in names:
        obstore.put(store, name, b"x")

    listed = [entry["path"] for entry in obstore.list(store, "l").collect()]
    assert listed == sorted(names)
    assert [entry["path"] for entry in obstore.list(store, "l", offset="l/2/").collect()] == [
        n for n in sorted(names) if n > "l/2/"
    ]
    top = obstore.list_with_delimiter(store, "l")
    assert (top["common_prefixes"], list(top["objects"])) == ([f"l/{number}" for number in range(5)], [])


def test_unusual_names(store: GCSStore) -> None:
    names = sorted(["a b/ü é.bin", "a b/%20+&=;?#", "dt=2026-11-01/part-0.parquet"])
    for name in names:
        obstore.put(store, name, name.encode())

    assert [entry["path"] for entry in obstore.list(store).collect()] == names
    assert [read(store, name).decode() for name in names] == names


def test_many_deletions_in_one_call(store: GCSStore) -> None:
    names = [f"d/{number}" for number in range(150)]
    for name in [*names, "kept"]:
        obstore.put(store, name, b"x")
    obstore.delete(store, names)

    assert [entry["path"] for entry in obstore.list(store).collect()] == ["kept"]


@pytest.mark.gate
def test_a_multipart_put(store: GCSStore) -> None:
    obstore.put(store, "big", CONTENT, use_multipart=True, chunk_size=5 << 20)

    assert read(store, "big") == CONTENT


def test_readers_and_writers_are_files(store: GCSStore) -> None:
    with obstore.open_writer(store, "big", buffer_size=5 << 20) as writer:
        writer.write(CONTENT)

    reader = obstore.open_reader(store, "big", buffer_size=1 << 16)
    assert reader.size == len(CONTENT)
    reader.seek(len(CONTENT) - 7)
    assert bytes(reader.read(7)) == CONTENT[-7:]


def test_an_empty_object(store: GCSStore) -> None:
    obstore.put(store, "empty", b"")

    assert obstore.head(store, "empty")["size"] == 0
    assert read(store, "empty") == b""


@pytest.mark.gate
async def test_the_async_variants(store: GCSStore) -> None:
    await obstore.put_async(store, "a", b"hello", mode="create")
    with pytest.raises(AlreadyExistsError):
        await obstore.put_async(store, "a", b"again", mode="create")
    await obstore.put_async(store, "big", CONTENT, use_multipart=True, chunk_size=5 << 20)

    assert bytes(await (await obstore.get_async(store, "a")).bytes_async()) == b"hello"
    assert (
        bytes(await obstore.get_range_async(store, "big", start=9 << 20, end=(9 << 20) + 4)) == CONTENT[9 << 20 : (9 << 20) + 4]
    )
    parts = await obstore.get_ranges_async(store, "big", starts=[0, 8 << 20], ends=[3, (8 << 20) + 3])
    assert [bytes(part) for part in parts] == [CONTENT[:3], CONTENT[8 << 20 : (8 << 20) + 3]]
    assert (await obstore.head_async(store, "big"))["size"] == len(CONTENT)
    assert [entry["path"] async for batch in obstore.list(store) for entry in batch] == ["a", "big"]
    assert [e["path"] for e in (await obstore.list_with_delimiter_async(store))["objects"]] == ["a", "big"]
    reader = await obstore.open_reader_async(store, "a")
    assert bytes(await reader.read()) == b"hello"
    await obstore.delete_async(store, ["a"])
    assert [entry["path"] async for batch in obstore.list(store) for entry in batch] == ["big"]
