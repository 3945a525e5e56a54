"""`nightshift status` over runs in a local folder: what it counts, what it cannot count, and how it ends."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from obstore.store import ObjectStore

from nightshift import chunks
from nightshift.chunks import Provenance, Result
from nightshift.run import canonical_json
from nightshift.status import command, footer
from nightshift.status.rate import Rate
from nightshift.status.report import Status
from nightshift.status.survey import NoSuchRun, Survey
from nightshift.status.text import text
from nightshift.store import open_store
from tests.builders import RUN, a_chunk, a_plan

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PLAN = a_plan(10, 4, 2)
SPEC = {"version": 1, "spec": {"task": "embedding", "model": {"name": "m"}}}

KEYS = {
    *("version", "run", "job", "partition", "run_id", "task", "model", "state", "observed_at", "sealed_at"),
    *("rows_total", "rows_done", "rows_saved", "rows_left", "rows_bad", "predictions", "dead_letters", "dead_reasons"),
    *("chunks_total", "chunks_committed", "chunks_left", "chunks_bad", "partials", "partials_bad", "foreign_objects"),
    *("unanswered", "prompt_tokens", "output_tokens", "rate_rows_per_s", "mean_rows_per_s", "elapsed_s", "seconds_left"),
    *("last_commit", "workers_planned", "attempts", "waste_rows", "waste_lost_rows", "waste_partial_rows"),
    *("waste_percent", "problems"),
}


class Run:
    """A run in a folder, with the writes that workers make, at times that the test sets."""

    def __init__(self, folder: Path, *, planned: bool = True) -> None:
        self.folder = folder
        self.url = f"file://{folder}/{RUN.prefix}"
        self.store: ObjectStore = open_store(f"file://{folder}")
        self.put("spec.json", canonical_json(SPEC))
        if planned:
            self.put("plan.json", canonical_json(PLAN.to_json()))

    def put(self, name: str, body: bytes, at: float | None = None) -> None:
        obstore.put(self.store, f"{RUN.prefix}/{name}", body)
        if at is not None:
            os.utime(self.folder / RUN.prefix / name, (at, at))

    def commit(self, chunk: int, body: bytes | None = None, at: float | None = None) -> None:
        self.put(f"ledger/chunk-{chunk:08d}.parquet", a_chunk(RUN, PLAN, chunk) if body is None else body, at)

    def save(self, chunk: int, attempt: str, body: bytes) -> None:
        self.put(f"partials/chunk-{chunk:08d}/{attempt}.parquet", body)

    def survey(self) -> Survey:
        return Survey(self.store, RUN.prefix, self.url)

    def status(self) -> Status:
        return self.survey().refresh()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "bucket")


def made_by(attempt: str, ordinals: Sequence[int], *, reasons: dict[int, str] | None = None, **provenance: Any) -> bytes:
    """A chunk or partial of `attempt`. reasons: the dead letters by ordinal; provenance: fields of `Provenance`."""
    dead = reasons or {}
    results = [Result(row, None if row in dead else [0.5], dead.get(row), dead.get(row) and "no", 1) for row in ordinals]
    given = Provenance(
        **{
            "run_id": RUN.run_id,
            "chunk": 0,
            "attempt": attempt,
            "node": f"node-of-{attempt}",
            "model": {"name": "m"},
            "engine_version": "0",
            "started": "2026-11-20T00:00:00+00:00",
            "finished": "2026-11-20T00:00:10+00:00",
            "predictions": len(ordinals) - len(dead),
            "dead_letters": len(dead),
            "prompt_tokens": 10,
            **provenance,
        }
    )
    return chunks.encode(pa.table({"id": pa.array(ordinals, pa.int64())}), results, pa.list_(pa.float32()), given)


def test_before_the_plan_it_says_so(tmp_path: Path) -> None:
    status = Run(tmp_path, planned=False).status()

    assert (status.state, status.complete, status.seconds_left) == ("unplanned", False, None)
    assert "not planned yet" in text(status)
    assert set(status.to_json()) == KEYS


def test_a_plan_without_a_chunk(run: Run) -> None:
    status = run.status()

    assert (status.state, status.rows_total, status.rows_done, status.rows_left, status.chunks_left) == ("open", 10, 0, 10, 3)
    assert (status.rate, status.seconds_left, status.waste_percent) == (None, None, None)
    assert "0.0%  0 of 10 rows" in text(status)


def test_rows_are_those_of_committed_chunks(run: Run) -> None:
    run.commit(0, a_chunk(RUN, PLAN, 0, dead=[1]))
    run.commit(2)

    status = run.status()

    assert (status.state, status.rows_done, status.rows_left, status.dead_reasons) == ("open", 6, 4, {"rejected": 1})
    assert (status.chunks_committed, status.chunks_left, status.chunks_bad) == (2, 1, 0)
    assert status.prompt_tokens == 20
    assert status.problems == {}


def test_several_reasons_in_one_chunk_are_read_from_its_rows(run: Run) -> None:
    run.commit(0, made_by("a", range(4), reasons={0: "too_long", 2: "rejected", 3: "too_long"}))

    assert (run.status()).dead_reasons == {"too_long": 2, "rejected": 1}


def test_a_footer_longer_than_the_first_read(run: Run) -> None:
    run.commit(0, made_by("a", range(4), engine_version="x" * 3 * footer.TAIL_BYTES))

    status = run.status()

    assert (status.rows_done, status.problems) == (4, {})


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "it has 0 bytes"),
        (b"no parquet at all", "it does not end as a Parquet file does"),
        (a_chunk(RUN, PLAN, 1)[:-20], "it does not end as a Parquet file does"),
        (a_chunk(RUN, PLAN, 1)[-300:], "its Parquet footer is longer than the object"),
        (b"PAR1" + b"\xff" * 100 + (100).to_bytes(4, "little") + b"PAR1", "its Parquet footer cannot be decoded"),
        (made_by("a", range(4, 7)), "it holds 3 rows, the plan says 4"),
        (made_by("a", range(4, 8), predictions=5), "it holds 4 rows and claims 5 predictions and 0 dead letters"),
        (made_by("a", range(4, 8), predictions=3, dead_letters=1), "it holds 0 dead letters and claims 1"),
        (made_by("a", range(4, 8), run_id="f" * 16), "it belongs to run ffffffffffffffff"),
    ],
)
def test_what_is_no_chunk_is_named_and_counted_apart(run: Run, body: bytes, problem: str) -> None:
    run.commit(0)
    run.commit(1, body)

    status = run.status()

    assert (status.rows_done, status.rows_bad, status.rows_left) == (4, 4, 2)
    assert (status.chunks_committed, status.chunks_left, status.chunks_bad) == (1, 1, 1)
    [(path, said)] = status.problems.items()
    assert path == f"{RUN.prefix}/ledger/chunk-00000001.parquet"
    assert said.startswith(problem)
    assert path in text(status)


def test_a_broken_chunk_is_nobodys_work(run: Run) -> None:
    """No worker computes a chunk whose object is there, so waiting for it would never end."""
    for chunk in range(3):
        run.commit(chunk, b"torn" * 10 if chunk == 1 else None)

    status = run.status()

    assert (status.state, status.chunks_bad, status.rows_done) == ("complete", 1, 6)
    assert "60.0%" in text(status)


def test_foreign_objects_are_named(run: Run) -> None:
    run.put("ledger/chunk-00000003.parquet", a_chunk(RUN, PLAN, 0))
    run.put("ledger/notes.txt", b"x")

    status = run.status()

    assert (status.foreign_objects, status.chunks_committed, status.chunks_bad) == (2, 0, 0)
    assert [path.rsplit("/", 1)[1] for path in sorted(status.problems)] == ["chunk-00000003.parquet", "notes.txt"]


def test_partials_of_open_chunks_are_saved_rows(run: Run) -> None:
    run.save(1, "pod-a", made_by("pod-a", [4, 5]))
    # What it took over from the other is counted once.
    run.save(1, "pod-b", made_by("pod-b", [4, 5, 6], merged={"pod-a": 2}))

    status = run.status()

    assert (status.rows_saved, status.rows_left, status.partials, status.waste_rows) == (3, 7, 2, 0)
    assert {attempt.name: attempt.partial_rows for attempt in status.attempts} == {"pod-a": 2, "pod-b": 1}
    assert "3 rows of open chunks" in text(status)


def test_the_same_rows_saved_twice_are_never_more_than_the_chunk(run: Run) -> None:
    run.save(1, "pod-a", made_by("pod-a", [4, 5, 6]))
    run.save(1, "pod-b", made_by("pod-b", [5, 6, 7]))

    assert (run.status()).rows_saved == 4


def test_partials_are_waste_where_no_chunk_took_them_over(run: Run) -> None:
    run.save(0, "pod-a", made_by("pod-a", [0, 1]))
    run.commit(0, made_by("pod-b", range(4), merged={"pod-a": 2}, computed_rows=2))
    run.save(1, "pod-a", made_by("pod-a", [4, 5, 6]))
    run.commit(1, made_by("pod-b", range(4, 8)))

    status = run.status()

    assert (status.rows_saved, status.waste_partial_rows, status.waste_rows) == (0, 3, 3)
    assert status.waste_percent == pytest.approx(37.5)
    assert {attempt.name: attempt.rows for attempt in status.attempts} == {"pod-a": 0, "pod-b": 6}


def test_a_partial_that_cannot_be_read_is_counted_apart(run: Run) -> None:
    run.save(1, "pod-a", b"torn")
    run.put("partials/readme.txt", b"passed over, as the ledger does")

    status = run.status()

    assert (status.partials, status.partials_bad, status.rows_saved, status.chunks_bad) == (0, 1, 0, 0)
    assert list(status.problems) == [f"{RUN.prefix}/partials/chunk-00000001/pod-a.parquet"]


def test_races_lost_are_waste(run: Run) -> None:
    run.commit(0, made_by("pod-a", range(4)))
    run.put("notes/lost/chunk-00000000/pod-b-3", b"{}")
    run.put("notes/lost/chunk-00000001/pod-a-2", b"{}")
    run.put("notes/dead/chunk-00000000-1", b"{}")
    survey = run.survey()

    survey.refresh()
    status = survey.refresh()

    assert (status.waste_lost_rows, status.waste_rows) == (5, 5)
    assert {attempt.name: (attempt.rows, attempt.lost_rows, attempt.node) for attempt in status.attempts} == {
        "pod-a": (4, 2, "node-of-pod-a"),
        "pod-b": (0, 3, "?"),
    }


def test_a_chunk_is_read_once(run: Run) -> None:
    """What is overwritten afterwards (nobody may) is not seen: proof that nothing is read again."""
    run.commit(0)
    run.commit(1, b"torn" * 10)
    run.save(2, "pod-a", made_by("pod-a", [8]))
    survey = run.survey()
    before = survey.refresh()
    run.commit(0, b"x")
    run.save(2, "pod-a", b"x")
    run.commit(2)

    after = survey.refresh()

    assert (before.rows_done, after.rows_done) == (4, 6)
    assert (before.rows_saved, after.rows_saved) == (1, 0)
    assert after.problems == before.problems
    assert after.complete


def test_a_sealed_run(run: Run) -> None:
    for chunk in range(3):
        run.commit(chunk)
    run.put("manifest.json", b"{}", at=1_800_000_000)

    status = run.status()

    assert (status.state, status.rows_done, status.seconds_left) == ("sealed", 10, 0)
    assert "100.0%" in text(status)
    assert "sealed    2027-01-15T08:00:00+00:00" in text(status)


def test_a_run_of_no_rows_is_complete(tmp_path: Path) -> None:
    run = Run(tmp_path, planned=False)
    run.put("plan.json", canonical_json(a_plan(0).to_json()))

    status = run.status()

    assert (status.state, status.chunks_total) == ("complete", 0)
    assert "100.0%  0 of 0 rows" in text(status)


def test_older_provenance_lacks_fields(run: Run) -> None:
    """The fields that came later read as nothing, not as an error."""
    body = made_by("pod-a", range(4))
    table, provenance = chunks.decode(body)
    old = {
        name: value
        for name, value in dataclasses.asdict(provenance).items()
        if name not in ("output_tokens", "computed_rows", "merged", "node", "started", "finished")
    }
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(table.replace_schema_metadata({chunks.METADATA_KEY: json.dumps(old).encode()}), sink)
    run.commit(0, sink.getvalue().to_pybytes())
    # Perhaps it was taken over.
    run.save(0, "pod-b", made_by("pod-b", [0, 1]))

    status = run.status()

    assert (status.rows_done, status.output_tokens, status.waste_rows, status.problems) == (4, 0, 0, {})
    assert {attempt.name: attempt.node for attempt in status.attempts} == {"pod-a": "?", "pod-b": "node-of-pod-b"}


def test_a_batch_run_with_a_spec_of_its_own(tmp_path: Path) -> None:
    """Only plan.json's rows and chunk_rows are needed."""
    run = Run(tmp_path, planned=False)
    run.put("spec.json", b'{"input": "in.jsonl", "model": "tiny"}')
    run.put("plan.json", b'{"rows": 10, "chunk_rows": 4, "lines": [1, 2]}')
    run.commit(0)

    status = run.status()

    assert (status.rows_total, status.rows_done, status.chunks_total, status.model, status.task) == (10, 4, 3, "tiny", None)


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"rows": 10}', b'{"rows": 10, "chunk_rows": 0}'])
def test_a_plan_that_is_none_is_a_problem(tmp_path: Path, body: bytes) -> None:
    run = Run(tmp_path, planned=False)
    run.put("plan.json", body)

    status = run.status()

    assert (status.state, list(status.problems)) == ("unplanned", [f"{RUN.prefix}/plan.json"])


