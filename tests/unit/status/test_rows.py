"""What people see of a run's rows: dead letters, samples, one answer explained."""

from __future__ import annotations

import hashlib
from typing import Any

import obstore
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from nightshift.driver.feeder import names_of
from nightshift.run.chunks import NotAChunk
from nightshift.run.inputs import InputReader
from nightshift.run.observed import endings
from nightshift.run.observed.endings import Ending
from nightshift.run.opening import NoSuchRun
from nightshift.status import dead_letters, explanation, folder, source_rows
from nightshift.status.dead_letters import DeadLetterPage, DeadLetters
from nightshift.status.explanation import NoSuchRow, explain, key_of
from nightshift.status.samples import samples
from nightshift.tasks._sampling import row_seed
from nightshift.tasks.base import SlowTemplate, Text
from tests.builders import a_spec
from tests.chat_run import ChatRun, a_chat_run, a_chat_spec

pytestmark = pytest.mark.unit


@pytest.fixture
def run() -> ChatRun:
    """Of 40 rows in 4 chunks; 5, 7 and 31 are dead letters."""
    made = a_chat_run(MemoryStore())
    for number in range(4):
        reason = "too_long" if number == 3 else "bad_input"
        made.commit(number, lambda row: None if row in (5, 7, 31) else f"answer {row}", reason=reason)
    return made


def ordinals(page: DeadLetterPage) -> list[int]:
    return [each.ordinal for each in page.rows]


