"""How the nights of a run ended: what is written, once, and what is read of it, whatever lies in the folder."""

from __future__ import annotations

import json
from dataclasses import replace

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.run.observed import endings
from nightshift.run.observed.endings import Ending
from tests.builders import RUN

pytestmark = pytest.mark.unit

FAILED = Ending(
    endings.FAILED,
    "2026-11-21T03:00:00+00:00",
    "night",
    "seal",
    "Raise dead_letters.tolerate: 75 of 600 rows are dead letters",
    dead_letters=75,
    dead_reasons={"bad_input": 70, "too_long": 5},
    rows_committed=600,
)
PUBLISHED = Ending(endings.PUBLISHED, "2026-11-21T04:00:00+00:00", "night", dead_letters=0, rows_committed=600)


def paths(store: MemoryStore) -> list[str]:
    return sorted(meta["path"] for meta in obstore.list(store, RUN.endings_folder).collect())


def test_a_run_whose_night_goes_on_has_none() -> None:
    assert endings.latest(MemoryStore(), RUN) is None


def test_the_last_one_counts() -> None:
    store = MemoryStore()
    for number in range(10):
        endings.record(store, RUN, replace(FAILED, dag_run_id=f"night {number}"))
    endings.record(store, RUN, PUBLISHED)

    assert endings.latest(store, RUN) == PUBLISHED
    assert paths(store)[-1] == f"{RUN.prefix}/endings/00000011.json"


def test_a_repeat_writes_no_second_one() -> None:
    store = MemoryStore()
    for minute in range(3):
        endings.record(store, RUN, replace(FAILED, at=f"2026-11-21T03:0{minute}:00+00:00"))

    assert endings.latest(store, RUN) == FAILED
    assert len(paths(store)) == 1


def test_a_run_that_is_published_again_has_an_ending_of_each_publication() -> None:
    store = MemoryStore()
    again = replace(PUBLISHED, at="2026-11-23T04:00:00+00:00")  # Another run was shown in between.
    for ending in (PUBLISHED, PUBLISHED, again, again):
        endings.record(store, RUN, ending)

    assert endings.latest(store, RUN) == again
    assert len(paths(store)) == 2


def test_each_ending_after_another_one_is_written() -> None:
    store = MemoryStore()
    for ending in (FAILED, PUBLISHED, FAILED, replace(FAILED, task="publish"), replace(FAILED, dead_letters=None)):
        endings.record(store, RUN, ending)

    assert len(paths(store)) == 5
    assert endings.latest(store, RUN) == replace(FAILED, dead_letters=None)


def test_of_a_long_error_its_beginning_is_kept() -> None:
    store = MemoryStore()
    for _ in range(2):
        endings.record(store, RUN, replace(FAILED, error="\x00" * 100_000))

    found = endings.latest(store, RUN)
    assert found is not None
    assert found.error == "\x00" * endings.ERROR_MOST
    assert len(paths(store)) == 1


@pytest.mark.parametrize(
    "altered",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b" " * endings.BYTES_MOST + b"{}",
        {"version": 99},
        {"state": "over"},
        {"at": None},
        {"error": 5},
        {"dead_letters": -1},
        {"dead_letters": "75"},
        {"rows_committed": 1.5},
        {"dead_reasons": ["bad_input"]},
        {"dead_reasons": {"bad_input": True}},
    ],
    ids=repr,
)
def test_what_is_no_ending_is_passed_over(altered: bytes | dict[str, object], caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    endings.record(store, RUN, FAILED)
    stored = json.loads(bytes(obstore.get(store, RUN.ending_path(1)).bytes()))
    body = altered if isinstance(altered, bytes) else json.dumps({**stored, **altered}).encode()
    obstore.put(store, RUN.ending_path(2), body)

    assert endings.latest(store, RUN) == FAILED
    assert "endings/00000002.json does not say how a night ended" in caplog.text


def test_entries_of_a_later_release_are_ignored() -> None:
    store = MemoryStore()
    endings.record(store, RUN, FAILED)
    stored = json.loads(bytes(obstore.get(store, RUN.ending_path(1)).bytes()))
    obstore.put(store, RUN.ending_path(2), json.dumps({**stored, "task": "publish", "novelty": 1}).encode())

    assert endings.latest(store, RUN) == replace(FAILED, task="publish")


def test_a_name_that_another_has_taken_meanwhile_is_followed_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    endings.record(store, RUN, FAILED)
    with monkeypatch.context() as patch:
        patch.setattr(endings, "list_numbered", lambda *_: [])
        endings.record(store, RUN, PUBLISHED)

    assert endings.latest(store, RUN) == PUBLISHED
    assert len(paths(store)) == 2
