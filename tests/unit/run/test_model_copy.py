"""Copying a model of the Hub into a bucket, and the Job that does it."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any
from urllib.request import Request

import obstore
import pytest
import yaml
from obstore.store import MemoryStore

from nightshift.cli import main
from nightshift.jobset.manifest.model_copy import ACCOUNT, render_copy
from nightshift.run.models import model_copy
from nightshift.run.models.hub_revision import HubFile, HubUnavailable
from nightshift.run.models.model_copy import DIGEST, OtherFile, copy, wanted
from nightshift.settings import Settings
from tests.builders import a_spec

pytestmark = pytest.mark.unit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONTENT = {"config.json": b"{}", "model.safetensors": b"w" * 1000, "tokenizer.json": b"[]"}


def files(content: dict[str, bytes] = CONTENT) -> tuple[HubFile, ...]:
    return tuple(HubFile(name, len(body), hashlib.sha256(body).hexdigest()) for name, body in content.items())


class Hub:
    """Serves `CONTENT`. wrong: bodies that come instead, one by one, for each file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, list[bytes]] | None = None) -> None:
        self.fetched: list[str] = []
        self.waited: list[float] = []
        self.wrong = wrong or {}
        self.store = MemoryStore()
        self.told: list[tuple[str, bool]] = []
        monkeypatch.setattr(model_copy, "files_at", lambda *_: files())

    def fetch(self, request: Request) -> io.BytesIO:
        name = request.full_url.rpartition(f"/org/m/resolve/{COMMIT}/")[2]
        self.fetched.append(name)
        instead = self.wrong.get(name)
        return io.BytesIO(instead.pop(0) if instead else CONTENT[name])

    def copy(self) -> int:
        told = lambda file, copied: self.told.append((file.name, copied))  # noqa: E731
        return copy("org/m", COMMIT, self.store, {}, told, fetch=self.fetch, pause=self.waited.append)

    @property
    def there(self) -> list[str]:
        return [meta["path"] for page in obstore.list(self.store) for meta in page]


def test_each_file_is_copied_once_and_the_configuration_last(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)

    assert hub.copy() == hub.copy() == sum(map(len, CONTENT.values()))
    assert hub.fetched == ["model.safetensors", "tokenizer.json", "config.json"]
    assert [copied for _, copied in hub.told] == [True] * 3 + [False] * 3
    assert bytes(obstore.get(hub.store, "model.safetensors").bytes()) == CONTENT["model.safetensors"]


@pytest.mark.parametrize("wrong", [b"w" * 999, b"w" * 1001, b"v" * 1000], ids=["short", "long", "other"])
def test_what_is_not_whole_is_not_there(monkeypatch: pytest.MonkeyPatch, wrong: bytes) -> None:
    hub = Hub(monkeypatch, {"model.safetensors": [wrong] * 5})

    with pytest.raises(HubUnavailable, match=r"model\.safetensors: .* came with another content"):
        hub.copy()
    assert (hub.there, hub.fetched, hub.waited) == ([], ["model.safetensors"] * 5, [1.0, 2.0, 4.0, 8.0])
    hub.wrong = {"model.safetensors": [wrong]}
    hub.copy()
    assert sorted(hub.there) == sorted(CONTENT)


def test_a_copy_that_was_cut_off_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch, {"tokenizer.json": [b""] * 5})
    with pytest.raises(HubUnavailable):
        hub.copy()
    assert hub.there == ["model.safetensors"]
    hub.fetched.clear()

    hub.copy()
    assert hub.fetched == ["tokenizer.json", "config.json"]


def test_nothing_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    obstore.put(hub.store, "config.json", b"{} ")

    with pytest.raises(OtherFile, match=r"config\.json has 3 bytes there, and 2 at org/m 0123456789ab"):
        hub.copy()
    assert hub.fetched == []


