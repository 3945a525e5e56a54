"""Cloud Build: a file of steps, and what comes of them in Artifact Registry."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from local.google_cloud import access, registry
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud, Refused
from local.google_cloud.command_line import Given
from local.google_cloud.state import Fields, full_name
from nightshift import __version__

_IMAGE: Final = re.compile(r"([\w-]+)-docker\.pkg\.dev/([\w-]+)/([\w-]+)/(\S+)")
_WHEELS: Final = re.compile(r"https://([\w-]+)-python\.pkg\.dev/([\w-]+)/([\w-]+)/?")
BUILD_S: Final = 600


def submit(cloud: Cloud, given: Given, project: str) -> str:
    """``builds submit --config=FILE`` in a clone: makes the images and wheels that FILE names."""
    account = given.value("service-account").rpartition("/")[2]
    if cloud.account(account) is None:
        raise Refused(f"NOT_FOUND: Service account {account or '(none)'} does not exist.")
    member = f"serviceAccount:{account}"
    held = access.roles(cloud.project(project), member)
    if "storage.objectViewer" not in held:
        raise Refused(
            f"INVALID_ARGUMENT: {account} does not have storage.objects.get access to the bucket {project}_cloudbuild."
        )
    text = (cloud.machine.folder / given.value("config")).read_text()
    for name, value in given.pairs("substitutions").items():
        text = text.replace(f"${name}", value)
    build: dict[str, Any] = yaml.safe_load(text)
    if left := re.search(r"\$_\w+", text):
        raise Refused(
            f"INVALID_ARGUMENT: generic::invalid_argument: key {left[0][1:]!r} in the template is not a substitution."
        )
    if build["options"]["logging"] == "CLOUD_LOGGING_ONLY" and "logging.logWriter" not in held:
        raise Refused(f"FAILED_PRECONDITION: {account} does not have permission to write logs to Cloud Logging.")
    for step in build["steps"]:
        for file in re.findall(r"--file=(\S+)", " ".join(step["args"])):
            if not (cloud.machine.folder / file).is_file():
                raise Refused(f"BUILD FAILURE: failed to read dockerfile: open {file}: no such file or directory")
    for image in build["images"]:
        location, owner, name, rest = _parts(_IMAGE, image)
        _writable(cloud, registry.repository(cloud, owner, location, name), "DOCKER", member, image)
        where = full_name("artifactregistry", "projects", owner, "locations", location, "repositories", name)
        cloud.state.put(types.IMAGE, f"{where}/dockerImages/{rest}", {"uri": image, "architecture": "amd64"})
    for each in build["artifacts"]["pythonPackages"]:
        location, owner, name = _parts(_WHEELS, each["repository"])
        _writable(cloud, registry.repository(cloud, owner, location, name), "PYTHON", member, each["repository"])
        where = full_name("artifactregistry", "projects", owner, "locations", location, "repositories", name)
        package = f"{where}/packages/airflow-provider-nightshift/versions/{__version__}"
        cloud.make(types.PACKAGE, package, {}, "BUILD FAILURE: HTTPError: 400 Bad Request: the file already exists")
    cloud.state.seconds += BUILD_S
    return "STATUS: SUCCESS"


def _parts(pattern: re.Pattern[str], text: str) -> tuple[str, ...]:
    match = pattern.fullmatch(text)
    if match is None:
        raise Refused(f"INVALID_ARGUMENT: {text} is no address in Artifact Registry")
    return match.groups()


def _writable(cloud: Cloud, found: Fields, kind: str, member: str, what: str) -> None:
    if found["format"] != kind:
        raise Refused(f"BUILD FAILURE: {what}: the repository has the format {found['format']}")
    if "artifactregistry.writer" not in access.roles(found, member):
        raise Refused(f'BUILD FAILURE: denied: Permission "artifactregistry.repositories.uploadArtifacts" denied on {what}')
