"""Names of runs and the freezing of a spec into one."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo

import obstore
import pytest
from obstore.store import MemoryStore, ObjectStore

from nightshift.run import opening
from nightshift.run.names import RunRef, canonical_json, run_digest, split_run_url
from nightshift.run.plan import PlanError, save_plan
from nightshift.run.redo.redo import Redo
from nightshift.store import create_or_read, open_store
from tests.builders import a_plan, a_spec

pytestmark = pytest.mark.unit


def test_a_run_is_named_by_job_partition_and_what_decides_answers() -> None:
    spec = a_spec()
    digest = run_digest("job", "2026-11-20", spec.semantic())

    assert digest == run_digest("job", "2026-11-20", a_spec(deadline="5h", owner="other", compute__workers=9).semantic())
    assert digest != run_digest("job", "2026-11-21", spec.semantic())
    assert digest != run_digest("other", "2026-11-20", spec.semantic())


@pytest.mark.parametrize(
    "change",
    [
        {"source__query": "SELECT id, text FROM `d.u` WHERE day = @partition"},
        {"request__input": "{{ text }}!"},
        {"request__overlong": "truncate"},
        {"model__revision": "r2"},
        {"engine__max_model_len": 128},
    ],
)
def test_a_change_of_what_decides_answers_is_another_run(change: dict[str, object]) -> None:
    assert run_digest("job", "p", a_spec().semantic()) != run_digest("job", "p", a_spec(**change).semantic())


def test_canonical_json_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_json({"b": 1, "a": "é"}) == canonical_json({"a": "é", "b": 1}) == '{"a":"é","b":1}'.encode()


@pytest.mark.parametrize("generation", [1, 2, 12])
def test_a_prefix_names_its_run(generation: int) -> None:
    run = RunRef("job", "2026-11-20", "0123456789abcdef", generation)

    assert RunRef.from_prefix(run.prefix) == run


@pytest.mark.parametrize("prefix", ["job/2026-11-20", "job/2026-11-20/xyz", "a/b/c/d", ""])
def test_other_prefixes_are_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match="JOB/PARTITION/RUN"):
        RunRef.from_prefix(prefix)


def test_run_urls_split_into_store_and_prefix() -> None:
    run = RunRef("job", "2026-11-20", "0123456789abcdef")

    assert split_run_url(f"gs://bucket/{run.prefix}") == ("gs://bucket", run)
    assert split_run_url(f"file:///tmp/x/{run.prefix}-g2/") == ("file:///tmp/x", replace(run, generation=2))
    with pytest.raises(ValueError, match="URL of a run"):
        split_run_url("gs://a/b/c")
    with pytest.raises(ValueError, match="JOB/PARTITION/RUN"):
        split_run_url("gs://bucket/job/2026-11-20/abc")


def test_the_objects_of_a_run_are_read_back_by_their_paths_and_no_others_are() -> None:
    run = RunRef("job", "2026-11-20", "0123456789abcdef", 2)
    work = run.work("fedcba9876543210")
    others = [replace(work, run=other) for other in (replace(run, generation=20), replace(run, job="jo"))]
    others += [run.work(uid) for uid in ("", "f", "0" * 16)]

    assert work.chunk_path(12) == "_workers/job/2026-11-20/0123456789abcdef-g2/fedcba9876543210/ledger/chunk-00000012.parquet"
    assert run.work("").chunk_path(12) == f"{run.prefix}/ledger/chunk-00000012.parquet", "as in release 0.2.0"
    assert work.partial_path(13, "pod-a") == f"{work.prefix}/partials/chunk-00000013/pod-a.parquet"
    assert work.parse_chunk(work.chunk_path(12)) == 12
    assert work.parse_partial(work.partial_path(13, "pod-a")) == (13, "pod-a")
    assert work.parse_dead_note(work.dead_note_path(12, 3)) == 3
    assert work.parse_lost_note(work.lost_note_path(12, "pod-a-1", 500)) == ("pod-a-1", 500)
    assert run.parse_export(run.export_pattern(2).replace("*", "000000000001")) == 2
    for other in others:
        assert work.parse_chunk(other.chunk_path(12)) is None
        assert work.parse_partial(other.partial_path(13, "pod-a")) is None
    for path in ("ledger/chunk-12.parquet", "ledger/old/chunk-00000012.parquet", "chunk-00000012.parquet", "ledger/notes.txt"):
        assert work.parse_chunk(f"{work.prefix}/{path}") is None


@pytest.mark.parametrize("url", ["s3://bucket", "gs://", "bucket", "file://host/x"])
def test_a_store_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="is not a store"):
        open_store(url)


def test_opening_again_finds_the_run() -> None:
    store = MemoryStore()

    first = opening.open_run(store, a_spec(), "2026-11-20", opened_by="a")

    assert opening.open_run(store, a_spec(), "2026-11-20", opened_by="b") == first
    assert opening.open_run(store, a_spec(deadline="5h", owner="other"), "2026-11-20", opened_by="b") == first
    assert opening.open_run(store, a_spec(), "2026-11-21", opened_by="b") != first


def test_fresh_opens_the_next_generation_once_for_each_opener() -> None:
    store = MemoryStore()
    opening.open_run(store, a_spec(), "d", opened_by="a")

    second = opening.open_run(store, a_spec(), "d", opened_by="b", fresh=True)

    assert second.generation == 2
    assert opening.open_run(store, a_spec(), "d", opened_by="b", fresh=True) == second, "a retry of the opener"
    assert opening.open_run(store, a_spec(), "d", opened_by="c", fresh=True).generation == 3
    assert opening.open_run(store, a_spec(), "d", opened_by="x").generation == 3, "without fresh, the newest"


def overtaken(monkeypatch: pytest.MonkeyPatch, other: Callable[[], RunRef]) -> list[RunRef]:
    """Lets `other` open a run after the next opener has looked which there are, and before it creates one; what it opened."""
    opened = []

    def late(store: ObjectStore, path: str, body: bytes) -> bytes:
        monkeypatch.setattr("nightshift.run.opening.create_or_read", create_or_read)
        opened.append(other())
        return create_or_read(store, path, body)

    monkeypatch.setattr("nightshift.run.opening.create_or_read", late)
    return opened


def test_two_that_open_at_once_share_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    opened = overtaken(monkeypatch, lambda: opening.open_run(store, a_spec(), "d", opened_by="first"))

    assert [opening.open_run(store, a_spec(), "d", opened_by="second")] == opened
    assert opened[0].generation == 1


def test_two_that_ask_for_a_fresh_run_at_once_get_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    first = opening.open_run(store, a_spec(), "d", opened_by="a")
    opened = overtaken(monkeypatch, lambda: opening.open_run(store, a_spec(), "d", opened_by="b", fresh=True))

    third = opening.open_run(store, a_spec(), "d", opened_by="c", fresh=True)

    assert ([run.generation for run in opened], third.generation) == ([2], 3)
    assert opening.newest_generation(store, first) == third


def test_who_loses_to_a_machine_whose_clock_is_ahead_is_opened_later_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of a partition are ordered by when they were opened."""
    store = MemoryStore()
    opening.open_run(store, a_spec(), "d", opened_by="a")

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return super().now(tz) + timedelta(days=1)

    def ahead() -> RunRef:
        with monkeypatch.context() as clock:
            clock.setattr(opening, "datetime", Ahead)
            return opening.open_run(store, a_spec(), "d", opened_by="b", fresh=True)

    opened = overtaken(monkeypatch, ahead)
    third = opening.open_run(store, a_spec(), "d", opened_by="c", fresh=True)

    second_at, third_at = (opening.load_run(store, run)[1].opened for run in (*opened, third))
    assert third_at > second_at > datetime.now(UTC) + timedelta(hours=23)


