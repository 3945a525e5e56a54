"""Ordinals, chunks, shards and sizing."""

import json
from dataclasses import replace

import pytest

from nightshift.formats import UnreadableFormat
from nightshift.run.names import canonical_json
from nightshift.run.plan import ExportedSource, InputFile, Plan, PlanError
from nightshift.run.sizing import size
from tests.builders import a_plan, a_spec

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 97])
@pytest.mark.parametrize("chunk_rows", [1, 4, 100])
def test_chunks_tile_the_rows(rows: int, chunk_rows: int) -> None:
    plan = a_plan(rows, chunk_rows)

    tiled = [ordinal for chunk in range(plan.chunk_count) for ordinal in plan.chunk_range(chunk)]

    assert tiled == list(range(rows))


@pytest.mark.parametrize(("rows", "workers"), [(97, 1), (97, 7), (97, 25), (8, 2)])
def test_shards_tile_the_chunks_and_differ_by_one_at_most(rows: int, workers: int) -> None:
    plan = a_plan(rows, 4, workers)

    shards = [plan.shard(index) for index in range(workers)]

    assert [chunk for shard in shards for chunk in shard] == list(range(plan.chunk_count))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_what_lies_outside_the_plan_is_an_error() -> None:
    plan = a_plan(10, 4, 2)

    with pytest.raises(IndexError):
        plan.chunk_range(3)
    with pytest.raises(IndexError):
        plan.shard(2)


def test_ordinals_are_located_across_files_and_row_groups() -> None:
    files = (InputFile("a", 5, (3, 2), 1, "x"), InputFile("b", 4, (4,), 1, "y"))
    plan = Plan("run", 9, 4, 1, files)

    found = [(file.path, group, list(offsets)) for file, group, offsets in plan.locate(range(2, 7))]

    assert found == [("a", 0, [2]), ("a", 1, [0, 1]), ("b", 0, [0, 1])]


def test_every_ordinal_is_located_once() -> None:
    files = (InputFile("a", 5, (3, 2), 1, "x"), InputFile("b", 4, (1, 3), 1, "y"))
    plan = Plan("run", 9, 2, 1, files)

    found = [
        (file.path, sum(file.row_groups[:group]) + offset)
        for chunk in range(plan.chunk_count)
        for file, group, offsets in plan.locate(plan.chunk_range(chunk))
        for offset in offsets
    ]

    assert found == [("a", n) for n in range(5)] + [("b", n) for n in range(4)]


@pytest.mark.parametrize("source", [None, ExportedSource({"id": "INT64", "at": "DATETIME"}, ("p.d.t", "p.d.u"))])
def test_a_plan_survives_its_json_form(source: ExportedSource | None) -> None:
    plan = replace(a_plan(10, 4, 2), source=source)

    assert Plan.from_json(json.loads(canonical_json(plan.to_json()))) == plan


def test_a_plan_of_0_1_0_is_read_though_it_does_not_record_its_source() -> None:
    plan = a_plan(10)
    body = plan.to_json()
    del body["source"]

    assert Plan.from_json(body) == plan


def test_a_plan_of_another_version_is_refused() -> None:
    with pytest.raises(UnreadableFormat, match="version 2"):
        Plan.from_json({**a_plan(10).to_json(), "version": 2})


