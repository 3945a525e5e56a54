"""Object storage on a bad night: bodies that never arrive, rights and credentials that go away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from aiohttp import web

from nightshift import store as stores
from nightshift.driver import backoff
from nightshift.driver.backoff import Backoff
from nightshift.driver.fetch import Fetcher
from nightshift.store import StoreUnavailable
from nightshift.tasks.base import BadInput, Fetching, load_kind
from tests.builders import a_spec
from tests.integration.driver.serving import ThreadedServer

pytestmark = [pytest.mark.integration, pytest.mark.gate]

PNG = b"\x89PNG\r\n\x1a\n"
HEADERS = {"Last-Modified": "Mon, 23 Nov 2026 00:00:00 GMT", "ETag": '"1"'}


class MoodyStore(ThreadedServer):
    """Serves pictures by XML API, as the emulator cannot: the name says what goes wrong. refused: the status of every read."""

    refused = 0

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/{bucket}/{name}", self._get)]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        status = self.refused or {"forbidden": 403, "refused": 503}.get(name)
        if status:
            return web.Response(status=status)
        reply = web.StreamResponse(headers=HEADERS | ({} if name == "endless" else {"Content-Length": "100"}))
        if name == "endless":
            reply.enable_chunked_encoding()
        await reply.prepare(request)
        await reply.write(PNG)
        if name == "drips":
            while True:
                await reply.write(b"0")
                await asyncio.sleep(0.1)
        if name == "cut" and request.transport is not None:
            request.transport.close()
        else:
            await reply.write(bytes(100 - len(PNG)))
        return reply


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MoodyStore]:
    """It is asked only twice: an object that cannot be read is not asked for again for ten minutes."""
    # Long enough for a busy machine to read what can be read; only what drips takes so long.
    monkeypatch.setattr(stores, "REQUEST_TIMEOUT", timedelta(seconds=5))
    monkeypatch.setattr(stores, "RETRY_TIMEOUT", timedelta(milliseconds=1))
    monkeypatch.setattr(backoff, "STORE_BUDGET_S", -1.0)
    with MoodyStore(0) as store:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{store.port}")
        yield store


def reading(*steps: str | Callable[[], None]) -> list[str]:
    """One worker reads these objects of gs://bucket, one after the other, and does what stands between them: how each ended."""
    kind = load_kind(a_spec(task="image", request={"image": "photo", "user": "?"}))
    assert isinstance(kind, Fetching)

    async def read() -> list[str]:
        fetcher, ends = Fetcher(kind, Backoff(random.Random(1), asyncio.Event())), []
        for step in steps:
            if not isinstance(step, str):
                step()
                continue
            try:
                picture = await fetcher.complete(kind.render({"photo": f"gs://bucket/{step}"}, 0))
                ends.append(f"{len(picture.image)} bytes")
            except (BadInput, StoreUnavailable) as error:
                ends.append(f"{'row' if isinstance(error, BadInput) else 'store'}: {error}")
        return ends

    return asyncio.run(read())


@pytest.mark.parametrize("name", ["cut", "drips", "endless", "refused"])
def test_an_object_that_never_arrives_is_one_dead_letter_if_others_do(server: MoodyStore, name: str) -> None:
    """Otherwise it would end each attempt of the worker, for ever."""
    alone, fine, beside = reading(name, "fine", name)

    assert alone.startswith(f"store: read gs://bucket/{name}")
    assert fine == "100 bytes"
    assert beside.startswith(f"row: the object gs://bucket/{name} could not be read in")
    assert "though gs://bucket/fine can be" in beside


def test_an_object_that_does_not_arrive_while_others_do_not_either_is_not_to_blame(server: MoodyStore) -> None:
    def outage() -> None:
        server.refused = 503

    assert [end.partition(":")[0] for end in reading("fine", outage, "other", "refused")] == ["100 bytes", "store", "store"]


def test_rights_and_credentials_that_go_away_cost_no_row(server: MoodyStore) -> None:
    def refuse(status: int) -> Callable[[], None]:
        return lambda: setattr(server, "refused", status)

    ends = reading("forbidden", "a", "forbidden", refuse(403), "b", refuse(401), "c", refuse(0), "d")

    assert [end.partition(":")[0] for end in ends] == ["row", "100 bytes", "row", "store", "store", "100 bytes"]
    assert ends[3] == "store: no permission to read gs://bucket/b, though gs://bucket/a could be read before"
