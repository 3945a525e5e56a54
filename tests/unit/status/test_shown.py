"""Which run of a day the table shows: one fact, for the pages' list, the page of a run, `runs` and `status`."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.cli import runs as runs_command
from nightshift.cli import status_watch
from nightshift.run.names import canonical_json
from nightshift.run.observed import endings, shown
from nightshift.run.observed.endings import Ending
from nightshift.run.observed.shown import Known, Word
from nightshift.status.overview import RunLook
from nightshift.status.runs import Runs, find, published_before
from tests.chat_run import OPENED, ChatRun, a_chat_run

pytestmark = pytest.mark.unit

DAY = "2026-11-20"
A, B, C = "a" * 16, "b" * 16, "c" * 16


def at(hour: float) -> str:
    return (OPENED + timedelta(hours=hour)).isoformat()


def a_run(
    store: MemoryStore, digest: str, opened: float, *, redo_of: str | None = None, seal: bool = True, **more: Any
) -> ChatRun:
    redo = {"run_id": redo_of, "manifest_digest": "0", "rows": 40, "dead_letters": 20} if redo_of else None
    made = a_chat_run(
        store, partition=DAY, digest=digest, opened_at=OPENED + timedelta(hours=opened), redo=redo, rows=20, **more
    )
    if seal:
        for number in range(2):
            made.commit(number)
        made.seal()
    return made


def publish(run: ChatRun, hour: float, *, asked: float | None = None, night: str = "scheduled") -> None:
    asked_at = "" if asked is None else at(asked)
    endings.record(run.store, run.run, Ending(endings.PUBLISHED, at(hour), night, asked_at=asked_at))


def fail(run: ChatRun, hour: float) -> None:
    endings.record(run.store, run.run, Ending(endings.FAILED, at(hour), "scheduled", "audit", "No right to write."))


def seen_everywhere(store: MemoryStore) -> dict[str, tuple[str, str] | None]:
    """Word and shown run by run id; the same from each way in which a person looks."""
    ways: list[dict[str, tuple[str, str] | None]] = []

    def of(value: dict[str, Any]) -> tuple[str, str] | None:
        return (value["place"], value["shown_run"]) if value["place"] else None

    page = Runs(store).page()
    ways.append({each.run.run_id: of(each.to_json()) for each in page.runs})
    text = "\n".join(runs_command.lines(page.runs))
    for each in page.runs:
        seen = RunLook(store, each.run, f"gs://bucket/{each.run.prefix}").look()
        night = json.loads(json.dumps(status_watch.to_json(seen)))["night"]
        ways.append({each.run.run_id: of(night)})
        ways.append({each.run.run_id: of(seen.to_json()["summary"])})
        if each.place is not None:
            assert str(each.place) in "\n".join(status_watch.lines(seen))
            assert (each.place.word if each.state == "published" else str(each.place)) in text
    for way in ways[1:]:
        for name, found in way.items():
            assert found == ways[0][name]
    return ways[0]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class TestOneFact:
    def test_after_republish_the_earlier_run_is_shown_everywhere(self, store: MemoryStore) -> None:
        a, b = a_run(store, A, 0), a_run(store, B, 1)
        publish(a, 2)
        publish(b, 3)
        assert seen_everywhere(store) == {A: ("replaced", B), B: ("shown", B)}
        assert find(store, f"tickets/{DAY}") == b.run

        publish(a, 5, asked=4, night="manual")

        assert seen_everywhere(store) == {A: ("shown", A), B: ("replaced", A)}
        assert find(store, f"tickets/{DAY}") == find(store, "tickets") == a.run
        assert [each.run for each in Runs(store).page().runs] == [a.run, b.run]

    def test_a_redo_completes_its_run_and_a_fresh_one_replaces_both(self, store: MemoryStore) -> None:
        a, redo = a_run(store, A, 0), a_run(store, B, 1, redo_of=A)
        fail(a, 0.5)
        publish(redo, 2)
        assert seen_everywhere(store) == {A: ("completed", B), B: ("shown", B)}

        again = a_run(store, C, 3, redo_of=B)
        publish(again, 4)
        assert seen_everywhere(store) == {A: ("completed", C), B: ("completed", C), C: ("shown", C)}

        publish(a_run(store, "d" * 16, 5), 6)
        assert {each[0] for each in seen_everywhere(store).values() if each} == {"replaced", "shown"}

    def test_a_night_that_fails_after_its_publication_is_still_shown(self, store: MemoryStore) -> None:
        run = a_run(store, A, 0)
        publish(run, 2)
        fail(run, 300_000)

        assert seen_everywhere(store) == {A: ("shown", A)}
        [found] = Runs(store).page().runs
        assert (found.state, found.word, [each.kind for each in found.attention]) == ("failed", "failed", ["failed"])

    def test_a_later_run_that_is_at_work_or_has_failed_has_no_place(self, store: MemoryStore) -> None:
        publish(a_run(store, A, 0), 5)
        later = a_run(store, B, 1, seal=False)
        fail(later, 300_000)

        assert seen_everywhere(store) == {A: ("shown", A), B: None}
        assert [each.attention != () for each in Runs(store).page().runs] == [True, False]
        assert find(store, f"tickets/{DAY}") == later.run

    def test_a_publication_of_an_earlier_release_has_no_time_of_its_request(self, store: MemoryStore) -> None:
        run = a_run(store, A, 0)
        publish(run, 2)
        path = run.run.ending_path(1)
        stored = json.loads(bytes(obstore.get(store, path).bytes()))
        del stored["asked_at"]
        obstore.put(store, path, canonical_json(stored))

        assert seen_everywhere(store) == {A: ("shown", A)}
        assert endings.latest(store, run.run) == Ending(endings.PUBLISHED, at(2), "scheduled")

    def test_a_second_publication_by_the_same_dag_run_is_recorded(self, store: MemoryStore) -> None:
        a, b = a_run(store, A, 0), a_run(store, B, 1)
        publish(a, 2, asked=2)
        publish(b, 3, asked=3)
        publish(a, 4, asked=4)
        publish(a, 4, asked=4)  # A repeated task.

        assert seen_everywhere(store)[A] == ("shown", A)
        assert len(list(obstore.list(store, a.run.endings_folder).collect())) == 2


def histories() -> Iterator[tuple[list[Known], dict[str, str]]]:
    """Random days with the words that each run should have, from the rows that the table would hold."""
    for seed in range(400):
        draw = random.Random(seed)
        known: dict[str, Known] = {}
        rows: list[str] = []  # The runs whose rows the table has, the shown one first.
        asked_of_shown = -1.0
        for hour in range(draw.randint(1, 9)):
            if not known or draw.random() < 0.5:
                name = f"{hour:016x}"
                base = draw.choice(list(known)) if known and draw.random() < 0.5 else None
                known[name] = Known(_ref(name), at(hour), base, None)
                continue
            name = draw.choice(list(known))
            requested = hour if draw.random() < 0.5 else float(int(name, 16))
            before = known[name].published
            if requested < asked_of_shown:
                continue  # Refused: it was asked for before the one that is shown.
            requested = max(requested, float(int(name, 16)))
            published = Ending(endings.PUBLISHED, at(hour + 0.5), f"{hour}", asked_at=at(requested))
            known[name] = Known(known[name].run, known[name].opened_at, known[name].redo_of, published)
            assert before is None or before.at < published.at
            asked_of_shown, rows = requested, shown.whole(known, name)
        words = {}
        for name, each in known.items():
            if not rows:
                continue
            if name in rows:
                words[name] = "shown" if name == rows[0] else "completed"
            elif each.published or float(int(name, 16)) < asked_of_shown:
                words[name] = "replaced"
        yield list(known.values()), words


def _ref(name: str) -> Any:
    from nightshift.run.names import RunRef

    return RunRef("tickets", DAY, name)


def test_generated_days_have_the_words_of_what_the_table_would_hold() -> None:
    seen: set[str] = set()
    for known, words in histories():
        random.Random(len(known)).shuffle(known)
        found = shown.places(known)
        assert {name: str(place.word) for name, place in found.items()} == words
        assert len({place.run_id for place in found.values()}) <= 1
        seen |= set(words.values())
    assert seen == set(Word)


def test_what_is_not_a_record_has_no_place(store: MemoryStore) -> None:
    run = a_run(store, A, 0)
    for body in (b"", b"[]", b"{", b'{"opened_by": 1, "opened_at": 2}', b"[" * 100_000):
        obstore.put(store, run.run.spec_path, body)
        assert shown.read(store, run.run) is None


class TestWhatAnswersAreComparedWith:
    def test_the_run_that_was_replaced_on_the_same_day(self, store: MemoryStore) -> None:
        earlier = a_chat_run(store, partition="2026-11-19", digest=C, rows=20)
        publish(earlier, -20)
        a, b = a_run(store, A, 0), a_run(store, B, 1)
        publish(a, 2)
        assert published_before(store, a.run) == earlier.run
        assert published_before(store, b.run) == a.run, "what it would replace"
        publish(b, 3)
        assert published_before(store, b.run) == a.run
        assert published_before(store, a.run) == earlier.run, "the one that replaced it came after it"
        publish(a, 5, asked=4, night="manual")
        assert published_before(store, a.run) == b.run

    def test_not_what_a_redo_completes(self, store: MemoryStore) -> None:
        earlier = a_chat_run(store, partition="2026-11-19", digest=C, rows=20)
        publish(earlier, -20)
        publish(a_run(store, A, 0), 2)
        redo = a_run(store, B, 1, redo_of=A)
        publish(redo, 3)

        assert published_before(store, redo.run) == earlier.run

    def test_a_changed_prompt_is_said(self, store: MemoryStore) -> None:
        a, b = a_run(store, A, 0), a_run(store, B, 1)
        publish(a, 2)
        look = RunLook(store, b.run, "gs://bucket/x")
        assert look.compared().differs == ()

        record = json.loads(bytes(obstore.get(store, b.run.spec_path).bytes()))
        record["spec"]["request"]["user"] = "Another prompt: {{ text }}"
        obstore.put(store, b.run.spec_path, canonical_json(record))

        assert RunLook(store, b.run, "gs://bucket/x").compared().differs == ("request",)
