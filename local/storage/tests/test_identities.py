"""Identities: what a token may do, by roles and conditions as Cloud Storage has them, and how a refusal reads."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
import requests
from google.api_core import exceptions
from google.cloud.storage import Bucket, Client  # type: ignore[import-untyped]
from google.resumable_media import InvalidResponse
from obstore.exceptions import GenericError, PermissionDeniedError

from local.storage.tests.stores import open_bucket
from nightshift.store import ObjectStorage, open_store
from tests.integration.emulators import AIRFLOW, PYTHON, ROOT, WORKER, StorageEmulator, below, grant, start_storage

pytestmark = [pytest.mark.integration, pytest.mark.gate]

TOKEN = "worker-token"
REFUSALS = (exceptions.Forbidden, InvalidResponse, PermissionDeniedError, GenericError)
"""Google's client has one of its own for resumable uploads, obstore for multipart ones."""
BIG = b"x" * (6 << 20)


@pytest.fixture
def guarded(bucket: Bucket) -> Bucket:
    """As k8s/README.md grants it: the worker reads all and creates below ``_workers/`` only. Holds two objects."""
    grant(
        bucket,
        ("storage.objectUser", AIRFLOW, None),
        ("storage.legacyBucketReader", AIRFLOW, None),
        ("storage.objectViewer", WORKER, None),
        ("storage.objectCreator", WORKER, below(bucket.name, "_workers/")),
    )
    bucket.blob("job/spec.json").upload_from_string(b"spec")
    bucket.blob("_workers/there").upload_from_string(b"first")
    return bucket


@pytest.fixture
def worker(storage_emulator: StorageEmulator, guarded: Bucket) -> Bucket:
    return storage_emulator.client(TOKEN).bucket(guarded.name)


def media(bucket: Bucket, name: str) -> None:
    path = f"{bucket.client._connection.API_BASE_URL}/upload/storage/v1/b/{bucket.name}/o?uploadType=media&name={name}"
    reply = requests.post(path, data=b"x", headers={"Authorization": f"Bearer {TOKEN}"})
    if reply.status_code != 200:
        raise exceptions.from_http_response(reply)  # type: ignore[no-untyped-call]


def resumable(bucket: Bucket, name: str) -> None:
    blob = bucket.blob(name, chunk_size=256 << 10)
    with blob.open("wb") as file:
        file.write(b"x" * (512 << 10))


def xml(what: Callable[..., Any]) -> Callable[[Bucket, str], None]:
    def call(bucket: Bucket, name: str) -> None:
        what(open_bucket(bucket.client._connection.API_BASE_URL, bucket.name, TOKEN), name)

    return call


CREATIONS: dict[str, Callable[[Bucket, str], Any]] = {
    "media": media,
    "multipart": lambda bucket, name: bucket.blob(name).upload_from_string(b"x"),
    "create only": lambda bucket, name: bucket.blob(name).upload_from_string(b"x", if_generation_match=0),
    "resumable": resumable,
    "xml": xml(lambda store, name: obstore.put(store, name, b"x")),
    "xml create only": xml(lambda store, name: obstore.put(store, name, b"x", mode="create")),
    "xml multipart": xml(lambda store, name: obstore.put(store, name, BIG, use_multipart=True, chunk_size=5 << 20)),
}
CHANGES: dict[str, Callable[[Bucket], Any]] = {
    "delete": lambda bucket: bucket.blob("_workers/there").delete(),
    "xml delete": lambda bucket: xml(obstore.delete)(bucket, "_workers/there"),
    "metadata": lambda bucket: _labelled(bucket.blob("_workers/there")),
    "compose": lambda bucket: bucket.blob("job/new").compose([bucket.blob("_workers/there")]),
    "copy": lambda bucket: bucket.copy_blob(bucket.blob("_workers/there"), bucket, "job/new"),
    "rewrite": lambda bucket: bucket.blob("job/new").rewrite(bucket.blob("_workers/there")),
    "rewrite over": lambda bucket: bucket.blob("_workers/there").rewrite(bucket.blob("job/spec.json")),
    "xml copy": lambda bucket: xml(lambda store, name: obstore.copy(store, name, "job/new"))(bucket, "_workers/there"),
    "bucket": lambda bucket: bucket.reload(),
    "settings of the bucket": lambda bucket: _unlocked(bucket),
    "policy": lambda bucket: bucket.get_iam_policy(requested_policy_version=3),
    "a new policy": lambda bucket: _own_policy(bucket),
    "no bucket": lambda bucket: bucket.delete(),
    "another bucket": lambda bucket: bucket.client.create_bucket(f"{bucket.name}-2"),
    "buckets": lambda bucket: list(bucket.client.list_buckets()),
}


