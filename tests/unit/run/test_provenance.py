"""Who computed the rows of a chunk: each attempt that had a part in it, with its engine, its node and its tokens."""

from __future__ import annotations

import asyncio
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from nightshift.batch.task_kind import LineCodec
from nightshift.driver.budget import NUMBER_BYTES
from nightshift.driver.codec import ParquetCodec
from nightshift.driver.open_chunk import OpenChunk
from nightshift.driver.scheduler import Scheduler
from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result, Saved
from nightshift.run.ledger import Ledger
from nightshift.run.manifest import RunManifest
from nightshift.run.seal import seal
from nightshift.store import ObjectStorage
from nightshift.tasks.base import Answer, Answers, RowName
from tests.builders import RUN, a_chunk, a_plan, a_spec, with_rows

pytestmark = pytest.mark.unit

PLAN = a_plan(6, 6)
KEYS = pa.table({"id": pa.array(range(6), pa.int64())})


class Kind:
    """A task kind whose rows travel two at a time; what it renders does not matter here."""

    server_args: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows_per_request = 2
    prediction_type = None

    def render(self, row: Mapping[str, Any], name: RowName) -> Any:
        return float(name)

    def request(self, payloads: Sequence[Any], retry: int) -> tuple[str, bytes]:
        raise AssertionError("the tests send nothing")

    def answers(self, reply: Any, payloads: Sequence[Any]) -> Answers:
        raise AssertionError("the tests answer by themselves")


class Attempt:
    """One life of a worker that has opened chunk 0."""

    def __init__(self, name: str, engine: str, partials: Mapping[str, bytes] | None = None) -> None:
        self.codec = ParquetCodec(
            run_id=RUN.run_id,
            plan_uid=PLAN.uid,
            attempt=name,
            node=f"node-of-{name}",
            model={},
            engine_version=engine,
            prediction_type=pa.list_(pa.float32()),
        )
        self.scheduler = Scheduler(Kind())
        known = {attempt: self.codec.decode(body, 0, 0, KEYS) for attempt, body in (partials or {}).items()}
        self.scheduler.open_chunk(0, range(6), iter([{}] * 6), known)

    def answer(self, requests: int, *, truncated: bool = False) -> None:
        """Each with two rows, 10 prompt tokens and 3 output tokens."""
        for _ in range(requests):
            group = self.scheduler.next_group()
            assert group is not None
            rows = [Answer([payload], truncated=truncated) for payload in group.payloads]
            self.scheduler.answered(group, Answers(rows, 10, 3))

    def partial(self) -> bytes:
        (chunk,) = self.scheduler.unfinished()
        return self.codec.encode(chunk, KEYS)

    def chunk(self) -> bytes:
        chunk = self.scheduler.pop_finished()
        assert chunk is not None
        return self.codec.encode(chunk, KEYS)


def parts(body: bytes) -> list[tuple[str, str, str, int, int, int]]:
    """Attempt, node, engine, rows and tokens of each part."""
    found = chunks.decode(body)[1].parts
    return [(p.attempt, p.node, p.engine_version, p.rows, p.prompt_tokens, p.output_tokens) for p in found]


def sealed(body: bytes) -> RunManifest:
    store = MemoryStore()
    asyncio.run(Ledger(ObjectStorage(store), RUN, PLAN).commit(0, body))
    return seal(store, RUN, a_spec(), with_rows(store, PLAN))


def test_rows_that_were_taken_over_keep_their_engine_their_node_and_their_tokens() -> None:
    first = Attempt("pod-b", "0.1")
    first.answer(1)
    second = Attempt("pod-a", "0.2", {"pod-b": first.partial()})
    second.answer(2)

    body = second.chunk()

    assert parts(body) == [("pod-a", "node-of-pod-a", "0.2", 4, 20, 6), ("pod-b", "node-of-pod-b", "0.1", 2, 10, 3)]


def test_the_run_manifest_counts_every_token_and_the_rows_of_each_engine() -> None:
    first = Attempt("pod-b", "0.1")
    first.answer(1)
    second = Attempt("pod-a", "0.2", {"pod-b": first.partial()})
    second.answer(2)

    manifest = sealed(second.chunk())

    assert (manifest.prompt_tokens, manifest.output_tokens) == (30, 9)
    assert manifest.engine_versions == {"0.1": 2, "0.2": 4}
    assert manifest.attempts == ("pod-a", "pod-b")


