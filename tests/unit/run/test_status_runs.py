"""Runs of a bucket: listed, marked when they need attention, and found by the names that people use."""

from __future__ import annotations

import time
from datetime import timedelta

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.run import pauses
from nightshift.run.names import canonical_json
from nightshift.run.observed import endings
from nightshift.run.observed.endings import Ending
from nightshift.run.opening import NoSuchRun
from nightshift.status import runs
from nightshift.status.runs import RunPage, Runs, find, published_before
from nightshift.status.summary import Summarizer, Summary
from tests.chat_run import OPENED, ChatRun, a_chat_run

pytestmark = pytest.mark.unit

A, B = "a" * 16, "b" * 16


def ended(run: ChatRun, state: str, at: str = "2026-11-21T03:00:00+00:00", **more: object) -> None:
    endings.record(run.store, run.run, Ending(state, at, "scheduled", **more))  # type: ignore[arg-type]


def published(store: MemoryStore, job: str, partition: str, digest: str = A) -> ChatRun:
    run = a_chat_run(store, job=job, partition=partition, digest=digest, rows=20, chunk_rows=20)
    run.commit(0)
    run.seal()
    ended(run, endings.PUBLISHED)
    return run


def shown(page: RunPage) -> list[str]:
    return [each.run.prefix for each in page.runs]


def summary_of(run: ChatRun, now: float | None = None) -> Summary:
    found = Summarizer(run.store, run.run).summary(lambda _: None, now)
    assert found is not None
    return found


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


class TestPages:
    def test_the_newest_partitions_come_first_and_pages_join(self, store: MemoryStore) -> None:
        for day in range(1, 8):
            published(store, "one", f"2026-11-0{day}")
            published(store, "two", f"2026-11-0{day}")
        runs = Runs(store)

        first = runs.page(count=3)
        whole, page = list(first.runs), first
        while page.after is not None:
            page = runs.page(count=3, after=page.after)
            whole += page.runs

        assert shown(first) == [f"one/2026-11-07/{A}", f"two/2026-11-07/{A}", f"one/2026-11-06/{A}"]
        assert [each.run.prefix for each in whole] == [
            f"{job}/2026-11-0{day}/{A}" for day in range(7, 0, -1) for job in ("one", "two")
        ]
        assert first.jobs == ("one", "two")

    def test_a_page_costs_requests_for_what_it_shows_and_less_the_next_time(self, store: MemoryStore) -> None:
        """Not for the other days; and a published run's small objects are read once."""
        for day in range(10, 30):
            published(store, "one", f"2026-11-{day}")
        runs = Runs(store)

        first, again = runs.page(count=2), runs.page(count=2)

        # The bucket, the job, two days; of each run record, manifest, and two for its endings.
        assert first.requests == 2 + 2 + 2 * 4
        assert again.requests == 2 + 2
        assert shown(again) == shown(first)

    def test_only_the_jobs_that_were_asked_for_are_listed(self, store: MemoryStore) -> None:
        published(store, "one", "2026-11-01")
        published(store, "two", "2026-11-01")

        page = Runs(store).page(jobs=["two", "gone"])

        assert (shown(page), page.jobs) == ([f"two/2026-11-01/{A}"], ("gone", "two"))

    def test_what_is_no_run_is_passed_over(self, store: MemoryStore) -> None:
        run = published(store, "one", "2026-11-01")
        for path in (
            "_workers/one/2026-11-01/x",
            "_previews/one/1.json",
            "one/note.txt",
            "one/tmp/" + B + "/spec.json",
            f"one/2026-11-01/{B}/plan.json",
            "one/2026-11-01/backup/spec.json",
        ):
            obstore.put(store, path, b"{}")

        assert shown(Runs(store).page()) == [run.run.prefix]

    def test_an_empty_bucket_has_an_empty_page(self, store: MemoryStore) -> None:
        page = Runs(store).page()

        assert (page.runs, page.after, page.jobs) == ((), None, ())

    def test_those_that_need_attention_come_first_if_asked(self, store: MemoryStore) -> None:
        published(store, "one", "2026-11-03")
        working = a_chat_run(store, job="one", partition="2026-11-02", digest=B)
        failed = a_chat_run(store, job="one", partition="2026-11-01", digest=B)
        ended(failed, endings.FAILED, task="infer", error="Fix it.")

        page = Runs(store).page()

        assert [each.state for each in page.by_attention] == ["failed", "open", "published"]
        assert [each.run.prefix for each in page.by_attention][:2] == [failed.run.prefix, working.run.prefix]

    def test_a_failed_run_whose_day_was_published_later_needs_nobody(self, store: MemoryStore) -> None:
        failed = a_chat_run(store, job="one", partition="2026-11-01", digest=B)
        ended(failed, endings.FAILED, task="seal", error="Too many.")
        again = a_chat_run(store, job="one", partition="2026-11-01", digest=A, opened_at=OPENED + timedelta(hours=1))
        assert [each.kind for each in Runs(store).page().runs[1].attention] == ["failed"]

        for number in range(4):
            again.commit(number)
        again.seal()
        ended(again, endings.PUBLISHED)

        new, old = Runs(store).page().runs
        assert (new.state, new.word, new.other) == ("published", "shown", None)
        assert (old.state, old.other, old.attention) == ("failed", again.run.run_id, ())