def _labelled(blob: Any) -> None:
    blob.metadata = {"a": "b"}
    blob.patch()


def _unlocked(bucket: Bucket) -> None:
    bucket.labels = {"a": "b"}
    bucket.patch()


def _own_policy(bucket: Bucket) -> None:
    body = {"version": 3, "bindings": [{"role": "roles/storage.admin", "members": [WORKER]}]}
    bucket.client._put_resource(f"{bucket.path}/iam", body)


@pytest.mark.parametrize("way", CREATIONS)
def test_a_condition_lets_create_below_its_prefix(worker: Bucket, way: str) -> None:
    CREATIONS[way](worker, "_workers/new")

    assert worker.blob("_workers/new").download_as_bytes()[:1] == b"x"


@pytest.mark.parametrize("name", ["job/new", "job/spec.json", "_workersnew", "_worker", "new/_workers/new"])
@pytest.mark.parametrize("way", CREATIONS)
def test_it_lets_create_nowhere_else(worker: Bucket, guarded: Bucket, way: str, name: str) -> None:
    before = sorted(blob.name for blob in guarded.list_blobs())

    with pytest.raises(REFUSALS, match="403"):
        CREATIONS[way](worker, name)

    assert sorted(blob.name for blob in guarded.list_blobs()) == before
    assert guarded.blob("job/spec.json").download_as_bytes() == b"spec"


@pytest.mark.parametrize("way", CREATIONS)
def test_to_replace_an_object_needs_the_right_to_delete_it(worker: Bucket, way: str) -> None:
    """The right is asked before the precondition: 403, not 412."""
    with pytest.raises(REFUSALS, match="403"):
        CREATIONS[way](worker, "_workers/there")

    assert worker.blob("_workers/there").download_as_bytes() == b"first"


@pytest.mark.parametrize("way", CHANGES)
def test_what_a_worker_may_not_do_at_all(worker: Bucket, guarded: Bucket, way: str) -> None:
    with pytest.raises((exceptions.Forbidden, PermissionDeniedError)):
        CHANGES[way](worker)

    assert sorted(blob.name for blob in guarded.list_blobs()) == ["_workers/there", "job/spec.json"]


def test_the_drivers_own_client_learns_that_it_lost(worker: Bucket, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url.rpartition("/")[0])
    monkeypatch.setenv("STORAGE_EMULATOR_TOKEN", TOKEN)
    store = open_store(f"gs://{worker.name}")

    async def both() -> list[bool]:
        objects = ObjectStorage(store)
        return [await objects.create("_workers/there", b"second"), await objects.create("_workers/new", b"second")]

    assert asyncio.run(both()) == [False, True]
    with pytest.raises(PermissionDeniedError):
        obstore.put(store, "job/new", b"x", mode="create")


def test_what_airflow_may(storage_emulator: StorageEmulator, guarded: Bucket) -> None:
    bucket = storage_emulator.client("airflow-token").bucket(guarded.name)

    bucket.reload()
    bucket.blob("job/spec.json").upload_from_string(b"again")
    _labelled(bucket.blob("job/spec.json"))
    bucket.blob("_workers/there").delete()
    assert [blob.name for blob in bucket.list_blobs()] == ["job/spec.json"]
    with pytest.raises(exceptions.Forbidden):
        bucket.get_iam_policy()


