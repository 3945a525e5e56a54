"""Versions of what is left behind: the one check, and that every object and every reader uses it (docs/operate/formats.md)."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import ObjectStore

from local.stack.parts import DRIVER_IMAGE, SERVER_IMAGE, STREAM_IMAGE
from nightshift import __version__, formats
from nightshift.formats import Format, UnreadableFormat
from nightshift.run import chunks
from nightshift.run.chunks import FORMAT_KEY, NotAChunk
from nightshift.run.manifest import load_manifest
from nightshift.run.names import RunRef, canonical_json
from nightshift.run.opening import load_run, open_run
from nightshift.run.plan import Plan, load_plan, save_plan
from nightshift.run.seal import ConservationError, seal
from nightshift.settings import Settings
from nightshift.store import create_or_read, open_store
from tests.builders import a_chunk, a_plan, a_spec, bound, with_rows

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
OUR_TAGS = re.compile(r"(?:nightshift|my-images)/(?:driver|stream|airflow|local|server-cpu):(\d+\.\d+\.\d+)")
THIRD = Format("things", 3)
FOURTH = Format("spec.json", 4)


@pytest.mark.parametrize("found", [{"version": 2}, {"version": 3}, {"version": 3, "written_by": "9.9.9", "novelty": 1}])
def test_this_version_and_the_one_before_are_read(found: dict[str, Any]) -> None:
    assert THIRD.check(found, "it") == found["version"]


def test_an_object_that_does_not_say_its_version_is_of_the_first() -> None:
    assert Format("things", 2).check({}, "it") == 1
    with pytest.raises(UnreadableFormat, match="has version 1 of its format"):
        THIRD.check({}, "it")


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"version": 4, "written_by": "0.9.0"}, r"reads versions 2 and 3\. Use nightshift 0\.9\.0 or later\."),
        ({"version": 4}, r"Use a later release\."),
        ({"version": 1, "written_by": "0.2.0"}, r"Finish it with nightshift 0\.2\.0, or start over with fresh\."),
        ({"version": 1}, r"Finish it with the release that wrote it, or start over with fresh\."),
        ({"version": "3"}, "has the version '3', which nightshift never wrote"),
        ({"version": True}, "never wrote"),
        ({"version": 0}, "never wrote"),
        ({"version": None}, "never wrote"),
    ],
)
def test_others_are_refused_with_the_release_to_use(found: dict[str, Any], message: str) -> None:
    with pytest.raises(UnreadableFormat, match=message) as caught:
        THIRD.check(found, "gs://b/it.json")

    assert str(caught.value).startswith("gs://b/it.json has ")


def test_the_page_has_the_versions() -> None:
    rows = re.findall(r"^\| ([^|`]+?) \| (\d+) \|", (ROOT / "docs/operate/formats.md").read_text(), re.MULTILINE)

    assert rows == [(each.name, str(each.version)) for each in formats.ALL]


class ARun:
    """An open run of eight rows, all of them committed."""

    def __init__(self) -> None:
        self.store: ObjectStore = open_store("memory:///")
        self.spec = a_spec()
        self.run: RunRef = open_run(self.store, self.spec, "2026-11-20", opened_by="a test")
        plan = with_rows(self.store, Plan(self.run.run_id, 8, 4, 1, a_plan(8).files), self.run)
        self.plan = save_plan(self.store, self.run, bound(self.store, self.run, plan))
        for chunk in range(2):
            create_or_read(self.store, self.run.work(self.plan.uid).chunk_path(chunk), a_chunk(self.run, self.plan, chunk))
        seal(self.store, self.run, self.spec, self.plan)

    def content(self, path: str) -> dict[str, Any]:
        return dict(json.loads(bytes(obstore.get(self.store, path).bytes())))

    def change(self, path: str, **entries: Any) -> None:
        obstore.put(self.store, path, canonical_json({**self.content(path), **entries}))


def test_every_object_says_its_version_and_its_release() -> None:
    run = ARun()

    for path in (run.run.spec_path, run.run.plan_path, run.run.manifest_path):
        said = run.content(path)
        assert (said["version"], said["written_by"]) == (2, __version__), path
    footer = pq.read_metadata(
        io.BytesIO(bytes(obstore.get(run.store, run.run.work(run.plan.uid).chunk_path(0)).bytes()))
    ).metadata
    assert json.loads(footer[FORMAT_KEY]) == {"version": 1, "written_by": __version__}


@pytest.mark.parametrize("read", [load_run, load_plan, load_manifest])
def test_a_reader_refuses_a_newer_object_and_passes_over_new_entries(read: Any) -> None:
    run = ARun()
    path = {load_run: run.run.spec_path, load_plan: run.run.plan_path, load_manifest: run.run.manifest_path}[read]
    before = read(run.store, run.run)

    run.change(path, novelty={"a": 1})
    after = read(run.store, run.run)
    run.change(path, version=9, written_by="7.0.0")

    assert type(after) is type(before)
    with pytest.raises(UnreadableFormat, match=r"Use nightshift 7\.0\.0 or later"):
        read(run.store, run.run)


def test_a_setting_that_this_release_does_not_know_is_never_passed_over() -> None:
    run = ARun()
    spec = run.content(run.run.spec_path)["spec"]
    run.change(run.run.spec_path, written_by="7.0.0", spec={**spec, "engine": {**spec["engine"], "novelty": 1}})

    with pytest.raises(UnreadableFormat, match=r"written by nightshift 7\.0\.0; .* settings of the job: engine\.novelty"):
        load_run(run.store, run.run)
    # It is in nobody's way: other jobs of the partition, and a fresh run.
    assert open_run(run.store, a_spec(model__revision="r2"), "2026-11-20", opened_by="x").digest != run.run.digest
    assert open_run(run.store, run.spec, "2026-11-20", opened_by="x", fresh=True).generation == 2


def test_an_older_object_than_the_one_before_leaves_fresh_as_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ARun()
    monkeypatch.setattr("nightshift.run.opening.SPEC", FOURTH)

    assert open_run(run.store, run.spec, "2026-11-20", opened_by="x") == run.run
    with pytest.raises(UnreadableFormat, match="or start over with fresh"):
        load_run(run.store, run.run)
    fresh = open_run(run.store, run.spec, "2026-11-20", opened_by="x", fresh=True)
    assert (fresh.generation, load_run(run.store, fresh)[1].stored["version"]) == (2, 4)


def test_a_newer_chunk_is_not_read_and_not_sealed() -> None:
    run = ARun()
    table, _ = chunks.decode(a_chunk(run.run, run.plan, 0))
    metadata = {**table.schema.metadata, FORMAT_KEY: json.dumps({"version": 9, "written_by": "7.0.0"}).encode()}
    metadata = {key: value for key, value in metadata.items() if not key.endswith(b".sha256")}
    body = chunks.to_parquet(table.schema.with_metadata(metadata), [pa.table(table).replace_schema_metadata(metadata)])

    with pytest.raises(NotAChunk, match=r"Use nightshift 7\.0\.0 or later"):
        chunks.decode(body)
    obstore.put(run.store, run.run.work(run.plan.uid).chunk_path(0), body)
    obstore.delete(run.store, run.run.manifest_path)
    with pytest.raises(ConservationError, match=r"chunk-00000000.*Use nightshift 7\.0\.0 or later"):
        seal(run.store, run.run, run.spec, run.plan)


def test_the_images_have_the_release_in_their_tags() -> None:
    """`settings` imports nothing, so it says it itself; so does the local stack."""
    images = (Settings.driver_image, Settings.stream_image, DRIVER_IMAGE, STREAM_IMAGE)

    assert {image.rpartition(":")[2] for image in images} == {__version__}


@pytest.mark.parametrize(
    "file",
    [
        "images/driver/Dockerfile",
        "images/airflow/Dockerfile",
        "images/server-cpu/Dockerfile",
        "local/Dockerfile",
        "local/runtime/config.py",
        "k8s/README.md",
        "docs/use/streams.md",
    ],
)
def test_what_users_copy_has_the_release(file: str) -> None:
    assert set(OUR_TAGS.findall((ROOT / file).read_text())) == {__version__}


def test_the_engines_image_is_the_same_everywhere() -> None:
    assert Settings.server_image == SERVER_IMAGE
    assert f"ARG BASE={SERVER_IMAGE}\n" in (ROOT / "images/server/Dockerfile").read_text()
