"""One watch for all followers: nobody misses anything, and nobody is left behind when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from kubernetes_asyncio.client import ApiClient

from nightshift.hooks.jobset import AsyncJobSetHook
from nightshift.hooks.kubernetes_engine import GKEAsyncJobSetHook
from nightshift.jobset.kubernetes import shared_client
from nightshift.jobset.kubernetes.aio import AsyncJobSetApi, WatchExpired
from nightshift.jobset.kubernetes.shared_client import Feed, shared
from nightshift.jobset.runtime import RuntimeUnavailable

pytestmark = pytest.mark.unit

Event = tuple[str, dict[str, Any]]


def thing(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


class Server:
    """watches: from which version each watch was opened. Events are put into `events`, an exception ends the watch."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        self.watches: list[str] = []
        self.closed = 0

    async def begin(self) -> str:
        return "10"

    async def watch(self, version: str) -> AsyncIterator[Event]:
        self.watches.append(version)
        try:
            while (event := await self.events.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.closed += 1


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def feed(server: Server) -> Feed:
    return Feed(server.begin, server.watch, lambda found: found["metadata"]["name"])


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def drained(events: shared_client.Events) -> list[Any]:
    return [events.get_nowait() for _ in range(events.qsize())]


async def test_each_gets_its_own_from_one_watch(server: Server, feed: Feed) -> None:
    a, b = asyncio.Queue[Any](), asyncio.Queue[Any]()
    await feed.join("a", a)
    await feed.join("b", b)
    for event in (
        ("ADDED", thing("a", 11)),
        ("BOOKMARK", thing("", 12)),
        ("MODIFIED", thing("b", 13)),
        ("ADDED", thing("c", 14)),
    ):
        server.events.put_nowait(event)
    # The server ends a watch in good order: the next one goes on from the last version.
    server.events.put_nowait(None)
    await settled()

    assert drained(a) == [("ADDED", thing("a", 11))]
    assert drained(b) == [("MODIFIED", thing("b", 13))]
    assert server.watches == ["10", "14"]


@pytest.mark.parametrize("error", [WatchExpired("too old"), RuntimeUnavailable("away"), KeyError("a mistake of ours")])
async def test_all_learn_how_the_watch_ended_and_the_next_begins_again(server: Server, feed: Feed, error: Exception) -> None:
    a, b = asyncio.Queue[Any](), asyncio.Queue[Any]()
    await feed.join("a", a)
    await feed.join("b", b)
    server.events.put_nowait(error)
    await settled()
    assert (drained(a), drained(b)) == ([error], [error])

    await feed.join("a", a)
    server.events.put_nowait(("ADDED", thing("a", 11)))
    await settled()
    assert (drained(a), drained(b)) == ([("ADDED", thing("a", 11))], [])
    assert server.watches == ["10", "10"]


async def test_the_watch_ends_with_its_last_user(server: Server, feed: Feed) -> None:
    a, b = asyncio.Queue[Any](), asyncio.Queue[Any]()
    await feed.join("a", a)
    await feed.join("b", b)
    await settled()
    feed.leave(a)
    await settled()
    assert server.closed == 0
    feed.leave(b)
    await settled()

    assert server.closed == 1


async def test_a_beginning_that_fails_is_everybodys(server: Server) -> None:
    async def away() -> str:
        raise RuntimeUnavailable("away")

    feed, events = Feed(away, server.watch, str), asyncio.Queue[Any]()
    await feed.join("a", events)

    assert [str(error) for error in drained(events)] == ["away"]


async def test_what_was_listed_already_does_not_come_again() -> None:
    events = asyncio.Queue[Any]()
    for version in (9, 10, 100):
        events.put_nowait(("MODIFIED", thing("a", version)))
    events.put_nowait(WatchExpired("too old"))
    seen = shared_client._after("9", events)

    assert [(await anext(seen))[1]["metadata"]["resourceVersion"] for _ in range(2)] == ["10", "100"]
    with pytest.raises(WatchExpired):
        await anext(seen)


class Clients:
    """open, opened: how many clients there are, and were. refuse: the next attempts fail."""

    def __init__(self) -> None:
        self.open = self.opened = 0
        self.refuse = False

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[ApiClient]:
        await asyncio.sleep(0)
        if self.refuse:
            raise RuntimeUnavailable("no credentials")
        self.open += 1
        self.opened += 1
        try:
            yield Mock(ApiClient)
        finally:
            self.open -= 1


def client_of(api: AsyncJobSetApi) -> Any:
    return api._client


async def test_users_of_one_cluster_and_namespace_share_a_client() -> None:
    clients = Clients()
    async with shared("c", clients.connect, "x") as one, shared("c", clients.connect, "x") as two:
        async with shared("c", clients.connect, "y") as three, shared("d", clients.connect, "x") as four:
            assert client_of(one) is client_of(two)
            assert len({id(client_of(each)) for each in (one, three, four)}) == 3
        assert clients.open == 1
    assert clients.open == 0

    async with shared("c", clients.connect, "x"):
        assert clients.open == 1
    assert clients.opened == 4


async def test_an_old_client_gets_no_new_users(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients()
    async with shared("c", clients.connect, "x"):
        monkeypatch.setattr(shared_client, "JOIN_S", 0.0)
        async with shared("c", clients.connect, "x"):
            assert clients.open == 2


async def test_a_client_that_cannot_be_opened_is_tried_again() -> None:
    clients = Clients()
    clients.refuse = True
    for _ in range(2):
        with pytest.raises(RuntimeUnavailable):
            async with shared("c", clients.connect, "x"):
                pass
    clients.refuse = False
    async with shared("c", clients.connect, "x"):
        assert clients.open == 1


async def test_clients_of_the_hooks_have_as_many_connections_as_they_need(tmp_path: Any) -> None:
    """The library's default would let the hundredth followed log keep out every other call."""
    config = tmp_path / "config"
    cluster = {"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}], "users": [{"name": "u", "user": {}}]}
    contexts = {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    config.write_text(str({"apiVersion": "v1", "kind": "Config", **cluster, **contexts}))
    async with AsyncJobSetHook(conn_id=None, config_file=str(config)).get_conn() as client:
        connector = client.rest_client.pool_manager.connector
        assert connector is not None
        assert connector.limit == 0
        assert client.configuration.host == "https://127.0.0.1:1"
    gke = GKEAsyncJobSetHook(cluster_url="https://127.0.0.1:1", ssl_ca_cert="", use_dns_endpoint=True)
    assert gke._get_config().connection_pool_maxsize == 0
