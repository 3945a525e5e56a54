"""The bucket of all runs: whether it is there, what the connection's account may do in it, and whether the first writer wins.

Metadata and permissions are asked with ``buckets.get`` and ``buckets.testIamPermissions`` of the JSON API. Runs are read and
written with another client (`nightshift.store`), whose credentials are the process's own and not the connection's. What those
may do only a write shows: one object below `PREFIX`, created, read, listed and deleted.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

from nightshift.doctor import fixes
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.hooks.services import Reply
from nightshift.store import Refusal, refusal_of

if TYPE_CHECKING:
    from obstore.store import ObjectStore

NAME: Final = "bucket"
PERMISSIONS: Final = "bucket permissions"
STORE: Final = "store"
PREFIX: Final = "doctor"
NEEDED: Final = {
    # Permission: (role that has it, what it is for). The roles are those of k8s/README.md.
    "storage.buckets.get": ("storage.legacyBucketReader", "load jobs, which look at the bucket itself"),
    "storage.objects.create": ("storage.objectUser", "plan, extract and seal, which write a run's files"),
    "storage.objects.get": ("storage.objectUser", "every task, each of which reads its run"),
    "storage.objects.list": ("storage.objectUser", "infer and seal, which list the ledger"),
    "storage.objects.delete": ("storage.objectUser", "an extract that is repeated, which replaces its files"),
}


def there(here: Surroundings) -> Iterator[Finding]:
    bucket = here.settings.bucket
    reply = metadata(here)
    if reply.status == 200:
        yield Ok(NAME, f"gs://{bucket} in {json.loads(reply.body)['location']}")
        return
    breaks = "every task: a run lives in this bucket"
    if reply.status == 404:
        create = (
            f"gcloud storage buckets create gs://{bucket} --location={here.settings.location} --uniform-bucket-level-access "
            "--soft-delete-duration=0"
        )
        yield Failed(NAME, f"gs://{bucket} (NIGHTSHIFT_BUCKET) does not exist", breaks, create)
    elif reply.status in (401, 403):
        fix = fixes.bucket_role(here.settings.bucket, "storage.legacyBucketReader", here.connections.google().email)
        yield Failed(NAME, f"the account may not read gs://{bucket} itself (HTTP {reply.status})", breaks, fix)
    else:
        yield Failed(NAME, f"Cloud Storage answers HTTP {reply.status} for gs://{bucket}", breaks, "nightshift doctor")


def metadata(here: Surroundings) -> Reply:
    """The reply of ``buckets.get``."""
    return here.connections.google().ask("GET", f"{_address(here)}?fields=location,customPlacementConfig")


def permissions(here: Surroundings) -> Iterator[Finding]:
    """A finding for each permission."""
    google = here.connections.google()
    query = urlencode([("permissions", each) for each in NEEDED])
    reply = google.ask("GET", f"{_address(here)}/iam/testPermissions?{query}")
    if reply.status != 200:
        because = f"Cloud Storage answers HTTP {reply.status} to the question for permissions"
        yield from (Skipped(each, because, needs=PERMISSIONS) for each in NEEDED)
        return
    held = json.loads(reply.body).get("permissions", ())
    for permission, (_, purpose) in NEEDED.items():
        if permission in held:
            yield Ok(permission, f"on gs://{here.settings.bucket}")
        else:
            refusal = Refusal(403, permission, google.email or "", here.settings.bucket)
            yield Failed(permission, str(refusal), purpose, fix_of(refusal))


def fix_of(refusal: Refusal) -> str:
    """The command that gives Airflow's account what it lacks. For tasks, too, which say a refusal as the doctor does."""
    role = NEEDED[refusal.permission][0] if refusal.permission in NEEDED else "storage.objectUser"
    return fixes.bucket_role(refusal.bucket, role, refusal.account or None)


def first_writer_wins(here: Surroundings) -> Iterator[Finding]:
    """With the client of the tasks and drivers themselves."""
    import obstore

    from nightshift.store import open_store

    bucket = here.settings.bucket
    path = f"{PREFIX}/{uuid.uuid4().hex}"
    store = open_store(f"gs://{bucket}", credentials=here.connections.storage_credentials())
    breaks = "plan, extract, seal and publish"
    fix = fixes.bucket_role(here.settings.bucket, "storage.objectUser", here.connections.google().email)
    try:
        wrong = _tried(store, path)
    except (obstore.exceptions.BaseError, OSError) as error:
        words = refusal_of(error) or str(error).partition("\n")[0]
        # A create whose reply was lost may have happened.
        cleared = _deleted(store, path)
        rest = "" if cleared else f"; gs://{bucket}/{path} may be left behind"
        clean = "" if cleared else f" && gcloud storage rm gs://{bucket}/{path}"
        yield Failed(STORE, f"nightshift's own client is refused: {words}{rest}", breaks, f"{fix}{clean}")
        return
    if wrong:
        yield Failed(STORE, wrong, "the ledger: rows could be answered twice", "gcloud storage buckets describe gs://" + bucket)
    else:
        yield Ok(STORE, f"gs://{bucket}/{PREFIX}/: created once, a second create refused, read, listed, deleted")


def _tried(store: ObjectStore, path: str) -> str:
    """What is wrong; '' if nothing is. The object is deleted again."""
    import obstore

    wrong = ""
    obstore.put(store, path, b"1", mode="create")
    try:
        obstore.put(store, path, b"2", mode="create")
        wrong = "a second create of the same object is not refused"
    except obstore.exceptions.AlreadyExistsError:
        if bytes(obstore.get(store, path).bytes()) != b"1":
            wrong = "an object that was created reads back differently"
        if path not in [meta["path"] for meta in obstore.list(store, PREFIX).collect()]:
            wrong = "an object that was created is not listed"
    obstore.delete(store, path)
    return wrong


def _deleted(store: ObjectStore, path: str) -> bool:
    """Whether the object is certainly not there any more."""
    import obstore

    try:
        obstore.delete(store, path)
    except FileNotFoundError:
        return True
    except (obstore.exceptions.BaseError, OSError):
        return False
    return True


def _address(here: Surroundings) -> str:
    return f"{here.storage}/storage/v1/b/{quote(here.settings.bucket, safe='')}"
