"""Object storage for a worker that may create and read objects, but not replace them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.driver.backoff import Backoff, Refusals
from nightshift.store import ObjectStorage, Refusal, StoreRefused, StoreUnavailable, reaching, refusal_of

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


def answered(verb: str, url: str, said: str, *, listing: bool = False) -> str:
    """How obstore words a refusal, with what its objects look like inside."""
    head = "Generic GCS error: Error performing list request: " if listing else "The operation lacked ... for path x: "
    asked = f"Error performing {verb} {url} in 15.871661ms - Server returned non-2xx status code: 403 Forbidden: {said}"
    return f"{head}{asked}\n\nDebug source:\nClient {{\n    lots: of,\n}}"


UNKNOWN = "Cloud Storage does not accept the credentials of the account, which needs storage.objects.get on gs://runs-b/x (401)"
LACKS = "<Error><Details>a@p.iam.gserviceaccount.com does not have storage.objects.{} access to the Google Cloud Storage {}."
HOST = "https://storage.googleapis.com/runs%2Db"
DENIED = obstore.exceptions.PermissionDeniedError


class TestARefusal:
    @pytest.mark.parametrize(
        ("error", "said", "role"),
        [
            (
                DENIED(answered("PUT", f"{HOST}/_workers%2Fj%2Fx%20y", LACKS.format("create", "object"))),
                "a@p.iam.gserviceaccount.com does not have storage.objects.create on gs://runs-b/_workers/j/x y (403)",
                "objectCreator",
            ),
            (
                DENIED(answered("PUT", f"{HOST}/x", LACKS.format("delete", "object"))),
                "a@p.iam.gserviceaccount.com does not have storage.objects.delete on gs://runs-b/x (403)",
                "objectUser",
            ),
            (
                DENIED(answered("HEAD", f"{HOST}/x", "")),
                "the account does not have storage.objects.get on gs://runs-b/x (403)",
                "objectViewer",
            ),
            (
                obstore.exceptions.GenericError(
                    answered("GET", f"{HOST}?list-type=2&prefix=j%2F", LACKS.format("list", "bucket"), listing=True)
                ),
                "a@p.iam.gserviceaccount.com does not have storage.objects.list on gs://runs-b/j (403)",
                "objectViewer",
            ),
            (
                obstore.exceptions.GenericError(answered("GET", f"{HOST}?list-type=2", "", listing=True)),
                "the account does not have storage.objects.list on gs://runs-b (403)",
                "objectViewer",
            ),
            (
                obstore.exceptions.UnauthenticatedError(answered("GET", f"{HOST}/x", "")),
                UNKNOWN,
                "objectViewer",
            ),
        ],
    )
    def test_says_who_lacks_what_where_and_the_role(self, error: Exception, said: str, role: str) -> None:
        found = refusal_of(error)

        assert (str(found), found and found.remedy) == (
            said,
            f"Give this account roles/storage.{role} there, or use another account",
        )

    def test_is_found_behind_whatever_was_made_of_it(self) -> None:
        """All that map the store's errors keep the cause: the ledger, tasks, drivers, commands and pages."""
        with pytest.raises(StoreUnavailable) as raised, reaching("write x"):
            raise DENIED(answered("PUT", f"{HOST}/x", ""))
        outer = RuntimeError("a reader's")
        outer.__cause__ = raised.value

        assert refusal_of(outer) == refusal_of(raised.value) == Refusal(403, "storage.objects.create", "", "runs-b", "x")

    @pytest.mark.parametrize(
        "error",
        [
            obstore.exceptions.GenericError(answered("PUT", f"{HOST}/x", "", listing=True).replace("403", "503")),
            obstore.exceptions.UnauthenticatedError(
                "The operation lacked valid authentication credentials for path External GCP credential provider: no"
            ),
            FileNotFoundError("x"),
            StoreUnavailable("read x: 503"),
            ValueError("403"),
            None,
        ],
        ids=str,
    )
    def test_is_no_outage_and_no_missing_object(self, error: BaseException | None) -> None:
        assert refusal_of(error) is None


class TestTwoMinutes:
    """Of a refusal in the driver: with the true wait, in the time of a loop that does not wait."""

    @pytest.mark.parametrize(("status", "seconds"), [(403, 120), (503, 600)])
    async def test_a_refusal_is_given_up_before_an_outage(
        self, status: int, seconds: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        time, patience = 0.0, Backoff(random.Random(1), asyncio.Event())
        error = obstore.exceptions.GenericError(answered("PUT", f"{HOST}/x", "", listing=True).replace("403", str(status)))

        async def pause(wait_s: float) -> None:
            nonlocal time
            time += wait_s

        async def call() -> None:
            raise StoreUnavailable("create x") from error

        monkeypatch.setattr(patience, "pause", pause)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time)
        with pytest.raises(StoreUnavailable) as raised:
            await patience.outlast(call, "x")

        assert isinstance(raised.value, StoreRefused) is (status == 403)
        assert seconds <= time < seconds + 21

    async def test_an_answer_ends_it_and_an_outage_does_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        time, refusals = 0.0, Refusals()
        refused, away = DENIED(answered("PUT", f"{HOST}/x", "")), StoreUnavailable("503")
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time)

        assert refusals.judge(refused)
        time = 119.0
        assert refusals.judge(refused)
        refusals.over()
        time = 200.0
        assert refusals.judge(refused)
        assert not refusals.judge(away)
        time = 320.0
        assert not refusals.judge(away)
        with pytest.raises(StoreRefused, match="for 120 s now"):
            refusals.judge(refused)
