"""What `nightshift status` counts over runs in a local folder, and what it cannot count."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightshift.cli.follow import _rows as rows_in_words
from nightshift.planner.costs.prices import Prices
from nightshift.planner.costs.split import Parts
from nightshift.planner.decisions import save_decision
from nightshift.planner.plan import Decision
from nightshift.planner.speed import Basis, Speed
from nightshift.run.chunks import Part
from nightshift.run.manifest import SealedChunk
from nightshift.run.names import canonical_json
from nightshift.run.opening import NoSuchRun
from nightshift.run.pauses import request_pause
from nightshift.status import chunk_footer
from nightshift.status.survey import Survey
from nightshift.status.text import text
from nightshift.store import open_store
from tests.builders import RUN, WORK, a_chunk, a_manifest, a_plan, a_spec
from tests.unit.status_run import KEYS, PLAN, Run, made_by

pytestmark = pytest.mark.unit


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "bucket")


def test_before_the_plan_it_says_so(tmp_path: Path) -> None:
    status = Run(tmp_path, planned=False).status()

    assert (status.state, status.complete, status.seconds_left) == ("unplanned", False, None)
    assert "not planned yet" in text(status)
    assert {*status.to_json(), "night"} == KEYS  # The command adds how its night ended.


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
    run.commit(0, made_by("a", range(4), engine_version="x" * 3 * chunk_footer.TAIL_BYTES))

    status = run.status()

    assert (status.rows_done, status.problems) == (4, {})


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "it has 0 bytes"),
        (b"no parquet at all", "it does not end like a Parquet file"),
        (a_chunk(RUN, PLAN, 1)[:-20], "it does not end like a Parquet file"),
        (a_chunk(RUN, PLAN, 1)[-300:], "its Parquet footer is longer than the object"),
        (b"PAR1" + bytes(5 << 20) + (5 << 20).to_bytes(4, "little") + b"PAR1", "its footer has 5242888 bytes, more than"),
        (b"PAR1" + b"\xff" * 100 + (100).to_bytes(4, "little") + b"PAR1", "its Parquet footer cannot be decoded"),
        (made_by("a", range(4, 7)), "it holds 3 rows, but the plan says 4"),
        (made_by("a", range(4, 8), predictions=5), "it holds 4 rows but claims 5 predictions and 0 dead letters"),
        (made_by("a", range(4, 8), predictions=3, dead_letters=1), "it holds 0 dead letters but claims 1"),
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
    assert path == f"{WORK.prefix}/ledger/chunk-00000001.parquet"
    assert said.startswith(problem)
    assert path in text(status)


def test_a_footer_with_an_altered_byte_is_not_counted(run: Run) -> None:
    body = bytearray(a_chunk(RUN, PLAN, 1))
    size = int.from_bytes(body[-8:-4], "little") + 8
    for at in range(len(body) - size, len(body)):
        body[at] ^= 0xFF
        run.commit(1, bytes(body))
        body[at] ^= 0xFF

        with pytest.raises(chunk_footer.NotReadable):
            chunk_footer.read_footer(
                run.store, chunk_footer.ListedObject(f"{WORK.prefix}/ledger/chunk-00000001.parquet", len(body), 0.0)
            )


def test_a_broken_chunk_is_nobodys_work(run: Run) -> None:
    """No worker computes a chunk whose object is there, so waiting for it would never end."""
    for chunk in range(3):
        run.commit(chunk, b"torn" * 10 if chunk == 1 else None)

    status = run.status()

    assert (status.state, status.chunks_bad, status.rows_done) == ("complete", 1, 6)
    assert "60.0%" in text(status)


def test_foreign_objects_are_named(run: Run) -> None:
    run.put_work("ledger/chunk-00000003.parquet", a_chunk(RUN, PLAN, 0))
    run.put_work("ledger/notes.txt", b"x")

    status = run.status()

    assert (status.foreign_objects, status.chunks_committed, status.chunks_bad) == (2, 0, 0)
    assert [path.rsplit("/", 1)[1] for path in sorted(status.problems)] == ["chunk-00000003.parquet", "notes.txt"]


def test_partials_of_open_chunks_are_saved_rows(run: Run) -> None:
    run.save(1, "pod-a", made_by("pod-a", [4, 5]))
    run.save(1, "pod-b", made_by("pod-b", [6]))

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
    run.commit(0, made_by("pod-b", range(4), taken=(Part("pod-a", "node-of-pod-a", "0", 2, prompt_tokens=5),)))
    run.save(1, "pod-a", made_by("pod-a", [4, 5, 6]))
    run.commit(1, made_by("pod-b", range(4, 8)))

    status = run.status()

    assert (status.rows_saved, status.waste_partial_rows, status.waste_rows) == (0, 3, 3)
    assert status.waste_percent == pytest.approx(37.5)
    assert {attempt.name: attempt.rows for attempt in status.attempts} == {"pod-a": 0, "pod-b": 6}
    assert status.prompt_tokens == 25, "those of the rows that were taken over too"


def test_a_partial_that_cannot_be_read_is_counted_apart(run: Run) -> None:
    run.save(1, "pod-a", b"torn")
    run.put_work("partials/readme.txt", b"passed over, as the ledger does")

    status = run.status()

    assert (status.partials, status.partials_bad, status.rows_saved, status.chunks_bad) == (0, 1, 0, 0)
    assert list(status.problems) == [f"{WORK.prefix}/partials/chunk-00000001/pod-a.parquet"]


def test_races_lost_are_waste(run: Run) -> None:
    run.commit(0, made_by("pod-a", range(4)))
    run.put_work("notes/lost/chunk-00000000/pod-b-3", b"{}")
    run.put_work("notes/lost/chunk-00000001/pod-a-2", b"{}")
    run.put_work("notes/dead/chunk-00000000-1", b"{}")
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
    run.put("manifest.json", canonical_json(a_manifest(measured=measured).to_json()))

    status = run.survey().refresh()

    assert status.to_json()["measured"] == measured
    engine = "the engine says weights 40 s, compile 25 s, warm-up 9 s"
    assert text(status).splitlines()[-4:] == [
        "measured  unknown profile: 0 workers, nothing computed; 1 attempt",
        "          gpu-l4-spot: 1 worker, 20.0 rows/s and 310 tokens/s per worker; 2 attempts, 1 killed",
        f"            start-up: weights 1 min 32 s (at most 3 min 20 s; {engine}), warm-up 2 s",
        "          1 attempt left no heartbeat",
    ]


def test_a_sealed_run_shows_what_it_cost_beside_what_was_estimated(run: Run) -> None:
    spec = a_spec(compute__profile="gpu-l4-spot")
    speed = Speed(1.0, Basis.STATED, "stated", 300.0, "stated")
    decision = Decision("gpu-l4-spot", 10, 2, 4, 7200.0, 3000.0, 1000.0, 1300.0, speed, ())
    path = save_decision(run.store, RUN, decision)
    run.put("spec.json", canonical_json({"version": 1, "spec": spec.model_dump(mode="json")}))
    run.put("plan.json", canonical_json({**PLAN.to_json(), "decision": path}))
    seconds = Parts(useful=3_000_000, start_up=300_000, lost=300_000).to_json()
    profile = {"profile": "gpu-l4-spot", "workers": 2, "attempts": 3, "ended": {"done": 2, "killed": 1}, "rows": 12}
    profile |= {"work_s": 30.0, "start_up_s": {}, "input_tokens": 900, "output_tokens": 0}
    profile |= {"machine": "g2-standard-8-spot", "machines": 1.0, "machine_s": seconds, "starts_assumed": 0}
    measured = {"attempts": 3, "not_seen": 0, "marks": 60, "profiles": [profile]}
    chunks = tuple(SealedChunk(number, "", "", 4, 4, 0) for number in range(3))
    manifest = a_manifest(measured=measured, chunks=chunks, rows=10, prompt_tokens=1000)
    run.put("manifest.json", canonical_json(manifest.to_json()))
    prices = Prices("EUR", {"g2-standard-8-spot": 0.5}, class_a_per_1000=0.005, class_b_per_1000=0.0004)

    status = Survey(run.store, RUN, run.url, prices).refresh()

    said = status.to_json()["cost"]
    assert (said["machines"], said["machines_estimated"]) == (0.5, pytest.approx(2 * 1300 / 3600 * 0.5, abs=1e-6))
    assert (said["bigquery"]["bytes_billed"], said["unpriced"]) == (None, [])
    total, actual, planned = text(status).splitlines()[-3:]
    assert total.startswith(
        "cost      0.500446 EUR without BigQuery: 500.4460 per million tokens, 50.0446 per thousand rows; machines "
    )
    assert total.endswith("machines 0.5, estimated 0.361111")
    worked, started, lost = "useful work 0.416667 (0.83 h)", "start-up 0.041667 (0.08 h)", "lost to kills 0.041666 (0.08 h)"
    assert actual == f"          gpu-l4-spot: 0.5 (1.00 h) = {worked} + {started} + {lost}"
    worked, started = "useful work 0.277778 (0.56 h)", "start-up 0.083333 (0.17 h)"
    assert planned == f"          gpu-l4-spot, estimated: 0.361111 (0.72 h) = {worked} + {started}"
    assert "unknown: there is no price for g2-standard-8-spot" in text(Survey(run.store, RUN, run.url, Prices("EUR")).refresh())
    assert run.survey().refresh().bill is None, "nobody said prices"


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", canonical_json({**a_manifest().to_json(), "measured": 3})])
def test_a_manifest_without_what_was_measured_is_shown_too(run: Run, body: bytes) -> None:
    run.put("manifest.json", body)

    status = run.survey().refresh()

    assert (status.state, status.measured) == ("sealed", None)


def test_a_run_of_no_rows_is_complete(tmp_path: Path) -> None:
    run = Run(tmp_path, planned=False)
    run.put("plan.json", canonical_json(a_plan(0).to_json()))

    status = run.status()

    assert (status.state, status.chunks_total) == ("complete", 0)
    assert "100.0%  0 of 0 rows" in text(status)


def test_a_batch_run_with_a_spec_of_its_own(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put("spec.json", b'{"input": "in.jsonl", "model": "tiny"}')
    run.commit(0)

    status = run.status()

    assert (status.rows_total, status.rows_done, status.chunks_total, status.model, status.task) == (10, 4, 3, "tiny", None)


def test_a_spec_of_a_later_release_is_a_problem_and_the_rows_are_counted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.put("spec.json", b'{"version": 9, "written_by": "7.0.0", "model": ["what"]}')
    run.commit(0)

    status = run.status()

    assert (status.rows_done, status.model) == (4, None)
    assert status.problems[RUN.spec_path].endswith("Use nightshift 7.0.0 or later.")


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

    status = run.status()

    assert status.state == "unplanned"
    assert list(status.problems) == [RUN.plan_path]
    assert status.problems[RUN.plan_path].startswith(problem)
    assert "the plan cannot be read" in text(status)


def test_an_absent_run(tmp_path: Path) -> None:
    with pytest.raises(NoSuchRun):
        Survey(open_store(f"file://{tmp_path}"), RUN, "url").refresh()


def test_a_paused_run_has_no_forecast(run: Run) -> None:
    for chunk, at in ((0, 1_000), (1, 1_002)):
        run.commit(chunk, made_by("a", range(4 * chunk, 4 * chunk + 4)), at=at)
    request_pause(run.store, RUN, paused=True, by="ada")

    status = run.status()

    assert "rate      paused; last commit" in text(status)
    assert rows_in_words(status, ()) == "8 of 10 rows, paused by ada"
    request_pause(run.store, RUN, paused=False, by="ada")
    assert "time left" in text(run.status())


def test_the_rate_is_from_the_stores_own_times(run: Run) -> None:
    run.commit(0, made_by("a", range(4)), at=1_000)
    run.commit(1, made_by("a", range(4, 8)), at=1_002)
    run.commit(2, made_by("a", range(8, 10)), at=1_004)

    status = run.status()

    # The first chunk took 10 s by its worker's clock and was committed at 1,000.
    assert (status.rate, status.elapsed_s) == (10 / 14, 14)
    assert status.to_json()["mean_rows_per_s"] == pytest.approx(10 / 14, abs=1e-3)