class Reads:
    """A store that says which objects were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        get = obstore.get

        def noted(store: Any, path: str, **more: Any) -> Any:
            self.paths.append(path.rsplit("/", 1)[-1])
            return get(store, path, **more)

        monkeypatch.setattr(obstore, "get", noted)

    @property
    def chunks(self) -> list[str]:
        return sorted({path for path in self.paths if path.startswith("chunk-") and path.endswith(".parquet")})


class TestDeadLetters:
    def test_each_has_its_key_reason_message_prompt_and_row(self, run: ChatRun) -> None:
        page = DeadLetters(run.store, run.run).page()

        assert (page.total, page.reasons, page.chunks, page.proven, page.after) == (
            3,
            {"bad_input": 2, "too_long": 1},
            2,
            False,
            None,
        )
        first = page.rows[0]
        assert (first.ordinal, first.key, first.reason, first.message) == (5, {"id": 5}, "bad_input", "row 5 has no text")
        assert first.prompt.fields == {"system": "You label tickets.", "user": "Label this: text of row 5"}
        assert (first.row, first.row_problem) == ({"id": 5, "text": "text of row 5"}, None)
        assert page.to_json()["rows"][0]["prompt"]["text"].endswith("Label this: text of row 5")

    def test_only_chunks_with_dead_letters_are_read_and_each_once(self, run: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        reads, found = Reads(monkeypatch), DeadLetters(run.store, run.run)

        found.page()
        assert reads.chunks == ["chunk-00000000.parquet", "chunk-00000003.parquet"]

        reads.paths.clear()
        found.page()
        assert reads.chunks == []

    @pytest.mark.parametrize(
        ("search", "found"),
        [
            ("ROW 31", [31]),
            ("7", [7]),
            ("too_long", [31]),
            ("label this: text of", [5, 7, 31]),
            ("nowhere", []),
            ("", [5, 7, 31]),
        ],
    )
    def test_a_text_is_looked_for_in_key_message_reason_and_prompt(self, run: ChatRun, search: str, found: list[int]) -> None:
        assert ordinals(DeadLetters(run.store, run.run).page(search=search)) == found

    def test_one_reason(self, run: ChatRun) -> None:
        page = DeadLetters(run.store, run.run).page(reason="too_long")

        assert (ordinals(page), page.total) == ([31], 3)

    def test_pages_join(self, run: ChatRun) -> None:
        found = DeadLetters(run.store, run.run)

        first = found.page(count=2)
        second = found.page(count=2, after=first.after or 0)

        assert (ordinals(first), first.after, ordinals(second), second.after) == ([5, 7], 30, [31], None)

    def test_a_page_begins_after_a_row(self, run: ChatRun) -> None:
        assert ordinals(DeadLetters(run.store, run.run).page(after=5)) == [7, 31]

    def test_a_page_reads_some_chunks_and_says_where_to_go_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dead_letters, "CHUNKS_AT_ONCE", 2)
        run = a_chat_run(MemoryStore(), rows=50)
        for number in range(5):
            run.commit(number, lambda row: None if row % 10 == 0 else "a")
        found = DeadLetters(run.store, run.run)

        seen, after = [], -1
        while True:
            page = found.page(search="row 40", after=after)
            seen.append((page.read, ordinals(page)))
            if page.after is None:
                break
            after = page.after

        assert seen == [(2, []), (2, []), (1, [40])]

    def test_a_search_through_prompts_is_bounded(self, run: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dead_letters, "SEARCHED_AT_ONCE", 1)
        found = DeadLetters(run.store, run.run)

        first = found.page(search="text of row 7")
        second = found.page(search="text of row 7", after=first.after or 0)

        assert (ordinals(first), first.after, ordinals(second)) == ([], 6, [7])

    def test_a_sealed_run_is_read_by_its_manifest(self, run: ChatRun) -> None:
        run.seal()
        for path in (run.work.dead_note_path(0, 2), run.work.dead_note_path(3, 1)):
            obstore.delete(run.store, path)

        page = DeadLetters(run.store, run.run).page()

        assert (page.proven, page.total, ordinals(page)) == (True, 3, [5, 7, 31])

    def test_those_without_a_note_are_found_once_the_night_has_counted_more(self) -> None:
        """Their worker was killed between the commit and its note."""
        run = a_chat_run(MemoryStore())
        for number in range(4):
            run.commit(number, lambda row: None if row in (5, 31) else "a", note=number == 0)
        found = DeadLetters(run.store, run.run)
        assert ordinals(found.page()) == [5]

        endings.record(run.store, run.run, Ending(endings.FAILED, "2026-11-21T03:00:00+00:00", "x", dead_letters=2))

        page = found.page()
        assert (page.total, page.reasons, ordinals(page)) == (2, {"bad_input": 2}, [5, 31])

    def test_a_forged_note_invents_no_dead_letter(self, run: ChatRun) -> None:
        run.put(run.work.dead_note_path(1, 10**9), b'{"bad_input": 3}')
        run.put(run.work.dead_note_path(99, 5), b'{"bad_input": 5}')  # There is no such chunk.
        run.put(run.work.dead_note_path(3, 7), b'{"bad_input": 7}')  # There is one, which sorts before.

        page = DeadLetters(run.store, run.run).page()

        assert ordinals(page) == [5, 7, 31]
        assert page.reasons == {"unknown": 10**9, "bad_input": 2, "too_long": 1}

    def test_reasons_are_counted_as_far_as_there_is_time(self, run: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dead_letters, "NOTES_S", -1.0)
        monkeypatch.setattr(dead_letters, "NOTES_AT_ONCE", 1)
        found = DeadLetters(run.store, run.run)

        first, second = found.page(), found.page()

        assert (first.total, first.reasons, first.reasons_of, ordinals(first)) == (3, {"bad_input": 2}, 2, [5, 7, 31])
        assert (second.total, second.reasons, second.reasons_of) == (3, {"bad_input": 2, "too_long": 1}, 3)

    def test_a_chunk_that_cannot_be_read_is_a_problem_and_not_the_end(self, run: ChatRun) -> None:
        path = run.work.chunk_path(0)
        run.put(path, bytes(obstore.get(run.store, path).bytes())[:-9])

        page = DeadLetters(run.store, run.run).page()

        assert ordinals(page) == [31]
        assert list(page.problems) == [path]

    def test_a_chunk_in_the_place_of_another_is_a_problem(self, run: ChatRun) -> None:
        run.put(run.work.chunk_path(3), bytes(obstore.get(run.store, run.work.chunk_path(0)).bytes()))

        page = DeadLetters(run.store, run.run).page()

        assert (ordinals(page), list(page.problems.values())) == (
            [5, 7],
            [f"it belongs to chunk 0 of run {run.run.run_id}, plan {run.plan.uid}"],
        )

    def test_a_chunk_that_is_too_large_is_not_read(self, run: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(folder, "CHUNK_BYTES_MOST", 100)

        [problem, _] = DeadLetters(run.store, run.run).page().problems.values()

        assert "at most 100 are read to look at rows" in problem

    def test_rows_that_are_gone_leave_the_dead_letters_readable(self, run: ChatRun) -> None:
        for meta in obstore.list(run.store, run.run.inputs_folder).collect():
            obstore.delete(run.store, meta["path"])

        first = DeadLetters(run.store, run.run).page().rows[0]

        assert (first.key, first.message, first.row) == ({"id": 5}, "row 5 has no text", {"id": 5})
        assert "gone" in (first.row_problem or "")
        assert first.prompt.problem == first.row_problem

    def test_a_template_that_fails_on_the_row_says_so_in_place_of_the_prompt(self) -> None:
        spec = a_chat_spec()
        spec = spec.model_copy(update={"request": spec.request.model_copy(update={"user": "{{ text / 0 }}"})})
        run = a_chat_run(MemoryStore(), spec=spec)
        run.commit(0, lambda row: None if row == 5 else "a")

        [letter] = DeadLetters(run.store, run.run).page().rows

        assert "the template failed on this row" in (letter.prompt.problem or "")

    def test_a_template_that_takes_too_long_stops_one_look_and_not_the_server(
        self, run: ChatRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rendered: list[str] = []

        def slow(self: Any, row: Any) -> str:
            rendered.append(row["text"])
            raise SlowTemplate("the template failed on this row: it took more than 5 s of processor time")

        monkeypatch.setattr(Text, "of", slow)

        letters = DeadLetters(run.store, run.run).page().rows

        assert rendered == ["text of row 5"]
        assert ["on an earlier row" in (each.prompt.problem or "") for each in letters] == [False, True, True]

    def test_before_the_rows_are_exported_there_are_none(self) -> None:
        run = a_chat_run(MemoryStore())
        obstore.delete(run.store, run.run.plan_path)

        assert DeadLetters(run.store, run.run).page().total == 0

    def test_a_run_that_is_not_there(self, run: ChatRun) -> None:
        obstore.delete(run.store, run.run.spec_path)

        with pytest.raises(NoSuchRun):
            DeadLetters(run.store, run.run).page()


class TestSamples:
    def test_they_are_answered_rows_with_their_prompts(self, run: ChatRun) -> None:
        found = samples(run.store, run.run, rows=8)

        assert found.basis == "8 rows from 4 of 4 committed chunks"
        assert {each.ordinal for each in found.rows}.isdisjoint({5, 7, 31})
        for each in found.rows:
            assert each.answer == f"answer {each.ordinal}"
            assert each.prompt.fields["user"] == f"Label this: text of row {each.ordinal}"
            assert (each.tokens_in, each.tokens_out, each.finish_reason) == (12.0, 5.0, "stop")

    def test_the_choice_is_the_same_every_time_and_reads_so_many_chunks(
        self, run: ChatRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reads = Reads(monkeypatch)

        first, again = (samples(run.store, run.run, rows=3, chunks=2) for _ in range(2))

        assert first == again
        assert (first.read, first.committed, len(first.rows), len(reads.chunks)) == (2, 4, 3, 2)

    def test_another_chunk_changes_little(self) -> None:
        """The chunks of a run that goes on are drawn by their numbers, not by how many there are."""
        run = a_chat_run(MemoryStore(), rows=2000)
        for number in range(100):
            run.commit(number)
        before = {each.chunk for each in samples(run.store, run.run, chunks=4, rows=4).rows}
        for number in range(100, 110):
            run.commit(number)

        assert len(before & {each.chunk for each in samples(run.store, run.run, chunks=4, rows=4).rows}) >= 2

    def test_what_was_cut_is_known_if_it_was_all_or_none(self) -> None:
        run = a_chat_run(MemoryStore(), rows=30)
        for number, truncated in enumerate((0, 10, 4)):
            run.commit(number, truncated=truncated)

        found = {each.chunk: each.finish_reason for each in samples(run.store, run.run).rows}

        assert found == {0: "stop", 1: "length", 2: None}

    def test_fewer_rows_than_asked_for(self, run: ChatRun) -> None:
        assert len(samples(run.store, run.run, rows=100).rows) == 37

    def test_a_large_column_is_not_read(self, run: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(source_rows, "COLUMN_BYTES_MOST", 200)

        found = samples(run.store, run.run, rows=1)

        assert found.left_out == ("text",)
        assert found.rows[0].prompt.problem == "the row's text could not be read"
        assert found.rows[0].row == {"id": found.rows[0].ordinal}

    def test_long_texts_are_cut_and_vectors_too(self) -> None:
        run = a_chat_run(MemoryStore(), rows=10)
        run.commit(0, lambda row: "x" * 10_000)

        answer = samples(run.store, run.run, rows=1).rows[0].answer

        assert len(answer) < 4_100
        assert answer.endswith("... 6,000 more characters")

    def test_without_a_chunk_there_are_none(self) -> None:
        found = samples((run := a_chat_run(MemoryStore())).store, run.run)

        assert (found.rows, found.basis) == ((), "0 rows from 0 of 0 committed chunks")


class TestExplanation:
    def test_one_answer_with_all_that_decided_it(self, run: ChatRun) -> None:
        manifest = run.seal()
        chunk = bytes(obstore.get(run.store, run.work.chunk_path(1)).bytes())

        found = explain(run.store, run.run, key={"id": "13"})

        assert (found.sample.ordinal, found.sample.answer) == (13, "answer 13")
        assert found.sample.prompt.fields["user"] == "Label this: text of row 13"
        assert (found.chunk_path, found.chunk_sha256) == (run.work.chunk_path(1), hashlib.sha256(chunk).hexdigest())
        assert (found.sealed_sha256, found.proven, found.merkle_root) == (found.chunk_sha256, True, manifest.merkle_root)
        assert (found.model["revision"], found.engine_version, found.attempt) == ("r1", "0.32.0", "pod-0")
        assert (found.task, found.request["max_tokens"], found.input) == (
            "chat",
            64,
            f"{run.run.prefix}/inputs/part-000.parquet",
        )

    def test_the_seed_is_the_one_that_the_driver_sends(self, run: ChatRun) -> None:
        [name] = names_of(pa.table({"id": [13]}), range(13, 14))

        assert explain(run.store, run.run, ordinal=13).seed == row_seed(0, name, 0)

    def test_a_dead_letter_is_explained_too(self, run: ChatRun) -> None:
        found = explain(run.store, run.run, ordinal=31)

        assert (found.dead_reason, found.dead_message, found.sample.answer) == ("too_long", "row 31 has no text", None)
        assert (found.sealed_sha256, found.proven) == (None, False)

    def test_a_chunk_that_was_overwritten_after_the_seal_is_not_proven(self, run: ChatRun) -> None:
        run.seal()
        run.commit(1, lambda row: "other")

        found = explain(run.store, run.run, key={"id": "13"})

        assert (found.sample.answer, found.proven) == ("other", False)

    def test_only_row_groups_that_may_hold_the_key_are_read(self, run: ChatRun, monkeypatch: pytest.MonkeyPatch) -> None:
        read: list[range] = []
        reader = InputReader.rows

        def noted(self: Any, ordinals: range) -> pa.Table:
            read.append(ordinals)
            return reader(self, ordinals)

        monkeypatch.setattr(InputReader, "rows", noted)

        explain(run.store, run.run, key={"id": "33"})

        assert read == [range(30, 40), range(33, 34)]

    @pytest.mark.parametrize("row", [10, 13, 14, 17, 19])
    def test_a_key_behind_the_rows_that_are_read_at_once(self, run: ChatRun, monkeypatch: pytest.MonkeyPatch, row: int) -> None:
        monkeypatch.setattr(explanation, "ROWS_AT_ONCE", 4)

        assert explain(run.store, run.run, key={"id": f"{row}"}).sample.ordinal == row

    @pytest.mark.parametrize("key", ["99", "x", "-1"])
    def test_a_key_that_no_row_has(self, run: ChatRun, key: str) -> None:
        with pytest.raises(NoSuchRow, match=f"None of the 40 rows of {run.run.prefix} has id {key}"):
            explain(run.store, run.run, key={"id": key})

    def test_another_column_than_the_key(self, run: ChatRun) -> None:
        with pytest.raises(NoSuchRow, match="The key of tickets is id, not name"):
            explain(run.store, run.run, key={"name": "x"})

    def test_an_ordinal_that_is_not_there(self, run: ChatRun) -> None:
        with pytest.raises(NoSuchRow, match="rows 0 to 39"):
            explain(run.store, run.run, ordinal=40)

    def test_a_row_whose_chunk_is_still_open(self) -> None:
        run = a_chat_run(MemoryStore())

        with pytest.raises(NotAChunk, match="not there"):
            explain(run.store, run.run, ordinal=3)

    @pytest.mark.parametrize(
        ("text", "columns", "key"),
        [
            ("17", ("id",), {"id": "17"}),
            ("id=17", ("id",), {"id": "17"}),
            ("a=b,c", ("id",), {"id": "a=b,c"}),
            ("name=x,version=1=2", ("name", "version"), {"name": "x", "version": "1=2"}),
        ],
    )
    def test_a_key_as_people_write_it(self, text: str, columns: tuple[str, ...], key: dict[str, str]) -> None:
        assert key_of(text, columns) == key

    def test_a_key_of_several_columns_needs_their_names(self) -> None:
        with pytest.raises(ValueError, match="write name=VALUE,version=VALUE"):
            key_of("x", ("name", "version"))


def test_other_task_kinds_have_prompts_too() -> None:
    """A field for each template and column of the request, by its name in the job file."""
    spec = a_spec(job="tickets")
    run = a_chat_run(MemoryStore(), spec=spec)
    run.commit(0)

    [sample, *_] = samples(run.store, run.run).rows

    assert sample.prompt.fields == {"input": f"text of row {sample.ordinal}"}
    assert sample.prompt.text == f"text of row {sample.ordinal}"
