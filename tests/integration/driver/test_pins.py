"""What a run pins when it is opened: the commit of a model on the Hub, and the files of a model in a bucket."""

from __future__ import annotations

import hashlib
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from local.hub_api import HubApi
from nightshift import exits
from nightshift.driver import copy_model
from nightshift.run import opening
from nightshift.run.models.hub_revision import PAUSES_S, HubModel, HubUnavailable, NoSuchRevision, model_at
from nightshift.run.models.model_copy import DIGEST
from nightshift.run.models.weights import NoWeights, WeightsChanged, check, look
from nightshift.run.pins import Pins, pin_model
from nightshift.run.plan import Plan, save_plan
from nightshift.store import StoreUnavailable, open_store
from tests.builders import a_spec, bound, write_input
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import DriverProcess, PreparedRun
from tests.integration.emulators import StorageEmulator

pytestmark = [pytest.mark.integration, pytest.mark.gate]

OLD, NEW = "a" * 40, "b" * 40
TOKEN = "hf_secret"


def move(cache: Path, repository: str, revision: str, commit: str) -> None:
    """What a push to a branch does. The model has 7 bytes of weights, and copies of them that no engine fetches."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    for name in ("model.safetensors", "pytorch_model.bin", "original/model.safetensors"):
        path = folder / "snapshots" / commit / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"weights")
    reference = folder / "refs" / revision
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(commit)


def never(seconds: float) -> None:
    raise AssertionError(f"nothing is tried again here, let alone after {seconds} s")


class TestHub:
    @pytest.fixture
    def cache(self, tmp_path: Path) -> Path:
        move(tmp_path, "org/m", "main", OLD)
        move(tmp_path, "org/m", "refs/pr/1", NEW)
        move(tmp_path, "org/secret", "main", OLD)
        return tmp_path

    @pytest.mark.parametrize(("revision", "commit"), [("main", OLD), ("refs/pr/1", NEW)])
    def test_a_branch_is_a_commit(self, cache: Path, revision: str, commit: str) -> None:
        with HubApi(cache) as hub:
            assert model_at("org/m", revision, {"HF_ENDPOINT": hub.url + "/"}, never) == HubModel(commit, 7)

    @pytest.mark.parametrize(
        ("repository", "revision", "token", "message"),
        [
            ("org/m", "v9", None, "model.revision: org/m has no branch, tag or commit 'v9'"),
            ("org/none", "main", None, r"does not show hf://org/none \(401 RepoNotFound\).*HF_TOKEN"),
            ("org/secret", "main", None, "does not show hf://org/secret.*HF_TOKEN"),
            ("org/m", "main", "hf_wrong", "does not show hf://org/m.*HF_TOKEN"),
        ],
    )
    def test_a_refusal_is_final_and_says_what_to_write(
        self, cache: Path, repository: str, revision: str, token: str | None, message: str
    ) -> None:
        with HubApi(cache, tokens={TOKEN: ("org/secret",)}, private=("org/secret",)) as hub:
            environment = {"HF_ENDPOINT": hub.url, **({"HF_TOKEN": token} if token else {})}
            with pytest.raises(NoSuchRevision, match=message):
                model_at(repository, revision, environment, never)
            assert len(hub.seen) == 1

    def test_a_private_model_needs_a_token(self, cache: Path) -> None:
        with HubApi(cache, tokens={TOKEN: ("org/secret",)}, private=("org/secret",)) as hub:
            assert model_at("org/secret", "main", {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}, never).commit == OLD

    def test_what_may_pass_is_tried_again_a_few_times(self, cache: Path) -> None:
        pauses: list[float] = []
        with HubApi(cache) as hub:
            hub.broken = [500, 429]
            assert model_at("org/m", "main", {"HF_ENDPOINT": hub.url}, pauses.append).commit == OLD
            assert pauses == list(PAUSES_S[:2])
            hub.broken = [503] * 99
            pauses.clear()
            with pytest.raises(HubUnavailable, match=r"answers 503.*HF_HUB_OFFLINE=1"):
                model_at("org/m", "main", {"HF_ENDPOINT": hub.url}, pauses.append)
            assert pauses == list(PAUSES_S)

    def test_without_safetensors_every_file_counts_and_without_files_nothing_is_known(self, cache: Path) -> None:
        snapshot = cache / "models--org--m" / "snapshots" / OLD
        with HubApi(cache) as hub:
            (snapshot / "model.safetensors").rename(snapshot / "model.gguf")
            assert model_at("org/m", "main", {"HF_ENDPOINT": hub.url}, never).size == 14
            shutil.rmtree(snapshot)
            assert model_at("org/m", "main", {"HF_ENDPOINT": hub.url}, never) == HubModel(OLD, None)

    def test_a_hub_that_is_not_there_or_is_not_one(self, cache: Path) -> None:
        with HubApi(cache) as hub:
            (cache / "models--org--m" / "refs" / "main").write_text("<html>Log in to the network</html>")
            with pytest.raises(HubUnavailable, match="the reply names no commit"):
                model_at("org/m", "main", {"HF_ENDPOINT": hub.url}, lambda _: None)
        with pytest.raises(HubUnavailable, match="Connection refused"):
            model_at("org/m", "main", {"HF_ENDPOINT": hub.url}, lambda _: None)

    def test_a_run_keeps_the_commit_with_which_it_was_opened(self, cache: Path, tmp_path: Path) -> None:
        store = open_store(f"file://{tmp_path}/bucket")
        spec = a_spec(model__revision="main")
        with HubApi(cache) as hub:

            def opened(**more: Any) -> Pins:
                pin = lambda: pin_model(spec, {"HF_ENDPOINT": hub.url})  # noqa: E731
                run = opening.open_run(store, spec, "2026-11-20", opened_by="night", pin=pin, **more)
                return opening.load_run(store, run)[1].pins

            assert opened() == Pins(commit=OLD, weights_bytes=7)
            move(cache, "org/m", "main", NEW)
            asked = len(hub.seen)
            assert opened() == Pins(commit=OLD, weights_bytes=7), "the open run goes on with what it began with"
            assert len(hub.seen) == asked, "an open run asks for nothing"
            assert opened(fresh=True) == Pins(commit=NEW, weights_bytes=7)
            asked = len(hub.seen)
            assert opened(fresh=True) == Pins(commit=NEW, weights_bytes=7), "a repeat of its opener"
            assert len(hub.seen) == asked


class TestWeights:
    @pytest.fixture
    def bucket(self, storage_emulator: StorageEmulator, storage_client: StorageClient, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
        bucket = storage_client.bucket(f"weights-{id(self)}")
        bucket.create()
        return bucket

    def test_each_write_of_a_file_is_another_model(self, bucket: Any) -> None:
        """Even of the same bytes: a generation is what a reader can be sure of."""
        uri = f"gs://{bucket.name}/org/m"
        for name in ("org/m/config.json", "org/m/original/weights.bin", "org/m2/other.bin"):
            bucket.blob(name).upload_from_string(b"x")
        first = look(uri).fingerprint

        bucket.blob("org/m2/other.bin").upload_from_string(b"y")
        check(uri, first)
        bucket.blob("org/m/original/weights.bin").upload_from_string(b"x")
        with pytest.raises(WeightsChanged, match=f"the files in {uri} were changed after this run was opened"):
            check(uri, first)

    @pytest.mark.parametrize("folder", ["org/m", "org/m#1", "org/m?v=1"])
    def test_any_folder_and_what_a_browser_makes_in_it(self, bucket: Any, folder: str) -> None:
        """The console of Cloud Storage makes an object with a slash at its end for each folder."""
        uri = f"gs://{bucket.name}/{folder}"
        for name in ("", "sub/", "sub/config.json", "tokenizer (1).json"):
            bucket.blob(f"{folder}/{name}").upload_from_string(b"" if name.endswith("/") or not name else b"x")
        bucket.blob("org/m0/other.bin").upload_from_string(b"x")
        first = look(uri).fingerprint

        check(uri, first)
        bucket.blob(f"{folder}/sub/config.json").upload_from_string(b"y")
        with pytest.raises(WeightsChanged):
            check(uri, first)

    def test_a_model_of_the_hub_is_copied_once_and_whole(
        self, bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """With `python3 -m nightshift.driver.copy_model`, as the Job of `nightshift render --copy-model` runs it."""
        move(tmp_path, "org/secret", "main", OLD)
        weights = tmp_path / "models--org--secret/snapshots" / OLD / "model.safetensors"
        weights.write_bytes(bytes(range(256)) * (80 << 10))  # 20 MiB: uploaded in parts
        (weights.parent / "config.json").write_text("{}")
        arguments = ["org/secret", OLD, uri := f"gs://{bucket.name}/org/secret/{OLD}"]
        monkeypatch.setattr("nightshift.run.models.model_copy.PAUSES_S", (0.0,))

        with HubApi(tmp_path, tokens={TOKEN: ("org/secret",)}, private=("org/secret",)) as hub:
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            assert copy_model.main(arguments) == exits.CONFIG, "without a token"
            monkeypatch.setenv("HF_TOKEN", TOKEN)
            hub.cut = [17 << 20, 17 << 20]
            assert copy_model.main(arguments) == exits.RESUME
            assert not list(bucket.list_blobs()), "what is not whole is not there, and config.json comes last"
            assert copy_model.main(arguments) == exits.DONE
            first = look(uri)
            assert copy_model.main(arguments) == exits.DONE
            assert look(uri) == first, "nothing is written again: open runs compare generations"
            fetched = [path for path in hub.seen if "/resolve/" in path]
            assert sorted(blob.name.removeprefix(f"org/secret/{OLD}/") for blob in bucket.list_blobs()) == [
                "config.json",
                "model.safetensors",
            ]
            assert len(fetched) == 4, "two that were cut, and one of each file"
            folder = f"org/secret/{OLD}/"
            assert bucket.blob(f"{folder}model.safetensors").download_as_bytes() == weights.read_bytes()
            digest = hashlib.sha256(weights.read_bytes()).hexdigest()
            assert bucket.get_blob(f"{folder}model.safetensors").metadata == {DIGEST: f"sha256:{digest}"}

            bucket.blob(folder).upload_from_string(b"")  # As the console of Cloud Storage makes a folder.
            assert copy_model.main(arguments) == exits.DONE
            bucket.blob(f"{folder}modeling_evil.py").upload_from_string(b"import os")
            assert copy_model.main(arguments) == exits.CONFIG
            bucket.blob(f"{folder}modeling_evil.py").delete()
            bucket.blob(f"{folder}model.safetensors").upload_from_string(bytes(20 << 20))
            assert copy_model.main(arguments) == exits.CONFIG, "of the same size"
        said = str([getattr(each, "fields", {}) for each in caplog.records])
        assert "1 object in the folder, but not at org/secret" in said
        assert "Nothing is written over" in said

    def test_a_folder_without_files_is_named(self, bucket: Any) -> None:
        uri = f"gs://{bucket.name}/org/none"
        bucket.blob("org/none/").upload_from_string(b"")
        with pytest.raises(NoWeights, match=f"there are no files in {uri}"):
            look(uri)

    @pytest.mark.parametrize(("overwritten", "code"), [(False, exits.DONE), (True, exits.CONFIG)])
    def test_a_pod_gives_no_row_to_weights_that_were_overwritten(
        self, bucket: Any, tmp_path: Path, overwritten: bool, code: int
    ) -> None:
        uri = f"gs://{bucket.name}/org/m"
        bucket.blob("org/m/weights.bin").upload_from_string(b"old")
        spec = a_spec(model__uri=uri)
        prepared = self._prepared(tmp_path, spec)
        if overwritten:
            bucket.blob("org/m/weights.bin").upload_from_string(b"new")

        with CannedEngine() as engine:
            engine.model = {"id": "m", "root": uri}
            driver = DriverProcess(prepared, engine.url)
            assert driver.finish() == code

        assert bool(engine.seen) != overwritten
        assert any("were changed after this run was opened" in entry.get("error", "") for entry in driver.log) == overwritten

    @staticmethod
    def _prepared(folder: Path, spec: Any) -> PreparedRun:
        url = f"file://{folder}/bucket"
        store = open_store(url)
        run = opening.open_run(store, spec, "2026-11-20", opened_by="test", pin=lambda: pin_model(spec, {}))
        files = write_input(store, run, ["a", "b"], per_file=2, per_group=2)
        return PreparedRun(url, run, spec, save_plan(store, run, bound(store, run, Plan(run.run_id, 2, 2, 1, files))))


def test_a_bucket_that_does_not_answer_may_be_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nightshift.store.RETRY_TIMEOUT", timedelta(seconds=0.1))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable, match=r"list gs://b/m: "):
        look("gs://b/m")
