"""Buckets and what is copied into them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from local.google_cloud import access
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud, Refused
from local.google_cloud.command_line import Given
from local.google_cloud.state import Fields, full_name

OBJECT: Final = "storage.googleapis.com/Object"
"""//storage.googleapis.com/B/objects/PATH: text (of small files)."""


def make(cloud: Cloud, given: Given, project: str) -> str:
    for url in given.arguments:
        name = url.removeprefix("gs://").rstrip("/")
        fields = {
            "location": given.value("location", "US").upper(),
            "project": project,
            "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": given.has("uniform-bucket-level-access")}},
            "softDeletePolicy": {"retentionDurationSeconds": given.value("soft-delete-duration", "604800")},
        }
        exists = "HTTPError 409: Your previous request to create the named bucket succeeded and you already own it."
        cloud.make(types.BUCKET, full_name("storage", name), fields, exists)
    return "\n".join(f"Creating {url}/..." for url in given.arguments)


def bucket_of(cloud: Cloud, url: str) -> Fields:
    """Raises Refused."""
    name = url.removeprefix("gs://").split("/")[0]
    found = cloud.state.get(types.BUCKET, full_name("storage", name))
    if not url.startswith("gs://") or found is None:
        raise Refused(f"{url} not found: 404.")
    return found


def update(cloud: Cloud, given: Given, project: str) -> str:
    found = bucket_of(cloud, given.arguments[0])
    if given.has("lifecycle-file"):
        found["lifecycle"] = {"file": _local(cloud, given.value("lifecycle-file")).read_text()}
    return f"Updating {given.arguments[0]}/..."


def describe(cloud: Cloud, given: Given, project: str) -> str:
    found = bucket_of(cloud, given.arguments[0])
    return f"{found['location']}\t{found['iamConfiguration']['uniformBucketLevelAccess']['enabled']}"


def bind(cloud: Cloud, given: Given, project: str) -> str:
    found = bucket_of(cloud, given.arguments[0])
    uniform = found["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]
    if not uniform and (given.value("member").startswith("principal") or given.value("condition", "None") != "None"):
        raise Refused("HTTPError 412: Uniform bucket-level access is required for this member or condition.")
    return access.bind(cloud, found, given)


def policy(cloud: Cloud, given: Given, project: str) -> str:
    bindings = bucket_of(cloud, given.arguments[0]).get("iamPolicy", {}).get("bindings", [])
    rows = [(*each["members"], each["role"], each.get("condition", {}).get("expression", "")) for each in bindings]
    return "\n".join("\t".join(row) for row in rows)


def copy(cloud: Cloud, given: Given, project: str) -> str:
    *sources, target = given.arguments
    bucket_of(cloud, target)
    for source in sources:
        _put(cloud, target if not target.endswith("/") else f"{target}{Path(source).name}", _local(cloud, source))
    return ""


def sync(cloud: Cloud, given: Given, project: str) -> str:
    source, target = given.arguments
    folder = _local(cloud, source)
    bucket_of(cloud, target)
    for file in folder.rglob("*") if given.has("recursive") else folder.glob("*"):
        if file.is_file():
            _put(cloud, f"{target.rstrip('/')}/{file.relative_to(folder)}", file)
    return ""


def _local(cloud: Cloud, path: str) -> Path:
    found = cloud.machine.folder / path
    if not found.exists():
        raise Refused(f"The following URLs matched no objects or files:\n-{path}")
    return found


def _put(cloud: Cloud, url: str, file: Path) -> None:
    bucket, _, path = url.removeprefix("gs://").partition("/")
    cloud.state.put(
        OBJECT, f"{full_name('storage', bucket)}/objects/{path}", {"text": file.read_text(), "atSeconds": cloud.state.seconds}
    )


def read(cloud: Cloud, url: str) -> str | None:
    """The text of an object; None if there is none."""
    bucket, _, path = url.removeprefix("gs://").partition("/")
    found = cloud.state.get(OBJECT, f"{full_name('storage', bucket)}/objects/{path}")
    return None if found is None else str(found["text"])


def _below(cloud: Cloud, url: str) -> dict[str, Fields]:
    """The objects of a folder, by the rest of their paths."""
    bucket, _, path = url.removeprefix("gs://").partition("/")
    prefix = f"{full_name('storage', bucket)}/objects/{path}".rstrip("/") + "/"
    return {name.removeprefix(prefix): each for name, each in cloud.state.of(OBJECT).items() if name.startswith(prefix)}


def changed_at(cloud: Cloud, url: str) -> int:
    """When an object of a folder was written last, in pretended seconds; 0 if there is none."""
    return max((int(each["atSeconds"]) for each in _below(cloud, url).values()), default=0)


def names(cloud: Cloud, url: str) -> list[str]:
    """The paths of the objects in a folder."""
    return list(_below(cloud, url))
