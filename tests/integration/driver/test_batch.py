"""`nightshift batch` as a process, against a server that has nothing of vLLM's but the endpoint."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import obstore
import pytest
from aiohttp import web

from local.ports import new_port
from nightshift import exits
from nightshift.store import open_store
from tests.integration.driver.batches import (
    BatchProcess,
    ChatServer,
    a_request,
    answer_to,
    content_of,
    read_lines,
    write_requests,
)
from tests.integration.driver.canned import Outage
from tests.integration.emulators import StorageEmulator

pytestmark = [pytest.mark.integration, pytest.mark.gate]

LINES = 400


def texts(count: int = LINES) -> list[str]:
    return [f"text {number}" for number in range(count)]


def a_file(folder: Path, count: int = LINES) -> Path:
    return write_requests(folder / "in.jsonl", [a_request(f"id-{n}", text) for n, text in enumerate(texts(count))])


def await_chunks(out: Path, count: int) -> None:
    """Returns once the ledger beside `out` holds so many chunks."""
    while len(list(out.parent.glob(f"{out.name}.nightshift/batch/lines/*/ledger/*.parquet"))) < count:
        time.sleep(0.005)


def assert_complete(out: Path, count: int = LINES) -> None:
    lines = read_lines(out)
    assert [line["custom_id"] for line in lines] == [f"id-{n}" for n in range(count)]
    assert [content_of(line) for line in lines] == [answer_to(text) for text in texts(count)]


def test_a_line_out_for_every_line_in_and_one_bad_line_costs_no_other(tmp_path: Path) -> None:
    async def behave(text: str) -> web.StreamResponse | None:
        if text == "refused":
            error = {"message": "temperature must be non-negative", "type": "BadRequestError", "param": None, "code": 400}
            return web.json_response({"error": error}, status=400)
        if text == "no model":
            return web.json_response({"error": {"message": "no such model", "code": 404}}, status=404)
        return None

    requests: list[dict[str, Any] | str] = [
        a_request("good", "hello"),
        "",
        "{this is not JSON",
        a_request("refused", "refused"),
        a_request("wrong url", "x", url="/shutdown"),
        a_request("stream", "x", body={"stream": True}),
        a_request("no model", "no model"),
        a_request("good", "twice the same id"),
    ]
    source, out = write_requests(tmp_path / "in.jsonl", requests), tmp_path / "out.jsonl"

    with ChatServer(behave) as server:
        batch = BatchProcess("-i", source, "-o", out, "--base-url", server.url)
        code = batch.finish()
        sent = [*server.seen]
        strict = BatchProcess("-i", source, "-o", out, "--base-url", server.url, "--fail-on-error").finish()

    lines = read_lines(out)
    assert (code, strict) == (0, 1)
    assert [line["custom_id"] for line in lines] == ["good", "", "refused", "wrong url", "stream", "no model", "good"]
    assert [line["response"]["status_code"] for line in lines] == [200, 400, 400, 400, 400, 404, 200]
    assert [content_of(lines[at]) for at in (0, 6)] == ["you said hello", "you said twice the same id"]
    assert lines[1]["error"].startswith("line 2: it is not JSON")
    assert lines[2]["error"]["error"]["message"] == "temperature must be non-negative"
    assert lines[4]["error"] == "Request must not be sent in stream mode"
    assert "2 answered, 5 failed (3 bad_input, 2 rejected)" in batch.said
    assert set(sent) == {"hello", "no model", "refused", "twice the same id"}
    assert server.seen == sent, "the second command sent nothing"


BAD: dict[str, tuple[int, bytes, int]] = {
    **{
        f"status {status}": (status, b'{"error": {"message": "not you"}}', status)
        for status in (401, 402, 403, 404, 405, 409, 451)
    },
    "status 302": (302, b"", 400),
    "status 500": (500, b"", 500),
    "status 501": (501, b"", 501),
    "status 429": (429, b"too large", 429),
    "a page": (200, b"<html>Sign in</html>", 502),
    "a stream of bytes": (200, b"\x00\x01", 502),
    "no content": (204, b"", 502),
    "not a number": (200, b'{"choices": [], "x": NaN}', 502),
    "an error inside": (200, b'{"error": {"message": "bad gateway", "code": 502}}', 502),
    "a refusal inside": (200, b'{"object": "error", "message": "no", "code": 400}', 400),
    "no room inside": (200, b'{"error": {"message": "full", "code": 429}}', 429),
    "half an answer": (200, b'{"choices": [{"finish_reason": "error", "message": {"content": ""}}]}', 500),
}
"""Replies that are no answers: status, body, and what the line gets in the output."""


def badly(text: str) -> web.Response | None:
    if text not in BAD:
        return None
    status, body, _ = BAD[text]
    kind = "text/html" if body.startswith(b"<") else "application/json"
    headers = {"Location": "http://elsewhere/"} if status == 302 else {}
    return web.Response(status=status, body=body, content_type=kind, headers=headers)


def test_every_kind_of_bad_reply_costs_its_own_line_and_no_other(tmp_path: Path) -> None:
    async def behave(text: str) -> web.StreamResponse | None:
        return badly(text)

    good = [f"good {n}" for n in range(len(BAD))]
    lines = [text for pair in zip(good, BAD, strict=True) for text in pair] * 2
    source = write_requests(tmp_path / "in.jsonl", [a_request(f"{n}", text) for n, text in enumerate(lines)])
    out = tmp_path / "out.jsonl"
    with ChatServer(behave, delay_s=0.01) as server:
        batch = BatchProcess("-i", source, "-o", out, "--base-url", server.url, hurried=True)
        assert batch.finish() == 0, batch.said

    written = read_lines(out)
    codes = {text: written[n]["response"]["status_code"] for n, text in enumerate(lines) if text in BAD}
    assert codes == {text: code for text, (_, _, code) in BAD.items()}
    assert all(written[n]["error"] and written[n]["response"]["body"] is None for n, text in enumerate(lines) if text in BAD)
    assert all(content_of(written[n]) == answer_to(text) for n, text in enumerate(lines) if text not in BAD)
    assert "busy: 429: " in batch.said


@pytest.mark.parametrize("text", ["status 403", "status 404", "status 302", "status 501", "a page", "no content"])
def test_lines_that_are_all_turned_away_in_one_way_are_written_as_failed(tmp_path: Path, text: str) -> None:
    async def behave(text: str) -> web.StreamResponse | None:
        return badly(text)

    source = write_requests(tmp_path / "in.jsonl", [a_request(f"{n}", text) for n in range(30)])
    out = tmp_path / "out.jsonl"
    with ChatServer(behave) as server:
        batch = BatchProcess("-i", source, "-o", out, "--base-url", server.url, hurried=True)
        assert batch.finish() == 0, batch.said

    assert [line["response"]["status_code"] for line in read_lines(out)] == [BAD[text][2]] * 30
    assert "has answered no request, and all fail alike" in batch.said


def test_killed_in_the_middle_it_goes_on_and_sends_nothing_committed_again(tmp_path: Path) -> None:
    source, out = a_file(tmp_path), tmp_path / "out.jsonl"
    with ChatServer(delay_s=0.05) as server:
        arguments = ("-i", source, "-o", out, "--base-url", server.url, "--chunk-rows", 8, "--max-inflight", 16)
        batch = BatchProcess(*arguments)
        await_chunks(out, 10)
        batch.process.kill()
        batch.finish()
        kept = list(tmp_path.glob("out.jsonl.nightshift/batch/lines/*/ledger/*.parquet"))
        committed = {f"text {int(path.stem[-8:]) * 8 + n}" for path in kept for n in range(8)}
        before = len(server.seen)
        assert not out.exists()

        code = BatchProcess(*arguments).finish()

    assert code == 0
    assert_complete(out)
    assert not committed & set(server.seen[before:])
    assert server.in_flight_max <= 16


@pytest.mark.parametrize("after", [0, 40])
def test_a_server_that_fails_everybody_is_waited_for_and_costs_no_line(tmp_path: Path, after: int) -> None:
    outage = Outage(after)
    source, out = a_file(tmp_path), tmp_path / "out.jsonl"

    with ChatServer(lambda text: outage([text])) as server:
        batch = BatchProcess("-i", source, "-o", out, "--base-url", server.url, hurried=True)
        batch.wait_for("waiting for the engine")
        outage.over = True
        code = batch.finish()

    assert code == 0
    assert_complete(out)
    assert "500: all is lost" in batch.said
    assert "the engine answers again" in batch.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_what_is_answered(tmp_path: Path, number: signal.Signals) -> None:
    source, out = a_file(tmp_path), tmp_path / "out.jsonl"
    with ChatServer(delay_s=0.05) as server:
        arguments = ("-i", source, "-o", out, "--base-url", server.url, "--chunk-rows", 50, "--max-inflight", 16)
        batch = BatchProcess(*arguments)
        await_chunks(out, 2)
        batch.process.send_signal(number)
        stopped = batch.finish()
        code = BatchProcess(*arguments).finish()

    assert (stopped, code) == (exits.RESUME, 0)
    assert "Run the same command again" in batch.said
    assert_complete(out)
    again = len(server.seen) - LINES
    assert again in (0, 1), "each line was sent once, but for one whose answer it was reading when the signal came"


def test_more_lines_a_chunk_than_fit_in_memory_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    long = "x" * (9 << 20)
    source, out = write_requests(tmp_path / "in.jsonl", [a_request(str(n), long) for n in range(4)]), tmp_path / "out.jsonl"
    batch = BatchProcess("-i", source, "-o", out, "--base-url", "http://127.0.0.1:9", "--wait", 0.1, "--chunk-rows", 1000)

    assert batch.finish() == 2
    assert "--chunk-rows 1000: " in batch.said
    assert "Write 3 or less for this file, or leave it out" in batch.said


def test_two_at_once_on_the_same_file_both_finish(tmp_path: Path) -> None:
    source, out = a_file(tmp_path), tmp_path / "out.jsonl"
    with ChatServer(delay_s=0.02) as server:
        arguments = ("-i", source, "-o", out, "--base-url", server.url, "--chunk-rows", 8, "--max-inflight", 16)
        batches = [BatchProcess(*arguments), BatchProcess(*arguments)]
        codes = [batch.finish() for batch in batches]

    assert codes == [0, 0], [batch.said for batch in batches]
    assert_complete(out)
    assert set(server.seen) == set(texts())


def test_it_waits_for_the_server_and_gives_up_in_time(tmp_path: Path) -> None:
    source, out = a_file(tmp_path, 3), tmp_path / "out.jsonl"
    port = new_port()
    with ChatServer(port=port) as server:
        pass
    gone = BatchProcess("-i", source, "-o", out, "--base-url", server.url, "--wait", 0.3)
    assert gone.finish() == exits.RESUME
    assert "does not answer" in gone.said

    batch = BatchProcess("-i", source, "-o", out, "--base-url", server.url)
    assert batch.process.stderr is not None
    batch.said = batch.process.stderr.readline()
    assert "waiting for" in batch.said
    with ChatServer(port=port):
        assert batch.finish() == 0

    assert_complete(out, 3)
    without = BatchProcess(
        "-i", source, "-o", tmp_path / "out2.jsonl", "--state", f"{out}.nightshift", "--base-url", server.url
    )
    assert without.finish() == 0, "what is done needs no server"
    assert (tmp_path / "out2.jsonl").read_bytes() == out.read_bytes()


def test_from_pipe_to_pipe_and_on_after_a_kill(tmp_path: Path) -> None:
    source, out = a_file(tmp_path), tmp_path / "out.jsonl"
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))

    def started() -> tuple[BatchProcess, subprocess.Popen[bytes]]:
        zipped = subprocess.Popen(["zcat", packed], stdout=subprocess.PIPE)
        with open(out, "ab") as appended:
            return BatchProcess(*arguments, stdin=zipped.stdout, stdout=appended), zipped

    with ChatServer(delay_s=0.05) as server:
        state = tmp_path / "state"
        arguments = ("-i", "-", "-o", "-", "--base-url", server.url, "--state", state, "--chunk-rows", 8, "--max-inflight", 16)
        batch, zipped = started()
        while len(list(state.glob("batch/lines/*/ledger/*.parquet"))) < 10:
            time.sleep(0.005)
        batch.process.kill()
        batch.finish()
        zipped.wait()
        before = len(server.seen)
        assert out.read_bytes() == b""
        assert [path.name for path in state.iterdir()] == ["batch"], "the copy of the input went with the process"

        batch, zipped = started()
        assert batch.finish() == 0, batch.said
        zipped.wait()

    assert_complete(out)
    assert "standard input can be read only once" in batch.said
    assert "standard output: 400 lines" in batch.said
    assert len(server.seen) - before <= LINES - 80


def test_a_reader_that_leaves_early_loses_nothing(tmp_path: Path) -> None:
    source = a_file(tmp_path, 3)
    reading, writing = os.pipe()
    os.close(reading)
    with ChatServer() as server:
        arguments = ("-i", source, "-o", "-", "--base-url", server.url)
        cut = BatchProcess(*arguments, stdout=writing)
        assert cut.finish() == exits.RESUME
        with open(tmp_path / "out.jsonl", "wb") as file:
            assert BatchProcess(*arguments, stdout=file).finish() == 0
        assert len(server.seen) == 3

    os.close(writing)
    assert "whatever read from standard output is gone" in cut.said
    assert_complete(tmp_path / "out.jsonl", 3)
    assert (tmp_path / "in.jsonl.nightshift").is_dir(), "progress lies beside the input"


@pytest.mark.parametrize("waits_for", ["input that does not end", "a reader of the output"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_while_it_waits_for_a_pipe(tmp_path: Path, waits_for: str, number: signal.Signals) -> None:
    source, out = a_file(tmp_path, 3), tmp_path / "out"
    reading, writing = os.pipe()
    arguments: tuple[object, ...] = ("-i", "-", "-o", out, "--base-url", "http://127.0.0.1:9")
    if waits_for == "a reader of the output":
        os.mkfifo(out)
        arguments = ("-i", source, *arguments[2:])
    batch = BatchProcess(*arguments, stdin=reading)
    batch.wait_for("can be read only once" if waits_for == "input that does not end" else "waits for a reader")

    batch.process.send_signal(number)

    assert batch.finish() == exits.RESUME
    os.close(reading)
    os.close(writing)


def test_a_refused_key_ends_it_and_the_key_is_nowhere(tmp_path: Path) -> None:
    source, out = a_file(tmp_path, 3), tmp_path / "out.jsonl"
    with ChatServer(key="the-right-key") as server:
        wrong = BatchProcess("-i", source, "-o", out, "--base-url", server.url, key="a-wrong-secret", hurried=True)
        assert wrong.finish() == 2
        assert "turns every one away: 401: wrong key" in wrong.said
        right = BatchProcess("-i", source, "-o", out, "--base-url", server.url, key="the-right-key")
        assert right.finish() == 0

    assert_complete(out, 3)
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in ("a-wrong-secret", "the-right-key"):
        assert secret not in wrong.said + right.said
        assert secret.encode() not in kept


def test_the_model_clean_and_fresh(tmp_path: Path) -> None:
    source, out = a_file(tmp_path, 3), tmp_path / "out.jsonl"
    with ChatServer() as server:
        arguments = ("-i", source, "-o", out, "--base-url", server.url)
        assert BatchProcess(*arguments).finish() == 0
        assert [line["response"]["body"]["model"] for line in read_lines(out)] == ["m"] * 3
        assert BatchProcess(*arguments, "--fresh").finish() == 0
        assert len(server.seen) == 6
        assert BatchProcess(*arguments, "--model", "other", "--state", tmp_path / "state", "--clean").finish() == 0

    assert [line["response"]["body"]["model"] for line in read_lines(out)] == ["other"] * 3
    assert not (tmp_path / "state").exists()


def test_an_empty_file_gives_an_empty_file(tmp_path: Path) -> None:
    source, out = write_requests(tmp_path / "in.jsonl", ["", "  "]), tmp_path / "out.jsonl"

    with ChatServer() as server:
        assert BatchProcess("-i", source, "-o", out, "--base-url", server.url).finish() == 0

    assert out.read_bytes() == b""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"-i": "nowhere.jsonl"}, "-i nowhere.jsonl: "),
        ({"-i": "s3://bucket/x"}, "-i s3://bucket/x: "),
        ({"-o": "nowhere/out.jsonl"}, "does not exist"),
        ({"-o": "in.jsonl"}, "this is the input file"),
        ({"-o": "."}, "this is a folder"),
        ({"--state": "s3://bucket/x"}, "is not a store"),
        ({"--base-url": "ftp://host"}, "must be http://"),
    ],
)
def test_mistakes_are_told_before_any_work(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    a_file(tmp_path, 1)
    options = {"-i": "in.jsonl", "-o": "out.jsonl", "--base-url": "http://127.0.0.1:9", "--wait": "0.1", **changes}
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        batch = BatchProcess(*(part for option in options.items() for part in option))
    finally:
        os.chdir(here)

    assert batch.finish() == 2
    assert said in batch.said
    assert "Traceback" not in batch.said


def test_files_and_progress_in_cloud_storage(
    tmp_path: Path, storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    storage_emulator.client().create_bucket("batches")
    store = open_store("gs://batches")
    obstore.put(store, "files/in.jsonl", a_file(tmp_path, 50).read_bytes())

    with ChatServer() as server:
        arguments = ("-i", "gs://batches/files/in.jsonl", "-o", "gs://batches/files/out.jsonl", "--base-url", server.url)
        batch = BatchProcess(*arguments, "--clean", storage=storage_emulator.url)
        assert batch.finish() == 0, batch.said

    out = tmp_path / "out.jsonl"
    out.write_bytes(bytes(obstore.get(store, "files/out.jsonl").bytes()))
    assert_complete(out, 50)
    left = [meta["path"] for page in obstore.list(store) for meta in page]
    assert sorted(left) == ["files/in.jsonl", "files/out.jsonl"]

    here = ("-i", tmp_path / "in.jsonl", "--base-url", "http://127.0.0.1:9", "--wait", 0.1)
    for wrong in (
        (*here, "-o", "gs://no-such-bucket/out.jsonl", "--state", tmp_path / "state"),
        (*here, "-o", "gs://no-such-bucket/out.jsonl"),
        (*here, "-o", tmp_path / "other.jsonl", "--state", "gs://no-such-bucket/state"),
    ):
        missing = BatchProcess(*wrong, storage=storage_emulator.url)
        assert missing.finish() == 2, missing.said
        assert "Check the name of the bucket" in missing.said
        assert "Debug source" not in missing.said
    obstore.put(store, "empty.jsonl", b"")
    with ChatServer() as server:
        empty = BatchProcess(
            *("-i", "gs://batches/empty.jsonl", "-o", "gs://batches/empty.out", "--base-url", server.url),
            storage=storage_emulator.url,
        )
        assert empty.finish() == 0, empty.said
    gone = BatchProcess(*here[2:], "-i", "gs://batches/none.jsonl", "-o", "gs://batches/x.jsonl", storage=storage_emulator.url)
    assert gone.finish() == 2
    assert "gs://batches/none.jsonl does not exist" in gone.said


class TestRetry:
    """`--retry-failed`: a server that refuses some texts at first."""

    @staticmethod
    async def refuse(text: str) -> web.StreamResponse | None:
        number = int(text.split()[1])
        if number % 7 and number >= 8:  # All of the first chunk fail.
            return None
        return web.json_response({"error": {"message": "Payment required", "code": 402}}, status=402)

    def test_only_the_failed_lines_are_sent_again(self, tmp_path: Path) -> None:
        source, out = a_file(tmp_path, 100), tmp_path / "out.jsonl"
        with source.open("a") as file:
            file.write("{no JSON\n")
        arguments = ("-i", source, "-o", out, "--chunk-rows", 8, "--base-url")
        with ChatServer(self.refuse) as server:
            first = BatchProcess(*arguments, server.url, hurried=True)
            assert first.finish() == 0, first.said
        before = read_lines(out)
        failed = [text for text, line in zip(texts(100), before, strict=False) if line["error"]]
        assert failed == [f"text {n}" for n in range(100) if n % 7 == 0 or n < 8]
        away = BatchProcess(*arguments, server.url, "--retry-failed", "--wait", 0.01)
        assert (away.finish(), "does not answer" in away.said) == (75, True), "a finished run is done, but not these lines"

        with ChatServer() as server:
            batch = BatchProcess(*arguments, server.url, "--retry-failed")
            assert batch.finish() == 0, batch.said
            assert sorted(server.seen) == sorted(failed), "no answered line is sent again"

            after = read_lines(out)
            assert [line["custom_id"] for line in after] == [line["custom_id"] for line in before]
            assert [content_of(line) for line in after[:100]] == [answer_to(text) for text in texts(100)]
            assert after[100]["error"].startswith("line 101: it is not JSON"), "one that cannot be sent stays as it is"
            assert "100 answered, 1 failed (1 bad_input); 21 requests sent; 200 prompt and 300 output tokens" in batch.said

            # Without the option the output is that of the last run, and sends nothing.
            out.unlink()
            assert BatchProcess(*arguments, server.url).finish() == 0
            assert read_lines(out) == after
            assert len(server.seen) == len(failed)

            assert BatchProcess(*arguments, server.url, "--clean").finish() == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"], "no generation stays"

    def test_killed_in_the_middle_it_goes_on_with_what_both_runs_answered(self, tmp_path: Path) -> None:
        async def refuse_most(text: str) -> web.StreamResponse | None:
            return None if int(text.split()[1]) % 2 else web.json_response({"error": {"message": "no"}}, status=403)

        source, out = a_file(tmp_path), tmp_path / "out.jsonl"
        arguments = ("-i", source, "-o", out, "--chunk-rows", 8, "--max-inflight", 16, "--base-url")
        with ChatServer(refuse_most) as server:
            assert BatchProcess(*arguments, server.url, hurried=True).finish() == 0
        with ChatServer(delay_s=0.1) as server:
            batch = BatchProcess(*arguments, server.url, "--retry-failed")
            chunks = "out.jsonl.nightshift/batch/lines/*-g2/ledger/*.parquet"
            while len(list(tmp_path.glob(chunks))) < 5:
                time.sleep(0.005)
            batch.process.kill()
            batch.finish()
            kept = {f"text {int(path.stem[-8:]) * 8 + n}" for path in tmp_path.glob(chunks) for n in range(8)}
            before = len(server.seen)
            again = BatchProcess(*arguments, server.url, "--retry-failed")
            assert again.finish() == 0, again.said

        assert_complete(out)
        assert {int(text.split()[1]) % 2 for text in server.seen} == {0}
        assert not kept & set(server.seen[before:])

    def test_what_it_cannot_do_ends_with_2(self, tmp_path: Path) -> None:
        source, out = a_file(tmp_path, 20), tmp_path / "out.jsonl"
        with ChatServer(self.refuse) as server:
            arguments = ("-i", source, "-o", out, "--base-url", server.url)
            early = BatchProcess(*arguments, "--retry-failed")
            both = BatchProcess(*arguments, "--retry-failed", "--fresh")
            assert (early.finish(), both.finish(), server.seen) == (2, 2, [])
            assert "there is no earlier run of this input" in early.said
            assert "Leave one of the two out" in both.said

            assert BatchProcess(*arguments, hurried=True).finish() == 0
            for chunk in tmp_path.glob("out.jsonl.nightshift/batch/lines/*/ledger/*.parquet"):
                chunk.write_bytes(chunk.read_bytes()[:-9])
            torn = BatchProcess(*arguments, "--retry-failed", hurried=True)
            assert (torn.finish(), "not a chunk" in torn.said) == (2, True), torn.said
