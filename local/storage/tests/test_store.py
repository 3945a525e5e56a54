"""The state behind the server, in this process: what a kill could only hit by luck is made to happen here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from local.data_file import DataDirError
from local.storage.bodies import Body
from local.storage.preconditions import Preconditions
from local.storage.store import Store, open_state
from local.storage.stored import StoredObject

pytestmark = pytest.mark.integration


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_state(tmp_path)
    store.catalog.create_bucket("b", {})
    return store


def write(store: Store, content: bytes) -> Body:
    with store.bodies.incoming() as incoming:
        incoming.write(content)
        return incoming.finish()


def read(store: Store, name: str) -> bytes:
    with store.bodies.open(store.catalog.get("b", name).body) as file:
        return file.read()


def refuse(_: StoredObject) -> dict[str, Any]:
    raise RuntimeError("between the write of the object and the commit")


def test_an_overwrite_that_is_not_committed_leaves_the_old_content(store: Store) -> None:
    store.catalog.put("b", "a", write(store, b"old"), {})
    session = store.sessions.start("b", "a", {}, Preconditions())
    store.sessions.incoming(session).write(b"new")
    with pytest.raises(RuntimeError):
        store.sessions.finish(session, refuse)

    assert read(store, "a") == b"old"


def test_only_the_bodies_of_live_objects_remain(store: Store, tmp_path: Path) -> None:
    for content in (b"1", b"2", b"3"):
        store.catalog.put("b", "a", write(store, content), {})
    store.catalog.put("b", "gone", write(store, b"x"), {})
    store.catalog.delete(store.catalog.get("b", "gone"))

    files = list((tmp_path / "bodies").iterdir())
    assert [file.read_bytes() for file in files] == [b"3"]


def test_bytes_of_an_open_upload_are_with_the_kernel_before_they_are_acknowledged(store: Store, tmp_path: Path) -> None:
    session = store.sessions.start("b", "a", {}, Preconditions())
    incoming = store.sessions.incoming(session)
    incoming.write(b"x" * 100)
    incoming.pause()

    assert (tmp_path / "bodies" / session.file).read_bytes() == b"x" * 100


def test_a_folder_is_opened_once(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataDirError):
        open_state(tmp_path)
