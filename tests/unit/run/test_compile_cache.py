"""What an engine has compiled, as an archive: only honest ones are unpacked, the first one stays, nothing fails a worker."""

from __future__ import annotations

import asyncio
import hashlib
import io
import logging
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore, ObjectStore

from nightshift.driver import compile_cache
from nightshift.driver.environment import DriverConfig
from nightshift.run.models.compile_cache import BrokenArchive, NothingToPack, Place, cpu_digest, pack, unpack
from tests.builders import RUN

pytestmark = pytest.mark.unit

FILES = {
    "torch_compile_cache/a1b2/rank_0_0/model": b"graph " * 1000,
    "torch_compile_cache/a1b2/inductor_cache/x/y.so": b"\x7fELF",
    "torch_compile_cache/empty": b"",
    "modelinfos/a.json": b"{}",
}
KEPT = "torch_compile_cache"


def made(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def found_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def archive_of(folder: Path) -> bytes:
    out = io.BytesIO()
    assert pack(folder, out) == len(out.getvalue())
    return out.getvalue()


def signed(tar: bytes) -> bytes:
    return tar + hashlib.sha256(tar).digest()


def a_tar(*members: tarfile.TarInfo) -> bytes:
    """Each member without content, or with as many bytes as it says."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return signed(out.getvalue())


def a_member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, target, size
    return member


class TestArchive:
    def test_what_was_packed_is_unpacked(self, tmp_path: Path) -> None:
        """And nothing else that an engine has in its cache."""
        body = archive_of(made(tmp_path / "from", {**FILES, "assets/image.png": b"1", "usage": b"2"}))

        assert unpack(io.BytesIO(body), tmp_path / "to") == 4
        assert found_in(tmp_path / "to") == FILES

    @pytest.mark.parametrize("at", [0, 600, 5000, -40, -1])
    def test_an_altered_byte_anywhere_unpacks_nothing(self, tmp_path: Path, at: int) -> None:
        body = bytearray(archive_of(made(tmp_path / "from")))
        body[at] ^= 1

        with pytest.raises(BrokenArchive, match="digest"):
            unpack(io.BytesIO(bytes(body)), tmp_path / "to")
        assert not (tmp_path / "to").exists()

    @pytest.mark.parametrize("body", [b"", b"short", b"x" * 5000, signed(b"x" * 5000), signed(b"")])
    def test_what_is_no_archive_is_refused(self, tmp_path: Path, body: bytes) -> None:
        with pytest.raises(BrokenArchive):
            unpack(io.BytesIO(body), tmp_path / "to")

    @pytest.mark.parametrize("half", [0.3, 0.9, 0.99])
    def test_so_is_half_of_one(self, tmp_path: Path, half: float) -> None:
        body = archive_of(made(tmp_path / "from"))

        with pytest.raises(BrokenArchive):
            unpack(io.BytesIO(body[: int(half * len(body))]), tmp_path / "to")

    @pytest.mark.parametrize(
        "member",
        [
            a_member("../outside", size=1),
            a_member(f"{KEPT}/../../outside", size=1),
            a_member("/tmp/nightshift-outside", size=1),
            a_member(f"/{KEPT}/outside", size=1),
            a_member("elsewhere/file", size=1),
            a_member(KEPT, size=1),
            a_member(".", size=1),
            a_member(f"{KEPT}/link", tarfile.SYMTYPE, "/etc"),
            a_member(f"{KEPT}/hard", tarfile.LNKTYPE, f"{KEPT}/file"),
            a_member(f"{KEPT}/pipe", tarfile.FIFOTYPE),
            a_member(f"{KEPT}/device", tarfile.CHRTYPE),
            a_member(f"{KEPT}/sparse", tarfile.GNUTYPE_SPARSE),
            a_member(f"{KEPT}/folder", tarfile.DIRTYPE),
            a_member(f"{KEPT}/file", size=1),
            a_member(f"{KEPT}/file/below", size=1),
        ],
        ids=lambda member: member.name,
    )
    def test_nothing_is_written_but_ordinary_files_below_the_folders(self, tmp_path: Path, member: tarfile.TarInfo) -> None:
        body = a_tar(a_member(f"{KEPT}/file", size=3), member)

        with pytest.raises(BrokenArchive, match="in it"):
            unpack(io.BytesIO(body), tmp_path / "to")
        assert found_in(tmp_path) == {f"to/{KEPT}/file": b"xxx"}

    def test_nor_is_what_unpacks_larger_than_it_may(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        body = archive_of(made(tmp_path / "from"))
        monkeypatch.setattr("nightshift.run.models.compile_cache.FILES_MOST", 2)
        with pytest.raises(BrokenArchive, match="too many"):
            unpack(io.BytesIO(body), tmp_path / "to")

        monkeypatch.setattr("nightshift.run.models.compile_cache.BYTES_MOST", 1000)
        with pytest.raises(BrokenArchive):
            unpack(io.BytesIO(body), tmp_path / "again")

    def test_links_and_pipes_of_an_engine_are_not_followed(self, tmp_path: Path) -> None:
        folder = made(tmp_path / "from")
        (tmp_path / "secret").write_bytes(b"token")
        (folder / KEPT / "link").symlink_to(tmp_path / "secret")
        (folder / KEPT / "folder").symlink_to(tmp_path)
        os.mkfifo(folder / KEPT / "pipe")

        unpack(io.BytesIO(archive_of(folder)), tmp_path / "to")

        assert found_in(tmp_path / "to") == FILES

    def test_what_cannot_be_read_is_not_left_out(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As another user: the first archive is the one that stays, so it has all or is not made."""

        opened = os.open

        def refuse(name: str, *args: Any, **more: Any) -> int:
            if name == "model":
                raise PermissionError(13, "Permission denied", name)
            return opened(name, *args, **more)

        folder = made(tmp_path / "from")
        monkeypatch.setattr("nightshift.run.models.compile_cache.os.open", refuse)
        with pytest.raises(PermissionError):
            pack(folder, io.BytesIO())

    @pytest.mark.parametrize(("limit", "value"), [("FILES_MOST", 2), ("BYTES_MOST", 5000)])
    def test_too_much_is_not_packed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
        monkeypatch.setattr(f"nightshift.run.models.compile_cache.{limit}", value)

        with pytest.raises(NothingToPack, match="more than"):
            pack(made(tmp_path / "from"), io.BytesIO())

    def test_nor_is_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(NothingToPack, match="no files"):
            pack(tmp_path / "missing", io.BytesIO())
        with pytest.raises(NothingToPack, match="no files"):
            pack(made(tmp_path, {"modelinfos/a.json": b"{}"}), io.BytesIO())

    def test_a_driver_that_drains_packs_no_further(self, tmp_path: Path) -> None:
        with pytest.raises(InterruptedError):
            pack(made(tmp_path / "from"), io.BytesIO(), lambda: True)


class TestPlace:
    def test_it_needs_both_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert Place.of({"VLLM_CACHE_ROOT": "/c"}) is None
        assert Place.of({"ENGINE_CACHE_KEY": "k"}) is None
        assert Place.of({"VLLM_CACHE_ROOT": "/c", "ENGINE_CACHE_KEY": "k"}) == Place(Path("/c"), "k")

    @pytest.mark.parametrize(("index", "keeps"), [("0", True), ("1", False)])
    def test_one_worker_of_a_jobset_keeps_it(self, monkeypatch: pytest.MonkeyPatch, index: str, keeps: bool) -> None:
        variables = {"NIGHTSHIFT_RUN_URL": "gs://b/j/p/r", "ENGINE_URL": "http://x", "JOB_COMPLETION_INDEX": index}
        for name, value in {**variables, "VLLM_CACHE_ROOT": "/c", "ENGINE_CACHE_KEY": "k"}.items():
            monkeypatch.setenv(name, value)

        assert (DriverConfig.from_environment().compiled is not None) is keeps

    def test_it_is_below_the_prefix_of_its_job_and_of_one_kind_of_cpu(self, tmp_path: Path) -> None:
        assert Place(Path("/c"), "k").path("job") == f"_workers/job/compile-cache/k-{cpu_digest()}.tar"
        intel = "processor\t: 0\nmodel\t\t: 85\ncpu MHz\t\t: 2000\nflags\t\t: fpu avx512f\n\nprocessor\t: 1\n"
        digests = {}
        for name, text in {"a": intel, "faster": intel.replace("2000", "3100"), "b": intel.replace(" avx512f", "")}.items():
            (tmp_path / name).write_text(text)
            digests[name] = cpu_digest(str(tmp_path / name))
        assert digests["a"] == digests["faster"] != digests["b"]
        assert len(cpu_digest(str(tmp_path / "missing"))) == 8


class TestFetch:
    def test_a_miss_is_none(self, tmp_path: Path) -> None:
        place = Place(tmp_path / "root", "k")

        assert compile_cache.fetch(MemoryStore(), "x", place) is None
        assert not place.root.exists()

    @pytest.mark.parametrize("empty", [False, True])
    def test_a_hit_is_where_the_engine_looks(self, tmp_path: Path, empty: bool) -> None:
        store, place = MemoryStore(), Place(tmp_path / "root", "k")
        obstore.put(store, "x", archive_of(made(tmp_path / "from")))
        if empty:
            (place.root / KEPT).mkdir(parents=True)

        assert compile_cache.fetch(store, "x", place) == 4

        assert found_in(place.root) == FILES
        assert {each.name for each in place.root.iterdir()} == {KEPT, "modelinfos"}, "nothing else is left"

    def test_what_the_engine_has_stays(self, tmp_path: Path) -> None:
        store, place = MemoryStore(), Place(tmp_path / "root", "k")
        obstore.put(store, "x", archive_of(made(tmp_path / "from")))
        made(place.root, {f"{KEPT}/own": b"1"})

        assert compile_cache.fetch(store, "x", place) is None
        assert found_in(place.root) == {f"{KEPT}/own": b"1"}

    @pytest.mark.parametrize(
        "body", [b"nothing of the kind", a_tar(a_member(f"{KEPT}/good", size=1), a_member("../bad", size=1))]
    )
    def test_of_a_broken_one_nothing_is_left(self, tmp_path: Path, body: bytes) -> None:
        store, place = MemoryStore(), Place(tmp_path / "root", "k")
        obstore.put(store, "x", body)

        with pytest.raises(BrokenArchive):
            compile_cache.fetch(store, "x", place)
        assert list(place.root.iterdir()) == []

    def test_one_that_is_too_large_is_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = MemoryStore()
        obstore.put(store, "x", b"x" * 5000)
        monkeypatch.setattr(compile_cache, "ARCHIVE_BYTES_MOST", 1000)

        with pytest.raises(BrokenArchive, match="5,000 bytes"):
            compile_cache.fetch(store, "x", Place(tmp_path / "root", "k"))

    @pytest.mark.parametrize("broken", ["no variables", "no run", "no store", "broken archive"])
    def test_whatever_is_wrong_the_program_says_so_and_fails_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
    ) -> None:
        place, bucket = Place(tmp_path / "root", "k"), tmp_path / "bucket"
        monkeypatch.setenv("NIGHTSHIFT_RUN_URL", f"file://{bucket}/{RUN.prefix}")
        if broken != "no variables":
            monkeypatch.setenv("VLLM_CACHE_ROOT", str(place.root))
            monkeypatch.setenv("ENGINE_CACHE_KEY", place.key)
        if broken == "no run":
            monkeypatch.setenv("NIGHTSHIFT_RUN_URL", "file:///elsewhere")
        if broken == "no store":
            bucket.write_text("a file")
        if broken == "broken archive":
            made(bucket, {place.path(RUN.job): b"x" * 100})

        with caplog.at_level(logging.INFO):
            compile_cache.main()
        assert ["the engine compiles" in each.message for each in caplog.records] == [True]


