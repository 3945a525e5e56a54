"""Lists: order, prefixes, pages, ranges of names, patterns. Checked against plain Python over the same names."""

from __future__ import annotations

import fnmatch
import itertools
import uuid
from typing import Any

import pytest
import requests
from google.api_core import exceptions
from google.cloud.storage import Bucket  # type: ignore[import-untyped]

pytestmark = [pytest.mark.integration, pytest.mark.gate]

NAMES = sorted(
    [f"p/x{number % 3}/{number:03}.txt" for number in range(25)]
    + ["a", "p", "p/", "p/readme", "p/x1", "p/x1/deep/er.txt", "q/ü", "q/z", "q/🦉", "q/￿"]
)


@pytest.fixture(scope="module")
def filled(storage_client: Any) -> Bucket:
    bucket = storage_client.create_bucket(f"test-listing-{uuid.uuid4().hex[:12]}")
    for name in reversed(NAMES):
        bucket.blob(name).upload_from_string(b"x")
    return bucket


def names(bucket: Bucket, **query: Any) -> list[str]:
    return [blob.name for blob in bucket.list_blobs(**query)]


def folders_and_files(all_names: list[str], prefix: str) -> tuple[list[str], list[str]]:
    tails = [name.removeprefix(prefix) for name in all_names if name.startswith(prefix)]
    folders = sorted({prefix + tail.split("/")[0] + "/" for tail in tails if "/" in tail})
    return folders, [prefix + tail for tail in tails if "/" not in tail]


def test_names_come_in_the_order_of_their_bytes(filled: Bucket) -> None:
    assert names(filled) == sorted(NAMES, key=str.encode)


@pytest.mark.parametrize("prefix", ["", "p", "p/", "p/x1", "p/x1/", "q/", "none"])
@pytest.mark.parametrize("page_size", [1, 2, 3, 10, None])
def test_prefixes_and_pages(filled: Bucket, prefix: str, page_size: int | None) -> None:
    flat = names(filled, prefix=prefix, page_size=page_size)
    grouped = filled.list_blobs(prefix=prefix, delimiter="/", page_size=page_size)
    files = [blob.name for blob in grouped]

    assert flat == [name for name in NAMES if name.startswith(prefix)]
    assert (sorted(grouped.prefixes), files) == folders_and_files(NAMES, prefix)


def test_a_page_holds_as_many_entries_as_were_asked_for(filled: Bucket) -> None:
    pages = [len(list(page)) for page in filled.list_blobs(prefix="p/x", page_size=10).pages]

    assert pages == [10, 10, 7]


@pytest.mark.parametrize(
    ("start", "end"), list(itertools.product([None, "p/x1", "p/x1/004.txt"], [None, "p/x2", "p/x1/016.txt"]))
)
def test_a_range_of_names_includes_its_start_but_not_its_end(filled: Bucket, start: str | None, end: str | None) -> None:
    expected = [name for name in NAMES if name >= (start or "") and (end is None or name < end)]

    assert names(filled, start_offset=start, end_offset=end) == expected
    assert names(filled, start_offset=start, end_offset=end, page_size=4) == expected


@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("p/x1/*.txt", [name for name in NAMES if fnmatch.fnmatch(name, "p/x1/*.txt") and "deep" not in name]),
        ("p/x1/**", [name for name in NAMES if name.startswith("p/x1/")]),
        ("**.txt", [name for name in NAMES if name.endswith(".txt")]),
        ("p/x[01]/00?.txt", [name for name in NAMES if fnmatch.fnmatchcase(name, "p/x[01]/00?.txt")]),
        ("p/x[!01]/*", [name for name in NAMES if name.startswith("p/x2/")]),
        ("{a,p/readme}", ["a", "p/readme"]),
        ("q/?", ["q/z", "q/ü", "q/￿", "q/🦉"]),
        ("p.x1", []),
    ],
)
def test_patterns(filled: Bucket, glob: str, expected: list[str]) -> None:
    assert names(filled, match_glob=glob) == expected


def test_a_folder_object_can_be_listed_beside_its_prefix(filled: Bucket) -> None:
    listed = filled.list_blobs(delimiter="/", include_trailing_delimiter=True)

    assert [blob.name for blob in listed] == ["a", "p", "p/"]
    assert listed.prefixes == {"p/", "q/"}


def test_a_page_token_that_is_none_is_refused(filled: Bucket) -> None:
    with pytest.raises(exceptions.BadRequest):
        names(filled, page_token="not a token")


def test_an_object_is_listed_as_soon_as_it_is_written(bucket: Bucket) -> None:
    for number in range(30):
        bucket.blob(f"{number:02}").upload_from_string(b"x")
        assert len(names(bucket)) == number + 1


def test_the_xml_list_encodes_names_when_asked(url: str, bucket: Bucket) -> None:
    bucket.blob("a b/<ü&>").upload_from_string(b"x")

    plain = requests.get(f"{url}/?list-type=2&prefix=a b/").text
    encoded = requests.get(f"{url}/?list-type=2&prefix=a b/&encoding-type=url").text

    assert "<Key>a b/&lt;ü&amp;&gt;</Key>" in plain
    assert "<Key>a%20b/%3C%C3%BC%26%3E</Key>" in encoded
