"""Requests about JobSets to a cluster's API, asynchronous; objects are the API's JSON."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import aiohttp
from kubernetes_asyncio.client import ApiClient

from nightshift.jobset.kubernetes import rest
from nightshift.jobset.kubernetes.log_slots import Streams
from nightshift.jobset.labels import JOBSET_NAME_LABEL, KUEUE_JOB_UID_LABEL
from nightshift.jobset.runtime import JobSetNotFound, RuntimeUnavailable

WATCH_S: Final = 1500
"""How long the server keeps a watch open. Each end costs a call, so this is as long as servers and balancers usually allow."""
WATCH_SILENCE_S: Final = 150.0
"""A watch that is silent for this long counts as dead: the server sends a bookmark about every minute."""
LOG_SILENCE_S: Final = 1800.0
LINE_MAX: Final = 64 << 20
"""Bytes. An object has at most about 2 MB; a log line may have any length."""
GONE: Final = 410
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT")


class WatchExpired(Exception):
    """The server no longer knows the version from which to watch: list again."""


class AsyncJobSetApi:
    """Uses one client, which holds the credentials, for one namespace. Methods raise like `JobSetApi`'s, without retrying."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self._client = client
        self.namespace = namespace

    async def get_jobset(self, name: str) -> dict[str, Any]:
        return await self._json("GET", rest.jobsets(self.namespace, name), f"read JobSet {self.namespace}/{name}")

    async def patch_jobset(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """A merge patch."""
        what, path = f"patch JobSet {self.namespace}/{name}", rest.jobsets(self.namespace, name)
        return await self._json("PATCH", path, what, body=patch, content=rest.MERGE_PATCH)

    async def delete_jobset(self, name: str, *, uid: str, resource_version: str) -> None:
        """In the foreground, if it is unchanged; else raises JobSetExists. A missing one is fine."""
        what, body = f"delete JobSet {self.namespace}/{name}", rest.delete_options(uid, resource_version)
        try:
            await self._json("DELETE", rest.jobsets(self.namespace, name), what, body=body)
        except JobSetNotFound:
            return

    async def list_jobset(self, name: str) -> tuple[list[dict[str, Any]], str]:
        """The JobSet of this name, if there is one, and the version from which to watch it."""
        return await self._list(rest.jobsets(self.namespace), fieldSelector=f"metadata.name={name}")

    def watch_jobset(self, name: str, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """(ADDED, MODIFIED, DELETED or BOOKMARK; object), until the server ends the watch. Raises WatchExpired."""
        return self._watch(rest.jobsets(self.namespace), version, fieldSelector=f"metadata.name={name}")

    async def begin_of_jobsets(self) -> str:
        """The version from which to watch all of the namespace."""
        return await self._begin(rest.jobsets(self.namespace))

    def watch_all_jobsets(self, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        return self._watch(rest.jobsets(self.namespace), version)

    async def list_pods(self, jobset: str) -> tuple[list[dict[str, Any]], str]:
        return await self._list(rest.pods(self.namespace), labelSelector=rest.of_jobset(jobset))

    def watch_pods(self, jobset: str, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        return self._watch(rest.pods(self.namespace), version, labelSelector=rest.of_jobset(jobset))

    async def begin_of_pods(self) -> str:
        return await self._begin(rest.pods(self.namespace))

    def watch_all_pods(self, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """Those of any JobSet."""
        return self._watch(rest.pods(self.namespace), version, labelSelector=JOBSET_NAME_LABEL)

    async def list_events(self, jobset: str) -> list[dict[str, Any]]:
        """As `JobSetApi.list_events`."""
        found, _ = await self._list(rest.events(self.namespace))
        return rest.events_of(jobset, found)

    async def get_workload(self, jobset_uid: str) -> dict[str, Any] | None:
        """Kueue's object for a JobSet. None when it does not exist, perhaps because Kueue is not installed."""
        selector = f"{KUEUE_JOB_UID_LABEL}={jobset_uid}"
        try:
            found, _ = await self._list(rest.workloads(self.namespace), labelSelector=selector)
        except JobSetNotFound:
            return None
        return found[0] if found else None

    async def patch_workload(self, name: str, patch: Mapping[str, Any]) -> None:
        path = f"{rest.workloads(self.namespace)}/{name}"
        await self._json("PATCH", path, f"patch Kueue's workload {name}", body=patch, content=rest.MERGE_PATCH)

    async def follow_log(
        self, pod: str, container: str, *, since: str = "", previous: bool = False
    ) -> AsyncIterator[tuple[str, str]]:
        """(time, line) of one life of a container until it ends; times sort as text. since: only lines after this time.

        previous: the life before the present one. Raises JobSetNotFound when the pod is gone.
        """
        query: dict[str, Any] = {"container": container, "timestamps": "true", "follow": "true"}
        if previous:
            query |= {"previous": "true", "follow": "false"}
        if since:
            # The server rounds down to whole seconds: repeated lines are dropped below.
            query["sinceTime"] = since
        what = f"read the log of {pod}"
        async with Streams.here().opening:
            response = await self._open(rest.log(self.namespace, pod), what, query, LOG_SILENCE_S)
        async for line in _lines(response):
            time, _, text = line.decode(errors="replace").partition(" ")
            if not TIME.match(time):
                # A kubelet that cannot read on reports it among the lines, without a time.
                raise RuntimeUnavailable(f"{what}: {time} {text}")
            if time > since:
                yield time, text

    async def _list(self, path: str, **query: str) -> tuple[list[dict[str, Any]], str]:
        """All pages."""
        found: list[dict[str, Any]] = []
        page: dict[str, Any] = {**query, "limit": 500}
        while True:
            reply = await self._json("GET", path, f"list {path.rpartition('/')[2]}", query=page)
            found += reply["items"]
            if not (token := reply["metadata"].get("continue")):
                return found, str(reply["metadata"]["resourceVersion"])
            page["continue"] = token

    async def _begin(self, path: str) -> str:
        reply = await self._json("GET", path, f"list {path.rpartition('/')[2]}", query={"limit": 1})
        return str(reply["metadata"]["resourceVersion"])

    async def _watch(self, path: str, version: str, **query: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        asked = {**query, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        asked["timeoutSeconds"] = str(WATCH_S)
        what = f"watch {path.rpartition('/')[2]}"
        async for line in _lines(await self._open(path, what, asked, WATCH_SILENCE_S)):
            event = json.loads(line)
            if event["type"] == "ERROR":
                if event["object"].get("code") == GONE:
                    raise WatchExpired(event["object"].get("message", ""))
                raise rest.failure(event["object"].get("code", 500), json.dumps(event["object"]), what)
            yield event["type"], event["object"]

    async def _open(self, path: str, what: str, query: Mapping[str, Any], silence_s: float) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=rest.CONNECT_S, connect=rest.CONNECT_S + rest.READ_S, sock_read=silence_s
        )
        return await self._call("GET", path, what, query, None, "application/json", timeout)

    async def _json(
        self,
        method: str,
        path: str,
        what: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content: str = "application/json",
    ) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=rest.CONNECT_S + rest.READ_S, sock_connect=rest.CONNECT_S)
        response = await self._call(method, path, what, query or {}, body, content, timeout)
        try:
            reply: dict[str, Any] = json.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise RuntimeUnavailable(f"{what}: {error!r}") from error
        return reply

    async def _call(
        self,
        method: str,
        path: str,
        what: str,
        query: Mapping[str, Any],
        body: Any,
        content: str,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """A successful reply, whose body is not read yet."""
        try:
            response: aiohttp.ClientResponse = await self._client.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params={**rest.HEADERS, "Content-Type": content},
                body=body,
                auth_settings=rest.AUTH,
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=limits,
            )
            if response.status < 300:
                return response
            text = (await response.read()).decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RuntimeUnavailable(f"{what}: {error!r}") from error
        raise rest.failure(response.status, text, what)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of a body of any length. Raises RuntimeUnavailable when the connection breaks or falls silent."""
    rest = b""
    try:
        async for part in response.content.iter_any():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                yield line
            if len(rest) > LINE_MAX:
                raise RuntimeUnavailable(f"a line of more than {LINE_MAX} bytes from {response.url.path}")
        if rest:
            yield rest
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise RuntimeUnavailable(f"{response.url.path}: {error!r}") from error
    finally:
        response.close()
