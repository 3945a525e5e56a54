"""The process dies and comes back: what it acknowledged is there, whole; what it did not is there in full or not at all."""

from __future__ import annotations

import hashlib
import itertools
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import obstore
import pytest
import requests
from google.cloud.storage import Client  # type: ignore[import-untyped]
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import GCSStore

from local.storage.tests.stores import open_bucket
from tests.integration.emulators import StorageEmulator, start_storage

pytestmark = pytest.mark.integration

BUCKET = "durable"
KILLS = 6
WRITERS = 4
SEED = 20261120
CHUNK = 256 * 1024


@pytest.fixture
def emulator(tmp_path: Path) -> Iterator[StorageEmulator]:
    """An emulator that this test alone may kill."""
    emulator = start_storage(tmp_path)
    emulator.client().create_bucket(BUCKET)
    yield emulator
    emulator.kill()


def restart(emulator: StorageEmulator) -> None:
    emulator.kill()
    emulator.start()


class Acknowledged:
    """Counts the writes that were acknowledged, so that a test kills after N of them and not after some time."""

    def __init__(self) -> None:
        self._count = 0
        self._more = threading.Condition()

    def add(self) -> None:
        with self._more:
            self._count += 1
            self._more.notify_all()

    def wait_for(self, count: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: self._count >= count, timeout=600), "the writers do not come to that many writes"


def impatient(url: str) -> GCSStore:
    """A store that takes the first failure for an answer, so that what is acknowledged is known exactly."""
    key = open_bucket(url, BUCKET).config["service_account_key"]
    return GCSStore(BUCKET, service_account_key=key, client_options={"allow_http": True}, retry_config={"max_retries": 0})


def content_of(name: str) -> bytes:
    """Content that follows from its name; up to 400 kB, so that a kill often falls into the middle of a body."""
    seed = hashlib.sha256(name.encode()).digest()
    return seed * (1 + seed[0] * 50)


def write_until_killed(url: str, kill: int, writer: int, progress: Acknowledged) -> list[str]:
    """Creates objects one after the other; returns the names of those that were acknowledged."""
    store, acknowledged = impatient(url), []
    for number in range(100_000):
        name = f"{kill}/{writer}/{number:06}"
        try:
            obstore.put(store, name, content_of(name), mode="create", use_multipart=False)
        except (BaseError, OSError):
            break
        acknowledged.append(name)
        progress.add()
    return acknowledged


@pytest.mark.gate
def test_kill_9_among_writers_loses_nothing_and_tears_nothing(emulator: StorageEmulator) -> None:
    moments = random.Random(SEED)
    acknowledged: set[str] = set()
    for kill in range(KILLS):
        progress = Acknowledged()
        with ThreadPoolExecutor(WRITERS) as pool:
            writing: list[Future[list[str]]] = [
                pool.submit(write_until_killed, emulator.url, kill, n, progress) for n in range(WRITERS)
            ]
            progress.wait_for(moments.randint(1, 100))
            emulator.kill()
            acknowledged.update(name for future in writing for name in future.result())
        emulator.start()

    store = open_bucket(emulator.url, BUCKET)
    listed = {entry["path"]: entry["size"] for entry in obstore.list(store).collect()}
    assert len(acknowledged) >= KILLS
    assert acknowledged - listed.keys() == set()
    # At most the one write that each writer had on its way may be there without having been acknowledged.
    assert len(listed) - len(acknowledged) <= KILLS * WRITERS
    for name, size in listed.items():
        assert size == len(content_of(name))
        assert bytes(obstore.get(store, name).bytes()) == content_of(name)


def overwrite_until_killed(url: str, first: int, progress: Acknowledged) -> int:
    """Overwrites one object with ever higher versions; returns the last that was acknowledged."""
    store = impatient(url)
    for version in range(first, first + 100_000):
        try:
            obstore.put(store, "same", version_content(version), use_multipart=False)
        except (BaseError, OSError):
            break
        progress.add()
    return version - 1


def version_content(version: int) -> bytes:
    return version.to_bytes(8, "big") * (1 + version % 7 * 3000)


def test_kill_9_among_overwrites_leaves_the_last_acknowledged_version_or_the_one_after_it(emulator: StorageEmulator) -> None:
    moments = random.Random(SEED)
    next_version = 0
    for _ in range(KILLS):
        progress = Acknowledged()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(overwrite_until_killed, emulator.url, next_version, progress)
            progress.wait_for(moments.randint(1, 100))
            emulator.kill()
            acknowledged = writing.result()
        emulator.start()

        content = bytes(obstore.get(open_bucket(emulator.url, BUCKET), "same").bytes())
        version = int.from_bytes(content[:8], "big")
        assert version in (acknowledged, acknowledged + 1)
        assert content == version_content(version)
        next_version = version + 1


def test_no_files_are_left_of_writes_that_were_killed(emulator: StorageEmulator, tmp_path: Path) -> None:
    progress = Acknowledged()
    with ThreadPoolExecutor(WRITERS) as pool:
        writing = [pool.submit(write_until_killed, emulator.url, 0, n, progress) for n in range(WRITERS)]
        progress.wait_for(40)
        emulator.kill()
        for future in writing:
            future.result()
    emulator.start()

    listed = obstore.list(open_bucket(emulator.url, BUCKET)).collect()
    assert len(list((tmp_path / "storage" / "bodies").iterdir())) == len(listed)