@pytest.mark.parametrize(
    ("change", "words"),
    [({"rows": 11}, "files hold 10 rows"), ({"workers": 9}, "9 workers for 3 chunks"), ({"chunk_rows": 0}, "at least 1")],
)
def test_a_plan_that_contradicts_itself_is_refused(change: dict[str, int], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        Plan.from_json({**a_plan(10).to_json(), **change})


def test_the_deadline_decides_the_workers() -> None:
    spec = a_spec(compute__rows_per_worker_per_second=10, deadline="2h", engine__max_num_seqs=64)

    # 2 h less 10 min of start-up, 70 % of it: 4,620 s, so 46,200 rows a worker.
    assert size(46_200, spec).workers == 1
    assert size(46_201, spec).workers == 2
    assert size(462_000, spec).workers == 10


def test_no_worker_gets_less_than_a_full_batch() -> None:
    spec = a_spec(compute__rows_per_worker_per_second=0.01, engine__max_num_seqs=100)

    sizing = size(250, spec)

    assert sizing.workers == 2
    assert any("max_num_seqs" in reason for reason in sizing.reasons)


def test_a_deployment_has_room_for_so_many_workers() -> None:
    spec = a_spec(compute__rows_per_worker_per_second=10, deadline="2h", engine__max_num_seqs=64)

    sizing = size(462_000, spec, workers_max=2)

    assert sizing.workers == 2
    assert "the deadline needs 10, but this deployment has room for 2" in sizing.reasons
    assert size(1000, spec, workers_max=2).workers == 1


def test_what_the_job_says_wins() -> None:
    sizing = size(1000, a_spec(compute__workers=3, chunk_rows=50), workers_max=2)

    assert (sizing.workers, sizing.chunk_rows) == (3, 50)


def test_workers_without_a_chunk_are_not_started() -> None:
    assert size(10, a_spec(compute__workers=5, chunk_rows=4)).workers == 3


@pytest.mark.parametrize("rows", [0, 1, 7, 1000, 10_000_000])
def test_any_size_gives_a_valid_plan(rows: int) -> None:
    sizing = size(rows, a_spec())

    plan = a_plan(rows, sizing.chunk_rows, sizing.workers)

    assert plan.rows == rows
    assert sizing.chunk_rows % 4 == 0, "whole requests"


def test_large_rows_make_small_chunks() -> None:
    spec = a_spec(compute__rows_per_worker_per_second=1000.0)

    assert size(10**8, spec, 10**8 * 100).chunk_rows == size(10**8, spec).chunk_rows == 3072
    sizing = size(10_000, spec, 10_000 * 1_000_000)
    assert sizing.chunk_rows == 32
    assert "rows of 1,000,000 bytes: at most 32 MiB of input a chunk" in sizing.reasons
    assert size(100, spec, 100 * (1 << 30)).chunk_rows == spec.rows_per_request, "one request at least"


def test_more_chunks_than_names_are_refused() -> None:
    rows = 10**8 + 1

    with pytest.raises(PlanError, match="use larger ones"):
        Plan("r", rows, 1, 1, (InputFile("a", rows, (rows,), 1, "e"),))


@pytest.mark.parametrize("speed", [1.0, 20.0, 100.0])
def test_a_chunk_is_a_small_part_of_a_run(speed: float) -> None:
    rows = 100_000

    chunk_rows = size(rows, a_spec(compute__rows_per_worker_per_second=speed, compute__workers=1)).chunk_rows

    assert 2 * chunk_rows < rows / 100, "a kill in the middle of two open chunks costs less than a hundredth"


def test_answers_are_as_much_a_limit_as_input_is() -> None:
    """3,072 vectors of 4,096 numbers are 48 MiB, and so are 32,768 of 384 numbers and 49,152 answers of 1 KiB."""
    fast = {"compute__rows_per_worker_per_second": 5000, "compute__workers": 1}
    vectors = size(10**8, a_spec(**fast))
    narrow = size(10**8, a_spec(request__dimensions=384, **fast))
    labels = size(10**8, a_spec(task="classify", request={"input": "{{ text }}"}, **fast))
    long_texts = size(10**8, a_spec(task="chat", request={"user": "{{ text }}", "max_tokens": 100_000}, **fast))

    assert (vectors.chunk_rows, narrow.chunk_rows, labels.chunk_rows, long_texts.chunk_rows) == (3072, 32_768, 49_152, 62)
    assert "answers of up to 16,384 bytes: at most 3,072 rows a chunk" in vectors.reasons
