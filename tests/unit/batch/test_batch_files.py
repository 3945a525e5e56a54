"""The input's index and reader, the run that a file belongs to, and the output made of chunks."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
from obstore.store import LocalStore

from nightshift import __version__
from nightshift.batch import output, source, state
from nightshift.batch.source import Index, LineReader, LocalFile, index
from nightshift.batch.state import Asked, Damaged, chunk_lines, chunk_lines_most, find_batch, open_batch, place_of
from nightshift.batch.target import target_of
from nightshift.run import chunks
from nightshift.run.chunks import Part, Provenance, Result
from nightshift.run.inputs import InputChanged
from nightshift.run.names import RunRef
from nightshift.run.plan import InputFile, Plan
from nightshift.store import get_bytes
from nightshift.tasks.base import Reason
from tests.builders import a_chunk as job_chunk

pytestmark = pytest.mark.unit


def a_line(number: int) -> bytes:
    return b'{"custom_id":"id-%d","method":"POST","url":"/score","body":{"n":%d}}' % (number, number)


def a_file(folder: Path, content: bytes) -> LocalFile:
    path = folder / "in.jsonl"
    path.write_bytes(content)
    return LocalFile(str(path))


def a_plan(lines: int, chunk_rows: int, run_id: str = "r") -> Plan:
    return Plan(run_id, lines, chunk_rows, 1, (InputFile("in", lines, (lines,), 1, "e"),))


@pytest.mark.parametrize("marks_most", [2, 3, 8, 1000])
@pytest.mark.parametrize("chunk_rows", [1, 3, 16, 100])
def test_every_line_is_read_once_in_order_whatever_the_index_remembers(
    tmp_path: Path, marks_most: int, chunk_rows: int
) -> None:
    # Blank lines of all sorts, CRLF, and no end of line at the end.
    content = b"".join(a_line(n) + (b"\r\n \t\n\n" if n % 5 == 0 else b"\n") for n in range(50)) + a_line(50)
    file = a_file(tmp_path, b"\n" + content)

    found = index(file, marks_most)
    reader = LineReader(file, found, a_plan(found.lines, chunk_rows), None)
    names = [name for chunk in range(-(-51 // chunk_rows)) for name in reader.read(chunk).column("custom_id").to_pylist()]

    assert found.lines == 51
    assert found.size == len(content) + 1
    assert len(found.marks) <= marks_most
    assert names == [f"id-{n}" for n in range(51)]


@pytest.mark.parametrize("content", [b"", b"\n", b" \n\r\n\t", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_a_file_without_lines(tmp_path: Path, content: bytes) -> None:
    assert index(a_file(tmp_path, content)).lines == 0


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    file = a_file(tmp_path, b"\xef\xbb\xbf" + a_line(0) + b"\n" + a_line(1))
    found = index(file)

    table = LineReader(file, found, a_plan(2, 2), None).read(0)

    assert table.column("custom_id").to_pylist() == ["id-0", "id-1"]
    assert table.column("error").to_pylist() == [None, None]


def test_a_line_that_cannot_be_read_costs_no_other(tmp_path: Path) -> None:
    file = a_file(tmp_path, a_line(0) + b"\n\xff\xfe\n" + a_line(2) + b"\n{\n")
    found = index(file)

    errors = LineReader(file, found, a_plan(4, 4), None).read(0).column("error").to_pylist()

    assert [error is None for error in errors] == [True, False, True, False]


def test_a_file_that_changes_under_way_is_noticed(tmp_path: Path) -> None:
    file = a_file(tmp_path, a_line(0) + b"\n" + a_line(1))
    reader = LineReader(file, index(file), a_plan(2, 1), None)
    path = Path(file.name)
    reader.read(0)

    path.write_bytes(a_line(5) + b"\n" + a_line(6))
    os.utime(path, ns=(1, 1))

    with pytest.raises(InputChanged, match="changed after it was read"):
        reader.read(1)
    path.unlink()
    with pytest.raises(InputChanged, match="is gone"):
        reader.read(1)


@pytest.mark.parametrize("url", ["s3://bucket/x", "gs://bucket", "gs:///x", "http://host/x", "gs://bucket/folder/"])
def test_urls_that_name_no_file(url: str) -> None:
    with pytest.raises(ValueError, match=r"is not the URL of an object|cannot be read by exactly this name"):
        source.source_of(url)


@pytest.mark.parametrize(
    ("lines", "size", "expected"),
    [(0, 0, 16), (10, 1000, 16), (6400, 640_000, 100), (10**6, 10**8, 1000), (200, 800 << 20, 8), (10**9, 10**11, 10_000)],
)
def test_chunks_are_a_part_of_a_short_file_and_bounded_in_bytes(lines: int, size: int, expected: int) -> None:
    assert chunk_lines(Index("v", "s", size, lines, 1, array("Q"))) == expected


@pytest.mark.parametrize(("lines", "size", "expected"), [(0, 0, 24_576), (10**6, 10**8, 24_576), (200, 800 << 20, 8)])
def test_a_chunk_has_as_many_lines_as_fit_in_memory_with_their_replies(lines: int, size: int, expected: int) -> None:
    assert chunk_lines_most(Index("v", "s", size, lines, 1, array("Q"))) == expected


def asked(folder: Path, content: bytes = b"x", model: str | None = None, attempt: str = "one") -> Asked:
    found = Index("v", hashlib.sha256(content).hexdigest(), len(content), 1, 1, array("Q", [0]))
    return Asked(str(folder / "state"), found, "in.jsonl", model, attempt)


def opened(what: Asked, *, served: str = "", fresh: bool = False) -> state.Batch:
    return open_batch(what, served=served, chunk_rows=None, fresh=fresh)


def test_the_same_command_finds_its_run_and_what_decides_answers_makes_another(tmp_path: Path) -> None:
    first = opened(asked(tmp_path))

    assert opened(asked(tmp_path, attempt="two")).run == first.run
    assert opened(asked(tmp_path, content=b"y")).run != first.run
    assert opened(asked(tmp_path, model="m")).run != first.run
    assert find_batch(asked(tmp_path)) == replace(first, store=find_batch(asked(tmp_path)).store)  # type: ignore[union-attr]


def test_commands_that_retry_the_failed_lines_share_the_next_generation_and_the_model(tmp_path: Path) -> None:
    first = opened(asked(tmp_path), served="m (org/m)")

    def retry(attempt: str, served: str) -> state.Batch:
        return open_batch(asked(tmp_path, attempt=attempt), served=served, chunk_rows=3, retried=first)

    second = retry("two", "")

    assert (second.run, retry("three", "m (org/m)").run) == (replace(first.run, generation=2),) * 2
    assert second.plan.chunk_rows == first.plan.chunk_rows, "a chunk of one is a chunk of the other"
    # Whoever resumes it needs no option.
    resumed = opened(asked(tmp_path))
    assert resumed.retried is not None
    assert (resumed.run, resumed.retried.run) == (second.run, first.run)
    with pytest.raises(state.OtherModel, match="was started with m"):
        opened(asked(tmp_path), served="other (org/other)")

    shutil.rmtree(tmp_path / "state" / first.run.prefix)
    with pytest.raises(Damaged, match="which is gone"):
        opened(asked(tmp_path))


def test_a_run_keeps_its_name_and_its_record_from_release_to_release(tmp_path: Path) -> None:
    run = RunRef("batch", "lines", "7a4f394f630495ff")

    assert opened(asked(tmp_path, content=b"{}"), served="m (org/m)").run == run
    record = json.loads((tmp_path / "state" / run.prefix / "spec.json").read_bytes())
    assert (record.pop("written_by"), bool(record.pop("opened_at")), len(record.pop("uid"))) == (__version__, True, 16)
    assert record == {
        "bytes": 2,
        "generation": 1,
        "input": "in.jsonl",
        "job": "batch",
        "lines": 1,
        "model": None,
        "opened_by": "one",
        "partition": "lines",
        "run_id": "7a4f394f630495ff",
        "served": "m (org/m)",
        "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
        "version": 2,
    }


def test_looking_makes_nothing(tmp_path: Path) -> None:
    assert find_batch(asked(tmp_path)) is None
    assert not (tmp_path / "state").exists()


def test_fresh_begins_another_generation_which_later_commands_go_on_with(tmp_path: Path) -> None:
    opened(asked(tmp_path))

    fresh = opened(asked(tmp_path, attempt="two"), fresh=True)

    assert fresh.run.generation == 2
    assert opened(asked(tmp_path, attempt="three")).run == fresh.run


def test_another_model_behind_the_same_lines_is_refused(tmp_path: Path) -> None:
    opened(asked(tmp_path), served="small (org/small)")

    assert opened(asked(tmp_path), served="small (org/small)")
    assert opened(asked(tmp_path), served="")
    with pytest.raises(state.OtherModel, match=r"started with small .*now offers large"):
        opened(asked(tmp_path), served="large (org/large)")


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def without_a_field(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"served"', b'"other"'))


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("spec.json", torn),
        ("spec.json", without_a_field),
        ("spec.json", lambda path: path.write_bytes(b"")),
        ("spec.json", lambda path: path.write_bytes(b"[]")),
        ("plan.json", torn),
        ("plan.json", lambda path: path.write_bytes(b"")),
        ("plan.json", lambda path: path.write_bytes(b"\xff")),
        ("plan.json", lambda path: path.write_bytes(b"[]")),
        ("plan.json", lambda path: path.write_bytes(path.read_bytes().replace(b'"rows":1', b'"rows":2'))),
    ],
)
def test_damaged_progress_is_named_and_not_taken_for_another(tmp_path: Path, name: str, harm: Callable[[Path], object]) -> None:
    run = opened(asked(tmp_path), served="small").run
    harm(tmp_path / "state" / run.prefix / name)

    with pytest.raises(Damaged, match=r"state cannot be read .*Remove it, or name another --state"):
        opened(asked(tmp_path), served="small")


def test_removing_leaves_other_runs(tmp_path: Path) -> None:
    one, other = opened(asked(tmp_path)), opened(asked(tmp_path, model="m"))

    one.remove()
    assert get_bytes(other.store, f"{other.run.prefix}/plan.json") is not None
    other.remove()
    assert not (tmp_path / "state").exists()


def test_places_for_the_state(tmp_path: Path) -> None:
    assert place_of(None, "/a/out.jsonl") == "/a/out.jsonl.nightshift"
    assert place_of(None, "gs://b/out.jsonl") == "gs://b/out.jsonl.nightshift"
    assert place_of("rel", "gs://b/out.jsonl") == str(Path("rel").absolute())
    with pytest.raises(ValueError, match="is not a store"):
        place_of("s3://b/x", "out")


RUN = RunRef("batch", "lines", "0123456789abcdef")


def a_chunk(results: list[Result], run_id: str = RUN.run_id, **more: Any) -> bytes:
    keys = pa.table({"custom_id": pa.array([f'id "{result.ordinal}"\n' for result in results], pa.string())})
    dead = sum(result.reason is not None for result in results)
    made = Provenance(run_id, 0, "a", "n", {}, "v", "t", "t", len(results) - dead, dead, 7, 8, **more)
    return chunks.encode(keys, results, pa.large_string(), made, optional=(chunks.STATUS,))


def batch_chunk(results: list[Result]) -> bytes:
    keys = pa.table({"custom_id": pa.array([str(result.ordinal) for result in results], pa.string())})
    dead = sum(result.reason is not None for result in results)
    made = Provenance(RUN.run_id, 0, "a", "n", {}, "v", "t", "t", len(results) - dead, dead, 7, 8)
    return chunks.encode(keys, results, pa.large_string(), made, optional=(chunks.STATUS,))


def test_what_is_kept_of_an_earlier_generation_has_all_its_tokens_whoever_sent_them(tmp_path: Path) -> None:
    """Of that generation's own command and of those before it: after a second retry the output still counts them."""
    first = opened(asked(tmp_path))
    second = open_batch(asked(tmp_path), served="", chunk_rows=None, retried=first)
    results = [Result(0, b"{}", None, None, 1), Result(1, b"{}", None, None, 1), Result(2, None, "rejected", "no", 1)]
    path = asyncio.run(second.ledger.partials(0))[first.run.run_id]
    obstore.put(first.store, path, a_chunk(results, first.run.run_id, taken=(Part("b", "n", "v", 1, 10, 20),)))

    table, kept = chunks.decode(asyncio.run(second.ledger.read_partial(path)) or b"")

    assert table.column("ordinal").to_pylist() == [0, 1]
    assert (kept.run_id, kept.predictions, kept.dead_letters) == (second.run.run_id, 2, 0)
    assert (kept.prompt_tokens_all, kept.output_tokens_all) == (17, 28)