class TestKept:
    """What a driver does while its engine works."""

    def kept(
        self,
        store: ObjectStore,
        place: Place | None,
        *,
        answered: Callable[[], bool] = lambda: True,
        drained: bool = False,
        seconds: float = 2.0,
    ) -> None:
        async def work() -> None:
            asked = asyncio.Event()
            if drained:
                asked.set()
            async with compile_cache.kept(store, "job", place, answered=answered, drained=asked):
                others = asyncio.all_tasks() - {asyncio.current_task()}
                await asyncio.wait(others, timeout=seconds) if others else None

        asyncio.run(work())

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        place = Place(tmp_path / "root", "k")
        made(place.root)
        return place

    def test_it_is_stored_once_the_engine_has_answered(
        self, tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compile_cache, "LOOK_S", 0.01)
        store = LocalStore(str(tmp_path / "bucket"), mkdir=True)
        self.kept(store, place, answered=lambda: False, seconds=0.3)
        assert found_in(tmp_path / "bucket") == {}

        looks = iter([False, False, True])
        self.kept(store, place, answered=lambda: next(looks), seconds=0.3)

        body = obstore.get(store, place.path("job")).bytes().to_bytes()
        unpack(io.BytesIO(body), tmp_path / "to")
        assert found_in(tmp_path / "to") == FILES

    def test_the_first_one_stays(self, tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        store = MemoryStore()
        obstore.put(store, place.path("job"), b"first")
        self.kept(store, place, seconds=0.2)
        assert obstore.get(store, place.path("job")).bytes().to_bytes() == b"first"

        async def not_yet(*_: Any) -> bool:
            return False

        monkeypatch.setattr(compile_cache, "_is_there", not_yet)
        self.kept(store, place, seconds=0.2)
        assert obstore.get(store, place.path("job")).bytes().to_bytes() == b"first"

    def test_after_a_drain_it_is_not_stored(self, place: Place) -> None:
        store = MemoryStore()

        self.kept(store, place, drained=True, seconds=0.2)

        assert [meta for page in obstore.list(store) for meta in page] == []

    @pytest.mark.parametrize("wrong", ["no folder", "no store", "no place"])
    def test_nothing_fails_the_worker(self, tmp_path: Path, place: Place, wrong: str) -> None:
        store: ObjectStore = MemoryStore()
        if wrong == "no store":
            (tmp_path / "bucket").mkdir()
            store = LocalStore(str(tmp_path / "bucket"))
            (tmp_path / "bucket").rmdir()
            (tmp_path / "bucket").write_text("a file")

        self.kept(store, {"no folder": Place(tmp_path / "other", "k"), "no place": None}.get(wrong, place), seconds=0.2)
