"""Small JobSets for the runtime tests, and how those tests wait. Containers are programs that speak through their logs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from local.ports import new_port
from nightshift.jobset.runtime import Runtime
from tests.integration.runtime.view import JobSet, Pod, look

T = TypeVar("T")

IMAGE = "nightshift/test:1"
"""Has sh and python3."""

PATIENCE_S = 300.0
"""After this long a condition that was waited for counts as one that never comes."""

IGNORE_DISRUPTION = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}

WAIT_FOR_SIGTERM = "trap 'echo told; exit 75' TERM; echo ready; while :; do sleep 0.1; done"
"""A driver that drains: exits 75 at once when it is told to end."""

ENGINE = """
import http.server, os, signal, time
probes, sick = 0, False
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global probes, sick
        sick = sick or self.path == "/sicken"
        if self.path == "/health":
            probes += 1
            self.send_response(200 if probes >= 3 else 503)
        elif self.path == "/live":
            self.send_response(503 if sick else 200)
        elif self.path in ("/probes", "/sicken"):
            self.send_response(200)
        else:
            self.send_response(404)
        self.end_headers()
        self.wfile.write(str(probes).encode())
    def log_message(self, *args):
        pass
def told(*args):
    print("told", flush=True)
    time.sleep(1)
    os._exit(0)
signal.signal(signal.SIGTERM, told)
print("listening", flush=True)
http.server.ThreadingHTTPServer(("", int(os.environ["ENGINE_PORT"])), Handler).serve_forever()
"""
"""A sidecar whose /health answers 503 twice before it answers 200; /probes says how often it was asked.

/live answers 200 until somebody asks for /sicken, then 503.
"""

SICKEN_ENGINE = "import os, urllib.request; urllib.request.urlopen('http://127.0.0.1:' + os.environ['ENGINE_PORT'] + '/sicken')"

ASK_ENGINE = (
    "import os, urllib.request; "
    "print('probes', urllib.request.urlopen('http://127.0.0.1:' + os.environ['ENGINE_PORT'] + '/probes').read().decode())"
)

LAST_LINE_S = 15
"""From a container's last line to its end: a deleted pod takes its log along, and a busy kubelet needs time to read it."""

AT_DOOR = f"""
import os, signal, socket, sys, time
host, port = sys.argv[1:]
def told(*args):
    print("told", flush=True)
    time.sleep({LAST_LINE_S})
    os._exit(75)
signal.signal(signal.SIGTERM, told)
print("ready", flush=True)
while True:
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
        break
    except OSError:
        time.sleep(0.1)
"""


class Door:
    """Containers wait at it until the test opens it. host: an address of this machine which they can reach."""

    def __init__(self, host: str) -> None:
        self._address = (host, new_port())
        self.env = [{"name": "AT_DOOR", "value": AT_DOOR}]

    @property
    def wait(self) -> str:
        """The command for sh, with `env`. Writes "ready" and waits. Told to end, writes "told" and exits with 75.

        It exits LAST_LINE_S later.
        """
        host, port = self._address
        return f'exec python3 -c "$AT_DOOR" {host} {port}'

    @contextmanager
    def opened(self) -> Iterator[None]:
        with socket.create_server(self._address):
            yield


class RuntimeUnderTest(Runtime, Protocol):
    """A runtime, and what its tests have to be able to do to a JobSet beside it.

    Its `logs` and `observe` also know of pods that are gone, and of every life of a container: what the product knows of a
    JobSet that it has watched.
    """

    def evict(self, name: str, pod: str) -> None: ...


def jobset_name(test: str) -> str:
    """The name of a test function's JobSet; pods' names, which go on from it, have at most 63 characters."""
    return test.removeprefix("test_").replace("_", "-")[:40].rstrip("-")


def sh(script: str, *, name: str = "driver", image: str = IMAGE, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": image, "command": ["sh", "-c", script], **fields}


def engine(image: str = IMAGE, **fields: Any) -> dict[str, Any]:
    """The sidecar ENGINE with its startup probe."""
    return {
        "name": "server",
        "image": image,
        "restartPolicy": "Always",
        "command": ["python3", "-c", ENGINE],
        "env": [{"name": "ENGINE_PORT", "value": "8000"}],
        "ports": [{"name": "engine", "containerPort": 8000}],
        "startupProbe": {"httpGet": {"path": "/health", "port": "engine"}, "periodSeconds": 1, "failureThreshold": 30},
        **fields,
    }


def jobset(
    name: str,
    *containers: dict[str, Any],
    init: list[dict[str, Any]] | None = None,
    rules: list[dict[str, Any]] | None = None,
    grace_s: int = 30,
    job: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    """A manifest as the operator would render it. ``job`` and ``spec`` add to the Job's and the JobSet's spec."""
    job_spec: dict[str, Any] = {"completionMode": "Indexed", "completions": 1, "backoffLimitPerIndex": 0, **(job or {})}
    job_spec.setdefault("parallelism", job_spec["completions"])
    if rules:
        job_spec["podFailurePolicy"] = {"rules": rules}
    job_spec["template"] = {
        "metadata": {"annotations": {"nightshift.dev/port-env": "engine=ENGINE_PORT"} if init and _has_engine(init) else {}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace_s,
            "initContainers": init or [],
            "containers": list(containers),
        },
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {"replicatedJobs": [{"name": "worker", "replicas": 1, "template": {"spec": job_spec}}], **(spec or {})},
    }


def _has_engine(init: list[dict[str, Any]]) -> bool:
    return any(port.get("name") == "engine" for container in init for port in container.get("ports", []))


def wait_for(condition: Callable[[], T | None], what: str) -> T:
    """The first true value of ``condition``. Fails the test when there is none within PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"never came: {what}")


def finished(runtime: Runtime, name: str) -> JobSet:
    def ended() -> JobSet | None:
        seen = look(runtime, name)
        return seen if seen.finished else None

    return wait_for(ended, f"the end of {name}")


def pod_where(runtime: Runtime, name: str, condition: Callable[[Pod], bool], what: str) -> Pod:
    """The first pod for which the condition is true."""
    return wait_for(lambda: next((pod for pod in look(runtime, name).pods if condition(pod)), None), what)


def logged(runtime: Runtime, name: str, line: str, *, container: str = "driver", index: int = 0, attempt: int = 1) -> Pod:
    """The pod of an index and attempt, once its container has written ``line``."""
    return pod_where(
        runtime,
        name,
        lambda pod: (pod.index, pod.attempt) == (index, attempt) and line in list(runtime.logs(name, pod.name, container)),
        f"{line!r} in the log of {container}, index {index}, attempt {attempt}",
    )
