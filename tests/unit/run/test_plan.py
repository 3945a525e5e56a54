"""Ordinals, chunks and shards."""

import json
from dataclasses import replace

import pytest

from nightshift.formats import UnreadableFormat
from nightshift.run.names import canonical_json
from nightshift.run.plan import ExportedSource, InputFile, Plan, PlanError
from tests.builders import a_plan

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


def test_a_plan_names_the_decision_that_it_follows() -> None:
    plan = replace(a_plan(10), decision="job/2026-11-20/0123456789abcdef/decisions/0.json")

    assert Plan.from_json(json.loads(canonical_json(plan.to_json()))) == plan


def test_a_plan_of_another_version_is_refused() -> None:
    with pytest.raises(UnreadableFormat, match="version 3"):
        Plan.from_json({**a_plan(10).to_json(), "version": 3})


@pytest.mark.parametrize(
    ("change", "words"),
    [({"rows": 11}, "files hold 10 rows"), ({"workers": 9}, "9 workers for 3 chunks"), ({"chunk_rows": 0}, "at least 1")],
)
def test_a_plan_that_contradicts_itself_is_refused(change: dict[str, int], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        Plan.from_json({**a_plan(10).to_json(), **change})


def test_more_chunks_than_names_are_refused() -> None:
    rows = 10**8 + 1

    with pytest.raises(PlanError, match="use larger ones"):
        Plan("r", rows, 1, 1, (InputFile("a", rows, (rows,), 1, "e"),))
