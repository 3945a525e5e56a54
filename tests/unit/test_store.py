"""The names of objects: read by the letter, or refused; and the refusals of a store, as statuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError, UnauthenticatedError
from obstore.store import LocalStore, MemoryStore

from nightshift.store import (
    OBJECT_BYTES_MOST,
    ObjectTooLarge,
    StoreUnavailable,
    create_or_read,
    open_store,
    split_object_url,
    status_of,
    what_to_do,
)

pytestmark = pytest.mark.unit

EXACT = [
    "photo#1.jpg",
    "photo?v=2.jpg",
    "photo?v=2#1",
    "a%2Fb",
    "100%",
    "%zz",
    "a b",
    " a ",
    "a+b&c=d;e",
    "ü",
    "u\u0308",
    "😀/é.png",
    "a\u00a0b\u2028c",
    "a\\b",
    "...",
    "..a/.b",
    "a:b@c|d~e*f[g]{h}^`\"'<>!$,()",
]
ALTERED_OR_REFUSED = [
    "/x",
    "//x",
    "x/",
    "x//",
    "a//b",
    ".",
    "..",
    "./x",
    "a/./b",
    "../x",
    "a/../b",
    "a\nb",
    "a\rb",
    "a\tb",
    "a\0b",
    "a\x7fb",
]


@pytest.mark.parametrize("name", EXACT)
def test_a_name_is_taken_by_the_letter(name: str) -> None:
    store = MemoryStore()
    obstore.put(store, name, b"x")

    assert split_object_url(f"gs://bucket-1/{name}") == ("bucket-1", name)
    assert obstore.head(store, name)["path"] == name, "and so does obstore"


@pytest.mark.parametrize("name", ALTERED_OR_REFUSED)
def test_a_name_that_would_be_altered_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be read by exactly this name"):
        split_object_url(f"gs://bucket/{name}")

    store = MemoryStore()
    try:
        obstore.put(store, name, b"x")
    except ValueError:
        return
    assert [meta["path"] for meta in obstore.list(store).collect()] != [name], "the refusal above has a reason"


NO_BUCKETS = [
    *("Bad_Bucket!", "UPPER", "b", "ab", "a" * 223, "-ab", "ab-", "..", "a b", "ü-b", "bucket?x", "bucket#x", "bucket%2Fx"),
    *("buc\nket", "bucket\n", "user@host", "bucket:80", "a\\b"),
]


@pytest.mark.parametrize("bucket", NO_BUCKETS)
def test_what_is_not_a_bucket_is_refused(bucket: str) -> None:
    with pytest.raises(ValueError, match="is not a valid bucket name"):
        split_object_url(f"gs://{bucket}/x")


@pytest.mark.parametrize(
    "url", ["", "x", "gs://", "gs://bucket", "gs://bucket/", "gs:///x", "s3://bucket/x", "GS://bucket/x", " gs://bucket/x"]
)
def test_what_does_not_name_an_object_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not the URL of an object"):
        split_object_url(url)


def test_only_what_the_store_itself_answers_is_a_status() -> None:
    got = "Generic GCS error: Error performing GET http://h/b/x in 1.5ms"
    again = ", after 6 retries, max_retries: 8, retry_timeout: 120s "
    says = " - Server returned non-2xx status code: "

    assert status_of(GenericError(f"{got}{says}416 Range Not Satisfiable: <Error/>")) == 416
    assert status_of(GenericError(f"{got}{again}{says}429 Too Many Requests: ")) == 429
    assert status_of(GenericError(f"{got}{again}{says}500 Error: x{says}404 Not Found")) == 500
    assert status_of(GenericError(f"{got}{again} - HTTP error: error sending request{says}404 Not Found")) is None
    assert status_of(GenericError(f"Generic GCS error: Error performing token request: {got[19:]}{says}404 Not Found")) is None
    assert status_of(GenericError(f"Generic GCS error: Error performing list request: {got[19:]}{says}404 Not Found")) == 404
    assert status_of(OSError("404")) is None


def test_a_token_that_could_not_be_had_is_no_answer_of_the_store() -> None:
    def no_token() -> Any:
        raise StoreUnavailable("no token now")

    with pytest.raises(UnauthenticatedError, match="no token now") as told:
        obstore.get(open_store("gs://bucket", credentials=no_token), "a")

    assert status_of(told.value) is None


GCS = "Generic GCS error: Error performing "
TOKEN = "token request: Error performing GET http://169.254.169.254/token in 1ms - "


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (GenericError(f"{GCS}{TOKEN}Server returned non-2xx status code: 403 Forbidden: no"), "gcloud auth"),
        (GenericError(f"{GCS}{TOKEN}HTTP error: error sending request"), None),
        (UnauthenticatedError("Error performing GET http://x in 1ms - Server returned non-2xx status code: 401"), "the right"),
        (FileNotFoundError("Object at location x not found: Error performing GET http://x in 1ms - Server returned"), "bucket"),
        (FileNotFoundError("Object at location /x not found: No such file or directory"), None),
        (GenericError(f"{GCS}GET http://x in 1ms - Server returned non-2xx status code: 503 Busy: wait"), None),
        (OSError(28, "No space left on device"), None),
        (None, None),
    ],
)
def test_what_a_person_can_do_about_a_refusal(error: Exception | None, advice: str | None) -> None:
    said = what_to_do(error)

    assert (said is None) == (advice is None)
    assert (advice or "") in (said or "")


def test_an_error_of_the_store_is_one_line() -> None:
    assert str(StoreUnavailable("read x: no\n\nDebug source:\nGeneric {\n    store")) == "read x: no"


def test_credentials_that_cannot_be_read_are_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))

    with pytest.raises(ValueError, match=r"Unable to open service account file from .*none\.json") as raised:
        open_store("gs://bucket")
    assert "\n" not in str(raised.value)


def test_what_another_wrote_first_is_not_read_if_it_is_larger_than_any_object_of_ours(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert create_or_read(store, "plan.json", b"mine") == b"mine"
    assert create_or_read(store, "plan.json", b"later") == b"mine"
    with (tmp_path / "large.json").open("wb") as sparse:
        sparse.truncate(OBJECT_BYTES_MOST + 1)

    with pytest.raises(ObjectTooLarge, match=r"large.json has"):
        create_or_read(store, "large.json", b"mine")
