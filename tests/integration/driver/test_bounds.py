"""What a real driver process may lose and hold at most: after SIGKILL, an unexpected error or a hang, and with much input."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import obstore
import pytest

from nightshift import exits
from nightshift.run.names import canonical_json
from nightshift.store import open_store
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import DriverProcess, PreparedRun, prepare

pytestmark = [pytest.mark.integration, pytest.mark.gate]

CHUNK_ROWS = 8
ROWS_PER_REQUEST = 4
WAITING_MOST = 8
"""Finished chunks that may wait for the store (docs/ledger.md)."""


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


def test_an_unexpected_error_asks_to_be_resumed(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, [f"text {n}" for n in range(60)], chunk_rows=CHUNK_ROWS)
    # A plan that promises more rows than its last file has: no version writes one, so no code expects it.
    last = prepared.plan.files[-1]
    longer = replace(last, rows=last.rows + CHUNK_ROWS, row_groups=(*last.row_groups[:-1], last.row_groups[-1] + CHUNK_ROWS))
    plan = replace(prepared.plan, rows=prepared.plan.rows + CHUNK_ROWS, files=(*prepared.plan.files[:-1], longer))
    obstore.put(open_store(prepared.url), f"{prepared.run.prefix}/plan.json", canonical_json(plan.to_json()))

    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url)
        code = driver.finish()

    assert code == exits.RESUME
    [error] = [entry for entry in driver.log if entry["message"] == "unexpected error"]
    assert "ValueError" in error["traceback"]
    saved = {*prepared.rows(), *prepared.partial_rows()}
    assert {int(text.removeprefix("text ")) for text in engine.seen} <= saved, "every answer is committed or saved"


ENDLESS = "{% if text == 'text 30' %}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{% endif %}"


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until_it_hangs(driver: DriverProcess, engine: CannedEngine) -> None:
    """Until it has computed for two seconds and sent nothing."""
    while True:
        began, sent = cpu_seconds(driver.process.pid), len(engine.seen)
        while cpu_seconds(driver.process.pid) < began + 2.0:
            time.sleep(0.05)
        if sent and len(engine.seen) == sent:
            return


def test_a_drain_that_hangs_is_ended_by_the_last_resort(tmp_path: Path) -> None:
    """A template that never ends holds the whole process, its event loop included."""
    prepared = prepare(tmp_path, [f"text {n}" for n in range(60)], chunk_rows=CHUNK_ROWS, request__input=ENDLESS + "{{ text }}")
    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url)
        wait_until_it_hangs(driver, engine)

        driver.terminate()
        code = driver.finish()

    assert code == exits.RESUME
    assert driver.messages()[-1] == "drain took too long, exiting"
    assert "exit" not in driver.messages(), "it did not come to its own end"


MANY_SEATS = {"engine__max_num_seqs": 600, "request__rows_per_request": 1}
UNCAPPED = (
    "from nightshift.driver import descriptors, patience, process\n"
    "descriptors.RESERVED = -10_000\n"
    "patience.BACKOFF_S = patience.BACKOFF_MAX_S = 0.01\n"
    "process.main()\n"
)
"""A driver that takes no heed of how many descriptors it has."""


def run_with_descriptors(
    tmp_path: Path, soft: int, hard: int, program: str | None = None
) -> tuple[DriverProcess, CannedEngine]:
    prepared = prepare(tmp_path, [f"text {n}" for n in range(1500)], chunk_rows=300, **MANY_SEATS)

    async def slow(_: list[str]) -> None:
        await asyncio.sleep(0.05)

    with CannedEngine(slow) as engine:
        driver = DriverProcess(prepared, engine.url, descriptors=(soft, hard), program=program)
        assert driver.finish() == exits.DONE
    rows = prepared.rows()
    assert len(rows) == 1500
    assert not [row for row in rows.values() if row["dead_reason"]]
    assert not {"engine lost", "engine error"} & set(driver.messages())
    return driver, engine


def test_fewer_descriptors_than_seats_cost_no_row_and_no_engine(tmp_path: Path) -> None:
    driver, engine = run_with_descriptors(tmp_path, 256, 256)

    assert engine.in_flight_max <= 256 - 64
    [said] = [entry for entry in driver.log if entry["message"].startswith("fewer file descriptors")]
    assert (said["descriptors"], said["requests_at_most"], said["requests_wanted"]) == (256, 192, 1200)


def test_the_soft_limit_is_raised_to_the_hard_one(tmp_path: Path) -> None:
    driver, engine = run_with_descriptors(tmp_path, 100, 4096)

    assert engine.in_flight_max > 100
    assert not any(message.startswith("fewer file descriptors") for message in driver.messages())


def test_a_descriptor_that_is_missing_after_all_is_nobodys_fault(tmp_path: Path) -> None:
    driver, _ = run_with_descriptors(tmp_path, 100, 100, UNCAPPED)

    assert "request not sent" in driver.messages()
    assert driver.log[-2]["retries"]["descriptors"] > 0


def peak_bytes(prepared: PreparedRun) -> int:
    """The driver's peak memory, as it stands when the last chunk is committed."""
    with CannedEngine() as engine:
        driver = DriverProcess(prepared, engine.url, extra={"NIGHTSHIFT_BUFFER_MB": "1"})
        for _ in range(prepared.plan.chunk_count):
            driver.wait_for("committed")
            # Not of wait4: that counts what this process had before the driver's program took its place.
            status = Path(f"/proc/{driver.process.pid}/status").read_text()
            if match := re.search(r"VmHWM:\s+(\d+) kB", status):
                peak = int(match[1]) * 1024
        assert driver.finish() == exits.DONE
    return peak


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