@pytest.mark.gate
def test_every_kind_of_state_survives(emulator: StorageEmulator) -> None:
    bucket = emulator.client().bucket(BUCKET)
    bucket.labels = {"k": "v"}
    bucket.patch()
    blob = bucket.blob("a")
    blob.metadata = {"run": "r1"}
    blob.upload_from_string(b"old")
    blob.upload_from_string(b"new")
    bucket.blob("gone").upload_from_string(b"x")
    bucket.blob("gone").delete()
    before = {found.name: found._properties for found in bucket.list_blobs()}
    restart(emulator)

    after = emulator.client().get_bucket(BUCKET)
    assert after.labels == {"k": "v"}
    assert {found.name: found._properties for found in after.list_blobs()} == before
    assert after.blob("a").download_as_bytes() == b"new"


@pytest.mark.gate
def test_create_only_still_refuses_after_a_restart(emulator: StorageEmulator) -> None:
    obstore.put(open_bucket(emulator.url, BUCKET), "a", b"first", mode="create")
    restart(emulator)
    with pytest.raises(AlreadyExistsError):
        obstore.put(open_bucket(emulator.url, BUCKET), "a", b"second", mode="create")


def test_generations_go_on_growing_after_a_restart(emulator: StorageEmulator) -> None:
    before = obstore.put(open_bucket(emulator.url, BUCKET), "a", b"1")
    restart(emulator)
    after = obstore.put(open_bucket(emulator.url, BUCKET), "a", b"2")

    assert int(after["version"] or 0) > int(before["version"] or 0) > 0


@pytest.mark.gate
def test_a_resumable_upload_goes_on_where_it_was(emulator: StorageEmulator) -> None:
    bucket = emulator.client().bucket(BUCKET)
    content = content_of("resumed") * 8
    session = bucket.blob("a").create_resumable_upload_session()
    requests.put(session, data=content[:CHUNK], headers={"Content-Range": f"bytes 0-{CHUNK - 1}/*"})
    restart(emulator)

    asked = requests.put(session, headers={"Content-Range": "bytes */*"})
    assert (asked.status_code, asked.headers["Range"]) == (308, f"bytes=0-{CHUNK - 1}")
    rest = {"Content-Range": f"bytes {CHUNK}-{len(content) - 1}/{len(content)}"}
    assert requests.put(session, data=content[CHUNK:], headers=rest).status_code == 200
    assert bucket.blob("a").download_as_bytes() == content


def test_a_finished_resumable_upload_answers_again_after_a_restart(emulator: StorageEmulator) -> None:
    bucket: Client = emulator.client().bucket(BUCKET)
    session = bucket.blob("a").create_resumable_upload_session(if_generation_match=0)
    first = requests.put(session, data=b"hello")
    restart(emulator)
    again = requests.put(session, headers={"Content-Range": "bytes */5"})

    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()


@pytest.mark.gate
def test_a_multipart_upload_goes_on_where_it_was(emulator: StorageEmulator) -> None:
    address = f"{emulator.url}/{BUCKET}/a"
    upload = requests.post(f"{address}?uploads").text.partition("<UploadId>")[2].partition("<")[0]
    first = requests.put(f"{address}?partNumber=1&uploadId={upload}", data=b"one").headers["ETag"]
    restart(emulator)
    second = requests.put(f"{address}?partNumber=2&uploadId={upload}", data=b"two").headers["ETag"]

    listed = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{etag}</ETag></Part>" for n, etag in ((1, first), (2, second)))
    requests.post(f"{address}?uploadId={upload}", data=f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>")
    assert requests.get(address).content == b"onetwo"


def test_sigterm_ends_it_with_success_while_clients_are_connected(emulator: StorageEmulator) -> None:
    with requests.Session() as session:
        assert session.get(f"{emulator.url}/_health").text == "ok"
        assert emulator.stop() == 0


def test_sigterm_does_not_wait_for_a_client_that_never_finishes(emulator: StorageEmulator) -> None:
    arriving = threading.Event()

    def endless() -> Iterator[bytes]:
        for number in itertools.count():
            yield b"x" * 1000
            # The second block is only asked for when the first was sent.
            if number:
                arriving.set()
            time.sleep(0.05)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(requests.put, f"{emulator.url}/{BUCKET}/endless", data=endless())
        assert arriving.wait(timeout=600)
        assert emulator.stop() == 0
        assert isinstance(sending.exception(), requests.ConnectionError) or sending.result().status_code >= 500
    emulator.start()
    assert obstore.list(open_bucket(emulator.url, BUCKET)).collect() == []


def test_a_second_process_on_the_same_folder_is_refused(emulator: StorageEmulator) -> None:
    command = [*emulator.command[:-4], "--port", "0", *emulator.command[-2:]]
    second = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=Path(__file__).parents[3])

    assert second.returncode == 1
    assert "in use by another storage emulator" in second.stderr


def test_sigkill_is_what_kill_sends(emulator: StorageEmulator) -> None:
    """The other tests of this file prove nothing if the process could clean up."""
    emulator.kill()

    assert emulator.process is not None
    assert emulator.process.returncode == -signal.SIGKILL
