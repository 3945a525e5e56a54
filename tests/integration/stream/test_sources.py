"""Every source holds what `tests.integration.stream.source_contract` says, with real parts behind it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, TypeVar

import obstore
import pytest
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]
from obstore.store import LocalStore, ObjectStore

from nightshift.store import StoreUnavailable, open_store
from nightshift.stream import folder_source
from nightshift.stream.folder_objects import WatchedFolder
from nightshift.stream.folder_source import Found, Watched
from nightshift.stream.messages import Delivery
from nightshift.stream.ports import Source
from nightshift.stream.pubsub import Subscription
from nightshift.stream.stats import StreamStats
from tests.integration.emulators import PubSubEmulator, StorageEmulator
from tests.integration.pubsub import PubSub, unique
from tests.integration.stream.source_contract import LEASE_S, Placed, SourceContract

pytestmark = pytest.mark.integration

T = TypeVar("T")
QUIET_S: Final = 1.5


class Impatient(Subscription):
    """Pub/Sub waits for a message for longer than a test that expects none."""

    async def pull(self, most: int) -> list[Delivery]:
        try:
            async with asyncio.timeout(QUIET_S):
                return await super().pull(most)
        except TimeoutError:
            return []


class SubscriptionPlace:
    """`source_contract.Place`: a subscription of Pub/Sub."""

    def __init__(self, pubsub: PubSub) -> None:
        self._pubsub = pubsub
        self._topic, self._subscription = pubsub.pair(ack_deadline_seconds=LEASE_S)
        self.sources: list[Subscription] = []

    async def source(self) -> Source:
        self.sources.append(Impatient(self._subscription, StreamStats()))
        return self.sources[-1]

    def put(self, *data: bytes) -> None:
        self._pubsub.publish(self._topic, *data)

    def pass_time(self, seconds: float) -> None:
        self._pubsub.advance(seconds)

    def fail(self, method: str, *, after: bool) -> None:
        kind = "lose_reply" if after else "unavailable"
        self._pubsub.order(kind=kind, method=method.capitalize(), resource=self._subscription, times=1)


class FaultyFolder(WatchedFolder):
    """fault: the method of the source of which the next call fails, and whether it has its effect then."""

    fault: tuple[str, bool] | None = None

    async def found(self) -> list[Found]:
        return self._reply(await super().found() if self._passes("pull") else [], "pull")

    async def finish(self, marker: str, body: bytes) -> None:
        if self._passes("acknowledge"):
            await super().finish(marker, body)
        self._reply(None, "acknowledge")

    def _passes(self, method: str) -> bool:
        return self.fault in (None, (method, True)) or (self.fault is not None and self.fault[0] != method)

    def _reply(self, value: T, method: str) -> T:
        if self.fault and self.fault[0] == method:
            FaultyFolder.fault = None
            raise StoreUnavailable("no reply")
        return value


class FolderPlace:
    """`source_contract.Place`: a watched folder. Each put is an object."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._passed = 0.0
        FaultyFolder.fault = None

    async def source(self) -> Source:
        return Watched(
            FaultyFolder(self._store, "texts", "text"),
            every_s=0.0,
            rng=random.Random(1),
            steady=lambda: time.monotonic() + self._passed,
        )

    def put(self, *data: bytes) -> None:
        obstore.put(self._store, f"{unique()}.txt", b"".join(each + b"\n" for each in data))

    def pass_time(self, seconds: float) -> None:
        self._passed += seconds

    def fail(self, method: str, *, after: bool) -> None:
        FaultyFolder.fault = (method, after)


@pytest.mark.gate
class TestSubscriptions(SourceContract):
    @pytest.fixture
    async def placed(self, pubsub_emulator: PubSubEmulator, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Placed]:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", pubsub_emulator.target)
        pubsub = PubSub(pubsub_emulator)
        place = SubscriptionPlace(pubsub)
        yield lambda: place
        for source in place.sources:
            await source.close()
        pubsub.end_faults()
        pubsub.close()


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_source, "WAIT_S", 0.0)
    monkeypatch.setattr(folder_source, "LOOK_S", 0.0)


@pytest.mark.gate
@pytest.mark.usefixtures("no_waiting")
class TestFoldersOfThisMachine(SourceContract):
    @pytest.fixture
    def placed(self, tmp_path: Path) -> Placed:
        return lambda: FolderPlace(LocalStore(str(tmp_path)))


@pytest.mark.usefixtures("no_waiting")
class TestFoldersOnCloudStorage(SourceContract):
    @pytest.fixture
    def placed(
        self, storage_client: StorageClient, storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch
    ) -> Placed:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
        bucket = f"source{unique()}"
        storage_client.create_bucket(bucket)
        return lambda: FolderPlace(open_store(f"gs://{bucket}/in"))