def test_a_list_is_asked_of_the_bucket_and_not_of_names(storage_emulator: StorageEmulator, bucket: Bucket) -> None:
    """A condition on names of objects gives reading and no list; one that names the bucket too gives both."""
    bucket.blob("job/a").upload_from_string(b"a")
    reader = storage_emulator.client(TOKEN).bucket(bucket.name)
    of_names = below(bucket.name, "job/")

    grant(bucket, ("storage.objectViewer", WORKER, of_names))
    assert reader.blob("job/a").download_as_bytes() == b"a"
    with pytest.raises(exceptions.Forbidden, match=r"storage\.objects\.list access to the Google Cloud Storage bucket"):
        list(reader.list_blobs(prefix="job/"))
    # It may not learn what there is.
    with pytest.raises(exceptions.Forbidden, match="or it may not exist"):
        reader.blob("job/missing").download_as_bytes()

    grant(bucket, ("storage.objectViewer", WORKER, f'{of_names} || resource.name == "projects/_/buckets/{bucket.name}"'))
    assert [blob.name for blob in reader.list_blobs()] == ["job/a"]
    with pytest.raises(exceptions.NotFound):
        reader.blob("job/missing").download_as_bytes()
    with pytest.raises(exceptions.Forbidden):
        reader.blob("other/missing").download_as_bytes()


def test_permissions_on_the_bucket_itself(worker: Bucket, guarded: Bucket, storage_emulator: StorageEmulator) -> None:
    """A role under a condition on names adds nothing there."""
    asked = ["storage.objects.create", "storage.objects.get", "storage.objects.list", "storage.buckets.get"]

    assert worker.test_iam_permissions(asked) == ["storage.objects.get", "storage.objects.list"]
    airflow = storage_emulator.client("airflow-token").bucket(guarded.name)
    assert airflow.test_iam_permissions(asked) == asked


def test_a_resumable_upload_goes_on_without_rights_but_replaces_nothing(worker: Bucket, guarded: Bucket, url: str) -> None:
    session = worker.blob("_workers/late").create_resumable_upload_session()
    guarded.blob("_workers/late").upload_from_string(b"first")

    reply = requests.put(session, data=b"second", headers={"Authorization": f"Bearer {TOKEN}"})

    assert (reply.status_code, "storage.objects.delete" in reply.text) == (403, True)
    assert guarded.blob("_workers/late").download_as_bytes() == b"first"


def test_how_a_refusal_reads(worker: Bucket, url: str) -> None:
    token = {"Authorization": f"Bearer {TOKEN}"}
    host, _, name = url.rpartition("/")
    message = (
        f"{WORKER.partition(':')[2]} does not have storage.objects.create access to the Google Cloud Storage object. "
        "Permission 'storage.objects.create' denied on resource (or it may not exist)."
    )

    as_json = requests.post(f"{host}/upload/storage/v1/b/{name}/o?uploadType=media&name=a", data=b"x", headers=token)
    assert (as_json.status_code, as_json.json()["error"]) == (
        403,
        {"code": 403, "message": message, "errors": [{"domain": "global", "reason": "forbidden", "message": message}]},
    )
    as_xml = requests.put(f"{url}/a", data=b"x", headers=token)
    assert as_xml.status_code == 403
    assert f"<Code>AccessDenied</Code><Message>Access denied.</Message><Details>{message}</Details>" in as_xml.text


@pytest.mark.parametrize("path", ["/storage/v1/b/{}/o", "/{}/a", "/storage/v1/b"])
def test_a_token_of_nobody_is_401(storage_emulator: StorageEmulator, bucket: Bucket, path: str) -> None:
    address = storage_emulator.url + path.format(bucket.name)

    assert requests.get(address, headers={"Authorization": "Bearer stolen"}).status_code == 401


def test_a_bucket_that_is_missing_is_404_for_all(storage_emulator: StorageEmulator) -> None:
    with pytest.raises(exceptions.NotFound):
        storage_emulator.client(TOKEN).bucket("no-such-bucket").blob("a").upload_from_string(b"a")