def test_an_absent_run(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun):
        Survey(open_store(f"file://{tmp_path}"), RUN.prefix, "url").refresh()


def test_the_rate_is_from_the_stores_own_times(run: Run) -> None:
    run.commit(0, made_by("a", range(4)), at=1_000)
    run.commit(1, made_by("a", range(4, 8)), at=1_002)
    run.commit(2, made_by("a", range(8, 10)), at=1_004)

    status = run.status()

    # The first chunk took 10 s by its worker's clock and was committed at 1,000.
    assert (status.rate, status.elapsed_s) == (10 / 14, 14)
    assert status.to_json()["mean_rows_per_s"] == pytest.approx(10 / 14, abs=1e-3)


def test_rate_needs_two_chunks() -> None:
    rate = Rate()
    assert rate.recent(0) is None
    rate.add(100, 50, 5)
    assert rate.recent(110) is None


def test_rate_over_the_last_minutes() -> None:
    rate = Rate()
    for number in range(100):
        rate.add(10.0 * number, 1000 if number < 50 else 10, 10)

    assert rate.recent(990) == 1
    # A clock that is behind the store's changes nothing.
    assert rate.recent(0) == 1


def test_rate_of_several_workers_that_have_just_begun() -> None:
    """Their first chunks come in a bunch, which says nothing; how long they took does."""
    rate = Rate()
    for number in range(10):
        rate.add(1060 + number / 10, 600, 60)

    assert rate.recent(1060) == pytest.approx(100, rel=0.02)


