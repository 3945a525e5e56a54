"""What a real driver process may lose and hold at most: after SIGKILL, an unexpected error or a hang, and with much input."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
import time
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from aiohttp import web

from nightshift import exits
from nightshift.run.names import canonical_json
from nightshift.spec.limits import chunk_rows_most
from nightshift.store import open_store
from tests.builders import a_spec, write_input
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import MEASURED, DriverProcess, PreparedRun, prepare
from tests.integration.driver.tables import prepare_table
from tests.integration.emulators import StorageEmulator

pytestmark = [pytest.mark.integration, pytest.mark.gate]

CHUNK_ROWS = 8
ROWS_PER_REQUEST = 4
WAITING_MOST = 8
"""Finished chunks that may wait for the store (docs/develop/ledger.md)."""


async def soon(_: list[str]) -> None:
    await asyncio.sleep(0.005)


def test_kill_9_loses_what_was_in_flight_and_the_open_chunks_and_no_more(tmp_path: Path) -> None:
    texts: list[str | None] = [f"text {n}" for n in range(1200)]
    prepared = prepare(tmp_path, texts, chunk_rows=CHUNK_ROWS)
    with CannedEngine(soon) as engine:
        driver = DriverProcess(prepared, engine.url)
        while len(engine.seen) < 800:
            time.sleep(0.01)
        driver.process.kill()
        assert driver.finish() == -signal.SIGKILL
        sent, in_flight_most = list(engine.seen), engine.in_flight_max
    committed = {f"text {ordinal}" for ordinal in prepared.rows()}

    with CannedEngine(soon) as engine:
        assert DriverProcess(prepared, engine.url).finish() == exits.DONE
        again = Counter(engine.seen)

    lost = set(sent) - committed
    # Every open chunk has a request in flight, but for the one that is being sent; the others wait for the store.
    assert len(lost) <= (in_flight_most + 1 + WAITING_MOST) * CHUNK_ROWS
    assert len(committed) >= 800 / 2, "the bound above says something"
    assert again == Counter({text for text in texts if text} - committed), "nothing that was committed is computed again"
    assert sorted(prepared.rows()) == list(range(1200))


# Every mistake that a file, a store or an engine can make is expected by now, so the error is put in here.
BROKEN = """
from nightshift.driver import main
from nightshift.run.inputs import InputReader
read = InputReader.read

def broken(self, chunk):
    if chunk == self._plan.chunk_count - 1:
        raise ValueError("made to fail")
    return read(self, chunk)