def test_the_run_manifest_counts_the_answers_that_were_cut() -> None:
    first = Attempt("pod-b", "0.1")
    first.answer(1, truncated=True)
    second = Attempt("pod-a", "0.1", {"pod-b": first.partial()})
    second.answer(1, truncated=True)
    second.answer(1)

    assert sealed(second.chunk()).truncated == 4


@pytest.mark.parametrize("names", [("pod-a", "pod-b", "pod-c"), ("pod-c", "pod-b", "pod-a")])
def test_three_attempts_in_a_row_are_told_apart(names: tuple[str, str, str]) -> None:
    """The second one saves only what it computed itself: what it took over is still in the partial of the first one."""
    one = Attempt(names[0], "0.1")
    one.answer(1)
    of_one = one.partial()
    two = Attempt(names[1], "0.2", {names[0]: of_one})
    two.answer(1)
    saved = dict(sorted({names[0]: of_one, names[1]: two.partial()}.items()))
    three = Attempt(names[2], "0.3", saved)
    three.answer(1)

    body = three.chunk()

    assert {part[0]: part[2:] for part in parts(body)} == {
        name: (f"0.{number}", 2, 10, 3) for number, name in enumerate(names, 1)
    }
    assert [list(result.prediction) for result in chunks.results_of(chunks.decode(body)[0])] == [
        [float(row)] for row in range(6)
    ]


def test_of_two_that_saved_the_same_row_the_first_counts_for_it() -> None:
    """Its neighbour has computed it too: its tokens were spent, so they are counted."""
    one, two = Attempt("pod-a", "0.1"), Attempt("pod-b", "0.2")
    one.answer(1)
    two.answer(2, truncated=True)
    last = Attempt("pod-c", "0.3", {"pod-a": one.partial(), "pod-b": two.partial()})
    last.answer(1)

    found = chunks.decode(last.chunk())[1]

    assert [(part.attempt, part.rows, part.prompt_tokens) for part in found.parts] == [
        ("pod-c", 2, 10),
        ("pod-a", 2, 10),
        ("pod-b", 2, 20),
    ]
    assert [part.truncated for part in found.parts] == [0, 0, 2], "never more than the rows that count"


def test_an_earlier_release_reads_what_this_one_writes() -> None:
    """Its reader takes these fields: driver and seal are upgraded at different times."""
    first = Attempt("pod-b", "0.1")
    first.answer(1)
    second = Attempt("pod-a", "0.2", {"pod-b": first.partial()})
    second.answer(2)

    metadata = pq.read_metadata(io.BytesIO(second.chunk())).metadata

    assert sorted(json.loads(metadata[chunks.METADATA_KEY])) == sorted(
        [
            *("run_id", "chunk", "attempt", "node", "model", "engine_version", "started", "finished"),
            *("predictions", "dead_letters", "prompt_tokens", "output_tokens", "computed_rows", "merged", "plan_uid"),
        ]
    )
    assert json.loads(metadata[chunks.METADATA_KEY])["merged"] == {"pod-b": 2}


def with_metadata(table: pa.Table, metadata: Mapping[bytes, bytes]) -> bytes:
    """A chunk of this version with digests that are right."""
    format_of = {chunks.FORMAT_KEY: table.schema.metadata[chunks.FORMAT_KEY]}
    return chunks.to_parquet(table.schema.with_metadata({**format_of, **metadata}), [table])


def test_what_a_later_release_adds_is_passed_over() -> None:
    table, provenance = chunks.decode(a_chunk(RUN, PLAN, 0))
    said = {**json.loads(chunks.claims_of(provenance)), "weather": "fine"}
    told = [{**dataclasses.asdict(part), "weather": "fine"} for part in provenance.parts]
    metadata = {chunks.METADATA_KEY: json.dumps(said).encode(), chunks.PARTS_KEY: json.dumps(told).encode()}

    assert chunks.decode(with_metadata(table, metadata))[1] == provenance