def test_rate_leaves_out_the_night_between() -> None:
    rate = Rate()
    for committed in (0, 60, 100_060, 100_120):
        rate.add(committed, 600, 60)

    assert rate.recent(100_120) == 10
    assert rate.elapsed_s == 100_180


def test_a_run_that_stands_still_slows_down() -> None:
    rate = Rate()
    for number in range(10):
        rate.add(60.0 * number, 600, 60)

    assert [rate.recent(now) for now in (540, 640, 1140)] == [10, 8, 600 / 660]


def test_rate_of_chunks_that_take_longer_than_the_window() -> None:
    rate = Rate()
    rate.add(0, 1000, 900)
    rate.add(1000, 1000, 900)

    assert rate.recent(1000) == 1
    assert rate.recent(2000) == 0.5


def test_rate_of_chunks_that_took_no_time_is_unknown() -> None:
    rate = Rate()
    rate.add(5, 10, 0)
    rate.add(5, 10, 0)

    assert rate.recent(5) is None


def test_rate_keeps_no_more_than_it_needs() -> None:
    rate = Rate()
    for number in range(50_000):
        rate.add(float(number), 2, 1)

    assert rate.recent(49_999) == 2
    assert len(rate._commits) < 5_000
    assert rate.elapsed_s == 50_000


