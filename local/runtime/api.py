"""Kubernetes' API in front of the agent: the part of it that nightshift uses, as strict as Kubernetes' documents.

    /version, /apis/GROUP, /apis/GROUP/VERSION, /api/v1       what is served
    jobsets (jobset.x-k8s.io/v1alpha2)                        create, get, list, watch, merge patch, delete in the foreground
    jobs (batch/v1), pods, events                             get, list, watch
    pods/NAME/log, pods/NAME/eviction                         read, follow; create
    selfsubjectreviews, selfsubjectaccessreviews              the caller may do everything, as an administrator

Everything else is answered with a Status object and 404, or 405 for another verb. So there is no Kueue: its groups are 404.

What differs from Kubernetes, beside what `local.runtime.agent` lists: names of JobSets are taken in all namespaces at once; of
a pod's spec only the node is served; a manifest that the agent cannot carry out is refused at once, with 422; a JobSet is only
deleted in the foreground; events say only which pods a Job deleted.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from local.runtime.controller import Controller
from local.runtime.discovery import REVIEWS, SERVED, discovery, review
from local.runtime.fields import ManifestError
from local.runtime.log_reader import LogReader
from local.runtime.refusals import Refusal, conflict, invalid, not_found, not_served
from local.runtime.versions import Change, Object, Pages, Versions, numbers
from nightshift.jobset.labels import JOBSET_API_VERSION, JOBSET_NAME_LABEL

BOOKMARK_S: Final = 60.0
WATCH_S: Final = 1800.0
"""How long a watch is kept open that names no time."""
MERGE_PATCH: Final = "application/merge-patch+json"
NOT_ALLOWED: Final = "the server does not allow this method on the requested resource"
_PATH: Final = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<resource>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<sub>[^/]+))?)?"
)
_OLD: Final = re.compile(r"\d+")


class Node(Protocol):
    """What the API asks the agent to do."""

    def controller(self, name: str) -> Controller | None: ...

    def create(self, manifest: Mapping[str, Any]) -> Controller:
        """Raises FileExistsError, ManifestError."""
        ...

    def publish(self) -> None:
        """Takes the state of all JobSets over into what is served."""
        ...


@dataclass
class Api:
    """An ASGI application."""

    node: Node
    resources: dict[str, Versions] = field(default_factory=dict)
    pages: Pages = field(default_factory=Pages)

    def __post_init__(self) -> None:
        count = numbers()
        self.resources = {name: Versions(count) for name in ("jobsets", "jobs", "pods", "events")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            reply = await self._answer(request)
        except Refusal as refusal:
            reply = JSONResponse(refusal.status(), refusal.code)
        await reply(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path, method = request.url.path, request.method
        if found := discovery(path):
            _must_be(method, "GET")
            return JSONResponse(found)
        if kind := REVIEWS.get(path):
            _must_be(method, "POST")
            return JSONResponse(review(kind, await _body(request)), 201)
        found_path = _PATH.fullmatch(path)
        if found_path is None:
            raise not_served()
        group, resource, name, sub = found_path.group("group", "resource", "name", "sub")
        version = f"{group}/{found_path['version']}" if group else found_path["version"]
        if "/".join(filter(None, (resource, sub))) not in SERVED.get(version, {}):
            raise not_served()
        namespace = found_path["namespace"]
        if sub == "log":
            _must_be(method, "GET")
            return await self._log(request, namespace, name)
        if sub == "eviction":
            _must_be(method, "POST")
            return self._evict(self._one("pods", namespace, name), await _body(request))
        if method == "GET":
            if name is None:
                return self._list_or_watch(request, version, resource, namespace)
            return JSONResponse(self._one(resource, namespace, name))
        return await self._change(request, resource, namespace, name)

    async def _change(self, request: Request, resource: str, namespace: str, name: str | None) -> Response:
        body = await _body(request)
        if resource == "jobsets" and name is None and request.method == "POST":
            return self._create(namespace, body)
        if resource == "jobsets" and name is not None and request.method == "PATCH":
            return self._patch(namespace, name, request, body)
        if resource == "jobsets" and name is not None and request.method == "DELETE":
            return self._delete(namespace, name, body)
        raise Refusal(405, NOT_ALLOWED)

    def _one(self, resource: str, namespace: str, name: str) -> Object:
        self.node.publish()
        found = self.resources[resource].get(name)
        if found is None or found["metadata"]["namespace"] != namespace:
            raise not_found(f"{resource}.jobset.x-k8s.io" if resource == "jobsets" else resource, name)
        return found

    def _list_or_watch(self, request: Request, version: str, resource: str, namespace: str) -> Response:
        asked = request.query_params
        matches = _selector(asked.get("labelSelector", ""), asked.get("fieldSelector", ""), namespace)
        if asked.get("watch", "false") in ("true", "1"):
            begin = asked.get("resourceVersion", "")
            lines = self._watch(self.resources[resource], begin, matches, asked, version, SERVED[version][resource][0])
            return StreamingResponse(lines, media_type="application/json")
        self.node.publish()
        limit = _number(asked.get("limit"), "limit")
        if token := asked.get("continue"):
            at, items = self.pages.rest(token)
        else:
            at = max(each.version for each in self.resources.values())
            items = [each for each in self.resources[resource].objects if matches(each)]
        metadata: Object = {"resourceVersion": str(at)}
        if limit and len(items) > limit:
            rest = items[limit:]
            metadata |= {"continue": self.pages.keep(at, rest), "remainingItemCount": len(rest)}
            items = items[:limit]
        kind = f"{SERVED[version][resource][0]}List"
        return JSONResponse({"kind": kind, "apiVersion": version, "metadata": metadata, "items": items})

    async def _watch(
        self,
        versions: Versions,
        begin: str,
        matches: Callable[[Object], bool],
        asked: Mapping[str, str],
        api_version: str,
        kind: str,
    ) -> AsyncIterator[bytes]:
        """Lines of {"type", "object"}, until the time is over that was asked for."""
        end = time.monotonic() + (_number(asked.get("timeoutSeconds"), "timeoutSeconds") or WATCH_S)
        bookmarks = asked.get("allowWatchBookmarks", "false") in ("true", "1")
        try:
            if begin in ("", "0"):
                self.node.publish()
                position = versions.version
                for each in versions.objects:
                    if matches(each):
                        yield _event("ADDED", each)
            else:
                position = _version(begin)
            marked = time.monotonic()
            while (left := end - time.monotonic()) > 0:
                for change in versions.since(position):
                    position = change.version
                    if event := _seen(change, matches):
                        yield _event(*event)
                if bookmarks and time.monotonic() - marked >= BOOKMARK_S:
                    marked = time.monotonic()
                    mark = {"kind": kind, "apiVersion": api_version, "metadata": {"resourceVersion": str(position)}}
                    yield _event("BOOKMARK", mark)
                await versions.changed(min(left, BOOKMARK_S))
        except Refusal as refusal:
            yield _event("ERROR", refusal.status())

    def _create(self, namespace: str, body: Object) -> Response:
        if (body.get("apiVersion"), body.get("kind")) != (JOBSET_API_VERSION, "JobSet"):
            given = f'{body.get("kind")} in version "{body.get("apiVersion")}"'
            raise Refusal(400, f"{given} cannot be handled as a JobSet of {JOBSET_API_VERSION}")
        metadata = body.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            raise invalid("", "metadata.name: Required value: name is required")
        if metadata.get("namespace", namespace) != namespace:
            raise Refusal(400, "the namespace of the provided object does not match the namespace sent on the request")
        name = metadata["name"]
        try:
            self.node.create({**body, "metadata": {**metadata, "namespace": namespace}})
        except FileExistsError as error:
            raise Refusal(409, f'jobsets.jobset.x-k8s.io "{name}" already exists', "AlreadyExists") from error
        except ManifestError as error:
            raise invalid(name, str(error)) from error
        return JSONResponse(self._one("jobsets", namespace, name), 201)

    def _patch(self, namespace: str, name: str, request: Request, patch: Object) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != MERGE_PATCH:
            raise Refusal(
                415, f"the body of the request was in an unknown format - accepted media types include: {MERGE_PATCH}"
            )
        current = self._one("jobsets", namespace, name)
        _check(name, current, patch.get("metadata") or {})
        new = _merged(current, patch)
        _check_changed(name, current, new)
        controller = self._controller(name)
        old = controller.object
        metadata = {key: new["metadata"].get(key) for key in ("labels", "annotations") if new["metadata"].get(key)}
        kept = {key: value for key, value in old["metadata"].items() if key not in ("labels", "annotations")}
        spec = {**old["spec"], "suspend": bool(new["spec"].get("suspend"))}
        if spec["suspend"] != bool(current["spec"].get("suspend")):
            kept["generation"] += 1
        controller.change({**old, "metadata": {**kept, **metadata}, "spec": spec})
        return JSONResponse(self._one("jobsets", namespace, name))

    def _delete(self, namespace: str, name: str, options: Object) -> Response:
        current = self._one("jobsets", namespace, name)
        _check(name, current, options.get("preconditions") or {})
        policy = options.get("propagationPolicy", "Background")
        if policy != "Foreground":
            raise Refusal(
                422,
                f'DeleteOptions is invalid: propagationPolicy: Unsupported value: "{policy}": supported values: "Foreground"',
            )
        self._controller(name).stop()
        return JSONResponse(self._one("jobsets", namespace, name))

    def _evict(self, pod: Object, body: Object) -> Response:
        if body.get("kind", "Eviction") != "Eviction":
            raise Refusal(400, f"{body.get('kind')} cannot be handled as an Eviction")
        self._controller(_jobset_of(pod)).evict(pod["metadata"]["name"])
        return JSONResponse({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}, 201)

    def _controller(self, name: str) -> Controller:
        """Raises Refusal (404) for a JobSet whose manifest the agent has refused: there is nothing to change."""
        found = self.node.controller(name)
        if found is None:
            raise not_found("jobsets.jobset.x-k8s.io", name)
        return found

    async def _log(self, request: Request, namespace: str, name: str) -> Response:
        pod, asked = self._one("pods", namespace, name), request.query_params
        folder = self._controller(_jobset_of(pod)).folder
        statuses = _containers(pod)
        container = asked.get("container") or (next(iter(statuses)) if len(statuses) == 1 else "")
        if not container:
            names = " ".join(statuses)
            raise Refusal(400, f"a container name must be specified for pod {name}, choose one of: [{names}]")
        if container not in statuses:
            raise Refusal(400, f"container {container} is not valid for pod {name}")
        status, life, previous = statuses[container], _life(statuses[container]), _flag(asked, "previous")
        if life is None:
            reason = (status["state"].get("waiting") or {}).get("reason", "ContainerCreating")
            raise Refusal(400, f'container "{container}" in pod "{name}" is waiting to start: {reason}')
        if previous and not life:
            raise Refusal(400, f'previous terminated container "{container}" in pod "{name}" not found')
        life -= previous

        def ended() -> bool:
            now = self.resources["pods"].get(name)
            status = _containers(now).get(container) if now else None
            return status is None or _life(status) != life or "running" not in status["state"]

        reader = LogReader(folder.log(name, container, life))
        lines = _text(
            reader.lines(ended, follow=_flag(asked, "follow")), asked.get("sinceTime", ""), _flag(asked, "timestamps")
        )
        if (tail := asked.get("tailLines")) is None:
            return StreamingResponse(lines, media_type="text/plain")
        if _flag(asked, "follow"):
            raise Refusal(400, "the local runtime does not follow the last lines of a log")
        most = _number(tail, "tailLines")
        body = [each async for each in lines]
        return Response(b"".join(body[-most:] if most else []), media_type="text/plain")


def _must_be(method: str, wanted: str) -> None:
    if method != wanted:
        raise Refusal(405, NOT_ALLOWED)


async def _body(request: Request) -> Object:
    """Raises Refusal for what is no JSON object; {} for no body."""
    try:
        found = json.loads(await request.body() or b"{}")
    except ValueError as error:
        raise Refusal(400, f"the object provided is unrecognized: {error}") from error
    if not isinstance(found, dict):
        raise Refusal(400, "the object provided is unrecognized: not an object")
    return found


def _selector(labels: str, fields: str, namespace: str) -> Callable[[Object], bool]:
    """Raises Refusal for a selector that is none of: KEY=VALUE, KEY==VALUE, KEY!=VALUE, KEY; with commas between them."""
    wanted: list[tuple[tuple[str, ...], str, str]] = [(("metadata", "namespace"), "=", namespace)]
    for each in filter(None, labels.split(",")):
        key, operator, value = _requirement(each)
        wanted.append((("metadata", "labels", key), operator, value))
    for each in filter(None, fields.split(",")):
        key, operator, value = _requirement(each)
        if key not in ("metadata.name", "metadata.namespace") or not operator:
            raise Refusal(400, f'"{key}" is not a known field selector: only "metadata.name", "metadata.namespace"')
        wanted.append((tuple(key.split(".")), operator, value))
    return lambda found: all(_holds(_at(found, path), operator, value) for path, operator, value in wanted)


def _at(found: Object, path: tuple[str, ...]) -> str | None:
    value: Any = found
    for key in path:
        value = (value or {}).get(key)
    return None if value is None else str(value)


def _requirement(text: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"\s*([^=!\s()]+)\s*(?:(==|=|!=)\s*([^=!\s()]*)\s*)?", text)
    if found is None:
        raise Refusal(400, f"unable to parse requirement: {text!r}")
    return found[1], found[2] or "", found[3] or ""


def _holds(value: str | None, operator: str, wanted: str) -> bool:
    if not operator:
        return value is not None
    return (value != wanted) if operator == "!=" else value == wanted


def _number(text: str | None, name: str) -> int:
    """0 without one. Raises Refusal."""
    if not text:
        return 0
    if not text.isascii() or not text.isdigit():
        raise Refusal(400, f"{name}: {text!r} is not a number")
    return int(text)


def _version(text: str) -> int:
    if not _OLD.fullmatch(text):
        raise Refusal(400, f"resourceVersion: Invalid value: {text!r}")
    return int(text)


def _flag(asked: Mapping[str, str], name: str) -> bool:
    return asked.get(name, "false") in ("true", "1")


def _seen(change: Change, matches: Callable[[Object], bool]) -> tuple[str, Object] | None:
    """As a watch with that selector sees it."""
    before, now = change.before is not None and matches(change.before), change.now is not None and matches(change.now)
    kinds = {(True, True): "MODIFIED", (False, True): "ADDED", (True, False): "DELETED"}
    kind = kinds.get((before, now))
    return (kind, change.last) if kind else None


def _event(kind: str, found: Object) -> bytes:
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def _check(name: str, current: Object, wanted: Object) -> None:
    """Preconditions: the uid and resourceVersion that are named. Raises Refusal."""
    for key, called in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        given, there = wanted.get(key), current["metadata"][key]
        if given is not None and given != there:
            raise conflict(name, f"Precondition failed: {called} in precondition: {given}, {called} in object meta: {there}")


def _merged(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found


def _check_changed(name: str, current: Object, new: Object) -> None:
    """Raises Refusal unless only labels, annotations and ``spec.suspend`` differ; a status in the patch is ignored."""
    old_spec, new_spec = ({**(each["spec"] or {}), "suspend": None} for each in (current, new))
    if old_spec != new_spec:
        raise invalid(name, "spec: Invalid value: field is immutable")
    if not isinstance(new["spec"].get("suspend", False), bool):
        raise invalid(name, "spec.suspend: Invalid value: must be a boolean")
    for key in ("labels", "annotations"):
        values = new["metadata"].get(key) or {}
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise invalid(name, f"metadata.{key}: Invalid value: must map texts to texts")
    if _fixed(current) != _fixed(new):
        raise invalid(name, "metadata: Invalid value: only labels and annotations can be changed")


def _fixed(jobset: Object) -> Object:
    """What no patch may change, its spec aside."""
    metadata = {key: value for key, value in jobset["metadata"].items() if key not in ("labels", "annotations")}
    return {**jobset, "metadata": metadata, "spec": None, "status": None}


def _jobset_of(pod: Object) -> str:
    return str(pod["metadata"]["labels"][JOBSET_NAME_LABEL])


def _containers(pod: Object) -> dict[str, Object]:
    status = pod["status"]
    return {each["name"]: each for each in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))}


def _life(status: Object) -> int | None:
    """The number of its present or last life; None before the first."""
    if not (found := status.get("containerID")):
        return None
    number = found.rpartition(".")[2]
    return int(number) if number.isdigit() else 0


async def _text(lines: AsyncIterator[tuple[str, bytes]], since: str, stamped: bool) -> AsyncIterator[bytes]:
    """since: only lines from that second on; times are compared as a cluster does, whose nodes round down."""
    whole = since[:19]
    async for at, line in lines:
        if at[:19] >= whole:
            yield (f"{at} ".encode() if stamped else b"") + line + b"\n"


def objects_by_name(seen: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Object]]]:
    """By resource. seen: as `local.runtime.objects.objects` returns it."""
    yield "jobsets", {seen["jobset"]["metadata"]["name"]: seen["jobset"]}
    for resource in ("jobs", "pods", "events"):
        yield resource, {each["metadata"]["name"]: each for each in seen[resource]}
