"""Small JobSets, and what is done to their pods, for tests of the operator."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from local.cluster.processes import StartError
from tests.cluster.kube import Namespace, a_jobset

WORKS: Final = "import time; print('at work'); time.sleep(600)"
UNTIL_LET_GO: Final = """
import os, time
while not os.path.exists('/tmp/go'): time.sleep(0.1)
"""
"""The rest of a program that is at work however long a test takes, until `let_go`."""
WORKS_UNTIL_LET_GO: Final = f"print('at work'){UNTIL_LET_GO}"
SHORT: Final = "import time; print('at work'); time.sleep(3); print('done')"


def a_short_jobset(name: str, code: str, *, pods: int = 1, **pod: Any) -> dict[str, Any]:
    """One whose pods are gone a second after they are told to end."""
    return a_jobset(name, code, pods=pods, **{"terminationGracePeriodSeconds": 1, **pod})


def job_of(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["replicatedJobs"][0]["template"]["spec"]
    return found


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = job_of(document)["template"]["spec"]
    return found


def without_patience(document: dict[str, Any]) -> dict[str, Any]:
    """The first pod that ends badly, for whatever reason, fails it."""
    del job_of(document)["podFailurePolicy"]
    job_of(document)["backoffLimitPerIndex"] = 0
    return document


def running(namespace: Namespace) -> list[dict[str, Any]]:
    return [
        pod
        for pod in namespace.get("pods")
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


def unschedulable(namespace: Namespace) -> bool:
    """Whether the scheduler has said of a pod that it finds no node for it."""
    conditions = [condition for pod in namespace.get("pods") for condition in pod["status"].get("conditions", ())]
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


def at_work(namespace: Namespace) -> dict[str, Any]:
    """The pod, once it runs."""
    [pod] = namespace.wait_until("a pod at work", partial(running, namespace))
    return dict(pod)


def let_go(namespace: Namespace) -> None:
    """The programs of all pods that run now come to their ends."""
    for pod in running(namespace):
        with suppress(StartError):
            namespace.kubectl("exec", pod["metadata"]["name"], "--", "touch", "/tmp/go")


@contextmanager
def letting_go(namespace: Namespace) -> Iterator[None]:
    """The same of all pods that come to run meanwhile."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(0.5):
            let_go(namespace)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def evict(namespace: Namespace, pod: dict[str, Any]) -> None:
    """By the Eviction API, as a drained node does."""
    meta = {"name": pod["metadata"]["name"], "namespace": namespace.name}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{meta['name']}/eviction"
    body = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta})
    namespace.kubectl("create", "--raw", path, "-f", "-", text=body)


async def until(what: str, holds: Callable[[], Any], patience_s: float = 90.0) -> None:
    """Waits beside a trigger that runs in this event loop."""
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end, f"{what} did not happen within {patience_s:.0f} s"
        await asyncio.sleep(0.1)
