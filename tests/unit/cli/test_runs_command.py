"""`nightshift runs`, and `nightshift status` of a run by its name: what a person reads of nights, and how a watch ends."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from nightshift.cli import main, status_watch, target, trouble
from nightshift.jobset.fleet.shown import save_now
from nightshift.run.observed import endings
from nightshift.run.observed.endings import Ending
from nightshift.run.observed.pods_now import Acts, JobSetNow, LastWords, PodNow, Stage
from nightshift.store import StoreUnavailable
from tests.chat_run import OPENED, ChatRun, a_chat_run

pytestmark = pytest.mark.unit

A, B, C = "a" * 16, "b" * 16, "c" * 16
PLUGINS = Path(__file__).parents[3] / "plugins"
DEMO = PLUGINS.parent / "dags" / "jobs" / "package-embeddings.yaml"
Command = Callable[..., tuple[int, str, str]]


# After all that the store says of its objects.
AT = "2200-01-01T03:00:00+00:00"


def commit(run: ChatRun) -> None:
    for number in range(run.plan.chunk_count):
        run.commit(number)


def ended(run: ChatRun, state: str, **more: object) -> None:
    endings.record(run.store, run.run, Ending(state, AT, "scheduled", **more))  # type: ignore[arg-type]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def nightshift(store: MemoryStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, with a bucket that NIGHTSHIFT_BUCKET names. Returns code, stdout and stderr."""
    monkeypatch.setenv("NIGHTSHIFT_BUCKET", "b")
    for module in (trouble, target):
        monkeypatch.setattr(module, "open_bucket", lambda url: store)

    def run(*words: str) -> tuple[int, str, str]:
        try:
            code = main(words)
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def published(store: MemoryStore) -> ChatRun:
    run = a_chat_run(store, job="tickets", partition="2026-11-19", digest=A, rows=20)
    for number in range(run.plan.chunk_count):
        run.commit(number, lambda row: None if row == 3 else f"label {row}")
    run.seal()
    ended(run, endings.PUBLISHED)
    return run


@pytest.fixture
def failed(store: MemoryStore) -> ChatRun:
    """Of the next day."""
    run = a_chat_run(store, job="tickets", partition="2026-11-20", digest=B, rows=20, opened_at=OPENED + timedelta(days=1))
    for number in range(run.plan.chunk_count):
        run.commit(number, lambda row: None if row < 8 else f"label {row}")
    ended(run, endings.FAILED, task="seal", error="8 of 20 rows are dead letters.\nRaise dead_letters.", dead_letters=8)
    return run


