"""A paused run: the request in its folder, the JobSets that follow it, and what their follower makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from obstore.store import MemoryStore, ObjectStore

from nightshift.cli import main
from nightshift.formats import UnreadableFormat
from nightshift.jobset.fleet import pause
from nightshift.jobset.identity import spec_hash
from nightshift.jobset.kubernetes import follow
from nightshift.jobset.kubernetes.follow import Follower, WakeLimits
from nightshift.jobset.kubernetes.runtime import KubernetesRuntime
from nightshift.jobset.labels import PAUSED_ANNOTATION, QUEUE_LABEL
from nightshift.run import pauses
from nightshift.store import open_store
from tests.builders import RUN
from tests.folder_cluster import FolderRuntime
from tests.jobsets import BUCKET, a_manifest

pytestmark = pytest.mark.unit

URL = RUN.url(BUCKET)


class TestWishes:
    def test_nobody_has_paused_it(self) -> None:
        assert pauses.newest(MemoryStore(), RUN) is None

    def test_the_newest_counts(self) -> None:
        store = MemoryStore()
        for number in range(12):
            pauses.request_pause(store, RUN, paused=number % 2 == 0, by=f"person {number}")

        found = pauses.newest(store, RUN)

        assert found is not None
        assert (found.paused, found.by) == (False, "person 11")
        assert len([meta for page in obstore.list(store, RUN.pauses_folder) for meta in page]) == 12

    def test_one_of_a_later_release_is_refused(self) -> None:
        store = MemoryStore()
        obstore.put(store, RUN.pause_path(1), json.dumps({"version": 2, "written_by": "9.0.0"}).encode())

        with pytest.raises(UnreadableFormat, match=r"Use nightshift 9\.0\.0 or later"):
            pauses.newest(store, RUN)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"null",
            b"{}",
            b"\xff",
            b"[" * 100_000,
            b'{"paused": "false", "by": "ada", "at": "now"}',
            b'{"paused": 1, "by": "ada", "at": "now"}',
            b'{"paused": true}',
            b'{"version": "2", "paused": true, "by": "ada", "at": "now"}',
            b'{"version": 0, "paused": true, "by": "ada", "at": "now"}',
            b'{"version": true, "paused": true, "by": "ada", "at": "now"}',
            b" " * (1 << 17) + b'{"paused": true, "by": "ada", "at": "now"}',
        ],
    )
    def test_an_object_that_is_none_costs_only_itself(self, body: bytes, caplog: pytest.LogCaptureFixture) -> None:
        store = MemoryStore()
        pauses.request_pause(store, RUN, paused=True, by="ada")
        obstore.put(store, RUN.pause_path(2), body)

        found = pauses.newest(store, RUN)

        assert found is not None
        assert (found.paused, found.by) == (True, "ada")
        assert "pauses/00000002.json does not say whether the run is paused" in caplog.text

    @pytest.mark.parametrize("name", ["99999999", "100000000", "9" * 19, "000000000000000000012", "5", "9" * 400])
    def test_a_person_who_chose_a_number_can_be_overruled(self, name: str) -> None:
        store = MemoryStore()
        pauses.request_pause(store, RUN, paused=False, by="before")
        body = bytes(obstore.get(store, RUN.pause_path(1)).bytes()).replace(b"false", b"true").replace(b"before", b"slip")
        obstore.put(store, f"{RUN.pauses_folder}/{name}.json", body)
        slip = pauses.newest(store, RUN)
        assert slip is not None
        assert (slip.paused, slip.by) == (True, "slip")

        pauses.request_pause(store, RUN, paused=False, by="ada")

        found = pauses.newest(store, RUN)
        assert found is not None
        assert (found.paused, found.by) == (False, "ada")

    @pytest.mark.parametrize("name", ["x", "-1", "\u0663", "1.json", "00000009.json.bak", " 9"])
    def test_what_is_named_otherwise_is_no_request(self, name: str) -> None:
        store = MemoryStore()
        pauses.request_pause(store, RUN, paused=True, by="ada")
        obstore.put(store, f"{RUN.pauses_folder}/{name}.json", b"{}")

        pauses.request_pause(store, RUN, paused=False, by="eve")
        found = pauses.newest(store, RUN)
        assert found is not None
        assert found.by == "eve"

    def test_two_who_write_at_once_both_write(self, monkeypatch: pytest.MonkeyPatch) -> None:
        store = MemoryStore()
        pauses.request_pause(store, RUN, paused=True, by="ada")
        tried: list[str] = []

        def put(store: ObjectStore, path: str, *rest: Any, **options: Any) -> Any:
            assert path not in tried, "the same name again"
            tried.append(path)
            return obstore.put(store, path, *rest, **options)

        with monkeypatch.context() as patch:
            patch.setattr(pauses, "list_numbered", lambda *_: [])  # What a list says that was made before.
            patch.setattr("nightshift.store.obstore", SimpleNamespace(put=put, exceptions=obstore.exceptions))
            pauses.request_pause(store, RUN, paused=False, by="eve")

        found = pauses.newest(store, RUN)
        assert found is not None
        assert found.by == "eve"


class Api:
    """A cluster with one JobSet, and perhaps Kueue's Workload for it."""

    def __init__(self, *, queued: bool) -> None:
        labels = {QUEUE_LABEL: "q"} if queued else {}
        self.jobset: dict[str, Any] = {"metadata": {"name": "a", "uid": "u", "labels": labels, "annotations": {}}, "spec": {}}
        workload: dict[str, Any] = {"metadata": {"name": "w"}, "spec": {"active": True}}
        self.workload = workload if queued else None

    def patch_jobset(self, namespace: str, name: str, patch: dict[str, Any]) -> dict[str, Any]:
        for key, value in patch["metadata"].get("annotations", {}).items():
            self.jobset["metadata"]["annotations"] |= {key: value}
        found = self.jobset["metadata"]["annotations"]
        self.jobset["metadata"]["annotations"] = {key: value for key, value in found.items() if value is not None}
        self.jobset["spec"] |= patch.get("spec", {})
        return self.jobset

    def get_workload(self, namespace: str, uid: str) -> dict[str, Any] | None:
        return self.workload

    def patch_workload(self, namespace: str, name: str, patch: dict[str, Any]) -> None:
        assert self.workload is not None
        self.workload["spec"] |= patch["spec"]