@pytest.mark.parametrize("told", [b"", b"[]", b"{}", b"[1]", b"[{}]", b'[{"attempt": "a"}]', b"\xff"])
def test_parts_that_cannot_be_read_are_not_a_chunk(told: bytes) -> None:
    table, provenance = chunks.decode(a_chunk(RUN, PLAN, 0))
    body = with_metadata(table, {chunks.METADATA_KEY: chunks.claims_of(provenance), chunks.PARTS_KEY: told})

    with pytest.raises(chunks.NotAChunk):
        chunks.decode(body)


def test_a_chunk_is_encoded_once_because_its_answers_are_gone_then() -> None:
    attempt = Attempt("pod-a", "0.1")
    attempt.answer(1)
    (chunk,) = attempt.scheduler.unfinished()

    attempt.codec.encode(chunk, KEYS)

    assert [result.prediction for result in chunk.results.values()] == [None, None]
    assert chunk.computed == 2
    with pytest.raises(ValueError, match="chunk 0 was encoded before"):
        attempt.codec.encode(chunk, KEYS)


def test_answers_that_are_many_bytes_are_encoded_a_row_group_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Attempt("pod-a", "0.1")
    whole.answer(3)
    monkeypatch.setattr("nightshift.driver.codec.GROUP_BYTES", 2 * (NUMBER_BYTES + KEYS.nbytes // len(KEYS)))
    attempt = Attempt("pod-a", "0.1")
    attempt.answer(3)

    body = attempt.chunk()

    metadata = pq.read_metadata(io.BytesIO(body))
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [2, 2, 2]
    assert chunks.decode(body)[0].to_pylist() == chunks.decode(whole.chunk())[0].to_pylist()
    assert parts(Attempt("pod-b", "0.2", {"pod-a": body}).chunk())[1][:4] == ("pod-a", "node-of-pod-a", "0.1", 6)


def test_no_rows_are_encoded_too() -> None:
    made = Provenance(RUN.run_id, 0, "pod", "node", {}, "0", "", "", predictions=0, dead_letters=0, prompt_tokens=0)

    table, found = chunks.decode(chunks.encode(KEYS.slice(0, 0), [], pa.list_(pa.float32()), made))

    assert (len(table), found) == (0, made)


@pytest.mark.parametrize("results", [5, 7])
def test_keys_and_results_of_different_rows_are_not_encoded(results: int) -> None:
    made = Provenance(RUN.run_id, 0, "pod", "node", {}, "0", "", "", predictions=6, dead_letters=0, prompt_tokens=1)
    rows = [Result(n, [0.5], None, None, 1) for n in range(results)]

    with pytest.raises(ValueError, match=r"more results than the 6 keys|expected length"):
        chunks.encode(KEYS, rows, pa.list_(pa.float32()), made)


def test_a_key_column_may_have_the_name_of_a_batchs_status() -> None:
    keys = KEYS.rename_columns([chunks.STATUS])
    codec = Attempt("pod-a", "0.1").codec
    rows = [Result(n, None, "rejected", "no", 1, 400) for n in range(6)]

    body = codec.encode(OpenChunk(0, 0, 6, {row.ordinal: row for row in rows}), keys)

    table, _ = chunks.decode(body)
    assert table.column(chunks.STATUS).to_pylist() == list(range(6))
    assert {(row.status, row.text) for row in codec.decode(body, 0, 0, keys).results} == {(None, "400: no")}


def test_a_batch_keeps_them_too() -> None:
    codec = LineCodec(
        run_id=RUN.run_id, attempt="pod-1", node="n", model={}, engine_version="1", prediction_type=pa.large_string()
    )
    result = chunks.Result(0, "{}", None, None, 1)
    keys = pa.table({"custom_id": ["a"]})
    saved = codec.encode(OpenChunk(0, 0, 2, {0: result}, prompt_tokens=5), keys)

    taken = codec.decode(saved, 0, 0, pa.table({"custom_id": ["a", "b"]}))

    assert isinstance(taken, Saved)
    assert (taken.part.attempt, taken.part.engine_version, taken.part.rows, taken.part.prompt_tokens) == ("pod-1", "1", 1, 5)