class TestSummary:
    def test_each_state(self, store: MemoryStore) -> None:
        run = a_chat_run(store, rows=20)
        obstore.delete(store, run.run.plan_path)
        assert summary_of(run).state == "unplanned"

        run = a_chat_run(store, rows=20)
        assert summary_of(run).state == "open"

        pauses.request_pause(store, run.run, paused=True, by="ada")
        assert (summary_of(run).state, (summary_of(run).paused_by or "")[:3]) == ("paused", "ada")

        pauses.request_pause(store, run.run, paused=False, by="ada")
        run.commit(0)
        assert (summary_of(run).state, summary_of(run).done, summary_of(run).rows) == ("open", 10, 20)

        run.commit(1)
        assert summary_of(run).state == "complete"

        run.seal()
        assert (summary_of(run).state, summary_of(run).ended_at) == ("sealed", "2026-11-21T03:00:00+00:00")

        ended(run, endings.PUBLISHED, at="2026-11-21T03:05:00+00:00")
        assert (summary_of(run).state, summary_of(run).ended_at) == ("published", "2026-11-21T03:05:00+00:00")

    def test_a_failed_night_says_which_task_and_why(self, store: MemoryStore) -> None:
        run = a_chat_run(store, rows=20)
        run.commit(0, lambda row: None if row < 4 else "a")
        ended(run, endings.FAILED, at="2100-01-01T00:00:00+00:00", task="seal", error="4 dead letters.", dead_letters=4)

        found = summary_of(run)

        assert (found.state, found.done, found.dead_letters, found.failed_task) == ("failed", 10, 4, "seal")
        assert [(each.kind, each.words) for each in found.attention] == [("failed", "The task seal failed: 4 dead letters.")]

    def test_a_failed_run_that_goes_on_is_open_again(self, store: MemoryStore) -> None:
        run = a_chat_run(store, rows=20)
        ended(run, endings.FAILED, task="infer", error="No engine.")
        assert summary_of(run).state == "failed"

        run.commit(0)  # Now, long after that night.

        assert summary_of(run).state == "open"

    def test_a_run_that_failed_after_the_seal_is_failed(self, store: MemoryStore) -> None:
        run = a_chat_run(store, rows=20)
        run.commit(0)
        run.commit(1)
        run.seal()
        ended(run, endings.FAILED, at="2100-01-01T00:00:00+00:00", task="publish", error="No right to write.")

        found = summary_of(run)
        assert (found.state, found.failed_task, found.rows) == ("failed", "publish", 20)

    def test_a_run_that_was_sealed_after_a_night_had_failed_is_sealed(self, store: MemoryStore) -> None:
        run = a_chat_run(store, rows=20)
        ended(run, endings.FAILED, task="infer", error="A person stopped the night.")
        run.commit(0)
        run.commit(1)
        run.seal(sealed_at="2100-01-01T00:00:00+00:00")

        found = summary_of(run)

        assert (found.state, found.rows, found.done, found.attention) == ("sealed", 20, 20, ())

    def test_why_a_run_needs_attention(self, store: MemoryStore) -> None:
        run = a_chat_run(store, rows=1000)
        run.commit(0, lambda row: None if row < 3 else "a")
        now = time.time()

        def kinds(at: float) -> list[str]:
            return [each.kind for each in summary_of(run, at).attention]

        assert kinds(now) == ["dead_letters"]
        assert kinds(now + 1000) == ["dead_letters", "stalled"]
        assert kinds(now + 3 * 3600) == ["dead_letters", "late", "stalled"]

    def test_a_forecast_after_the_deadline_is_late(self, store: MemoryStore) -> None:
        run = a_chat_run(store, rows=100_000, exported=20)
        run.commit(0)
        run.commit(1)

        found = summary_of(run, time.time() + 100)

        assert (found.seconds_left or 0) > 7200  # 20 rows in 100 s, and a deadline of 2 h
        [late] = found.attention
        assert (late.kind, "after its deadline" in late.words) == ("late", True)

    def test_answers_that_were_nearly_all_cut_are_said(self, store: MemoryStore) -> None:
        run = a_chat_run(store, rows=40, chunk_rows=20)
        run.commit(0, truncated=20)
        run.commit(1, truncated=17)
        run.seal()

        assert [each.kind for each in summary_of(run).attention] == ["cut"]

    def test_a_record_of_a_later_release_is_shown_as_unreadable(self, store: MemoryStore) -> None:
        run = a_chat_run(store)
        obstore.put(store, run.run.spec_path, canonical_json({"version": 99, "opened_by": "x", "opened_at": "2026-11-21"}))

        found = summary_of(run)

        assert (found.state, found.attention[0].kind) == ("unreadable", "unreadable")
        assert "version 99" in (found.error or "")

    def test_a_redo_names_the_run_that_it_completes(self, store: MemoryStore) -> None:
        redo = {"run_id": B, "manifest_digest": "0", "rows": 40, "dead_letters": 3}

        found = summary_of(a_chat_run(store, redo=redo))
        assert (found.redo_of, found.redo_rows, found.completes) == (B, 40, f"completes run {B} of 40 rows")


