"""One bucket with four nights, and one Airflow that shows them, for all tests of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]
from obstore.store import ObjectStore

from nightshift.run.observed.endings import Ending, record
from nightshift.run.observed.heartbeats import Ended
from nightshift.store import open_store
from tests.chat_run import ChatRun, a_chat_run
from tests.integration.emulators import StorageEmulator
from tests.integration.pages.server import READS, ApiServer, start_airflow

BUCKET = "pages"
HOSTILE = "<script>document.title='taken'</script><b onclick=alert(1)>"
TICKETS = [*READS, ["can_read", "DAG:tickets"]]
USERS: list[dict[str, Any]] = [
    {"name": "nobody", "permissions": [*READS, ["can_read", "DAG:other"], ["can_read", "XComs"]]},
    {"name": "looker", "permissions": TICKETS},
    {"name": "reader", "permissions": [*TICKETS, *(["can_read", each] for each in ("XComs", "Task Logs", "Plugins"))]},
    {
        "name": "editor",
        "permissions": [
            *TICKETS,
            *(["can_read", each] for each in ("XComs", "Task Logs", "Plugins", "DAG Code")),
            ["can_edit", "DAG:tickets"],
            ["can_create", "DAG Runs"],
            ["can_edit", "DAG Runs"],
        ],
    },
    {"name": "viewer", "role": "Viewer", "permissions": []},
]


@dataclass(frozen=True)
class Nights:
    """published: of the day before the failed one, with 75 dead rows of 600. working: half done. secret: another job's."""

    store: ObjectStore
    published: ChatRun
    failed: ChatRun
    working: ChatRun
    secret: ChatRun


@pytest.fixture(scope="session")
def nights(storage_emulator: StorageEmulator, storage_client: StorageClient) -> Iterator[Nights]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
        storage_client.create_bucket(BUCKET)
        yield _written(open_store(f"gs://{BUCKET}"))


def _written(store: ObjectStore) -> Nights:
    now = datetime.now(UTC)
    published = a_chat_run(store, partition="2026-11-19", digest="a" * 16, rows=400, chunk_rows=100, opened_by="scheduled__1")
    for number in range(4):
        published.commit(number, lambda row: ("spam", "ham", "other")[row % 3])
    published.beat("tickets-0-1", ended=Ended.DONE, rows_answered=400)
    published.seal()
    record(store, published.run, Ending("published", "2026-11-20T02:00:00+00:00", "scheduled__1", dead_letters=0))
    failed = a_chat_run(store, partition="2026-11-20", digest="b" * 16, rows=600, chunk_rows=100, opened_by="manual__1")
    for number in range(6):
        failed.commit(number, lambda row: None if row % 8 == 0 else "spam" if row % 5 else f"{HOSTILE} {row}")
    failed.beat("tickets-0-1", ended=Ended.DONE, rows_answered=525, rows_dead=75)
    why = "75 of 600 rows are dead letters (75 bad_input); the job tolerates 30. Look at their reasons."
    # After its chunks, which are written now: else the run would have gone on.
    ended = (now + timedelta(minutes=10)).isoformat(timespec="seconds")
    record(store, failed.run, Ending("failed", ended, "manual__1", task="seal", error=why, dead_letters=75))
    working = a_chat_run(
        store, partition="2026-11-27", digest="c" * 16, rows=2000, chunk_rows=100, opened_by="manual__2", workers=2
    )
    for number in range(10):
        working.commit(number, lambda row: ("spam", "ham", "ham", "other")[row % 4], attempt=f"tickets-{number % 2}-1")
    for number in range(2):
        working.beat(f"tickets-{number}-1", index=number, rows_answered=500)
    secret = a_chat_run(store, job="secrets", digest="d" * 16, rows=100, chunk_rows=50, opened_by="manual__3")
    secret.commit(0)
    return Nights(store, published, failed, working, secret)


@pytest.fixture(scope="session")
def airflow(nights: Nights, storage_emulator: StorageEmulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """With DAG runs for three of the nights; the fourth one's task plan has not ended."""
    done = dict.fromkeys(("plan", "extract", "infer"), "success")
    stopped = {"seal": "failed", "publish": "upstream_failed", "audit": "upstream_failed"}
    failed = {"dag_id": "tickets", "dag_run_id": "manual__1", "state": "failed", "tasks": done | stopped}
    working = {
        "dag_id": "tickets",
        "dag_run_id": "manual__2",
        "state": "running",
        "tasks": {"plan": "success", "infer": "deferred"},
    }
    opening = {"dag_id": "tickets", "dag_run_id": "manual__4", "state": "running", "tasks": {"plan": "running"}, "prefix": ""}
    secret = {"dag_id": "secrets", "dag_run_id": "manual__3", "state": "failed", "tasks": done | stopped}
    # A task may pass on anything: a run of another job is not shown by it.
    strange = {"dag_id": "tickets", "dag_run_id": "manual__5", "state": "success", "tasks": {"plan": "success"}}
    server = start_airflow(
        tmp_path_factory.mktemp("airflow"),
        storage_emulator.url,
        BUCKET,
        jobs=["tickets", "secrets"],
        users=USERS,
        nights=[
            {**failed, "prefix": nights.failed.run.prefix},
            {**working, "prefix": nights.working.run.prefix},
            {**secret, "prefix": nights.secret.run.prefix},
            {**strange, "prefix": nights.secret.run.prefix},
            opening,
        ],
    )
    yield server
    # Nothing of it is looked at afterwards, and it takes its time to end.
    server.kill()


@pytest.fixture(scope="session")
def large_night(nights: Nights) -> str:
    """The path of a night of 10,000 chunks, 9,000 of them committed. Each has 100 rows: how many rows a chunk has makes no
    difference to who reads its footer."""
    large = a_chat_run(
        nights.store, partition="2026-11-26", digest="e" * 16, rows=1_000_000, chunk_rows=100, exported=2_000, workers=100
    )
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda first: large.commit_alike(range(first, 9_000, 4)), range(4)))
    for number in range(100):
        large.beat(f"pod-{number}")
    return large.run.prefix
