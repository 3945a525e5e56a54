"""Requests about JobSets to a cluster's API, blocking; objects are the API's JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import urllib3
from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from nightshift.jobset.kubernetes import rest
from nightshift.jobset.kubernetes.rbac import Right
from nightshift.jobset.labels import KUEUE_JOB_UID_LABEL, QUEUE_LABEL
from nightshift.jobset.observation import Observation
from nightshift.jobset.runtime import JobSetNotFound, RequestRefused, RuntimeUnavailable

log = logging.getLogger(__name__)

PATIENCE_S: Final = 120.0
"""How long a call is retried. An upgrade of a zonal control plane takes minutes, which a task's retry or trigger outlasts."""
PAGE: Final = 500
NOT_STARTED: Final = "is waiting to start"
"""The kubelet's reply to a request for a log that comes too early; the status alone also means a wrong name."""


class JobSetApi:
    """Base class for hooks, which provide `api_client` with the credentials.

    Every method may raise RequestRefused, and RuntimeUnavailable after retrying for `patience_s`.
    """

    api_client: ApiClient
    patience_s: float = PATIENCE_S

    def create_jobset(self, namespace: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Raises JobSetExists if the name is taken, perhaps by an earlier try of this call whose reply was lost."""
        what = f"create JobSet {namespace}/{body['metadata']['name']}"
        return self._json("POST", rest.jobsets(namespace), what, body=body)

    def get_jobset(self, namespace: str, name: str) -> dict[str, Any]:
        """Raises JobSetNotFound."""
        return self._json("GET", rest.jobsets(namespace, name), f"read JobSet {namespace}/{name}")

    def patch_jobset(self, namespace: str, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """A merge patch. Raises JobSetNotFound; JobSetExists when it names a resourceVersion that is no longer the object's."""
        what = f"patch JobSet {namespace}/{name}"
        return self._json("PATCH", rest.jobsets(namespace, name), what, body=patch, content=rest.MERGE_PATCH)

    def delete_jobset(self, namespace: str, name: str, *, uid: str | None = None, resource_version: str | None = None) -> None:
        """In the foreground: it stays until its pods have drained. A missing one is fine.

        Raises JobSetExists if uid or resource_version is not that of the JobSet of this name.
        """
        body = rest.delete_options(uid, resource_version)
        try:
            self._json("DELETE", rest.jobsets(namespace, name), f"delete JobSet {namespace}/{name}", body=body)
        except JobSetNotFound:
            return

    def list_jobsets(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """selector: on their labels."""
        return self._list(rest.jobsets(namespace), f"list the JobSets of {selector}", labelSelector=selector)

    def list_jobs(self, namespace: str, jobset: str) -> list[dict[str, Any]]:
        return self._list(rest.jobs(namespace), f"list the Jobs of {jobset}", labelSelector=rest.of_jobset(jobset))

    def list_pods(self, namespace: str, jobset: str) -> list[dict[str, Any]]:
        return self._list(rest.pods(namespace), f"list the Pods of {jobset}", labelSelector=rest.of_jobset(jobset))

    def list_events(self, namespace: str, jobset: str) -> list[dict[str, Any]]:
        """Events of the JobSet, its Jobs and its pods, even those that are gone: their names start with its name."""
        found = self._list(rest.events(namespace), f"list the events of {jobset}")
        return rest.events_of(jobset, found)

    def get_workload(self, namespace: str, jobset_uid: str) -> dict[str, Any] | None:
        """Kueue's object for a JobSet. None when it does not exist, perhaps because Kueue is not installed."""
        selector = f"{KUEUE_JOB_UID_LABEL}={jobset_uid}"
        try:
            found = self._list(rest.workloads(namespace), "list Kueue's workloads", labelSelector=selector)
        except JobSetNotFound:
            return None
        return found[0] if found else None

    def patch_workload(self, namespace: str, name: str, patch: Mapping[str, Any]) -> None:
        path = f"{rest.workloads(namespace)}/{name}"
        self._json("PATCH", path, f"patch Kueue's workload {name}", body=patch, content=rest.MERGE_PATCH)

    def read_logs(self, namespace: str, pod: str, container: str, *, tail_lines: int | None = None) -> Iterator[str]:
        """Lines so far, of the container's current life; none before it starts. Raises JobSetNotFound if the pod is gone."""
        query = {"container": container, **({"tailLines": tail_lines} if tail_lines is not None else {})}
        try:
            reply = self._ask("GET", rest.log(namespace, pod), f"read the log of {pod}", query=query)
        except RequestRefused as error:
            if NOT_STARTED in str(error):
                return iter(())
            raise
        # Programs that show progress write carriage returns, which do not end a line.
        return iter(reply.decode(errors="replace").removesuffix("\n").split("\n")) if reply else iter(())

    def observe(self, namespace: str, name: str, *, closely: bool = False) -> Observation:
        """All that can be seen of a JobSet now; closely: events too. Its jobset is None if there is none."""
        try:
            jobset = self.get_jobset(namespace, name)
        except JobSetNotFound:
            return Observation(None)
        queued = QUEUE_LABEL in jobset["metadata"].get("labels", {})
        return Observation(
            jobset,
            jobs=tuple(self.list_jobs(namespace, name)),
            pods=tuple(self.list_pods(namespace, name)),
            workload=self.get_workload(namespace, jobset["metadata"]["uid"]) if queued else None,
            events=tuple(self.list_events(namespace, name)) if closely else (),
        )

    def read(self, path: str) -> dict[str, Any]:
        """Any document of the API, such as ``/version``. Raises JobSetNotFound if the API has none at that path."""
        return self._json("GET", path, f"read {path}")

    def read_all(self, path: str, selector: str = "") -> list[dict[str, Any]]:
        """All objects of the list at a path. selector: on their labels. Raises JobSetNotFound if the API has no such list."""
        return self._list(path, f"list {path}", labelSelector=selector)

    def whoami(self) -> str:
        """The user that the cluster takes the credentials for (``SelfSubjectReview``, stable since Kubernetes 1.28)."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        reply = self._json("POST", rest.SELF, "ask who we are", body=body)
        return str(reply["status"]["userInfo"]["username"])

    def may(self, namespace: str, right: Right) -> bool:
        """Whether the credentials have a right in a namespace, now (``SelfSubjectAccessReview``); '' for the whole cluster."""
        attributes = {"namespace": namespace, "verb": right.verb, "group": right.group, "resource": right.resource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "subresource": right.subresource}},
        }
        return bool(self._json("POST", rest.MAY, f"ask whether we may {right}", body=body)["status"]["allowed"])

    def _list(self, path: str, what: str, **query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {**{key: value for key, value in query.items() if value}, "limit": PAGE}
        while True:
            reply = self._json("GET", path, what, query=page)
            found += reply["items"]
            token = reply["metadata"].get("continue")
            if not token:
                return found
            page["continue"] = token

    def _json(self, method: str, path: str, what: str, **asked: Any) -> dict[str, Any]:
        """asked: as of `_ask`."""
        reply: dict[str, Any] = json.loads(self._ask(method, path, what, **asked))
        return reply

    def _ask(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content: str = "application/json",
    ) -> bytes:
        tries = Retrying(
            retry=retry_if_exception_type(RuntimeUnavailable),
            wait=wait_random_exponential(multiplier=0.5, max=15),
            stop=stop_after_delay(self.patience_s),
            before_sleep=self._log_outage,
            reraise=True,
        )
        return tries(self._ask_once, method, path, what, query or {}, body, content)

    def _ask_once(self, method: str, path: str, what: str, query: Mapping[str, Any], body: Any, content: str) -> bytes:
        # Retrying in one place is enough, and urllib3 writes three warnings each time.
        self.api_client.rest_client.pool_manager.connection_pool_kw["retries"] = False
        try:
            reply: urllib3.HTTPResponse = self.api_client.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={**rest.HEADERS, "Content-Type": content},
                body=body,
                auth_settings=rest.AUTH,
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=(rest.CONNECT_S, rest.READ_S),
            )
            return bytes(reply.data)
        except ApiException as error:
            if not error.status:
                raise RuntimeUnavailable(f"{what}: {error.reason}") from error
            raise rest.failure(error.status, _text(error.body), what) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise RuntimeUnavailable(f"{what}: {error}") from error

    def _log_outage(self, state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            log.warning("No answer (%s); asking again for %.0f s", state.outcome.exception(), self.patience_s)


def _text(body: Any) -> str:
    return body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
