"""Object storage for a worker that may create and read objects, but not replace them."""

from __future__ import annotations

from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.store import ObjectStorage, StoreUnavailable

pytestmark = pytest.mark.unit


@pytest.fixture
def forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every put is answered with 403. A stand-in; local/storage/tests/test_identities.py has such an account."""

    async def put_async(*_: Any, **__: Any) -> None:
        raise obstore.exceptions.PermissionDeniedError("403: storage.objects.delete")

    monkeypatch.setattr(obstore, "put_async", put_async)


@pytest.mark.usefixtures("forbidden")
async def test_a_create_that_would_replace_an_object_finds_it_there() -> None:
    store = MemoryStore()
    obstore.put(store, "ledger/a", b"theirs")

    assert await ObjectStorage(store).create("ledger/a", b"ours") is False
    assert await ObjectStorage(store).read("ledger/a") == b"theirs"


@pytest.mark.usefixtures("forbidden")
async def test_a_create_without_the_right_to_is_an_error() -> None:
    with pytest.raises(StoreUnavailable, match="create ledger/a: 403"):
        await ObjectStorage(MemoryStore()).create("ledger/a", b"ours")


async def test_an_outage_is_not_taken_for_an_object_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in: only the error of the put counts here."""

    async def put_async(*_: Any, **__: Any) -> None:
        raise obstore.exceptions.GenericError("503")

    store = MemoryStore()
    obstore.put(store, "ledger/a", b"theirs")
    monkeypatch.setattr(obstore, "put_async", put_async)
    with pytest.raises(StoreUnavailable, match="create ledger/a: 503"):
        await ObjectStorage(store).create("ledger/a", b"ours")