class TestFind:
    @pytest.fixture(autouse=True)
    def _bucket(self, store: MemoryStore) -> None:
        published(store, "tickets", "2026-11-18", "c0ffee0000000000")
        published(store, "tickets", "2026-11-20", "c0ffee1111111111")
        a_chat_run(
            store, job="tickets", partition="2026-11-20", digest="dead000000000000", opened_at=OPENED + timedelta(hours=1)
        )
        published(store, "reviews", "2026-11-19", "beef000000000000")

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("tickets", "tickets/2026-11-20/dead000000000000"),
            ("tickets/", "tickets/2026-11-20/dead000000000000"),
            ("tickets/2026-11-18", "tickets/2026-11-18/c0ffee0000000000"),
            ("tickets/2026-11-20", "tickets/2026-11-20/dead000000000000"),
            ("tickets/2026-11-20/c0ff", "tickets/2026-11-20/c0ffee1111111111"),
            ("beef000000000000", "reviews/2026-11-19/beef000000000000"),
            ("beef", "reviews/2026-11-19/beef000000000000"),
            ("c0ffee1", "tickets/2026-11-20/c0ffee1111111111"),
        ],
    )
    def test_names(self, store: MemoryStore, text: str, found: str) -> None:
        assert find(store, text).prefix == found

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("ticket", "no job 'ticket' in this bucket. Did you mean tickets? It has the jobs reviews, tickets."),
            ("nothing", "It has the jobs reviews, tickets."),
            (
                "tickets/2026-11-21",
                "no run for '2026-11-21'. Did you mean 2026-11-20? Its newest days are 2026-11-20, 2026-11-18.",
            ),
            ("tickets/2026-11-20/beef", "There is no run 'beef' of tickets/2026-11-20. There are dead"),
            ("c0ffee", "2 runs have an id that begins with 'c0ffee': tickets/2026-11-18/c0ffee0000000000, tickets/2026-11-20"),
            ("abcdef0123456789", "no run whose id begins so, in 3 days of 2 jobs"),
            ("", "Name a job"),
        ],
    )
    def test_what_is_not_there_is_answered_by_what_is(self, store: MemoryStore, text: str, said: str) -> None:
        with pytest.raises(NoSuchRun) as raised:
            find(store, text)

        assert said in str(raised.value)

    def test_an_id_without_a_generation_is_the_newest_one(self, store: MemoryStore) -> None:
        run = a_chat_run(store, job="tickets", partition="2026-11-20", digest="dead000000000000")
        again = obstore.get(store, run.run.spec_path).bytes()
        obstore.put(store, "tickets/2026-11-20/dead000000000000-g2/spec.json", again)

        assert find(store, "dead000000000000").generation == 2
        assert find(store, "dead000000000000-g2").generation == 2

    def test_the_beginning_of_an_id_must_be_of_one_run_in_all_days(
        self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also if days are looked at in several parts."""
        monkeypatch.setattr(runs, "READERS", 1)
        for day in range(1, 20):
            a_chat_run(store, job="many", partition=f"2026-10-{day:02}", digest=f"{day:02}" * 8, rows=1)
        a_chat_run(store, job="many", partition="2026-09-01", digest="1919000000000000", rows=1)

        with pytest.raises(NoSuchRun, match="2 runs have an id that begins with '1919'"):
            find(store, "1919")
        assert find(store, "19191919").partition == "2026-10-19"

    def test_an_empty_bucket_says_so(self) -> None:
        with pytest.raises(NoSuchRun, match="no runs yet"):
            find(MemoryStore(), "tickets")

    def test_a_job_whose_name_looks_like_an_id_is_the_job(self, store: MemoryStore) -> None:
        published(store, "beef", "2026-11-01")

        assert find(store, "beef").job == "beef"


class TestPublishedBefore:
    def test_it_is_the_last_one_of_an_earlier_day(self, store: MemoryStore) -> None:
        for day in ("2026-11-16", "2026-11-17", "2026-11-21"):
            published(store, "tickets", day)
        failed = a_chat_run(store, partition="2026-11-18", digest=B)
        ended(failed, endings.FAILED)
        run = a_chat_run(store, partition="2026-11-20", digest=B)

        before = published_before(store, run.run)

        assert before is not None
        assert before.prefix == f"tickets/2026-11-17/{A}"

    def test_there_may_be_none(self, store: MemoryStore) -> None:
        assert published_before(store, a_chat_run(store).run) is None
