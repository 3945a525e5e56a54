"""The API's paths, the body of a DELETE, and what error replies mean: shared by the blocking and the asynchronous client."""

from __future__ import annotations

import json
from typing import Any, Final

from nightshift.jobset.labels import JOBSET_API_VERSION, JOBSET_NAME_LABEL, KUEUE_API_VERSION
from nightshift.jobset.runtime import JobSetExists, JobSetNotFound, RequestRefused, RuntimeUnavailable

CONNECT_S: Final = 5.0
READ_S: Final = 30.0
MERGE_PATCH: Final = "application/merge-patch+json"
HEADERS: Final = {"Accept": "application/json", "Content-Type": "application/json"}
AUTH: Final = ["BearerToken"]

SELF: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
MAY: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

RBAC_ADVICE: Final = "The Role that Airflow's account needs is in k8s/base/airflow.yaml"


def jobsets(namespace: str, name: str = "") -> str:
    return _join(f"/apis/{JOBSET_API_VERSION}/namespaces/{namespace}/jobsets", name)


def jobs(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def log(namespace: str, pod: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{pod}/log"


def events(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/events"


def events_of(jobset: str, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of these, those of the JobSet, its Jobs and its pods."""
    return [each for each in events if f"{each['involvedObject'].get('name', '')}-".startswith(f"{jobset}-")]


def workloads(namespace: str) -> str:
    return f"/apis/{KUEUE_API_VERSION}/namespaces/{namespace}/workloads"


def local_queue(namespace: str, name: str) -> str:
    return f"/apis/{KUEUE_API_VERSION}/namespaces/{namespace}/localqueues/{name}"


def cluster_queue(name: str) -> str:
    return f"/apis/{KUEUE_API_VERSION}/clusterqueues/{name}"


def flavor(name: str) -> str:
    return f"/apis/{KUEUE_API_VERSION}/resourceflavors/{name}"


def group(api_version: str) -> str:
    """What versions of an API group are served. api_version: GROUP/VERSION."""
    return f"/apis/{api_version.partition('/')[0]}"


def of_jobset(name: str) -> str:
    """A label selector for the Jobs and Pods of a JobSet."""
    return f"{JOBSET_NAME_LABEL}={name}"


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if name else path


def delete_options(uid: str | None, resource_version: str | None) -> dict[str, Any]:
    """The body of a DELETE in the foreground: the object stays until its pods have drained. Conditions that are None are left
    out; if one does not hold, the cluster replies with 409."""
    given = {"uid": uid, "resourceVersion": resource_version}
    return {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "propagationPolicy": "Foreground",
        "preconditions": {key: value for key, value in given.items() if value},
    }


def failure(status: int, body: str, what: str) -> Exception:
    """The exception for a reply other than a success. what: what was asked, for the message, such as 'create JobSet x'."""
    message = _message(body)
    if status == 404:
        return JobSetNotFound(f"{what}: {message}")
    if status == 409:
        return JobSetExists(f"{what}: {message}")
    if status == 403 and "quota" in message:
        # Other objects end; and in a new namespace Kubernetes has not yet counted the usage.
        return RuntimeUnavailable(f"{what}: the namespace's quota leaves no room ({message})")
    if status == 403:
        return RequestRefused(f"{what}: the cluster does not allow it ({message}). {RBAC_ADVICE}.")
    # 401: the token expired, and the next client has a new one. 410: a page of a list was requested too late.
    if 400 <= status < 500 and status not in (401, 408, 410, 429):
        return RequestRefused(f"{what}: the cluster refuses it ({message})")
    return RuntimeUnavailable(f"{what}: HTTP {status} {message}".strip())


def _message(body: str) -> str:
    """The message of a Status object; else the beginning of the body."""
    try:
        document: Any = json.loads(body)
        return str(document["message"])
    except (ValueError, KeyError, TypeError):
        return body.strip()[:300]
