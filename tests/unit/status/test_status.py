"""What `nightshift status` says of runs in a local folder, and what the footers of their chunks add up to."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nightshift.jobset.fleet.shown import save_now
from nightshift.planner.costs.prices import Prices
from nightshift.planner.costs.split import Parts
from nightshift.planner.decisions import save_decision
from nightshift.planner.plan import Decision
from nightshift.planner.speed import Basis, Speed
from nightshift.run.chunks import NotAChunk, Part
from nightshift.run.manifest import RunManifest, SealedChunk
from nightshift.run.names import canonical_json
from nightshift.run.observed.pods_now import JobSetNow, PodNow, Stage
from nightshift.run.observed.progress import ListedObject
from nightshift.run.opening import NoSuchRun
from nightshift.run.pauses import request_pause
from nightshift.status import chunk_footer
from nightshift.status.chunk_footer import Committed, committed
from nightshift.status.overview import RunLook
from nightshift.status.text import text
from nightshift.store import open_store
from tests.builders import RUN, WORK, a_chunk, a_manifest, a_plan, a_spec
from tests.chat_run import a_chat_run
from tests.unit.status_run import KEYS, PLAN, Run, made_by

pytestmark = pytest.mark.unit


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "bucket")


def values(found: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(found[name] for name in names)


def test_before_the_plan_it_says_so(tmp_path: Path) -> None:
    look = Run(tmp_path, planned=False).look()

    assert values(look.status(), "state", "seconds_left") == ("unplanned", None)
    assert "not planned yet" in text(look)
    assert {*look.status(), "night"} == KEYS  # The command adds how its night ended.


def test_a_plan_without_a_chunk(run: Run) -> None:
    found = run.status()

    assert values(found, "state", "rows_total", "rows_done", "rows_left", "chunks_left") == ("open", 10, 0, 10, 3)
    assert values(found, "rate_rows_per_s", "seconds_left", "waste_percent") == (None, None, None)
    assert "0.0%  0 of 10 rows" in text(run.look())
    assert "waits     no pod is there yet" in text(run.look())


def test_rows_are_those_of_committed_chunks_and_dead_letters_those_that_workers_noted(run: Run) -> None:
    run.commit(0, a_chunk(RUN, PLAN, 0, dead=[1]))
    run.commit(2)
    run.put_work("notes/dead/chunk-00000000-1", b'{"rejected": 1}')
    run.put_work("notes/dead/chunk-00000009-5", b'{"rejected": 5}')

    found = run.status()

    assert values(found, "state", "rows_done", "rows_left", "dead_reasons") == ("open", 6, 4, {"rejected": 1})
    assert values(found, "chunks_committed", "chunks_left", "predictions") == (2, 1, 5)
    assert found["problems"] == []
    assert "5 predictions, 1 dead letter (1 rejected)" in text(run.look())


def test_reasons_that_are_not_read_yet_are_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.status.overview.FIRST_S", -1.0)
    monkeypatch.setattr("nightshift.status.dead_letters.NOTES_AT_ONCE", 1)
    for chunk in range(2):
        run.commit(chunk, made_by("a", range(4 * chunk, 4 * chunk + 4), reasons={4 * chunk: "too_long"}))
        run.put_work(f"notes/dead/chunk-{chunk:08d}-1", b'{"too_long": 1}')

    assert "2 dead letters (1 too_long; of 1 of 2 dead letters)" in text(run.look())


def test_foreign_objects_are_no_chunks(run: Run) -> None:
    run.put_work("ledger/chunk-00000003.parquet", a_chunk(RUN, PLAN, 0))
    run.put_work("ledger/notes.txt", b"x")

    assert values(run.status(), "chunks_committed", "rows_done") == (0, 0)


def test_tokens_and_waste_are_what_attempts_say(tmp_path: Path) -> None:
    run = a_chat_run(open_store(f"file://{tmp_path}"))
    run.commit(0)
    for number in range(10):
        run.beat(f"pod-{number}", rows_answered=7, rows_lost=number, input_tokens=100, output_tokens=5)

    look = RunLook(run.store, run.run, "url").look()

    assert values(look.status(), "prompt_tokens", "output_tokens", "waste_lost_rows") == (1000, 50, 45)
    assert {each["attempt"]: each["lost_rows"] for each in look.status()["attempts"]}["pod-9"] == 9
    shown = text(look)
    assert "workers   1 planned, 10 attempts seen, 10 running" in shown
    assert "pod-7 on node: works, 7 rows, 7 lost, " in shown
    assert "          and 2 more" in shown


def sealed(run: Run, manifest: RunManifest) -> None:
    run.put("manifest.json", canonical_json(manifest.to_json()), at=1_800_000_000)


def test_a_sealed_run_is_shown_from_its_manifest(run: Run) -> None:
    chunks = tuple(SealedChunk(number, "", "", 4, 4, 0) for number in range(3))
    sealed(run, a_manifest(rows=10, chunks=chunks, prompt_tokens=30))
    for chunk in range(3):
        run.commit(chunk)

    look = run.look()

    assert values(look.status(), "state", "rows_done", "chunks_committed", "seconds_left") == ("sealed", 10, 3, 0)
    assert "100.0%" in text(look)
    assert "sealed    2027-01-15T08:00:00+00:00" in text(look)


def test_a_sealed_run_shows_what_it_measured(run: Run) -> None:
    measured = {
        "attempts": 4,
        "not_seen": 1,
        "profiles": [
            {"profile": "", "workers": 0, "attempts": 1, "ended": {"gave_up": 1}, "rows": 0, "work_s": 0.0, "start_up_s": {}}
            | {"input_tokens": 0, "output_tokens": 0},
            {"profile": "gpu-l4-spot", "workers": 1, "attempts": 2, "ended": {"done": 1, "killed": 1}, "rows": 600}
            | {"work_s": 30.0, "start_up_s": {"weights": 92.0, "warm_up": 2.0}, "input_tokens": 9000, "output_tokens": 300}
            | {"start_up_most_s": {"weights": 200.0, "warm_up": 2.4}}
            | {"engine_start_s": {"weights": 40.0, "compile": 25.0, "warm_up": 9.0}},
        ],
    }
    sealed(run, a_manifest(measured=measured))

    look = run.look()

    assert look.status()["measured"] == measured
    engine = "the engine says weights 40 s, compile 25 s, warm-up 9 s"
    assert text(look).splitlines()[-4:] == [
        "measured  unknown profile: 0 workers, nothing computed; 1 attempt",
        "          gpu-l4-spot: 1 worker, 20.0 rows/s and 310 tokens/s per worker; 2 attempts, 1 killed",
        f"            start-up: weights 1 min 32 s (at most 3 min 20 s; {engine}), warm-up 2 s",
        "          1 attempt left no heartbeat",
    ]


def test_a_sealed_run_shows_what_it_cost_beside_what_was_estimated(tmp_path: Path) -> None:
    spec = a_spec(compute__profile="gpu-l4-spot")
    speed = Speed(1.0, Basis.STATED, "stated", 300.0, "stated")
    decision = Decision("gpu-l4-spot", 10, 2, 4, 7200.0, 3000.0, 1000.0, 1300.0, speed, ())
    made = a_chat_run(open_store(f"file://{tmp_path}"), rows=10, chunk_rows=4, workers=2, spec=spec)
    made.put(
        made.run.plan_path,
        canonical_json({**made.plan.to_json(), "decision": save_decision(made.store, made.run, decision)}),
    )
    seconds = Parts(useful=3_000_000, start_up=300_000, lost=300_000).to_json()
    profile = {"profile": "gpu-l4-spot", "workers": 2, "attempts": 3, "ended": {"done": 2, "killed": 1}, "rows": 12}
    profile |= {"work_s": 30.0, "start_up_s": {}, "input_tokens": 900, "output_tokens": 0}
    profile |= {"machine": "g2-standard-8-spot", "machines": 1.0, "machine_s": seconds, "starts_assumed": 0}
    measured = {"attempts": 3, "not_seen": 0, "marks": 60, "profiles": [profile]}
    chunks = tuple(SealedChunk(number, "", "", 4, 4, 0) for number in range(3))
    manifest = a_manifest(measured=measured, chunks=chunks, rows=10, prompt_tokens=1000)
    made.put(made.run.manifest_path, canonical_json(manifest.to_json()))
    prices = Prices("EUR", {"g2-standard-8-spot": 0.5}, class_a_per_1000=0.005, class_b_per_1000=0.0004)

    look = RunLook(made.store, made.run, "url", prices).look()

    said = look.status()["cost"]
    assert (said["machines"], said["machines_estimated"]) == (0.5, pytest.approx(2 * 1300 / 3600 * 0.5, abs=1e-6))
    assert (said["bigquery"]["bytes_billed"], said["unpriced"]) == (None, [])
    total, actual, planned = text(look).splitlines()[-3:]
    assert total.startswith(
        "cost      0.500446 EUR without BigQuery: 500.4460 per million tokens, 50.0446 per thousand rows; machines "
    )
    assert total.endswith("machines 0.5, estimated 0.361111")
    worked, started, lost = "useful work 0.416667 (0.83 h)", "start-up 0.041667 (0.08 h)", "lost to kills 0.041666 (0.08 h)"
    assert actual == f"          gpu-l4-spot: 0.5 (1.00 h) = {worked} + {started} + {lost}"
    worked, started = "useful work 0.277778 (0.56 h)", "start-up 0.083333 (0.17 h)"
    assert planned == f"          gpu-l4-spot, estimated: 0.361111 (0.72 h) = {worked} + {started}"
    unpriced = RunLook(made.store, made.run, "url", Prices("EUR")).look()
    assert "unknown: there is no price for g2-standard-8-spot" in text(unpriced)
    assert RunLook(made.store, made.run, "url").look().bill is None, "nobody said prices"


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}"])
def test_a_manifest_that_is_none_is_a_problem_and_the_rows_are_counted(run: Run, body: bytes) -> None:
    run.commit(0)
    run.put("manifest.json", body)

    found = run.status()

    assert (found["rows_done"], [each["path"] for each in found["problems"]]) == (4, [RUN.manifest_path])


def test_a_run_of_no_rows_is_complete(tmp_path: Path) -> None:
    run = Run(tmp_path, planned=False)
    run.put("plan.json", canonical_json(a_plan(0).to_json()))

    look = run.look()

    assert values(look.status(), "state", "chunks_total") == ("complete", 0)
    assert "100.0%  0 of 0 rows" in text(look)


def test_a_batch_run_with_a_spec_of_its_own(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put("spec.json", b'{"version": 1, "input": "in.jsonl", "model": "tiny"}')
    run.commit(0)

    found = run.status()

    assert values(found, "rows_total", "rows_done", "chunks_total", "model", "task") == (10, 4, 3, "tiny", None)
    assert (found["problems"], run.look().night) == ([], None)


def test_a_spec_of_a_later_release_is_a_problem_and_the_rows_are_counted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put("spec.json", b'{"version": 9, "written_by": "7.0.0", "model": ["what"]}')
    run.commit(0)

    found = run.status()

    assert values(found, "rows_done", "model") == (4, None)
    [problem] = found["problems"]
    assert (problem["path"], problem["problem"].endswith("Use nightshift 7.0.0 or later.")) == (RUN.spec_path, True)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"[]", "plan.json is not a JSON object"),
        (b"{", "plan.json is not JSON: "),
        (b"\xff", "plan.json is not JSON: "),
        (b'{"rows": 10}', "plan.json is not a valid plan: "),
        (canonical_json({**PLAN.to_json(), "version": 3}), "plan.json has version 3 of its format; this is nightshift "),
        (canonical_json({**PLAN.to_json(), "rows": None}), "plan.json is not a valid plan: "),
        (canonical_json({**PLAN.to_json(), "files": [7]}), "plan.json is not a valid plan: "),
        (canonical_json({**PLAN.to_json(), "chunk_rows": 0}), "chunk_rows 0 and workers 2 must be at least 1"),
    ],
)
def test_a_plan_that_is_not_valid_is_a_problem(tmp_path: Path, body: bytes, problem: str) -> None:
    run = Run(tmp_path, planned=False)
    run.put("plan.json", body)

    look = run.look()

    assert look.state == "unplanned"
    assert list(look.summary.problems) == [RUN.plan_path]
    assert look.summary.problems[RUN.plan_path].startswith(problem)
    assert "the plan cannot be read" in text(look)


def test_an_absent_run(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun):
        RunLook(open_store(f"file://{tmp_path}"), RUN, "url").look()


def test_a_paused_run_has_no_forecast(run: Run) -> None:
    for chunk, at in ((0, 1_000), (1, 1_002)):
        run.commit(chunk, made_by("a", range(4 * chunk, 4 * chunk + 4)), at=at)
    request_pause(run.store, RUN, paused=True, by="ada")

    assert "rate      paused; last commit" in text(run.look())
    assert run.status()["paused"]["by"] == "ada"
    request_pause(run.store, RUN, paused=False, by="ada")
    assert "time left" in text(run.look())


def test_the_mean_rate_is_from_the_first_request_to_the_newest_commit(tmp_path: Path) -> None:
    run = a_chat_run(open_store(f"file://{tmp_path}"), rows=10)
    run.beat("pod-0", at=datetime.now(UTC), age_s=141.0, born_at="2026-11-21T01:00:00+00:00")
    run.commit(0)
    run.seal()

    look = RunLook(run.store, run.run, "url").look()

    assert (look.elapsed_s, look.mean) == (100.0, 0.1), "its engine was ready after 41 s"
    assert "rate      done in 1 min 40 s, 0.1 rows/s" in text(look)


@pytest.mark.parametrize(
    ("stage", "pods", "words"),
    [
        (None, (Stage.NODE,), "waiting for a machine"),
        (None, (Stage.WEIGHTS, Stage.WEIGHTS), "2 waiting for its engine"),
        (None, (Stage.WORKING,), ""),
        (Stage.QUEUE, (), "waiting for quota (none is left)"),
        (Stage.PAUSED, (), "none is left"),
    ],
)
def test_it_says_what_the_pods_wait_for(run: Run, stage: Stage | None, pods: tuple[Stage, ...], words: str) -> None:
    found = tuple(PodNow(f"p-{number}", number, each, "2026-11-21T01:00:00+00:00") for number, each in enumerate(pods))
    now = JobSetNow("t-1", "2026-11-21T01:00:00+00:00", 1, stage, "2026-11-21T01:00:00+00:00", why="none is left", pods=found)
    save_now(run.store, RUN, now)

    look = run.look()

    assert (look.waits.rpartition(" for ")[0], f"waits     {words}" in text(look)) == (words, bool(words))


class TestFooters:
    """Of all chunks of a run."""

    def added_up(self, run: Run) -> Committed:
        return committed(run.store, WORK, PLAN)

    def test_several_reasons_in_one_chunk_are_read_from_its_rows(self, run: Run) -> None:
        run.commit(0, made_by("a", range(4), reasons={0: "too_long", 2: "rejected", 3: "too_long"}))

        assert self.added_up(run).reasons == {"too_long": 2, "rejected": 1}

    def test_a_footer_longer_than_the_first_read(self, run: Run) -> None:
        body = made_by("a", range(4), taken=tuple(Part(f"pod-{number}", "node", "0", 0) for number in range(500)))
        assert int.from_bytes(body[-8:-4], "little") > 3 * chunk_footer.TAIL_BYTES
        run.commit(0, body)

        found = self.added_up(run)

        assert (found.rows, found.bad) == (4, 0)

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            (b"", "it has 0 bytes"),
            (b"no parquet at all", "it does not end like a Parquet file"),
            (a_chunk(RUN, PLAN, 1)[:-20], "it does not end like a Parquet file"),
            (a_chunk(RUN, PLAN, 1)[-300:], "its Parquet footer is longer than the object"),
            (b"PAR1" + bytes(5 << 20) + (5 << 20).to_bytes(4, "little") + b"PAR1", "its footer has 5242888 bytes, more than"),
            (b"PAR1" + b"\xff" * 100 + (100).to_bytes(4, "little") + b"PAR1", "its Parquet footer cannot be decoded"),
            (made_by("a", range(4, 7)), ""),
            (made_by("a", range(4, 8), predictions=5), "it holds 4 rows but claims 5 predictions and 0 dead letters"),
            (made_by("a", range(4, 8), predictions=3, dead_letters=1), "it holds 0 dead letters but claims 1"),
            (made_by("a", range(4, 8), run_id="f" * 16), ""),
        ],
    )
    def test_what_is_no_chunk_of_the_run_is_counted_apart(self, run: Run, body: bytes, problem: str) -> None:
        run.commit(0)
        run.commit(1, body)

        found = self.added_up(run)

        assert (found.chunks, found.rows, found.bad, found.left) == (1, 4, 1, 0)
        if problem:
            entry = ListedObject(WORK.chunk_path(1), len(body), 0.0)
            with pytest.raises(NotAChunk) as raised:
                chunk_footer.read_footer(run.store, entry)
            assert str(raised.value).startswith(problem)

    def test_a_footer_with_an_altered_byte_is_not_counted(self, run: Run) -> None:
        body = bytearray(a_chunk(RUN, PLAN, 1))
        size = int.from_bytes(body[-8:-4], "little") + 8
        for at in range(len(body) - size, len(body)):
            body[at] ^= 0xFF
            run.commit(1, bytes(body))
            body[at] ^= 0xFF

            with pytest.raises(NotAChunk):
                chunk_footer.read_footer(run.store, ListedObject(WORK.chunk_path(1), len(body), 0.0))

    def test_tokens_are_those_of_the_rows_that_were_taken_over_too(self, run: Run) -> None:
        run.commit(0, made_by("pod-b", range(4), taken=(Part("pod-a", "node-of-pod-a", "0", 2, prompt_tokens=5),)))
        run.commit(1, made_by("pod-b", range(4, 8)))

        found = self.added_up(run)

        assert (found.prompt_tokens, found.attempts) == (25, {"pod-b"})

    def test_without_time_some_are_left(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(chunk_footer, "AT_ONCE", 1)
        run.commit(0)
        run.commit(1)

        assert committed(run.store, WORK, PLAN, -1.0).left == 2
