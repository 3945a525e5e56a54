"""A cluster as the contract test wants a runtime: `KubernetesRuntime`, and beside each JobSet the follower that a trigger has.

A pod that is deleted takes its exit code and its log along; only who watched it knows them. So what the product learns of its
pods is what the runtime and the follower say together, and the contract is put to both.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import kubernetes.client
import kubernetes.config
from kubernetes_asyncio.client import ApiClient, Configuration
from kubernetes_asyncio.config import load_kube_config

from nightshift.jobset.kubernetes.aio import AsyncJobSetApi
from nightshift.jobset.kubernetes.api import JobSetApi
from nightshift.jobset.kubernetes.follow import Followed, Follower, WakeLimits
from nightshift.jobset.kubernetes.runtime import KubernetesRuntime
from nightshift.jobset.kubernetes.shared_client import UNLIMITED, shared
from nightshift.jobset.observation import Observation, finished
from tests.integration.runtime.view import look

log = logging.getLogger(__name__)

LIFE_S: Final = 600.0
"""A follower gives up after this long."""
LOOK_S: Final = 0.2
"""Between two looks at a status: several tests look at one API server as often as they can."""


class Api(JobSetApi):
    """With the credentials of a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self.api_client = kubernetes.config.new_client_from_config(str(kubeconfig))


@dataclass
class Heard:
    """What a follower has learned so far. lines: by pod and container."""

    follower: Follower
    lines: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    ended: Any = None

    def to_the_end(self) -> Followed:
        """Waits until all is heard; for a JobSet that is finished or gone."""
        followed: Followed = self.ended.result(timeout=600)
        return followed


class Followers:
    """Follows JobSets in a thread of its own, as a triggerer does in its process."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._kubeconfig = kubeconfig
        self._namespace = namespace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._heard: list[Heard] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for heard in self._heard:
            heard.ended.cancel()
        asyncio.run_coroutine_threadsafe(_settle(), self._loop).result(timeout=30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def follow(self, name: str, uid: str) -> Heard:
        def sink(pod: str, container: str, line: str) -> None:
            heard.lines[pod, container].append(line)

        heard = Heard(Follower(self._connect, name, uid, WakeLimits(time.time() + LIFE_S), log, sink))
        heard.ended = asyncio.run_coroutine_threadsafe(heard.follower.run(), self._loop)
        self._heard.append(heard)
        return heard

    def _connect(self) -> AbstractAsyncContextManager[AsyncJobSetApi]:
        return shared(self._kubeconfig, self._client, self._namespace)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[ApiClient]:
        configuration = Configuration()
        configuration.connection_pool_maxsize = UNLIMITED
        await load_kube_config(str(self._kubeconfig), client_configuration=configuration)
        async with ApiClient(configuration) as client:
            yield client


class FollowedRuntime(KubernetesRuntime):
    """`KubernetesRuntime` with the follower's knowledge, and what tests do to a JobSet beside it."""

    def __init__(self, kubeconfig: Path, namespace: str, followers: Followers) -> None:
        self._jobsets = Api(kubeconfig)
        super().__init__(self._jobsets, namespace)
        self._core = kubernetes.client.CoreV1Api(self._jobsets.api_client)
        self._target = namespace
        self._followers = followers
        self._heard: dict[str, Heard] = {}

    def submit(self, manifest: Mapping[str, Any]) -> str:
        uid = super().submit(manifest)
        name = manifest["metadata"]["name"]
        self._heard[name] = self._followers.follow(name, uid)
        return uid

    def observe(self, name: str, *, closely: bool = False) -> Observation:
        time.sleep(LOOK_S)
        seen = super().observe(name, closely=closely)
        if seen.jobset is None:
            return seen
        heard = self._heard[name]
        words = heard.to_the_end().pods if finished(seen.jobset) else heard.follower.pods.last_words()
        there = {pod["metadata"]["uid"] for pod in seen.pods}
        return replace(seen, pods=(*seen.pods, *(pod for pod in words if pod["metadata"]["uid"] not in there)))

    def logs(self, name: str, pod: str, container: str, *, last: int | None = None) -> Iterator[str]:
        look(self, name)
        lines = self._heard[name].lines.get((pod, container), [])
        return iter(lines[-last:] if last is not None else list(lines))

    def own_logs(self, pod: str, container: str, *, last: int | None = None) -> list[str]:
        """What the runtime says by itself."""
        return list(super().logs("", pod, container, last=last))

    def evict(self, name: str, pod: str) -> None:
        body = kubernetes.client.V1Eviction(metadata=kubernetes.client.V1ObjectMeta(name=pod))
        self._core.create_namespaced_pod_eviction(pod, self._target, body)


async def _settle() -> None:
    """Lets tasks that were cancelled come to their ends."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