@pytest.mark.parametrize(
    ("binding", "wrong"),
    [
        ({"role": "roles/storage.unknown"}, "not supported"),
        ({"members": "allUsers"}, "list of principals"),
        ({"condition": {"title": "t", "expression": "request.time < timestamp('2030-01-01T00:00:00Z')"}}, "Not a condition"),
        ({"condition": {"title": "t", "expression": 'resource.name.startsWith("a") ||'}}, "Not a condition"),
        ({"condition": {"title": "t", "expression": "true"}}, "Not a condition"),
        ({"condition": {"expression": 'resource.name == "a"'}}, "needs a title"),
        ({"members": ["allUsers"], "condition": {"title": "t", "expression": 'resource.name == "a"'}}, "take no conditions"),
        (
            {"role": "roles/storage.legacyBucketReader", "condition": {"title": "t", "expression": 'resource.name == "a"'}},
            "take no conditions",
        ),
    ],
)
def test_a_policy_that_is_not_valid_is_refused(guarded: Bucket, binding: dict[str, Any], wrong: str) -> None:
    whole = {"role": "roles/storage.objectViewer", "members": [WORKER]} | binding
    with pytest.raises(exceptions.BadRequest, match=wrong):
        guarded.client._put_resource(f"{guarded.path}/iam", {"version": 3, "bindings": [whole]})

    assert len(guarded.get_iam_policy(requested_policy_version=3).bindings) == 4


def test_conditions_need_uniform_access_and_version_3(bucket: Bucket, guarded: Bucket, storage_client: Client) -> None:
    binding = {
        "role": "roles/storage.objectViewer",
        "members": [WORKER],
        "condition": {"title": "t", "expression": 'resource.name == "a" && !(resource.type != "b")'},
    }
    fine = storage_client.create_bucket(f"{bucket.name}-fine")
    with pytest.raises(exceptions.BadRequest, match="uniform bucket-level access"):
        storage_client._put_resource(f"{fine.path}/iam", {"version": 3, "bindings": [binding]})
    with pytest.raises(exceptions.BadRequest, match="version 3"):
        storage_client._put_resource(f"{guarded.path}/iam", {"version": 1, "bindings": [binding]})

    # A client that knows no conditions sees that there are some.
    roles = [each["role"] for each in guarded.get_iam_policy(requested_policy_version=1).bindings]
    assert len([role for role in roles if role.startswith("roles/storage.objectCreator_withcond_")]) == 1


def test_a_policy_survives_a_restart_and_not_its_bucket(tmp_path: Path) -> None:
    identities = {"": {"member": "user:o", "roles": ["roles/storage.admin"]}, TOKEN: {"member": WORKER}}
    emulator = start_storage(tmp_path, identities=identities)
    bucket = emulator.client().create_bucket("kept")
    grant(bucket, ("storage.objectViewer", WORKER, None))
    emulator.stop()
    emulator.start()

    assert list(emulator.client(TOKEN).bucket("kept").list_blobs()) == []
    bucket.delete()
    emulator.client().create_bucket("kept")
    with pytest.raises(exceptions.Forbidden):
        list(emulator.client(TOKEN).bucket("kept").list_blobs())
    emulator.stop()


def test_without_identities_every_token_may_do_everything(tmp_path: Path) -> None:
    emulator = start_storage(tmp_path)
    bucket = emulator.client("whatever").create_bucket("open")

    bucket.blob("a").upload_from_string(b"1")
    bucket.blob("a").upload_from_string(b"2")
    assert bucket.test_iam_permissions(["storage.objects.delete"]) == ["storage.objects.delete"]
    emulator.stop()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"t": {}}', '{"t": {"member": "user:a", "roles": ["roles/storage.unknown"]}}', None]
)
def test_a_file_of_identities_that_is_none_stops_the_start(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "identities.json"
    if content is not None:
        file.write_text(content)
    command = [str(PYTHON), "-m", "local.storage", "--data-dir", str(tmp_path / "data"), "--identities", str(file)]

    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (ended.returncode, str(file) in ended.stderr) == (1, True)
    assert "Traceback" not in ended.stderr