def test_a_run_that_was_never_opened_has_no_newest_generation() -> None:
    assert opening.newest_generation(MemoryStore(), RunRef("job", "d", "0123456789abcdef")) is None


def test_two_that_complete_a_day_at_once_share_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The night and a backfill, after a run that was opened before the day was over."""
    store = MemoryStore()
    early = {opening.open_run(store, a_spec(), "d", opened_by="noon")}

    def complete(opener: str) -> RunRef:
        return opening.open_run(store, a_spec(), "d", opened_by=opener, superseded=early.__contains__)

    opened = overtaken(monkeypatch, lambda: complete("night"))

    second = complete("backfill")

    assert [*opened, second] == [replace(*early, generation=2)] * 2


class TestOneDagRunForSeveralRequests:
    """As a backfill with --reprocess-behavior completed makes them: the opener is the same, the request is another one."""

    def test_fresh_does_not_find_what_it_opened_without_fresh(self) -> None:
        store = MemoryStore()
        first = opening.open_run(store, a_spec(), "d", opened_by="a")

        second = opening.open_run(store, a_spec(), "d", opened_by="a", fresh=True)

        assert (first.generation, second.generation) == (1, 2)
        assert opening.open_run(store, a_spec(), "d", opened_by="a", fresh=True) == second, "a retry"
        assert [opening.load_run(store, run)[1].fresh for run in (first, second)] == [False, True]

    def test_fresh_does_not_find_what_it_has_published(self) -> None:
        store = MemoryStore()
        opening.open_run(store, a_spec(), "d", opened_by="a")
        second = opening.open_run(store, a_spec(), "d", opened_by="a", fresh=True)
        published = {second}

        third = opening.open_run(store, a_spec(), "d", opened_by="a", fresh=True, superseded=published.__contains__)

        assert third.generation == 3
        assert opening.open_run(store, a_spec(), "d", opened_by="a", fresh=True, superseded=published.__contains__) == third

    def test_fresh_does_not_find_a_redo(self) -> None:
        store = MemoryStore()
        first = opening.open_run(store, a_spec(), "d", opened_by="night")
        redo = opening.open_redo(store, first, a_spec(), Redo(first.run_id, "0" * 64, 20, 6, first.run_id), opened_by="a")

        assert (redo.generation, opening.open_run(store, a_spec(), "d", opened_by="a", fresh=True).generation) == (2, 3)

    def test_a_generation_that_0_2_0_opened_is_found_by_its_retry(self) -> None:
        store = MemoryStore()
        opening.open_run(store, a_spec(), "d", opened_by="night")
        second = opening.open_run(store, a_spec(), "d", opened_by="a", fresh=True)
        stored = dict(opening.load_run(store, second)[1].stored)
        del stored["fresh"]
        obstore.put(store, second.spec_path, json.dumps(stored).encode())

        assert opening.open_run(store, a_spec(), "d", opened_by="a", fresh=True) == second

    def test_a_new_run_follows_what_was_asked_for_last(self) -> None:
        store, later = MemoryStore(), datetime.now(UTC) + timedelta(days=400)
        opening.open_run(store, a_spec(), "d", opened_by="a")

        run = opening.open_run(store, a_spec(), "d", opened_by="b", fresh=True, after=lambda: later)

        assert opening.load_run(store, run)[1].opened == later + timedelta(microseconds=1)


def test_the_rows_of_a_redo_are_as_old_as_those_of_the_run_that_it_completes() -> None:
    store = MemoryStore()
    first = opening.open_run(store, a_spec(), "d", opened_by="night")
    redo = opening.open_redo(store, first, a_spec(), Redo(first.run_id, "0" * 64, 20, 6, first.run_id), opened_by="a")
    again = opening.open_redo(store, redo, a_spec(), Redo(redo.run_id, "1" * 64, 20, 2, redo.run_id), opened_by="b")

    opened = opening.load_run(store, first)[1].opened
    assert [opening.rows_as_of(store, run) for run in (first, redo, again)] == [opened] * 3
    obstore.delete(store, first.spec_path)
    assert opening.rows_as_of(store, again) == opening.load_run(store, redo)[1].opened


def test_fresh_on_an_unknown_run_opens_the_first_generation() -> None:
    assert opening.open_run(MemoryStore(), a_spec(), "d", opened_by="a", fresh=True).generation == 1


def test_a_frozen_spec_comes_back_as_it_was() -> None:
    store = MemoryStore()
    spec = a_spec(dead_letters__tolerate="5%")

    run = opening.open_run(store, spec, "d", opened_by="a")

    assert opening.load_run(store, run)[0] == spec


def test_a_run_that_was_never_opened_is_named() -> None:
    with pytest.raises(opening.NoSuchRun, match=r"spec\.json does not exist"):
        opening.load_run(MemoryStore(), RunRef("job", "d", "0123456789abcdef"))


def test_a_run_belongs_to_the_project_of_its_tables() -> None:
    """Two deployments may share a bucket: the unqualified name of a table means another table in each."""
    store = MemoryStore()

    runs = [opening.open_run(store, a_spec(), "d", opened_by="a", project=project) for project in ("acme", "other", "acme")]

    assert runs[0] == runs[2] != runs[1]
    assert opening.load_run(store, runs[0])[1].project == "acme"


class TestLeftovers:
    """Of a run whose folder was deleted in part: by a lifecycle rule, or by a command that was interrupted."""

    @pytest.mark.parametrize("fresh", [False, True])
    @pytest.mark.parametrize("left", ["plan.json", "manifest.json", "inputs/1-part-0.parquet", "pauses/00000001.json", "x"])
    def test_a_folder_in_which_anything_lies_is_not_used_again(self, left: str, fresh: bool) -> None:
        store = MemoryStore()
        first = opening.open_run(store, a_spec(), "d", opened_by="a")
        obstore.put(store, f"{first.prefix}/{left}", b"{}")
        obstore.delete(store, first.spec_path)

        second = opening.open_run(store, a_spec(), "d", opened_by="a", fresh=fresh)

        assert second == replace(first, generation=2)
        assert opening.open_run(store, a_spec(), "d", opened_by="b") == second
        assert opening.newest_generation(store, first) == second

    def test_generations_are_counted_by_what_is_left(self) -> None:
        """If only the first is gone, `fresh` does not open it again beside the second."""
        store = MemoryStore()
        first = opening.open_run(store, a_spec(), "d", opened_by="a")
        second = opening.open_run(store, a_spec(), "d", opened_by="b", fresh=True)
        obstore.delete(store, first.spec_path)

        assert opening.open_run(store, a_spec(), "d", opened_by="c") == second
        assert opening.open_run(store, a_spec(), "d", opened_by="c", fresh=True) == replace(first, generation=3)

    def test_what_is_left_of_the_newest_does_not_bring_an_older_one_back(self) -> None:
        store = MemoryStore()
        first = opening.open_run(store, a_spec(), "d", opened_by="a")
        second = opening.open_run(store, a_spec(), "d", opened_by="b", fresh=True)
        obstore.put(store, second.plan_path, b"{}")
        obstore.delete(store, second.spec_path)

        assert opening.newest_generation(store, first) is None
        assert opening.open_run(store, a_spec(), "d", opened_by="c") == replace(first, generation=3)

    def test_each_opening_has_a_uid_of_its_own(self) -> None:
        store = MemoryStore()
        first = opening.open_run(store, a_spec(), "d", opened_by="a")
        before = opening.load_run(store, first)[1].uid
        obstore.delete(store, first.spec_path)

        again = opening.open_run(store, a_spec(), "d", opened_by="a")

        record = opening.load_run(store, again)[1]
        assert again == first
        assert record.uid != before
        save_plan(store, again, replace(a_plan(4), opening=before))
        with pytest.raises(PlanError, match=r"plan\.json belongs to another opening"):
            opening.planned(store, again, record)
