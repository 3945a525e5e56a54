"""Artifact Registry, and the programs that upload there: docker, pip and twine."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from local.google_cloud import access
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud, Refused
from local.google_cloud.command_line import Given
from local.google_cloud.state import Fields, full_name

EXTERNALLY_MANAGED: Final = (
    "error: externally-managed-environment\n\n× This environment is externally managed\n"
    "╰─> To install Python packages system-wide, try apt install python3-xyz, where xyz is the package you are "
    "trying to install."
)
"""What pip of Debian 12 or later, and of Ubuntu 23.04 or later, says outside a virtual environment (PEP 668)."""


def repository(cloud: Cloud, project: str, location: str, name: str) -> Fields:
    """Raises Refused."""
    return cloud.find(types.REPOSITORY, _name(project, location, name))


def _name(project: str, location: str, name: str) -> str:
    return full_name("artifactregistry", "projects", project, "locations", location, "repositories", name)


def make(cloud: Cloud, given: Given, project: str) -> str:
    """A name is taken whatever its format: the format is no part of it."""
    location, kind = given.value("location"), given.value("repository-format").upper()
    if location not in cloud.zones:
        raise Refused(f"PERMISSION_DENIED: Location {location} is not found or access is unauthorized.")
    mode = given.value("mode", "standard-repository").replace("-", "_").upper()
    fields: Fields = {"format": kind, "mode": mode}
    if mode == "VIRTUAL_REPOSITORY":
        policies = json.loads((cloud.machine.folder / given.value("upstream-policy-file")).read_text())
        for each in policies:
            upstream = cloud.find(types.REPOSITORY, full_name("artifactregistry", *each["repository"].split("/")))
            if upstream["format"] != kind:
                raise Refused(f"INVALID_ARGUMENT: upstream repository {each['repository']} must have the format {kind}.")
        fields["virtualRepositoryConfig"] = {"upstreamPolicies": policies}
    name = _name(project, location, given.arguments[0])
    cloud.make(types.REPOSITORY, name, fields, "ALREADY_EXISTS: the repository already exists")
    return f"Created repository [{given.arguments[0]}]."


def bind(cloud: Cloud, given: Given, project: str) -> str:
    return access.bind(cloud, repository(cloud, project, given.value("location"), given.arguments[0]), given)


def describe(cloud: Cloud, given: Given, project: str) -> str:
    return str(repository(cloud, project, given.value("location"), given.arguments[0])["format"])


def describe_version(cloud: Cloud, given: Given, project: str) -> str:
    where = f"packages/{given.value('package')}/versions/{given.arguments[0]}"
    cloud.find(types.PACKAGE, f"{_name(project, given.value('location'), given.value('repository'))}/{where}")
    return given.arguments[0]


def configure_docker(cloud: Cloud, given: Given, project: str) -> str:
    cloud.machine.registries |= set(given.arguments[0].split(","))
    return "Docker configuration file updated."


PUBLIC: Final = {"registry.k8s.io", "docker.io"}
_IMAGE: Final = re.compile(
    r"(?P<host>(?P<location>[\w-]+)-docker\.pkg\.dev)/(?P<project>[\w-]+)/(?P<repository>[\w-]+)/(?P<rest>\S+)"
)


def has_image(cloud: Cloud, image: str, reader: str = "") -> str:
    """Why a node cannot start an image, or ''. reader: the account that pulls; '' for the person."""
    match = _IMAGE.fullmatch(image)
    if match is None:
        host = image.split("/")[0]
        return "" if "." not in host or host in PUBLIC else f"{image}: unknown registry"
    found = cloud.state.get(types.REPOSITORY, _name(match["project"], match["location"], match["repository"]))
    if found is None or found["format"] != "DOCKER":
        return f"{image}: name unknown: Repository {match['repository']!r} not found"
    if reader and "artifactregistry.reader" not in access.roles(found, f"serviceAccount:{reader}"):
        return f'{image}: denied: Permission "artifactregistry.repositories.downloadArtifacts" denied to {reader}'
    name = f"{_name(match['project'], match['location'], match['repository'])}/dockerImages/{match['rest']}"
    pushed = cloud.state.get(types.IMAGE, name)
    if found["mode"] == "REMOTE_REPOSITORY":
        return ""
    if pushed is None:
        return f"{image}: manifest unknown"
    return "" if pushed["architecture"] == "amd64" else f"{image}: exec format error: the image is for {pushed['architecture']}"


def docker(cloud: Cloud, words: Sequence[str]) -> str:
    """``build``, ``push`` and ``manifest inspect``; this machine has another architecture than Google's (arm64)."""
    if words[:1] == ["build"]:
        options = dict(pairwise(words[1:]))
        if not (cloud.machine.folder / options["-f"]).is_file():
            raise Refused(f"ERROR: failed to read dockerfile: open {options['-f']}: no such file or directory")
        cloud.machine.images[options["-t"]] = options.get("--platform", "linux/arm64").partition("/")[2]
        return ""
    image = words[-1]
    match = _IMAGE.fullmatch(image)
    if match is None or match["host"] not in cloud.machine.registries:
        raise Refused(f"denied: Unauthenticated request to {image}. Run: gcloud auth configure-docker")
    if words[:1] == ["push"]:
        if image not in cloud.machine.images:
            raise Refused(f"An image does not exist locally with the tag: {image}")
        found = cloud.state.get(types.REPOSITORY, _name(match["project"], match["location"], match["repository"]))
        if found is None or found["format"] != "DOCKER":
            raise Refused(f"name unknown: Repository {match['repository']!r} not found")
        name = f"{_name(match['project'], match['location'], match['repository'])}/dockerImages/{match['rest']}"
        cloud.state.put(types.IMAGE, name, {"uri": image, "architecture": cloud.machine.images[image]})
        return ""
    if words[:2] == ["manifest", "inspect"]:
        if (problem := has_image(cloud, image)) and "exec format" not in problem:
            raise Refused(problem)
        return "{}"
    raise Refused(f"docker: '{words[0]}' is not a docker command the stand-in knows.")