class TestKubernetes:
    @pytest.mark.parametrize("queued", [True, False])
    def test_kueue_is_told_if_the_jobset_is_in_a_queue(self, queued: bool) -> None:
        """A JobSet that a queue owns and that is suspended directly would be admitted again."""
        api = Api(queued=queued)
        runtime = KubernetesRuntime(api, "n")  # type: ignore[arg-type]
        runtime.pause("a", "paused by ada")

        assert pause.is_paused(api.jobset)
        assert (api.workload and api.workload["spec"]["active"], api.jobset["spec"].get("suspend")) == (
            (False, None) if queued else (None, True)
        )
        runtime.resume("a")
        assert not pause.is_paused(api.jobset)
        assert (api.workload and api.workload["spec"]["active"], api.jobset["spec"].get("suspend")) == (
            (True, None) if queued else (None, False)
        )

    @pytest.mark.parametrize("queued", [True, False])
    def test_an_attempt_that_adopts_a_paused_jobset_leaves_it_paused(self, queued: bool) -> None:
        api = Api(queued=queued)
        runtime = KubernetesRuntime(api, "n")  # type: ignore[arg-type]
        runtime.pause("a", "paused by ada")
        before = json.dumps([api.workload, api.jobset["spec"]])

        runtime.claim("a", "u", "attempt")

        assert json.dumps([api.workload, api.jobset["spec"]]) == before


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, /, *args: Any) -> None:
        self.lines.append(event % args)

    warning = info


