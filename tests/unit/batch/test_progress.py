"""What a person sees of a batch: the progress line and the summary."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from obstore.store import LocalStore

from nightshift.batch import output
from nightshift.batch.output import OutputCounts
from nightshift.batch.progress import Progress, summary
from nightshift.batch.state import Batch, lines_done
from nightshift.driver.stats import Stats
from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result
from nightshift.run.names import RunRef
from nightshift.run.plan import InputFile, Plan

pytestmark = pytest.mark.unit

RUN = RunRef("batch", "lines", "0123456789abcdef")


def encoded(results: list[Result], chunk: int = 0) -> bytes:
    keys = pa.table({"custom_id": pa.array([str(result.ordinal) for result in results], pa.string())})
    dead = sum(result.reason is not None for result in results)
    made = Provenance(RUN.run_id, chunk, "a", "n", {}, "v", "t", "t", len(results) - dead, dead, 7, 8)
    return chunks.encode(keys, results, pa.large_string(), made, optional=(chunks.STATUS,))


def test_the_summary_shows_the_first_messages_of_each_reason() -> None:
    counts = OutputCounts()
    results = [Result(n, None, "bad_input", f"line {n + 1}: it is not JSON: {'same' if n < 5 else n}", 0) for n in range(10)]
    results += [Result(10, b"{}", None, None, 1), Result(11, None, "rejected", "no " + "x" * 1000, 1, 422)]
    output.lines_of(encoded(results), RUN.run_id, range(12), counts)

    text = summary(counts, "out", 1.0, Stats(requests_sent=2))

    first, *examples = text.splitlines()
    assert first.startswith("out: 12 lines in 1.0 s, 1 answered, 11 failed (10 bad_input, 1 rejected); 2 requests sent; 7 ")
    assert examples[:3] == [
        "  bad_input, line 1: it is not JSON: same",
        "  bad_input, line 6: it is not JSON: 5",
        "  bad_input, line 7: it is not JSON: 6",
    ]
    assert len(examples) == 4
    assert examples[3].startswith("  rejected, line 12: 422: no xxx")
    assert len(examples[3]) < 350


def test_messages_of_several_lines_stay_one_line_each() -> None:
    counts = OutputCounts()
    output.lines_of(encoded([Result(0, None, "rejected", "a\n  b\r\n\x1b[31mc", 1)]), RUN.run_id, range(1), counts)

    assert summary(counts, "out", 1.0, Stats()).splitlines()[1:] == ["  rejected, line 1: a b \N{REPLACEMENT CHARACTER}[31mc"]


def test_a_server_that_answers_nothing_is_not_said_to_be_done_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("nightshift.batch.progress.time.monotonic", lambda: now)
    stats, why = Stats(), ""
    line = Progress(60, 0, stats, lambda: why).line
    now += 10.0
    assert line() == "0 of 60 lines, 0.0/s, no answer yet, 0 in flight"
    stats.rows_answered, stats.rows_in_flight = 59, 1
    assert line() == "59 of 60 lines, 5.9/s, 0.2 s left, 1 in flight"
    now += 14.0
    assert "s left" in line()
    now += 6.0
    assert line() == "59 of 60 lines, 2.0/s, no answer for 20.0 s, 1 in flight"
    why = "/health answers 503"
    assert "no answer for 20.0 s (/health answers 503)" in line()
    stats.rows_answered = 60
    assert "no answer" not in line()


async def test_lines_that_are_done_are_those_of_chunks_and_those_that_a_drain_saved(tmp_path: Path) -> None:
    plan = Plan(RUN.run_id, 10, 4, 1, (InputFile("in", 10, (10,), 1, "e"),))
    batch = Batch(LocalStore(tmp_path), str(tmp_path), RUN, plan)
    assert await lines_done(batch) == (0, 0)
    work = RUN.work(plan.uid)

    def put(path: str, body: bytes) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(body)

    put(work.chunk_path(2), encoded([Result(n, b"{}", None, None, 1) for n in (8, 9)], 2))
    put(work.partial_path(2, "old"), encoded([Result(8, b"{}", None, None, 1)], 2))
    put(work.partial_path(0, "one"), encoded([Result(n, b"{}", None, None, 1) for n in (0, 2)]))
    put(work.partial_path(0, "two"), encoded([Result(n, b"{}", None, None, 1) for n in (2, 3)]))
    put(work.partial_path(1, "torn"), b"PAR1")

    assert await lines_done(batch) == (2, 3)