def pip(cloud: Cloud, environment: str, words: Sequence[str]) -> str:
    """environment: the folder of the virtual environment; '' for the system's Python."""
    if not environment:
        raise Refused(EXTERNALLY_MANAGED)
    cloud.machine.packages.setdefault(environment, set()).update(each for each in words[1:] if not each.startswith("-"))
    return ""


def twine(cloud: Cloud, environment: str, words: Sequence[str]) -> str:
    """``upload --repository-url URL WHEEL``, which needs the keyring of Artifact Registry beside it."""
    packages = cloud.machine.packages.get(environment, set())
    if "twine" not in packages:
        raise Refused("No module named twine")
    if "keyrings.google-artifactregistry-auth" not in packages:
        raise Refused("HTTPError: 401 Unauthorized")
    match = re.fullmatch(r"https://([\w-]+)-python\.pkg\.dev/([\w-]+)/([\w-]+)/", words[words.index("--repository-url") + 1])
    if match is None:
        raise Refused("InvalidRepositoryURL")
    location, project, name = match.groups()
    found = cloud.state.get(types.REPOSITORY, _name(project, location, name))
    if found is None or found["format"] != "PYTHON":
        raise Refused(f"HTTPError: 404 Not Found: {name} is no Python repository")
    wheel = words[-1]
    if not (cloud.machine.folder / wheel).is_file():
        raise Refused(f"InvalidDistribution: Cannot find file (or expand pattern): '{wheel}'")
    package, version = wheel.split("-")[:2]
    where = f"{_name(project, location, name)}/packages/{package.replace('_', '-')}/versions/{version}"
    cloud.make(types.PACKAGE, where, {}, "HTTPError: 400 Bad Request: the file already exists")
    return ""