@pytest.mark.parametrize("name", list(CONTENT))
def test_what_is_there_is_believed_by_its_digest_and_never_by_its_size(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An object of the same size without a digest is read; one with another digest is not even that."""
    for attributes in ({}, {DIGEST: "sha256:" + "0" * 64}):
        hub = Hub(monkeypatch)
        obstore.put(hub.store, name, b"x" * len(CONTENT[name]), attributes=attributes, use_multipart=False)

        with pytest.raises(OtherFile, match=rf"{name} has another content there .* Nothing is written over: delete it"):
            hub.copy()
        assert (hub.fetched, hub.there) == ([], [name])


def test_what_an_earlier_release_copied_is_read_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    obstore.put(hub.store, "model.safetensors", CONTENT["model.safetensors"])

    hub.copy()
    assert hub.fetched == ["tokenizer.json", "config.json"]
    assert obstore.get(hub.store, "config.json").attributes[DIGEST] == f"sha256:{hashlib.sha256(b'{}').hexdigest()}"


def test_the_digest_of_a_copy_spares_reading_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    hub.copy()
    monkeypatch.setattr(model_copy, "_digest", lambda *_: pytest.fail("it was read"))

    hub.copy()
    assert len(hub.fetched) == 3


def test_a_small_file_is_known_by_its_name_in_git_or_by_the_hubs_own_content(monkeypatch: pytest.MonkeyPatch) -> None:
    git = hashlib.sha1(b"blob 2\0{}").hexdigest()
    for named in (git, None):
        hub = Hub(monkeypatch)
        large = [each for each in files() if each.name != "config.json"]
        listed = (*large, HubFile("config.json", 2, None, named))
        monkeypatch.setattr(model_copy, "files_at", lambda *_, listed=listed: listed)
        hub.copy()
        assert obstore.get(hub.store, "config.json").attributes.get(DIGEST) == (f"git:{git}" if named else None)
        hub.copy()

        obstore.put(hub.store, "config.json", b"[]")
        with pytest.raises(OtherFile, match=r"config\.json has another content there"):
            hub.copy()
        assert hub.fetched.count("config.json") == (1 if named else 3), "without a name the Hub's own is read to compare"


@pytest.mark.parametrize("complete", [False, True])
def test_a_name_that_the_commit_lacks_is_refused_before_anything_is_copied(
    monkeypatch: pytest.MonkeyPatch, complete: bool
) -> None:
    hub = Hub(monkeypatch)
    if complete:
        hub.copy()
        hub.fetched.clear()
    obstore.put(hub.store, "modeling_evil.py", b"import os")

    said = r"1 object in the folder, but not at org/m 0123456789ab: modeling_evil.py\. An engine may load .* delete them"
    with pytest.raises(OtherFile, match=said):
        hub.copy()
    assert hub.fetched == []


def test_a_name_that_appears_while_the_copy_runs_keeps_the_configuration_away(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(monkeypatch)
    fetch = hub.fetch

    def planting(request: Request) -> io.BytesIO:
        obstore.put(hub.store, "modeling_evil.py", b"import os")
        return fetch(request)

    monkeypatch.setattr(hub, "fetch", planting)
    with pytest.raises(OtherFile, match=r"modeling_evil\.py"):
        hub.copy()
    assert "config.json" not in hub.there


@pytest.mark.parametrize(
    ("names", "copied"),
    [
        (
            ["model.safetensors", "pytorch_model.bin", "original/model.safetensors", ".gitattributes", "config.json", "x.gguf"],
            ["model.safetensors", "config.json"],
        ),
        (["pytorch_model.bin", "config.json", "README.md"], ["README.md", "pytorch_model.bin", "config.json"]),
    ],
)
def test_which_files(names: list[str], copied: list[str]) -> None:
    assert [each.name for each in wanted([HubFile(name, 1, None) for name in names])] == copied


def documents(*arguments: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["render", *arguments]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def job_file(folder: Path, **model: str) -> str:
    path = folder / "job.yaml"
    spec = a_spec(model={"name": "m", "uri": "hf://org/m", "revision": COMMIT, **model}).model_dump(mode="json")
    path.write_text(yaml.safe_dump(spec))
    return str(path)


def test_the_job_copies_the_jobs_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    account, job = documents(job_file(tmp_path), "--copy-model", "gs://models/shared/", capsys=capsys)
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]

    assert account["metadata"]["name"] == pod["serviceAccountName"] == ACCOUNT
    folder = f"gs://models/shared/org/m/{COMMIT}"
    assert container["command"] == ["python3", "-m", "nightshift.driver.copy_model", "org/m", COMMIT, folder]
    assert container["env"][0]["valueFrom"]["secretKeyRef"]["optional"] is True
    rendered = render_copy("org/m", COMMIT, "gs://models/shared", Settings("b", "p"))
    assert rendered == [account, job], "the same copy has the same name"


@pytest.mark.parametrize(
    ("model", "root", "said"),
    [
        ({"revision": "main"}, "gs://models", "model.revision: 'main' can move, and a copy is of one commit. Write the commit"),
        ({"uri": "gs://bucket/m"}, "gs://models", "this one is at gs://bucket/m. Leave it out."),
        ({}, "models", "--copy-model: 'models' is not a place in a bucket. Write gs://BUCKET"),
        ({}, "gs://Models", "is not a place in a bucket"),
    ],
)
def test_what_cannot_be_copied_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: dict[str, str], root: str, said: str
) -> None:
    assert main(["render", job_file(tmp_path, **model), "--copy-model", root]) == 2
    assert said in capsys.readouterr().err
