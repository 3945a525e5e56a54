"""Whether the images of a worker's containers are in their registry, as far as Airflow's account can ask.

Artifact Registry takes an access token in the registry API ("Support for the Docker Registry API"). Its answer is about
Airflow's account, while nodes pull with their own: a refusal means nothing for them. Other registries are not asked: a
pod's pull secrets and the limits of Docker Hub are the nodes'.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.hooks.services import Google
from nightshift.jobset.manifest.server import image_setting

NAME: Final = "images"
_GOOGLES: Final = re.compile(r"[a-z0-9-]+-docker\.pkg\.dev|(?:[a-z]+\.)?gcr\.io")
_ACCEPT: Final = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
"""A registry answers 404 for an image of a form that is not accepted."""


@dataclass(frozen=True)
class Image:
    """registry: its host. path: of the repository there. reference: a tag, or a digest."""

    registry: str
    path: str
    reference: str

    @classmethod
    def parse(cls, name: str) -> Image:
        """As Docker reads it: without a host it is on Docker Hub, without a tag it is ``latest``."""
        bare, _, digest = name.partition("@")
        host, slash, rest = bare.partition("/")
        if not slash or not (set(host) & {".", ":"} or host == "localhost"):
            host, rest = "docker.io", bare
        path, colon, tag = rest.rpartition(":")
        if not colon:
            path, tag = rest, "latest"
        return cls(host, path, digest or tag)


def ask(here: Surroundings) -> Iterator[Finding]:
    """A finding for each image: the driver's, or a stream's subscribers', and those of the engines of the profiles."""
    google = here.connections.google()
    client = "stream_image" if here.stream else "driver_image"
    yield _one(client, str(getattr(here.settings, client)), google)
    if not here.workers:
        yield Skipped("server image", "no job was named, and its profile decides which engine's image it is")
        return
    for setting in sorted({image_setting(worker, here.settings) for worker in here.workers.values()}):
        yield _one(setting, str(getattr(here.settings, setting)), google)


def _one(setting: str, name: str, google: Google) -> Finding:
    check, variable = setting.replace("_", " "), f"NIGHTSHIFT_{setting.upper()}"
    image = Image.parse(name)
    if not _GOOGLES.fullmatch(image.registry):
        return Skipped(check, f"{name} is in {image.registry}, and only Artifact Registry accepts this account's token")
    if google.token is None:
        return Skipped(check, f"{name} is in {image.registry}, and the connection is anonymous")
    url = f"https://{image.registry}/v2/{quote(image.path)}/manifests/{quote(image.reference, safe=':')}"
    status = google.ask("HEAD", url, headers={"Accept": _ACCEPT}).status
    if status == 200:
        return Ok(check, f"{name} is there")
    if status == 404:
        fix = f"docker push {name} (or correct {variable})"
        return Failed(check, f"{name} ({variable}) is not in {image.registry}", "infer: no pod starts", fix)
    if status in (401, 403):
        role = f"--member=serviceAccount:{google.email or 'ACCOUNT'} --role=roles/artifactregistry.reader"
        grant = f"gcloud artifacts repositories add-iam-policy-binding REPOSITORY {role}"
        return Skipped(check, f"Airflow's account may not read {name} (HTTP {status}; the nodes pull it): {grant}")
    return Failed(check, f"{image.registry} answers HTTP {status} for {name}", "infer: no pod starts", "nightshift doctor")