InputReader.read = broken
main.main()
"""


def test_an_unexpected_error_asks_to_be_resumed(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [f"text {n}" for n in range(60)], chunk_rows=CHUNK_ROWS)

    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url, program=BROKEN)
        code = driver.finish()

    assert code == exits.RESUME
    [error] = [entry for entry in driver.log if entry["message"] == "unexpected error"]
    assert "ValueError" in error["traceback"]
    saved = {*prepared.rows(), *prepared.partial_rows()}
    assert {int(text.removeprefix("text ")) for text in engine.seen} <= saved, "every answer is committed or saved"


ENDLESS = "{% if id >= 30 %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until_it_hangs(driver: DriverProcess, engine: CannedEngine) -> None:
    """Until it has computed for a second and sent nothing."""
    while True:
        began, sent = cpu_seconds(driver.process.pid), len(engine.seen)
        while cpu_seconds(driver.process.pid) < began + 1.0:
            time.sleep(0.05)
        if sent and len(engine.seen) == sent:
            return


def test_sigterm_during_a_template_that_never_ends_saves_what_is_finished(tmp_path: Path) -> None:
    """Such a template holds the whole process, its event loop included."""
    prepared = prepare(tmp_path, [f"text {n}" for n in range(60)], chunk_rows=CHUNK_ROWS, request__input=ENDLESS + "{{ text }}")
    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url)
        wait_until_it_hangs(driver, engine)

        driver.terminate()
        code = driver.finish()

    assert code == exits.RESUME
    assert driver.messages()[-1] == "exit", "it came to its own end"
    saved = {*prepared.rows(), *prepared.partial_rows()}
    assert saved >= set(range(28)), "every answer is committed or saved"
    [stopped] = [entry for entry in driver.log if entry["message"] == "stopped"]
    assert stopped["rows_dead"] == 0, "the template was the row's own, but the end was not"


LATE_S = 600.0
IMAGE_BYTES = 3 << 20
IMAGES = 256


class PatientEngine(CannedEngine):
    """Answers about images, which it does not keep, and nobody before it has so many requests at once.

    late: it waited for them for `LATE_S`, and answers all the same.
    """

    def __init__(self, requests: int) -> None:
        super().__init__()
        self.late = False
        self._missing = requests
        self._all = asyncio.Event()

    async def _chat(self, request: web.Request) -> web.Response:
        async for _ in request.content.iter_any():
            pass
        self._in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self._in_flight)
        self._missing -= 1
        if self._missing <= 0:
            self._all.set()
        try:
            async with asyncio.timeout(LATE_S):
                await self._all.wait()
        except TimeoutError:
            self.late = True
            self._all.set()
        await asyncio.sleep(0.5)
        self._in_flight -= 1
        choice = {"index": 0, "message": {"role": "assistant", "content": "a picture"}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice]})


@pytest.mark.parametrize("kept", ["in the store", "in the rows"])
def test_images_in_flight_fit_the_pod(
    tmp_path: Path, storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    """The container of the driver has 2 GiB, and its input and its answers need room, too."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    image = b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(IMAGE_BYTES)
    count = IMAGES if kept == "in the store" else IMAGES // 4
    if kept == "in the store":
        storage_emulator.client().create_bucket(f"photos-{tmp_path.name}").blob("a.png").upload_from_string(image)
    photos = [f"gs://photos-{tmp_path.name}/a.png" if kept == "in the store" else image] * count
    spec = a_spec(task="image", request={"image": "photo", "user": "what is it?"}, engine={"max_num_seqs": 256})
    prepared = prepare_table(tmp_path, spec, {"photo": photos}, chunk_rows=count)

    with PatientEngine(IMAGES // 4) as engine:
        driver = DriverProcess(prepared, engine.url, program=MEASURED)
        assert driver.finish() == exits.DONE

    assert len(prepared.rows()) == count
    assert not engine.late, "bytes leave room for so many, however slowly they come"
    assert engine.in_flight_max <= IMAGES // 2, "512 MiB of images, each of 4 MiB in base64"
    assert driver.peak_bytes < 1 << 30


def test_images_reach_the_engine_while_it_answers_none(
    tmp_path: Path, storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a few are fetched at once, because each may be large. The next one waits for these, not for an answer."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    bucket = storage_emulator.client().create_bucket(f"small-{tmp_path.name}")
    bucket.blob("a.png").upload_from_string(b"\x89PNG\r\n\x1a\n")
    spec = a_spec(task="image", request={"image": "photo", "user": "what is it?"}, engine={"max_num_seqs": 64})
    prepared = prepare_table(tmp_path, spec, {"photo": [f"gs://{bucket.name}/a.png"] * 64}, chunk_rows=64)

    with PatientEngine(64) as engine:
        assert DriverProcess(prepared, engine.url).finish() == exits.DONE

    assert not engine.late


class WideEngine(CannedEngine):
    """Vectors of so many numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._vector = base64.b64encode(array("f", range(width)).tobytes()).decode()

    async def _embed(self, request: web.Request) -> web.Response:
        texts = (await request.json())["input"]
        return web.json_response({"data": [{"index": n, "embedding": self._vector} for n in range(len(texts))]})


@pytest.mark.parametrize(("width", "stated", "chunks"), [(4096, {}, 3), (128, {"dimensions": 128}, 1)])
def test_answers_of_the_largest_chunks_fit_the_pod(tmp_path: Path, width: int, stated: dict[str, int], chunks: int) -> None:
    """The largest ones that a job may ask for."""
    rows = chunk_rows_most(type(a_spec().request), stated)
    texts: list[str | None] = [f"text {n}" for n in range(chunks * rows)]
    request = {"input": "{{ text }}", "rows_per_request": 64, **stated}
    prepared = prepare(tmp_path, texts, chunk_rows=rows, per_file=len(texts), per_group=rows, request=request)

    with WideEngine(width) as engine:
        driver = DriverProcess(prepared, engine.url, program=MEASURED)
        assert driver.finish() == exits.DONE

    assert driver.peak_bytes < 1 << 30


MANY_SEATS: dict[str, Any] = {"engine__max_num_seqs": 600, "request__rows_per_request": 1}
UNCAPPED = (
    "from nightshift.driver import backoff, descriptors, main\n"
    "descriptors.RESERVED = -10_000\n"
    "backoff.BACKOFF_S = backoff.BACKOFF_MAX_S = 0.01\n"
    "main.main()\n"
)
"""A driver that takes no heed of how many descriptors it has."""


def run_with_descriptors(
    tmp_path: Path, soft: int, hard: int, program: str | None = None, at_once: int = 0
) -> tuple[DriverProcess, CannedEngine]:
    """at_once: the engine answers nothing until it has been asked so many things at once, for a minute at most."""
    prepared = prepare(tmp_path, [f"text {n}" for n in range(1500)], chunk_rows=300, **MANY_SEATS)

    patience = time.monotonic() + 60

    async def slow(_: list[str]) -> None:
        while engine.in_flight_max < at_once and time.monotonic() < patience:  # noqa: ASYNC110 - the engine only counts
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)

    with CannedEngine(slow) as engine:
        driver = DriverProcess(prepared, engine.url, descriptors=(soft, hard), program=program)
        assert driver.finish() == exits.DONE
    rows = prepared.rows()
    assert len(rows) == 1500
    assert not [row for row in rows.values() if row["dead_reason"]]
    assert not {"engine lost", "engine error"} & set(driver.messages())
    return driver, engine


@pytest.mark.parametrize("descriptors", [256, 1024])
def test_fewer_descriptors_than_seats_cost_no_row_and_no_engine(tmp_path: Path, descriptors: int) -> None:
    driver, engine = run_with_descriptors(tmp_path, descriptors, descriptors)

    most = descriptors - 64
    assert engine.in_flight_max <= most
    [said] = [entry for entry in driver.log if entry["message"].startswith("fewer file descriptors")]
    assert (said["descriptors"], said["requests_at_most"], said["requests_wanted"]) == (descriptors, most, 1200)


def test_the_soft_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    driver, engine = run_with_descriptors(tmp_path, 100, 4096, at_once=101)

    assert engine.in_flight_max > 100
    assert not any(message.startswith("fewer file descriptors") for message in driver.messages())


def test_a_descriptor_that_is_missing_after_all_is_nobodys_fault(tmp_path: Path) -> None:
    driver, _ = run_with_descriptors(tmp_path, 100, 100, UNCAPPED)

    assert "request not sent" in driver.messages()
    [done] = [entry for entry in driver.log if entry["message"] == "done"]
    assert done["retries"]["descriptors"] > 0


def peak_bytes(prepared: PreparedRun) -> int:
    """The driver's peak memory."""
    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url, extra={"NIGHTSHIFT_BUFFER_MB": "1"}, program=MEASURED)
        assert driver.finish() == exits.DONE
    return driver.peak_bytes


def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    kib = "x" * 4096
    few, many = 1_000, 12_000
    peaks = [
        peak_bytes(
            prepare(
                tmp_path / str(rows),
                [f"{n} {kib}" for n in range(rows)],
                chunk_rows=100,
                request__rows_per_request=32,
            )
        )
        for rows in (few, many)
    ]

    assert peaks[1] - peaks[0] < (many - few) * len(kib) / 3


def test_an_input_that_is_overwritten_in_the_middle_of_a_run_ends_it_for_good(tmp_path: Path) -> None:
    texts: list[str | None] = [f"text {n:03}" for n in range(50)]
    prepared = prepare(tmp_path, texts, chunk_rows=CHUNK_ROWS)
    seen = asyncio.Event()

    async def overwrites(_: list[str]) -> None:
        # The driver has opened the file, and has yet to read its second and third row group.
        if not seen.is_set():
            seen.set()
            others = [text and text.upper() for text in texts]
            write_input(open_store(prepared.url), prepared.run, others, per_file=50, per_group=20)

    with CannedEngine(overwrites) as engine:
        driver = DriverProcess(prepared, engine.url)
        code = driver.finish()

    assert code == exits.CONFIG
    [error] = [entry["error"] for entry in driver.log if entry["message"] == "cannot continue"]
    assert "part-000.parquet was overwritten or deleted after it was planned" in error
    assert not [text for text in engine.seen if text.isupper()], "no row of the other file was computed"


def test_an_input_that_is_not_parquet_ends_the_run_for_good(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, ["a"] * 50, chunk_rows=CHUNK_ROWS)
    store, (file,) = open_store(prepared.url), prepared.plan.files
    path = f"{prepared.run.prefix}/{file.path}"
    obstore.put(store, path, b"<html>" * 50)
    meta = obstore.head(store, path)
    plan = replace(prepared.plan, files=(replace(file, size=meta["size"], etag=str(meta["e_tag"])),))
    obstore.put(store, f"{prepared.run.prefix}/plan.json", canonical_json(plan.to_json()))

    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url)
        code = driver.finish()

    assert code == exits.CONFIG
    [error] = [entry["error"] for entry in driver.log if entry["message"] == "cannot continue"]
    assert "not readable Parquet" in error
