"""Racing writers, which the ledger stands on: however many try to create an object, exactly one does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import obstore
import pytest
from google.api_core import exceptions
from google.cloud.storage import Bucket  # type: ignore[import-untyped]
from obstore.exceptions import AlreadyExistsError
from obstore.store import GCSStore

from local.storage.tests.stores import open_bucket
from tests.integration.emulators import StorageEmulator

pytestmark = pytest.mark.integration

WRITERS = 8
ROUNDS = 25
# Large enough that the bodies of several writers arrive at the same time.
CONTENT_BYTES = 100_000


def race(write: Callable[[int, bytes], bool]) -> list[int]:
    """Lets all writers go at once; ``write(writer, content)`` says whether it created the object. Returns the winners."""
    barrier = Barrier(WRITERS)

    def run(writer: int) -> bool:
        barrier.wait()
        return write(writer, bytes([writer]) * CONTENT_BYTES)

    with ThreadPoolExecutor(WRITERS) as pool:
        won = list(pool.map(run, range(WRITERS)))
    return [writer for writer in range(WRITERS) if won[writer]]


def assert_one_winner(winners: list[int], stored: bytes) -> None:
    assert len(winners) == 1
    assert stored == bytes(winners) * CONTENT_BYTES


def test_one_of_eight_google_clients_creates(storage_emulator: StorageEmulator, bucket: Bucket) -> None:
    buckets = [storage_emulator.client().bucket(bucket.name) for _ in range(WRITERS)]
    for number in range(ROUNDS):

        def write(writer: int, content: bytes, name: str = f"race/{number}") -> bool:
            try:
                buckets[writer].blob(name).upload_from_string(content, if_generation_match=0)
            except exceptions.PreconditionFailed:
                return False
            return True

        assert_one_winner(race(write), bucket.blob(f"race/{number}").download_as_bytes())


@pytest.mark.gate
def test_one_of_eight_obstore_clients_creates(storage_emulator: StorageEmulator, bucket: Bucket) -> None:
    stores = [open_bucket(storage_emulator.url, bucket.name) for _ in range(WRITERS)]
    for number in range(ROUNDS):

        def write(writer: int, content: bytes, name: str = f"race/{number}") -> bool:
            try:
                obstore.put(stores[writer], name, content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                return False
            return True

        assert_one_winner(race(write), bytes(obstore.get(stores[0], f"race/{number}").bytes()))


async def test_one_of_many_concurrent_creates_on_one_event_loop(store: GCSStore) -> None:
    async def create(name: str, writer: int) -> bool:
        try:
            await obstore.put_async(store, name, bytes([writer]) * CONTENT_BYTES, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        return True

    names = [f"race/{number}" for number in range(ROUNDS)]
    won = await asyncio.gather(*(create(name, writer) for name in names for writer in range(WRITERS)))

    for position, name in enumerate(names):
        winners = [writer for writer in range(WRITERS) if won[position * WRITERS + writer]]
        assert_one_winner(winners, bytes(await (await obstore.get_async(store, name)).bytes_async()))


@pytest.mark.gate
def test_no_increment_is_lost_under_compare_and_set(storage_emulator: StorageEmulator, bucket: Bucket) -> None:
    """Eight clients add 1 to a counter until each has done so ten times; a lost update would show in the sum."""
    bucket.blob("counter").upload_from_string(b"0")
    buckets = [storage_emulator.client().bucket(bucket.name) for _ in range(WRITERS)]

    def count(writer: int) -> None:
        done = 0
        while done < 10:
            blob = buckets[writer].get_blob("counter")
            try:
                value = int(blob.download_as_bytes())
                blob.upload_from_string(str(value + 1), if_generation_match=blob.generation)
            except (exceptions.PreconditionFailed, exceptions.NotFound):
                # Another writer was faster, between the two reads or before the write.
                continue
            done += 1

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(count, range(WRITERS)))

    assert bucket.blob("counter").download_as_bytes() == b"80"


@pytest.mark.gate
def test_readers_see_one_write_or_another_but_no_mixture(storage_emulator: StorageEmulator, bucket: Bucket) -> None:
    store = open_bucket(storage_emulator.url, bucket.name)
    obstore.put(store, "a", bytes(CONTENT_BYTES))

    def overwrite(writer: int) -> None:
        for _ in range(20):
            obstore.put(store, "a", bytes([writer]) * CONTENT_BYTES)

    def read(_: int) -> set[tuple[int, int]]:
        seen = (bytes(obstore.get(store, "a").bytes()) for _ in range(40))
        return {(len(content), len(set(content))) for content in seen}

    with ThreadPoolExecutor(WRITERS) as pool:
        writing = [pool.submit(overwrite, writer) for writer in range(4)]
        reading = [pool.submit(read, reader) for reader in range(4)]
        for write in writing:
            write.result()
        seen = set().union(*(reader.result() for reader in reading))

    assert seen == {(CONTENT_BYTES, 1)}