class Clock:
    """In place of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


class TestFollower:
    @pytest.fixture
    def log(self) -> Log:
        return Log()

    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(follow, "time", clock)
        return clock

    @pytest.fixture
    def follower(self, log: Log, clock: Clock) -> Follower:
        return Follower(lambda: None, "a", "u", WakeLimits(clock.now + 60, startup_s=0.0), log, None)  # type: ignore[arg-type, return-value]

    def seen(self, follower: Follower, said: str) -> None:
        annotations = {PAUSED_ANNOTATION: said} if said else {}
        meta = {"name": "a", "uid": "u", "annotations": annotations}
        assert follower._observe("MODIFIED", {"metadata": meta, "spec": {"replicatedJobs": [], "suspend": bool(said)}}) is None

    def test_a_pause_is_not_a_lack_of_capacity(self, follower: Follower, log: Log, clock: Clock) -> None:
        self.seen(follower, "")
        clock.now += 20
        assert follower.counts().short_s == 20
        self.seen(follower, "paused by ada")
        follower._count()
        assert follower.counts().short_s == 0
        clock.now += 20
        follower._count()
        assert follower.counts().short_s == 0
        self.seen(follower, "")
        clock.now += 20
        follower._count()

        assert follower.counts().short_s == 20
        assert "JobSet a: paused by ada; its pods drain" in log.lines
        assert "JobSet a: no longer paused" in log.lines

    def test_pods_that_a_pause_ends_are_not_disrupted(self, follower: Follower) -> None:
        pod = {"metadata": {"name": "p", "uid": "p"}, "spec": {"containers": []}, "status": {"phase": "Running"}}
        self.seen(follower, "paused by ada")
        follower._pod(None, "ADDED", pod)  # type: ignore[arg-type]
        follower._pod(None, "DELETED", pod)  # type: ignore[arg-type]

        assert follower.counts().disruptions == 0


def test_a_jobset_that_is_created_suspended_is_the_same_work() -> None:
    manifest = a_manifest("a")

    assert spec_hash({**manifest, "spec": {**manifest["spec"], "suspend": True}}) == spec_hash(manifest)


class TestCommand:
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        store = open_store(f"file://{tmp_path}/bucket")
        obstore.put(store, RUN.spec_path, b"{}")
        return f"file://{tmp_path}/bucket/{RUN.prefix}"

    def test_it_writes_who_and_says_what_it_did(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        reached = SimpleNamespace(runtime=FolderRuntime(tmp_path / "state"), api=SimpleNamespace())
        monkeypatch.setattr("nightshift.hooks.runtime.runtime_for", lambda _: reached)
        for name in ("BUCKET", "PROJECT"):
            monkeypatch.setenv(f"NIGHTSHIFT_{name}", "x")

        assert main(["pause", url, "--by", "ada"]) == 0

        out = capsys.readouterr().out
        assert f"{RUN.prefix} is paused by ada at " in out
        assert "The run has no JobSet now; infer creates its JobSets suspended" in out
        assert main(["status", url]) == 0
        assert "paused    by ada at " in capsys.readouterr().out
        assert main(["resume", url, "--by", "ada"]) == 0
        capsys.readouterr()
        assert main(["status", url]) == 0
        assert "paused" not in capsys.readouterr().out

    def test_a_request_that_cannot_be_applied_is_written_and_said(
        self, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for name in ("NIGHTSHIFT_RUNTIME", "NIGHTSHIFT_BUCKET", "NIGHTSHIFT_PROJECT"):
            monkeypatch.delenv(name, raising=False)

        assert main(["pause", url]) == 75

        assert "not applied to the run's JobSets: NIGHTSHIFT_BUCKET is not set" in capsys.readouterr().err

    @pytest.mark.parametrize("command", ["pause", "resume"])
    def test_a_run_that_is_not_there_or_is_done_is_refused(
        self, command: str, url: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([command, url.replace(RUN.run_id, "f" * 16)]) == 2
        assert "There is no run" in capsys.readouterr().err
        store = open_store(url.removesuffix(f"/{RUN.prefix}"))
        obstore.put(store, RUN.manifest_path, b"{}")
        assert main([command, url]) == 2
        assert "is sealed: nothing is left to compute" in capsys.readouterr().err
        assert pauses.newest(store, RUN) is None

    def test_a_run_that_was_never_paused_is_not_resumed(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["resume", url]) == 2

        assert capsys.readouterr().err == f"nightshift resume: {RUN.prefix} is not paused: there is nothing to resume.\n"
        assert pauses.newest(open_store(url.removesuffix(f"/{RUN.prefix}")), RUN) is None

    def test_a_second_resume_writes_nothing_and_is_applied(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """As after one that could not be applied."""
        reached = SimpleNamespace(runtime=FolderRuntime(tmp_path / "state"), api=SimpleNamespace())
        monkeypatch.setattr("nightshift.hooks.runtime.runtime_for", lambda _: reached)
        for name in ("BUCKET", "PROJECT"):
            monkeypatch.setenv(f"NIGHTSHIFT_{name}", "x")
        assert [main([command, url, "--by", "ada"]) for command in ("pause", "resume")] == [0, 0]
        capsys.readouterr()

        assert main(["resume", url, "--by", "grace"]) == 0

        out = capsys.readouterr().out
        assert f"{RUN.prefix} is resumed by ada at " in out
        assert "there is nothing to resume" in out