class TestRuns:
    def test_a_table_with_what_needs_attention_first(self, nightshift: Command, published: ChatRun, failed: ChatRun) -> None:
        code, out, err = nightshift("runs")

        assert (code, err) == (0, "")
        head, first, why, more, second = out.splitlines()
        assert head.split() == ["job", "day", "run", "state", "rows", "dead", "started"]
        assert first.split() == ["tickets", "2026-11-20", B, "failed", "20", "8", "2026-11-22", "01:00"]
        assert why == "  ! The task seal failed: 8 of 20 rows are dead letters."
        assert more == "    Raise dead_letters."
        assert second.split() == ["tickets", "2026-11-19", A, "shown", "20", "1", "2026-11-21", "01:00"]

    def test_a_redo_says_what_it_completes(self, nightshift: Command, store: MemoryStore) -> None:
        redo = {"run_id": B, "manifest_digest": "0", "rows": 12, "dead_letters": 1}
        a_chat_run(store, job="tickets", partition="2026-11-20", digest=C, rows=1, redo=redo)

        assert f"  completes run {B} of 12 rows" in nightshift("runs")[1].splitlines()
        assert f"redo      completes run {B} of 12 rows" in nightshift("status", C)[1].splitlines()

    def test_only_some(self, nightshift: Command, store: MemoryStore, published: ChatRun, failed: ChatRun) -> None:
        a_chat_run(store, job="mails", partition="2026-11-21", digest=C)

        def found(*words: str) -> list[str]:
            return [run["run_id"] for run in json.loads(nightshift("runs", "--json", *words)[1])["runs"]]

        assert found() == [B, C, A]
        assert found("--job", "tickets") == [B, A]
        assert found("--since", "2026-11-20") == [B, C]
        assert found("--since", "2026-11-22") == []

    def test_since_goes_on_over_pages(self, nightshift: Command, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("nightshift.status.runs.PAGE_RUNS", 1)
        monkeypatch.setattr("nightshift.status.runs.Runs.page.__kwdefaults__", {"jobs": None, "after": None, "count": 1})
        for day in range(1, 6):
            a_chat_run(store, job="mails", partition=f"2026-11-0{day}", digest=A)

        assert "Shown: the newest 1 run; --since DATE" in nightshift("runs")[1]
        assert [line.split()[1] for line in nightshift("runs", "--since", "2026-11-03")[1].splitlines()[1:]] == [
            f"2026-11-0{day}" for day in (5, 4, 3)
        ]

    def test_what_is_not_there_is_said(self, nightshift: Command, published: ChatRun) -> None:
        assert nightshift("runs", "--job", "tickts") == (
            2,
            "",
            "nightshift runs: The bucket has no runs of a job 'tickts'. Did you mean tickets?\n",
        )
        assert nightshift("runs", "s3://b")[2] == "nightshift runs: 's3://b' is not a bucket. Write gs://BUCKET.\n"

    def test_an_empty_bucket_is_no_error(self, nightshift: Command) -> None:
        assert nightshift("runs") == (0, "The bucket has no runs yet.\n", "")


class TestStatusByName:
    @pytest.mark.parametrize("name", ["tickets", "tickets/2026-11-20", f"tickets/2026-11-20/{B}", B, "bbbb", f"gs://b/{B}"])
    def test_a_run_is_found(self, nightshift: Command, published: ChatRun, failed: ChatRun, name: str) -> None:
        code, out, _ = nightshift("status", name, "--json")

        assert (code, json.loads(out)["run"]) == (0, f"gs://b/{failed.run.prefix}")

    @pytest.mark.parametrize("command", ["status", "pause", "resume"])
    def test_one_that_is_not_there_is_answered_by_what_is(self, nightshift: Command, published: ChatRun, command: str) -> None:
        code, out, err = nightshift(command, "tickts")

        assert (code, out) == (2, "")
        assert err.startswith(f"nightshift {command}: There is no job 'tickts' in this bucket. Did you mean tickets?")

    def test_a_name_without_a_bucket_says_what_to_set(self, nightshift: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("NIGHTSHIFT_BUCKET")

        code, _, err = nightshift("status", "tickets")

        assert code == 2
        assert err.startswith("nightshift status: NIGHTSHIFT_BUCKET is not set, so there is no bucket to look in. Set it, or ")
        assert 'make up, then eval "$(make env)"' in err

    def test_how_a_night_ended_is_shown(self, nightshift: Command, published: ChatRun, failed: ChatRun) -> None:
        code, out, _ = nightshift("status", "tickets")

        assert code == 0
        assert out.splitlines()[-2:] == [
            f"failed    in the task seal at {AT}: 8 of 20 rows are dead letters.",
            "Raise dead_letters.",
        ]
        assert nightshift("status", A)[1].splitlines()[-1] == f"published at {AT}"

    def test_a_night_in_json(self, nightshift: Command, failed: ChatRun) -> None:
        night = json.loads(nightshift("status", B, "--json")[1])["night"]

        assert (night["state"], night["failed_task"], night["attention"][0]["kind"]) == ("failed", "seal", "failed")


class TestWatch:
    def test_it_stays_over_the_seal_until_the_run_is_published(
        self, nightshift: Command, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = a_chat_run(store, rows=20)
        steps: Iterator[Callable[[], object]] = iter(
            [
                lambda: commit(run),
                run.seal,
                lambda: ended(run, endings.PUBLISHED),
            ]
        )
        monkeypatch.setattr("nightshift.cli.status_watch.time.sleep", lambda _: next(steps)())

        code, out, err = nightshift("status", run.run.run_id, "--watch", "--json")

        assert code == 0
        assert [(seen["state"], seen["night"]["state"]) for seen in map(json.loads, out.splitlines())] == [
            ("open", "open"),
            ("complete", "complete"),
            ("sealed", "sealed"),
            ("sealed", "published"),
        ]
        assert err == f"{run.run.prefix}: published at {AT}\n"

    def test_an_earlier_failure_is_its_end_only_when_no_new_try_is_seen(
        self, nightshift: Command, failed: ChatRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slept: list[float] = []
        monkeypatch.setattr("nightshift.cli.status_watch.time.monotonic", lambda: sum(slept))
        monkeypatch.setattr("nightshift.cli.status_watch.time.sleep", slept.append)

        code, _, err = nightshift("status", B, "--watch", "50")

        assert (code, slept) == (1, [50, 50, 50])
        first, last, *_ = err.splitlines()
        assert first == f"{failed.run.prefix}: failed at {AT}; waits 120 s for a new try"
        assert last.startswith(f"{failed.run.prefix}: failed in the task seal at {AT}: 8 of 20 rows are dead")

    def test_a_failure_during_the_watch_is_its_end_and_an_earlier_one_is_not(
        self, nightshift: Command, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A night whose task infer was just cleared: its pods come, and then it fails again."""
        run = a_chat_run(store, rows=20)
        ended(run, endings.FAILED, task="infer", error="No engine.")
        pod = PodNow("tickets-0", 0, Stage.WEIGHTS, "2201-01-01T00:00:00+00:00")
        again = Ending(endings.FAILED, "2202-01-01T01:00:00+00:00", "manual", task="infer", error="Again.")
        steps: Iterator[Callable[[], object]] = iter(
            [
                lambda: save_now(store, run.run, JobSetNow("tickets-2", "2201-01-01T00:00:00+00:00", 1, pods=(pod,))),
                lambda: endings.record(store, run.run, again),
            ]
        )
        monkeypatch.setattr("nightshift.cli.status_watch.time.sleep", lambda _: next(steps)())

        code, out, err = nightshift("status", run.run.run_id, "--watch", "--json")

        assert (code, [json.loads(line)["night"]["state"] for line in out.splitlines()]) == (1, ["failed", "open", "failed"])
        assert err.splitlines()[-1].endswith("failed in the task infer at 2202-01-01T01:00:00+00:00: Again.")

    def test_it_does_not_wait_for_a_run_that_nobody_will_publish(
        self, nightshift: Command, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As one of a release that recorded no endings."""
        run = a_chat_run(store, rows=20)
        commit(run)
        run.seal()
        now = time.time()
        monkeypatch.setattr("nightshift.status.overview.time.time", lambda: now + status_watch.SEALED_S + 60)

        code, _, err = nightshift("status", run.run.run_id, "--watch")

        assert (code, "nothing says that it was published" in err) == (1, True)


class TestRows:
    def test_dead_letters(self, nightshift: Command, failed: ChatRun) -> None:
        code, out, _ = nightshift("status", B, "--dead-letters")

        assert code == 0
        lines = out.splitlines()
        assert lines[0].startswith(f"{failed.run.prefix}: 8 dead letters (8 bad_input)")
        assert lines[2:5] == ["id 0  bad_input  row 0, 1 attempt", "  message   row 0 has no text", lines[4]]
        assert lines[4].startswith("  prompt    system: You label tickets.")
        assert out.count("bad_input  row") == 8

    def test_a_long_prompt_takes_two_lines_in_the_list(
        self, nightshift: Command, failed: ChatRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nightshift.cli.status_rows.SHORT", 30)

        _, out, _ = nightshift("status", B, "--dead-letters")

        assert out.splitlines()[4].startswith("  prompt    system: You label tickets. us ... (")
        assert out.splitlines()[4].endswith(" characters in all)")

    def test_a_night_that_stopped_early_has_rows_that_were_not_tried(self, nightshift: Command, store: MemoryStore) -> None:
        run = a_chat_run(store, job="letters", digest=C, rows=20)
        run.commit(0, lambda row: None)
        ended(run, endings.FAILED, task="infer", error="Too many.", dead_letters=4, rows_committed=19)

        assert (
            "When the night stopped, 1 row was not tried: there may be more.\n" in nightshift("status", C, "--dead-letters")[1]
        )
        assert json.loads(nightshift("status", C, "--dead-letters", "--json")[1])["not_tried"] == 1

    def test_dead_letters_of_a_reason_that_there_is_not(self, nightshift: Command, failed: ChatRun) -> None:
        code, _, err = nightshift("status", B, "--dead-letters", "too_long")

        assert (code, "has no dead letters of the reason 'too_long'. Its reasons: bad_input." in err) == (2, True)

    def test_a_reason_is_not_denied_before_all_are_read(
        self, nightshift: Command, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = a_chat_run(store, digest=B, rows=20, chunk_rows=10)
        for number, reason in enumerate(("bad_input", "too_long")):
            run.commit(number, lambda row: None if row % 10 == 0 else "a", reason=reason)
        monkeypatch.setattr("nightshift.status.dead_letters.NOTES_S", -1.0)
        monkeypatch.setattr("nightshift.status.dead_letters.NOTES_AT_ONCE", 1)

        code, out, _ = nightshift("status", B, "--dead-letters")
        assert (code, "; the reasons of 1 are not read yet" in out) == (0, True)

        code, out, _ = nightshift("status", B, "--dead-letters", "too_long")
        assert (code, out.count("too_long  row")) == (0, 1)

    def test_dead_letters_beyond_those_that_a_person_gets(
        self, nightshift: Command, failed: ChatRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("nightshift.cli.status_rows.SHOWN", 3)
        monkeypatch.setattr("nightshift.cli.status_rows.PAGE", 3)

        assert nightshift("status", B, "--dead-letters")[1].splitlines()[-1] == "These are the first 3; --json prints all."
        pages = [json.loads(line) for line in nightshift("status", B, "--dead-letters", "--json")[1].splitlines()]
        assert [len(page["rows"]) for page in pages] == [3, 3, 2]

    def test_samples(self, nightshift: Command, published: ChatRun) -> None:
        code, out, _ = nightshift("status", A, "--samples", "2")

        assert code == 0
        assert out.splitlines()[0].startswith(f"{published.run.prefix}: 2 rows from ")
        assert out.count("  prompt    system: You label tickets.") == 2
        assert out.count("  answer    label ") == 2
        assert len(json.loads(nightshift("status", A, "--samples", "2", "--json")[1])["rows"]) == 2

    def test_one_row_with_the_place_of_its_proof(self, nightshift: Command, published: ChatRun) -> None:
        code, out, _ = nightshift("status", A, "--row", "7")

        assert code == 0
        assert out.splitlines()[0] == f"{published.run.prefix}: id 7, row 7"
        assert "  answer    label 7" in out
        assert f"  proof     as sealed; {published.run.manifest_path}, Merkle root " in out
        assert "  dead      bad_input: row 3 has no text" in nightshift("status", A, "--row", "3")[1]
        code, _, err = nightshift("status", A, "--row", "99")
        assert (code, err) == (2, f"nightshift status: None of the 20 rows of {published.run.prefix} has id 99.\n")


class TestEngines:
    def test_the_last_words_of_one_that_cannot_start(self, nightshift: Command, failed: ChatRun) -> None:
        words = LastWords("server", 1, "Error", 3, "2026-11-21T02:00:00+00:00", "no such model", ("Traceback", "no such model"))
        pod = PodNow("tickets-0", 0, Stage.WEIGHTS, "2026-11-21T01:50:00+00:00", Acts.AUTHOR, restarts=3, words=words)
        save_now(failed.store, failed.run, JobSetNow("tickets-1", "2026-11-21T02:01:00+00:00", 1, profile="cpu", pods=(pod,)))

        code, out, err = nightshift("status", B, "--engines")

        assert (code, err) == (0, "")
        first, second, third, *lines = out.splitlines()
        assert first.startswith(
            "tickets-1 on cpu, at 2026-11-21T02:01:00+00:00: 0 running, 0 finished, 0 failed; waiting for server"
        )
        assert second.startswith(
            "  tickets-0: weights since 2026-11-21T01:50:00+00:00, to act: who wrote the job, waits for server "
        )
        assert third == "    last words of server, which exited with 1 (Error) at 2026-11-21T02:00:00+00:00:"
        assert lines == ["      Traceback", "      no such model"]
        said = json.loads(nightshift("status", B, "--engines", "--json")[1])
        assert said["jobsets"][0]["pods"][0]["words"]["cause"] == "no such model"

    def test_a_run_of_which_nothing_is_known(self, nightshift: Command, published: ChatRun) -> None:
        assert "nothing is known of its pods" in nightshift("status", A, "--engines")[1]


class TestTrouble:
    def test_no_credentials_are_said_at_once(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in (*trouble.EMULATORS, *trouble.ACCOUNTS):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setattr(trouble, "_on_google", lambda: False)

        monkeypatch.setenv("NIGHTSHIFT_BUCKET", "b")
        monkeypatch.setenv("NIGHTSHIFT_PROJECT", "p")

        for words in (["status", "job"], ["pause", "job"], ["resume", "job"], ["runs"], ["preview", str(DEMO)]):
            assert main(words) == 78
            err = capsys.readouterr().err
            assert err.startswith(
                f"nightshift {words[0]}: gs://b cannot be read: there are no Google credentials here. Log in with"
            )
            assert 'make up, then eval "$(make env)"' in err

    def test_a_store_that_refuses_is_78_with_what_to_do(self) -> None:
        error = StoreUnavailable("list x: forbidden")
        error.__cause__ = obstore.exceptions.PermissionDeniedError("forbidden")

        said, code = trouble.of_store(error)

        assert (code, said.partition(". Give this account the right to read")[0]) == (
            78,
            "the store refuses: the account may not do that there (403)",
        )

    def test_expired_credentials_are_78_with_the_login(self) -> None:
        error = StoreUnavailable("list x")
        error.__cause__ = obstore.exceptions.GenericError(
            "Generic GCS error: Error performing token request: Error performing POST https://oauth2.googleapis.com/token in "
            "1ms - Server returned non-2xx status code: 400 Bad Request: invalid_grant"
        )

        said, code = trouble.of_store(error)

        assert (code, "Log in with `gcloud auth application-default login`" in said) == (78, True)

    def test_a_stack_that_is_down_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
        error = StoreUnavailable("list x")
        error.__cause__ = obstore.exceptions.GenericError("Generic GCS error: connection refused")

        said, code = trouble.of_store(error)

        assert (code, said.startswith("the store at http://127.0.0.1:9 does not answer: make up starts the stack")) == (
            75,
            True,
        )


class TestColours:
    def shown(self, **variables: str) -> str:
        """What a terminal gets."""
        ours, theirs = pty.openpty()
        environment = {"PATH": os.environ["PATH"], "TERM": "xterm", "PYTHONPATH": str(PLUGINS), **variables}
        program = (
            "import sys; from nightshift.cli.terminal import paint; from nightshift.fields.terminal import Written; "
            "print(paint('failed', 'red'), file=Written(sys.stdout))"
        )
        subprocess.run([sys.executable, "-c", program], env=environment, stdout=theirs, check=True)
        os.close(theirs)
        return os.read(ours, 1000).decode().strip()

    def test_on_a_terminal_unless_it_is_not_wanted(self) -> None:
        assert self.shown() == "\x1b[31mfailed\x1b[0m"
        assert self.shown(NO_COLOR="1") == "failed"
        assert self.shown(TERM="dumb") == "failed"

    def test_not_into_a_pipe(self, nightshift: Command, failed: ChatRun) -> None:
        assert "\x1b" not in nightshift("runs")[1]
