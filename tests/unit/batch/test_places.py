"""What `-i` and `-o` may be: compressed, piped or wrong input, and output into links, devices and pipes."""

from __future__ import annotations

import bz2
import errno
import gzip
import json
import lzma
import os
import shutil
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nightshift.batch import paths, recognize, source
from nightshift.batch.command import run
from nightshift.batch.options import Options
from nightshift.batch.recognize import NotABatchFile
from nightshift.batch.source import BatchFile, LocalFile, index
from nightshift.batch.spool import NotUnpacked, ready
from nightshift.batch.target import target_of

pytestmark = pytest.mark.unit

NOWHERE = "http://127.0.0.1:9"
REQUESTS = [
    {"custom_id": f"ä{n}", "method": "POST", "url": "/score", "body": {"messages": [{"role": "user", "content": "hi"}]}}
    for n in range(3)
]
PLAIN = "".join(f"{json.dumps(request, ensure_ascii=False)}\n" for request in REQUESTS).encode()


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


def the_bytes(file: BatchFile) -> bytes:
    with file.open() as stream:
        return stream.read()


class TestInput:
    @pytest.mark.parametrize(
        "packed",
        [
            gzip.compress(PLAIN),
            gzip.compress(PLAIN[:50]) + gzip.compress(PLAIN[50:]) + bytes(512),
            zstd(PLAIN),
            zstd(PLAIN[:50]) + zstd(PLAIN[50:]),
        ],
        ids=["gzip", "joined and padded gzip", "zstd", "joined zstd"],
    )
    def test_compressed_input_is_the_same_input(self, tmp_path: Path, packed: bytes) -> None:
        (tmp_path / "in.jsonl").write_bytes(packed)
        (tmp_path / "plain.jsonl").write_bytes(PLAIN)
        said: list[str] = []

        file = ready(str(tmp_path / "in.jsonl"), str(tmp_path), said.append)

        assert the_bytes(file) == file.read(0, 10_000) == PLAIN
        assert file.read(5, 7) == PLAIN[5:12]
        assert index(file).sha256 == index(LocalFile(str(tmp_path / "plain.jsonl"))).sha256, "so it is the same run"
        assert len(said) == 1
        assert len(list(tmp_path.iterdir())) == 2, "the copy has no name"

    @pytest.mark.parametrize("content", [PLAIN, gzip.compress(PLAIN), zstd(PLAIN)], ids=["plain", "gzip", "zstd"])
    @pytest.mark.parametrize("through", ["descriptor", "link", "fifo"])
    def test_input_that_can_be_read_only_once_is_copied(self, tmp_path: Path, content: bytes, through: str) -> None:
        name = tmp_path / "in"
        if through == "fifo":
            os.mkfifo(name)
            writer = threading.Thread(target=name.write_bytes, args=(content,))
        else:
            reading, writing = os.pipe()
            name.symlink_to(f"/proc/self/fd/{reading}")
            writer = threading.Thread(target=lambda: os.fdopen(writing, "wb").write(content))
        writer.start()
        said: list[str] = []

        file = ready(f"/dev/fd/{reading}" if through == "descriptor" else str(name), str(tmp_path), said.append)

        writer.join()
        assert the_bytes(file) == PLAIN
        assert len(said) == 1
        assert "can be read only once" in said[0]

    def test_a_descriptor_is_read_from_where_it_stands(self, tmp_path: Path) -> None:
        (tmp_path / "in").write_bytes(b"a header\n" + PLAIN)
        descriptor = os.open(tmp_path / "in", os.O_RDONLY)
        os.read(descriptor, len(b"a header\n"))

        assert the_bytes(ready(f"/dev/fd/{descriptor}", str(tmp_path), print)) == PLAIN

    @pytest.mark.parametrize(
        "content",
        [
            gzip.compress(PLAIN)[:-9],
            gzip.compress(PLAIN)[:20] + b"\x00\xff" * 40,
            gzip.compress(PLAIN) + b"more",
            zstd(PLAIN)[:-3],
            zstd(PLAIN) + b"more",
        ],
        # Not the bytes: gzip writes the time into them, and pytest-xdist wants the same ids from each worker.
        ids=["gzip cut", "gzip broken", "gzip and more", "zstd cut", "zstd and more"],
    )
    def test_damaged_compression_is_no_input(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "in").write_bytes(content)

        with pytest.raises(NotUnpacked, match="damaged or not whole"):
            ready(str(tmp_path / "in"), str(tmp_path), print)

    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (PLAIN.decode().encode("utf-16"), "it is UTF-16 or UTF-32. Write it as UTF-8: iconv"),
            (b"\xfe\xff" + PLAIN.decode().encode("utf-16-be"), "it is UTF-16"),
            (PLAIN.decode().encode("utf-16-le"), "NUL bytes, as UTF-16"),
            (PLAIN.decode().encode("utf-32"), "UTF-32"),
            (b"\x00\x00\xfe\xff" + PLAIN.decode().encode("utf-32-be"), "it is UTF-32"),
            pytest.param(gzip.compress(gzip.compress(PLAIN)), "gzip twice", id="gzip twice"),
            (zstd(zstd(PLAIN)), "zstd twice"),
            (bz2.compress(PLAIN), "bzip2 -dc"),
            (lzma.compress(PLAIN), "xz -dc"),
            (b"PK\x03\x04rest", "it is a zip archive"),
            (json.dumps(REQUESTS).encode(), "it is a JSON array. A batch file has one object a line: jq"),
            (json.dumps(REQUESTS, indent=2).encode(), "it is a JSON array"),
            (b"\xef\xbb\xbf[\n" + PLAIN.replace(b"}\n", b"},\n")[:-2] + b"\n]\n", "it is a JSON array"),
            (json.dumps(REQUESTS[0], indent=2).encode(), "its objects have several lines each"),
            (PLAIN.replace(b"\n", b"\r"), "its lines end in CR alone"),
            (b"custom_id,prompt\na,hello\n", "none of its lines can be sent. The first one: it is not JSON"),
            (b'{"prompt": "a"}\n{"prompt": "b"}\n', "none of its lines can be sent. The first one: custom_id is missing"),
            (b"1\n2\n", "it must be a JSON object, not a number"),
            (b'"a"\n', "it must be a JSON object, not a string"),
            (b"PAR1\x15\x04", "none of its lines can be sent"),
        ],
    )
    def test_what_is_no_batch_file_ends_with_2_and_says_what_it_is(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, said: str
    ) -> None:
        given = tmp_path / "in"
        given.write_bytes(content)

        assert run(Options(str(given), str(tmp_path / "out"), NOWHERE)) == 2

        assert f"-i {given}: " in (words := capsys.readouterr().err)
        assert said in words
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in"], "no output and no empty folder of progress"

    @pytest.mark.parametrize(
        "content",
        [
            PLAIN,
            b"[1]\n" + PLAIN,
            b"{\n" + PLAIN,
            b"\xff\n" + PLAIN,
            b"\x00\n" + PLAIN,
            b'{"a\x00": 1}\n' + PLAIN,
            b'{"custom_id": "wrong"}\n\n{"body": {"x": NaN}}\n' + PLAIN[: PLAIN.index(b"\n")],
            b"",
        ],
    )
    def test_bad_lines_among_requests_cost_no_other(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "in").write_bytes(content)

        assert index(LocalFile(str(tmp_path / "in"))).lines == len([line for line in content.splitlines() if line])

    @pytest.mark.parametrize(
        ("changes", "looks", "first"),
        [
            ({"method": ..., "url": ..., "body": ..., "params": {"model": "m"}}, "Anthropic's message batches", "method is"),
            ({"method": ..., "url": ...}, "Mistral's batches", "method is missing"),
            ({"body": '{"model": "m"}'}, "body is JSON in a string", "body must be an object, not a string"),
            ({"url": "https://api.openai.com/v1/chat/completions"}, "whole URLs. Write only the path", "URL 'https://api"),
            ({"url": "/openai/deployments/gpt/chat/completions?api-version=2024-02-01"}, "Azure's deployments", "URL '/op"),
            ({"method": ..., "url": ..., "body": ..., "response": {}, "error": None}, "the output of a batch", "method is"),
            ({"custom_id": ..., "method": ..., "url": ..., "body": ..., "key": "a", "request": {}}, "Gemini's", "custom_id is"),
            (
                {"custom_id": ..., "method": ..., "url": ..., "body": ..., "recordId": "a", "modelInput": {}},
                "Bedrock's",
                "cust",
            ),
            ({"custom_id": ..., "method": ..., "url": ..., "body": ..., "messages": []}, "fine-tuning", "custom_id is missing"),
            ({"body": {"stream": True}}, None, "Request must not be sent in stream mode"),
            ({"custom_id": 7}, None, "custom_id must be a string"),
            ({"url": "/shutdown"}, None, "URL '/shutdown' was used"),
        ],
    )
    def test_a_file_of_which_no_line_can_be_sent_ends_with_2_and_the_formats_name(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], looks: str | None, first: str
    ) -> None:
        line = {name: value for name, value in {**REQUESTS[0], **changes}.items() if value is not ...}
        given = tmp_path / "in"
        given.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for _ in range(6)))

        assert run(Options(str(given), str(tmp_path / "out"), NOWHERE)) == 2

        said = capsys.readouterr().err
        assert f"-i {given}: none of its lines can be sent. " in said
        assert f"The first one: {first}" in said
        assert ("It looks like" in said) == (looks is not None)
        assert (looks or "") in said
        assert not (tmp_path / "out").exists()

        given.write_bytes(given.read_bytes() + PLAIN)
        assert index(LocalFile(str(given))).lines == 6 + len(REQUESTS), "one line that can be sent makes it a batch file"

    def test_a_line_without_end_is_not_read_without_end(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (recognize, source):
            monkeypatch.setattr(module, "LINE_BYTES_MOST", 100 << 10)
        file = a_file(tmp_path / "in", PLAIN + b"x" * (100 << 10) + b"\n")

        with pytest.raises(NotABatchFile, match="line 4 has 0 MiB or more"):
            index(file)


def a_file(path: Path, content: bytes) -> LocalFile:
    path.write_bytes(content)
    return LocalFile(str(path))


def blocks() -> Iterator[bytes]:
    yield b"one\n"
    yield b"two\n"


def write(name: object) -> None:
    target = target_of(str(name), "in")
    target.open()
    target.write(blocks())


class TestOutput:
    def test_a_link_stays_and_what_it_leads_to_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        real = tmp_path / "real" / "out"
        real.write_bytes(b"old")
        for name, to in (("link", "real/out"), ("link of link", "link"), ("dangling", "real/new")):
            (tmp_path / name).symlink_to(to)

        write(tmp_path / "link of link")
        write(tmp_path / "dangling")

        assert all((tmp_path / name).is_symlink() for name in ("link", "link of link", "dangling"))
        assert real.read_bytes() == (tmp_path / "real/new").read_bytes() == b"one\ntwo\n"
        assert sorted(path.name for path in real.parent.iterdir()) == ["new", "out"]

    @pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
    def test_an_existing_file_keeps_its_mode(self, tmp_path: Path, mode: int) -> None:
        out = tmp_path / "out"
        out.touch()
        out.chmod(mode)

        write(out)

        assert stat.S_IMODE(out.stat().st_mode) == mode
        assert out.read_bytes() == b"one\ntwo\n"

    def test_a_group_that_cannot_be_kept_gets_no_rights_over_another(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "out"
        out.touch()
        out.chmod(0o640)
        real, old = os.fstat, out.stat()

        def refuse(*_: object) -> None:
            raise PermissionError(errno.EPERM, "no")

        monkeypatch.setattr(os, "fchown", refuse)
        write(out)
        assert stat.S_IMODE(out.stat().st_mode) == 0o640, "its own group"
        monkeypatch.setattr(os, "fstat", lambda fd: os.stat_result([*real(fd)[:5], old.st_gid + 1, *real(fd)[6:]]))
        write(out)
        assert stat.S_IMODE(out.stat().st_mode) == 0o600

    def test_a_file_with_the_longest_name(self, tmp_path: Path) -> None:
        write(tmp_path / ("x" * 255))

        assert [path.name for path in tmp_path.iterdir()] == ["x" * 255]

    def test_a_file_that_is_mounted_is_written_in_place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        out = tmp_path / "out"
        out.write_bytes(b"a longer content than the new one")
        before = out.stat().st_ino

        def busy(*_: object) -> None:
            raise OSError(errno.EBUSY, "Device or resource busy")

        monkeypatch.setattr(Path, "replace", busy)
        write(out)

        assert (out.read_bytes(), out.stat().st_ino) == (b"one\ntwo\n", before)
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    @pytest.mark.parametrize("through", ["fifo", "descriptor", "link"])
    def test_a_pipe_is_written_into(self, tmp_path: Path, through: str) -> None:
        name = tmp_path / "out"
        got: list[bytes] = []
        if through == "fifo":
            os.mkfifo(name)
            reader = threading.Thread(target=lambda: got.append(name.read_bytes()))
            reader.start()
            write(name)
        else:
            reading, writing = os.pipe()
            name.symlink_to(f"/proc/self/fd/{writing}")
            reader = threading.Thread(target=lambda: got.append(os.fdopen(reading, "rb").read()))
            reader.start()
            write(f"/dev/fd/{writing}" if through == "descriptor" else name)
            os.close(writing)
        reader.join()

        assert got == [b"one\ntwo\n"]
        assert stat.S_ISFIFO(name.stat().st_mode) if through == "fifo" else name.is_symlink()
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_a_device_stays_a_device(self) -> None:
        master, slave = os.openpty()
        name = os.ttyname(slave)

        write(name)

        found = b""
        while len(found) < len(b"one\r\ntwo\r\n"):  # A terminal hands over a line at a time.
            found += os.read(master, 100)
        assert found == b"one\r\ntwo\r\n"
        assert stat.S_ISCHR(Path(name).stat().st_mode)

    def test_a_descriptor_is_written_from_where_it_stands(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        with open(out, "wb", buffering=0) as file:
            file.write(b"a header\n")
            write(f"/dev/fd/{file.fileno()}")
            file.write(b"the end\n")

        assert out.read_bytes() == b"a header\none\ntwo\nthe end\n"

    def test_dashes_are_the_standard_streams(self) -> None:
        assert paths.descriptor_of("-", paths.STDIN) == 0
        assert paths.descriptor_of("-", paths.STDOUT) == 1
        assert paths.descriptor_of("/dev/stdout", paths.STDOUT) == 1
        assert paths.descriptor_of("./-", paths.STDOUT) is None
        assert paths.descriptor_of("/dev/null", paths.STDOUT) is None
        assert target_of("-", "in").name == "standard output"

    @pytest.mark.parametrize("mode", [stat.S_IFBLK, stat.S_IFSOCK, stat.S_IFDIR])
    def test_what_cannot_be_a_file_is_refused(self, mode: int) -> None:
        assert paths.refusal(mode)
        assert paths.refusal(stat.S_IFREG) is paths.refusal(stat.S_IFIFO) is paths.refusal(stat.S_IFCHR) is None


def a_socket(folder: Path) -> str:
    server = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(folder)
    server.bind("out")
    os.chdir(here)
    return "out"


def a_circle(folder: Path) -> str:
    (folder / "out").symlink_to("out")
    return "out"


def nothing(_: Path) -> str:
    return "out"


class TestCommandLines:
    """Each ends with 2 before anything is sent, and leaves nothing."""

    @pytest.mark.parametrize(
        ("changes", "make", "said"),
        [
            ({"input": "none"}, lambda folder: (folder / "out").write_bytes(b"old"), "-i none: No such file or directory"),
            ({"input": "in/x"}, nothing, "-i in/x: Not a directory"),
            ({"input": "."}, nothing, "-i .: this is a folder"),
            ({"input": "out", "output": "other"}, a_socket, "-i out: this is a socket"),
            ({"input": "gs://B/x"}, nothing, "is not a valid bucket name"),
            ({"input": "file:///in"}, nothing, "-i file:///in: "),
            ({"output": "no/out"}, nothing, "does not exist"),
            ({"output": "in/out"}, nothing, "-o in/out: "),
            ({"output": "in"}, nothing, "-o in: this is the input file"),
            ({}, lambda folder: (folder / "out").symlink_to("in"), "-o out: this is the input file"),
            ({}, a_socket, "-o out: this is a socket"),
            ({}, a_circle, "-o out: Too many levels of symbolic links"),
            ({}, lambda folder: (folder / "out").symlink_to("no/where"), "does not exist"),
            ({"output": "/dev/fd/999"}, nothing, "-o /dev/fd/999: "),
            ({"output": "/proc/nightshift"}, nothing, "progress cannot be kept in /proc/nightshift.nightshift"),
            ({"state": "in"}, nothing, "progress cannot be kept in"),
            ({"state": "in/state"}, nothing, "progress cannot be kept in"),
            ({"state": "ftp://host/x"}, nothing, "--state: 'ftp://host/x' is not a store"),
            ({"input": "-", "output": "-"}, nothing, "Name a folder for it with --state"),
            ({"base_url": "127.0.0.1:8000"}, nothing, "must be http://"),
            ({"base_url": "http://host:port"}, nothing, "cannot send requests to the engine"),
            ({"base_url": "http://host/?key=1"}, nothing, "must not contain"),
            ({"api_key": "two\nlines"}, nothing, "cannot send requests to the engine"),
        ],
    )
    def test_a_mistake(
        self,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        changes: dict[str, Any],
        make: Callable[[Path], object],
        said: str,
    ) -> None:
        (tmp_path / "in").write_bytes(PLAIN)
        monkeypatch.chdir(tmp_path)
        make(tmp_path)
        before = sorted(path.name for path in tmp_path.iterdir())

        assert run(Options(**{"input": "in", "output": "out", "base_url": NOWHERE, **changes})) == 2

        assert said in (words := capsys.readouterr().err)
        assert "Run the same command again" not in words
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        assert (tmp_path / "in").read_bytes() == PLAIN

    def test_a_read_only_file_is_not_replaced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        out = tmp_path / "out"
        out.touch()
        monkeypatch.setattr(os, "access", lambda name, _: str(name) != str(out))

        with pytest.raises(ValueError, match="it is not writable"):
            target_of(str(out), "in")

    def test_what_is_redirected_into_the_input_is_refused(self, tmp_path: Path) -> None:
        given = tmp_path / "in"
        shutil.copy(__file__, given)
        with open(given, "ab") as file, pytest.raises(ValueError, match="this is the input file"):
            target_of(f"/dev/fd/{file.fileno()}", str(given))

    def test_a_descriptor_for_reading_is_no_output(self, tmp_path: Path) -> None:
        with open(__file__, "rb") as file, pytest.raises(ValueError, match="reading only"):
            target_of(f"/dev/fd/{file.fileno()}", "in")