def test_output_lines_have_the_schema_of_vllm_run_batch() -> None:
    body = a_chunk([Result(4, b'{"x":1.5,"y":null}', None, None, 1), Result(5, None, "rejected", "no", 1)])
    counts = output.OutputCounts()

    lines = [json.loads(line) for line in output.lines_of(body, RUN.run_id, range(4, 6), counts).splitlines()]

    assert lines == [
        {
            "id": f"nightshift-{RUN.run_id}-4",
            "custom_id": 'id "4"\n',
            "response": {
                "status_code": 200,
                "request_id": f"nightshift-batch-{RUN.run_id}-4",
                "body": {"x": 1.5, "y": None},
            },
            "error": None,
        },
        {
            "id": f"nightshift-{RUN.run_id}-5",
            "custom_id": 'id "5"\n',
            "response": {"status_code": 400, "request_id": f"nightshift-batch-{RUN.run_id}-5", "body": None},
            "error": {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}},
        },
    ]
    assert (counts.answered, dict(counts.failed), counts.prompt_tokens) == (1, {"rejected": 1}, 7)


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_a_status(reason: Reason) -> None:
    code, _ = output.error_of(Result(0, None, reason, "m", 1))

    assert code == output.STATUS[reason]


@pytest.mark.parametrize(
    ("reason", "status", "code", "kind"),
    [
        (Reason.REJECTED, 404, 404, "NotFoundError"),
        (Reason.ENGINE_ERROR, 501, 501, "InternalServerError"),
        (Reason.TIMEOUT, 408, 408, "BadRequestError"),
        (Reason.TOO_LONG, None, 400, "BadRequestError"),
    ],
)
@pytest.mark.parametrize("message", ["no such model", "404: is what the server said"])
def test_the_servers_own_status_is_reported_where_it_is_known(
    reason: Reason, status: int | None, code: int, kind: str, message: str
) -> None:
    body = batch_chunk([Result(0, None, reason, message, 1, status)])

    (line,) = map(json.loads, output.lines_of(body, RUN.run_id, range(1), output.OutputCounts()).splitlines())

    assert line["response"]["status_code"] == code
    assert line["error"]["error"] == {"message": message, "type": kind, "param": None, "code": code}


