"""The endpoint picker that is rendered for a stream's pool: upstream's own program, with the rendered arguments and rights.

It watches a real API server. The servers are pods whose addresses are ports of this machine; the test asks in the gateway's
place, in Envoy's protocol for external processing.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
import yaml

from local.cluster import build
from local.ports import new_port
from nightshift.jobset.manifest.constants import ENGINE_PORT
from nightshift.settings import Settings
from nightshift.stream.manifests import picker
from nightshift.stream.manifests.render import render
from tests.cluster.kube import Namespace
from tests.stream_manifests import GATEWAY, an_order

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PATIENCE_S: Final = 60.0
SERVERS: Final = {"127.0.0.2": 60, "127.0.0.3": 0}
"""Addresses, and how many requests wait there."""
SERVING: Final = b"\x08\x01"
NOT_SERVING: Final = b"\x08\x02"
POOL: Final = "package-texts-server"
SCORE: Final = {"model": "m", "text_1": "a", "text_2": "b"}


def field(number: int, value: bytes | bool) -> bytes:
    """Of a message in protobuf: bytes and messages shorter than 2 MiB, or a flag."""
    if isinstance(value, bool):
        return bytes([number << 3, value])
    length, rest = bytearray(), len(value)
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2]) + bytes([*length, rest]) + value


def asked(path: str, body: dict[str, Any]) -> list[bytes]:
    """envoy.service.ext_proc.v3.ProcessingRequest: the headers of a request, then its body."""
    pairs = {":method": "POST", ":path": path, "content-type": "application/json"}
    headers = b"".join(field(1, field(1, name.encode()) + field(3, value.encode())) for name, value in pairs.items())
    return [field(2, field(1, headers)), field(4, field(1, json.dumps(body).encode()) + field(2, True))]


class Picker:
    def __init__(self, port: int, health_port: int, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log
        self._channel, self._health = (grpc.insecure_channel(f"127.0.0.1:{each}") for each in (port, health_port))

    @property
    def health(self) -> bytes | None:
        """None while it does not answer."""
        check: Any = self._health.unary_unary("/grpc.health.v1.Health/Check")
        try:
            return bytes(check(field(1, b"inference-extension"), timeout=5))
        except grpc.RpcError:
            return None

    def pick(self, path: str, body: dict[str, Any]) -> str:
        """The address that it names, or what it says instead."""
        process: Any = self._channel.stream_stream("/envoy.service.ext_proc.v3.ExternalProcessor/Process")
        replies = b"".join(bytes(each) for each in self._replies(process(iter(asked(path, body)), timeout=10)))
        found = re.search(rb"(127\.0\.0\.\d):\d+", replies)
        return found[1].decode() if found else replies.decode(errors="replace")

    def _replies(self, stream: Any) -> Iterator[bytes]:
        try:
            for reply in stream:
                yield reply
                if b"x-gateway-destination-endpoint" in reply:
                    # It waits for the response that a gateway would now get.
                    stream.cancel()
                    return
        except grpc.RpcError as error:
            yield str(error).encode()

    def close(self) -> None:
        self._channel.close()
        self._health.close()
        self.process.terminate()
        self.process.wait(20)


def until(what: str, holds: Callable[[], Any], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S:.0f} s\n{log.read_text()[-4000:]}"
        time.sleep(0.2)


@contextmanager
def serving_metrics(address: str, port: int, waiting: int) -> Iterator[None]:
    """As vLLM has them."""
    gauges = {"num_requests_waiting": waiting, "num_requests_running": 1, "kv_cache_usage_perc": 0.1}
    text = "".join(f'# TYPE vllm:{name} gauge\nvllm:{name}{{model_name="m"}} {value}\n' for name, value in gauges.items())

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((address, port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def a_server(namespace: Namespace, labels: dict[str, str], number: int, address: str) -> None:
    """A pod that no node ever runs."""
    container = {"name": "server", "image": "none", "ports": [{"containerPort": ENGINE_PORT}]}
    spec = {"schedulingGates": [{"name": "nightshift.dev/never"}], "containers": [container]}
    name = f"server-{number}"
    namespace.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec})
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"podIP": address, "podIPs": [{"ip": address}], "phase": "Running", "conditions": conditions}
    namespace.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


@pytest.fixture
def rendered(namespace: Namespace, stream_kinds: None) -> dict[tuple[str, str], dict[str, Any]]:
    order = an_order(GATEWAY, Settings(bucket="runs", project="acme", namespace=namespace.name))
    return {(each["kind"], each["metadata"]["name"]): each for each in render(order)}


@contextmanager
def running(namespace: Namespace, arguments: Sequence[str], folder: Path) -> Iterator[Picker]:
    """As the rendered account, whose token is its only credential."""
    program = build.on_demand("epp", print)
    token = namespace.kubectl("create", "token", f"{POOL}-epp").strip()
    config = yaml.safe_load(namespace.cluster.kubeconfig.read_text())
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(config))
    port, health_port = new_port(), new_port()
    ports = {f"--grpc-port={picker.PORT}": port, f"--grpc-health-port={picker.HEALTH_PORT}": health_port}
    assert ports.keys() <= set(arguments)
    own = [f"{each.partition('=')[0]}={ports[each]}" if each in ports else each for each in arguments]
    # A gateway's TLS is none of ours, and several run on this machine.
    own += ["--secure-serving=false", f"--metrics-port={new_port()}"]
    log = folder / f"epp-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(program), *own], env={**os.environ, "KUBECONFIG": str(kubeconfig)}, stdout=output, stderr=output
        )
    found = Picker(port, health_port, process, log)
    try:
        yield found
    finally:
        found.close()


def test_it_picks_the_server_with_the_shortest_queue_for_every_kind_of_request(
    namespace: Namespace, rendered: dict[tuple[str, str], dict[str, Any]], tmp_path: Path
) -> None:
    pool, port = rendered["InferencePool", POOL], new_port()
    pool["spec"]["targetPorts"] = [{"number": port}]
    mine = [rendered[kind, f"{POOL}-epp"] for kind in ("ServiceAccount", "Role", "RoleBinding")]
    namespace.kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(mine))
    [container] = rendered["Deployment", f"{POOL}-epp"]["spec"]["template"]["spec"]["containers"]

    with ExitStack() as stack:
        for number, (address, waiting) in enumerate(SERVERS.items()):
            stack.enter_context(serving_metrics(address, port, waiting))
            a_server(namespace, pool["spec"]["selector"]["matchLabels"], number, address)
        ours = stack.enter_context(running(namespace, container["args"], tmp_path))
        until("it misses its pool", lambda: ours.health == NOT_SERVING, ours.log)

        namespace.kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump(pool))
        until("it has its pool", lambda: ours.health == SERVING, ours.log)
        until("it knows the servers", lambda: ours.pick("/v1/embeddings", {"model": "m", "input": ["a"]}) in SERVERS, ours.log)
        for path, body in (
            ("/score", SCORE),
            ("/v1/embeddings", {"model": "m", "input": ["a"]}),
            ("/v1/chat/completions", {"model": "m", "messages": []}),
            ("/classify", {"model": "m", "input": ["a"]}),
            ("/rerank", {"model": "m", "query": "a", "documents": ["b"]}),
        ):
            # While it has no metrics, or old ones on a machine that is busy, both servers look alike.
            until(path, lambda: [ours.pick(path, body) for _ in range(8)] == ["127.0.0.3"] * 8, ours.log)  # noqa: B023
        assert b"forbidden" not in ours.log.read_bytes()

        # Upstream's own configuration, which its chart installs, takes this for a completion.
        upstreams = [each for each in container["args"] if not each.startswith("--config-text")]
        config = yaml.safe_load(next(each for each in container["args"] if each.startswith("--config-text"))[14:])
        del config["parser"]
        other = stack.enter_context(running(namespace, [*upstreams, f"--config-text={yaml.safe_dump(config)}"], tmp_path))
        until("it has its pool", lambda: other.health == SERVING, other.log)
        until(
            "it knows the servers",
            lambda: other.pick("/v1/embeddings", {"model": "m", "input": ["a"]}) in SERVERS,
            other.log,
        )
        assert "must have prompt field" in other.pick("/score", SCORE)
