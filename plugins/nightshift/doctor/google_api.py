"""Documents of Google Cloud's APIs, read with the account of Airflow's connection, and what their refusals mean.

Plain REST, not Google's clients: the services are asked for one document each, and all refuse in one form (AIP-193, "Errors":
``error.status``, and in ``error.details`` an ``ErrorInfo`` with the reason; Compute Engine's older form has
``error.errors[].reason``). So one function reads them all, with one time limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightshift.doctor import fixes
from nightshift.doctor.findings import NotKnown
from nightshift.hooks.services import Google, Reply, Wrong

PAGES_MAX: Final = 20
"""Of a list: a project with more clusters or users than these hold is not read to its end."""


@dataclass(frozen=True)
class Api:
    """service: as ``gcloud services enable`` names it, which is its host too. role: the least of Google's that may read.

    vital: whether the deployment cannot work while the API is off; else only the doctor misses it.
    """

    service: str
    role: str
    vital: bool = True


CONTAINER: Final = Api("container.googleapis.com", "container.clusterViewer")
COMPUTE: Final = Api("compute.googleapis.com", "compute.viewer")
CLOUD_QUOTAS: Final = Api("cloudquotas.googleapis.com", "cloudquotas.viewer", vital=False)
PUBSUB: Final = Api("pubsub.googleapis.com", "pubsub.viewer")
PUBSUB_POLICIES: Final = Api("pubsub.googleapis.com", "iam.securityReviewer")
PROJECTS: Final = Api("cloudresourcemanager.googleapis.com", "browser", vital=False)
ACCOUNT_POLICIES: Final = Api("iam.googleapis.com", "iam.securityReviewer", vital=False)
ALLOYDB: Final = Api("alloydb.googleapis.com", "alloydb.viewer")


class NotThere(Exception):
    """The API has no such document."""


def read(google: Google, api: Api, path: str, *, project: str, method: str = "GET") -> dict[str, Any]:
    """The document at ``https://SERVICE/PATH``. project: whose it is, for the commands that would allow it.

    Raises NotThere; NotKnown if the account may not read it; Wrong if a vital API is off; OSError for any other answer.
    """
    if google.token is None:
        raise NotKnown("the connection is anonymous, which only the emulators accept")
    reply = google.ask(method, f"https://{api.service}/{path}")
    if reply.status == 200:
        document: dict[str, Any] = json.loads(reply.body)
        return document
    error = _Refusal.of(reply)
    if error.is_off:
        enable = fixes.enable(api.service, project)
        if api.vital:
            raise Wrong(f"{api.service} is not enabled in {project}", enable)
        raise NotKnown(f"{api.service} is not enabled in {project}; to ask it: {enable}")
    if reply.status in (401, 403):
        grant = fixes.project_role(project, api.role, google.email)
        what = path.partition("?")[0].partition("/")[2]
        raise NotKnown(f"this account may not read {what} ({error.permission or error.message}); to allow it: {grant}")
    if reply.status == 404:
        raise NotThere(error.message)
    raise OSError(f"{api.service} answers HTTP {reply.status}: {error.message}")


def read_all(google: Google, api: Api, path: str, key: str, *, project: str) -> Iterator[dict[str, Any]]:
    """All items of a list that comes in pages. key: of the items. Raises what `read` raises."""
    token = ""
    for _ in range(PAGES_MAX):
        page = read(google, api, f"{path}?pageToken={token}" if token else path, project=project)
        yield from page.get(key, ())
        token = page.get("nextPageToken", "")
        if not token:
            return


def project_policy(google: Google, project: str) -> dict[str, Any]:
    """Raises what `read` raises."""
    return read(google, PROJECTS, f"v1/projects/{project}:getIamPolicy", project=project, method="POST")


def grants(found: Mapping[str, Any], member: re.Pattern[str], roles: frozenset[str]) -> bool:
    """A binding with a condition counts as none: what it says is not evaluated here."""
    return any(
        each["role"] in roles and not each.get("condition") and any(map(member.fullmatch, each.get("members", ())))
        for each in found.get("bindings", ())
    )


@dataclass(frozen=True)
class _Refusal:
    """is_off: because the API is not enabled. permission: that is missing, if the service says which."""

    message: str
    is_off: bool = False
    permission: str = ""

    @classmethod
    def of(cls, reply: Reply) -> _Refusal:
        try:
            error: Mapping[str, Any] = json.loads(reply.body)["error"]
            details = [each for each in error.get("details", ()) if str(each.get("@type", "")).endswith("ErrorInfo")]
            reasons = {each.get("reason") for each in (*details, *error.get("errors", ()))}
            permission = next((each["metadata"]["permission"] for each in details if "permission" in each["metadata"]), "")
            return cls(str(error["message"]), bool(reasons & {"SERVICE_DISABLED", "accessNotConfigured"}), permission)
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls(f"HTTP {reply.status}")