def test_a_status_that_is_no_error_is_not_reported_as_one() -> None:
    code, error = output.error_of(Result(0, None, Reason.ENGINE_ERROR, "", 1, 204))

    assert (code, error["error"]["message"]) == (500, "204: ")


def test_a_chunk_of_a_job_keeps_the_status_in_its_message() -> None:
    keys = pa.table({"id": [0]})
    made = Provenance(RUN.run_id, 0, "a", "n", {}, "v", "t", "t", 0, 1, 0)

    table, _ = chunks.decode(chunks.encode(keys, [Result(0, None, "engine_error", "oops", 4, 500)], pa.string(), made))

    assert table.column_names == ["ordinal", "id", "prediction", "dead_reason", "dead_message", "attempts"]
    assert table.column("dead_message").to_pylist() == ["500: oops"]


def test_a_line_that_was_never_sent_has_text_for_an_error_as_with_vllm() -> None:
    assert output.error_of(Result(0, None, Reason.BAD_INPUT, "500: url", 0)) == (400, "500: url")


def good(*ordinals: int) -> list[Result]:
    return [Result(ordinal, b"{}", None, None, 1) for ordinal in ordinals]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (a_chunk(good(0, 1))[:-9], "not a chunk"),
        (a_chunk(good(0, 1), "other"), "belongs to run other"),
        (a_chunk(good(0)), "does not hold lines 1 to 2"),
        (a_chunk(good(0, 0)), "does not hold lines 1 to 2"),
        (job_chunk(RUN, a_plan(2, 2), 0), "it has no statuses"),
    ],
)
def test_no_output_from_chunks_that_are_not_whole(tmp_path: Path, body: bytes, said: str) -> None:
    store = LocalStore(tmp_path)
    plan = a_plan(4, 2, RUN.run_id)
    ledger = tmp_path / RUN.prefix / "ledger"
    ledger.mkdir(parents=True)
    (ledger / "chunk-00000000.parquet").write_bytes(a_chunk(good(0, 1)))
    (ledger / "chunk-00000001.parquet").write_bytes(a_chunk(good(2, 3)))
    out = tmp_path / "out.jsonl"
    output.write(store, RUN, plan, target_of(str(out), "in"))
    before = out.read_bytes()

    (ledger / "chunk-00000000.parquet").write_bytes(body)

    with pytest.raises(output.Incomplete, match=said):
        output.write(store, RUN, plan, target_of(str(out), "in"))
    (ledger / "chunk-00000000.parquet").unlink()
    with pytest.raises(output.ChunkMissing, match=r"chunk-00000000\.parquet is gone"):
        output.write(store, RUN, plan, target_of(str(out), "in"))
    assert out.read_bytes() == before, "what stood there before still does"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["out.jsonl"]


def test_every_write_of_a_run_gives_the_same_bytes_and_a_line_for_each(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    ledger = tmp_path / RUN.prefix / "ledger"
    ledger.mkdir(parents=True)
    for chunk in range(5):
        (ledger / f"chunk-{chunk:08d}.parquet").write_bytes(a_chunk(good(*range(chunk * 3, min(14, chunk * 3 + 3)))))
    written: list[Any] = []
    for name in ("one", "two"):
        counts = output.write(store, RUN, a_plan(14, 3, RUN.run_id), target_of(str(tmp_path / name), "in"))
        written.append((counts, (tmp_path / name).read_bytes()))

    assert written[0] == written[1]
    assert [json.loads(line)["id"].rsplit("-", 1)[1] for line in written[0][1].splitlines()] == [str(n) for n in range(14)]