COMMAND = (
    sys.executable,
    "-c",
    "import sys; sys.path.insert(0, 'plugins'); from nightshift.cli import main; sys.exit(main())",
    "status",
)


def nightshift(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command_prints_text(run: Run) -> None:
    run.commit(0)

    done = nightshift(run.url)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == f"{RUN.prefix}  embedding by m"
    assert "4 of 10 rows" in done.stdout


def test_json_is_one_object_of_documented_keys(run: Run) -> None:
    run.commit(0)

    [line] = nightshift(run.url, "--json").stdout.splitlines()

    assert set(json.loads(line)) == KEYS
    documented = (ROOT / "docs" / "status.md").read_text()
    assert [key for key in sorted(KEYS) if f"`{key}`" not in documented] == []


def test_watch_ends_when_all_is_committed(run: Run) -> None:
    run.commit(0)
    watch = subprocess.Popen([*COMMAND, run.url, "--watch", "0.1", "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert watch.stdout
    first = json.loads(watch.stdout.readline())
    run.commit(1)
    run.commit(2)
    last = [json.loads(line) for line in watch.stdout][-1]

    assert watch.wait() == 0
    assert (first["state"], first["rows_done"]) == ("open", 4)
    assert (last["state"], last["rows_done"], last["seconds_left"]) == ("complete", 10, 0)


def test_watch_of_a_finished_run_shows_it_once(run: Run) -> None:
    for chunk in range(3):
        run.commit(chunk)

    done = nightshift(run.url, "--watch")

    assert done.returncode == 0
    assert done.stdout.count("100.0%") == 1


def test_watch_draws_over_what_a_terminal_shows(run: Run) -> None:
    run.commit(0)
    ours, theirs = os.openpty()
    # A shell's background job, as these tests may be one, has Ctrl-C switched off for all its children.
    restore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    watch = subprocess.Popen([*COMMAND, run.url, "--watch", "0.1"], cwd=ROOT, stdout=theirs, preexec_fn=restore)
    os.close(theirs)
    shown = b""
    while shown.count(b"sealed") < 2:
        shown += os.read(ours, 10_000)
    watch.send_signal(signal.SIGINT)

    assert watch.wait() == 130
    first, second = shown.split(b"\x1b[", 1)
    assert first.startswith(RUN.prefix.encode())
    # As many lines up as there are, and everything below is cleared.
    assert second.startswith(f"{first.count(bytes([10]))}A\x1b[J{RUN.prefix}".encode())


def test_a_reader_that_has_enough_is_no_error(run: Run) -> None:
    run.commit(0)
    watch = subprocess.Popen(
        [*COMMAND, run.url, "--watch", "0.1", "--json"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert watch.stdout
    assert watch.stderr
    watch.stdout.readline()
    watch.stdout.close()

    assert (watch.stderr.read(), watch.wait()) == (b"", 0)


@pytest.mark.parametrize(
    "url",
    ["gs://bucket/job/day", "job/day/run", "s3://bucket/job/day/run", "file:///nowhere/job/day/run", "memory:///a/b/c"],
)
def test_wrong_urls_are_2_with_a_message(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(url, every_s=None, as_json=True) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nightshift status: ")
    assert "Traceback" not in captured.err


def test_a_wrong_folder_is_not_made(tmp_path: Path) -> None:
    assert command.run(f"file://{tmp_path}/bucket/job/day/run", every_s=None, as_json=False) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan"])
def test_watch_takes_seconds(run: Run, seconds: str) -> None:
    done = nightshift(run.url, f"--watch={seconds}")

    assert done.returncode == 2
    assert f"'{seconds}' is no number of seconds" in done.stderr
