"""The run manifest as it is stored and read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.formats import UnreadableFormat
from nightshift.run.manifest import CompletedRun, RunManifest, SealedChunk, load_manifest
from nightshift.run.names import canonical_json
from nightshift.run.pins import Pins
from tests.builders import RUN, a_manifest

pytestmark = pytest.mark.unit

CHUNK = SealedChunk(0, "a/chunk", "ab" * 32, 4, 3, 1, "17")
MANIFEST = a_manifest(
    rows=4,
    predictions=3,
    dead_letters=1,
    dead_reasons={"rejected": 1},
    attempts=("pod-a",),
    chunks=(CHUNK,),
    pins=Pins(commit="c" * 40),
    completes=(CompletedRun("0" * 16, 20, 16, 4, "d" * 64),),
    measured={"attempts": 1},
)


def read(stored: Any) -> RunManifest:
    store = MemoryStore()
    obstore.put(store, RUN.manifest_path, stored if isinstance(stored, bytes) else json.dumps(stored).encode())
    manifest = load_manifest(store, RUN)
    assert manifest is not None
    return manifest


def test_what_is_stored_comes_back() -> None:
    stored = json.loads(canonical_json(MANIFEST.to_json()))

    assert read(stored) == MANIFEST
    assert read(stored).to_json() == stored
    assert read(stored).digest == hashlib.sha256(canonical_json(stored)).hexdigest()
    assert read(stored).totals == (20, 19, 1)


def test_a_later_releases_entries_are_passed_over_and_are_in_the_digest() -> None:
    stored = MANIFEST.to_json()
    later = {**stored, "weather": "fine", "chunks": [{**stored["chunks"][0], "weather": "fine"}]}

    assert read(later) == MANIFEST
    assert read(later).digest != read(stored).digest


def test_what_release_0_2_0_did_not_write_is_empty() -> None:
    stored = MANIFEST.to_json()
    for name in ("opening", "plan", "output_tokens", "pinned", "measured"):
        del stored[name]

    found = read(stored)

    assert found == replace(MANIFEST, opening="", plan="", output_tokens=None, pins=Pins(), measured=None)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'{"version": 2}',
        *(
            {**MANIFEST.to_json(), **change}
            for change in (
                {"rows": "4"},
                {"rows": None},
                {"predictions": 3.5},
                {"dead_letters": True},
                {"chunks": 7},
                {"chunks": ["a"]},
                {"chunks": [{"path": "a"}]},
                {"chunks": [{**MANIFEST.to_json()["chunks"][0], "rows": float("nan")}]},
                {"completes": {"run_id": 1}},
                {"attempts": None},
            )
        ),
    ],
)
def test_what_the_seal_never_writes_is_refused_with_the_place_and_the_remedy(stored: Any) -> None:
    with pytest.raises(UnreadableFormat, match=rf"{RUN.manifest_path} is not what the task 'seal' wrote.*trigger the DAG with"):
        read(stored)
