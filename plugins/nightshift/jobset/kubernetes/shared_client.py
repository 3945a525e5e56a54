"""One client, and one watch of each kind, for all followers in an event loop that watch the same namespace of a cluster.

A TLS connection takes a third of a MiB. Two for each of hundreds of JobSets would be most of a triggerer's memory.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

from kubernetes_asyncio.client import ApiClient

from nightshift.jobset.kubernetes.aio import AsyncJobSetApi
from nightshift.jobset.labels import JOBSET_NAME_LABEL

JOIN_S: Final = 900.0
"""A client older than this gets no new users: Google's tokens expire after an hour, and each user keeps it for a while."""

UNLIMITED: Final = 0
"""The `connection_pool_maxsize` that a client must have: the default is 100, and more logs than that are followed."""

Event = tuple[str, dict[str, Any]]
Events = asyncio.Queue[Event | Exception]
Connect = Callable[[], AbstractAsyncContextManager[ApiClient]]

_sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Session]] = weakref.WeakKeyDictionary()


@asynccontextmanager
async def shared(cluster: Hashable, connect: Connect, namespace: str) -> AsyncIterator[AsyncJobSetApi]:
    """A client for one follower, which shares its watches with all others.

    cluster: equal for users that may share a client. connect: opens one, with UNLIMITED connections.
    """
    sessions = _sessions.setdefault(asyncio.get_running_loop(), {})
    key = (cluster, namespace)
    session = sessions.get(key)
    if session is None or not session.open_to_all:
        session = sessions[key] = _Session(connect, namespace)
    async with session.join() as api:
        yield api


class Feed:
    """Watches objects of one kind as long as anybody asks for one of them.

    begin: the version from which to watch. watch: as `AsyncJobSetApi.watch_all_pods`. name_of: an object's name for `join`.
    """

    def __init__(
        self,
        begin: Callable[[], Awaitable[str]],
        watch: Callable[[str], AsyncIterator[Event]],
        name_of: Callable[[Mapping[str, Any]], str | None],
    ) -> None:
        self._begin = begin
        self._watch = watch
        self._name_of = name_of
        self._users: dict[Events, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()

    async def join(self, name: str, events: Events) -> None:
        """Once it has returned, `events` gets every event of the object, and finally the exception that ended the watch."""
        self._users[events] = name
        if self._task is None:
            self._begun = asyncio.Event()
            self._task = asyncio.create_task(self._run(self._begun))
        await self._begun.wait()

    def leave(self, events: Events) -> None:
        self._users.pop(events, None)
        if not self._users and self._task:
            self._task.cancel()
            self._task = None

    async def _run(self, begun: asyncio.Event) -> None:
        try:
            version = await self._begin()
            begun.set()
            while True:
                async for kind, thing in self._watch(version):
                    version = thing["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        name = self._name_of(thing)
                        for events in [events for events, wanted in self._users.items() if wanted == name]:
                            events.put_nowait((kind, thing))
        except Exception as error:
            if self._task is not asyncio.current_task():
                return
            # Every user must see it, whatever it is.
            for events in self._users:
                events.put_nowait(error)
            self._users.clear()
            self._task = None
        finally:
            begun.set()


class _SharedApi(AsyncJobSetApi):
    """One follower's. It lists for itself, then reads the shared watch, as good as a watch from there."""

    def __init__(self, client: ApiClient, namespace: str, jobsets: Feed, pods: Feed) -> None:
        super().__init__(client, namespace)
        self._jobsets, self._pods = jobsets, pods
        self._jobset_events: Events = asyncio.Queue()
        self._pod_events: Events = asyncio.Queue()

    async def list_jobset(self, name: str) -> tuple[list[dict[str, Any]], str]:
        self._jobset_events = await _rejoined(self._jobsets, name, self._jobset_events)
        return await super().list_jobset(name)

    def watch_jobset(self, name: str, version: str) -> AsyncIterator[Event]:
        return _after(version, self._jobset_events)

    async def list_pods(self, jobset: str) -> tuple[list[dict[str, Any]], str]:
        self._pod_events = await _rejoined(self._pods, jobset, self._pod_events)
        return await super().list_pods(jobset)

    def watch_pods(self, jobset: str, version: str) -> AsyncIterator[Event]:
        return _after(version, self._pod_events)

    def leave(self) -> None:
        self._jobsets.leave(self._jobset_events)
        self._pods.leave(self._pod_events)


async def _rejoined(feed: Feed, name: str, before: Events) -> Events:
    """Joins before anything is listed, so nothing is missed in between; what comes twice is dropped in `_after`."""
    feed.leave(before)
    events: Events = asyncio.Queue()
    try:
        await feed.join(name, events)
    except BaseException:
        feed.leave(events)
        raise
    return events


async def _after(version: str, events: Events) -> AsyncIterator[Event]:
    """What happened after a version. Versions of a cluster's objects are growing numbers."""
    while True:
        event = await events.get()
        if isinstance(event, Exception):
            raise event.with_traceback(None)
        if int(event[1]["metadata"]["resourceVersion"]) > int(version):
            yield event


class _Session:
    """A client and its watches; closed when its last user leaves."""

    def __init__(self, connect: Connect, namespace: str) -> None:
        self._connect = connect
        self._namespace = namespace
        self._began = time.monotonic()
        self._users = 0
        self._over = False
        self._opening = asyncio.Lock()
        self._resources = AsyncExitStack()
        self._client: ApiClient | None = None

    @property
    def open_to_all(self) -> bool:
        return not self._over and time.monotonic() - self._began < JOIN_S

    @asynccontextmanager
    async def join(self) -> AsyncIterator[AsyncJobSetApi]:
        self._users += 1
        try:
            async with self._opening:
                if self._client is None:
                    await self._open()
            assert self._client is not None
            api = _SharedApi(self._client, self._namespace, self._jobsets, self._pods)
            try:
                yield api
            finally:
                api.leave()
        finally:
            self._users -= 1
            if not self._users:
                self._over = True
                await self._resources.aclose()

    async def _open(self) -> None:
        client = await self._resources.enter_async_context(self._connect())
        api = AsyncJobSetApi(client, self._namespace)
        self._jobsets = Feed(api.begin_of_jobsets, api.watch_all_jobsets, lambda jobset: jobset["metadata"]["name"])
        self._pods = Feed(api.begin_of_pods, api.watch_all_pods, lambda pod: pod["metadata"]["labels"].get(JOBSET_NAME_LABEL))
        self._client = client
