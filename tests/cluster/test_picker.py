"""The endpoint picker that is rendered for a stream's pool: upstream's own program, with the rendered arguments and rights.

It watches a real API server. The servers are pods whose addresses are ports of this machine; the test asks in the gateway's
place, in Envoy's protocol for external processing.
"""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from local.ports import new_port
from nightshift.settings import Settings
from nightshift.stream.manifests.render import render
from tests.cluster.kube import Namespace
from tests.cluster.pickers import NOT_SERVING, SERVING, a_server, running, until
from tests.stream_manifests import GATEWAY, an_order

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SERVERS: Final = {"127.0.0.2": 60, "127.0.0.3": 0}
"""Addresses, and how many requests wait there."""
POOL: Final = "package-texts-server"
SCORE: Final = {"model": "m", "text_1": "a", "text_2": "b"}


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


@pytest.fixture
def rendered(namespace: Namespace, stream_kinds: None) -> dict[tuple[str, str], dict[str, Any]]:
    order = an_order(GATEWAY, Settings(bucket="runs", project="acme", namespace=namespace.name))
    return {(each["kind"], each["metadata"]["name"]): each for each in render(order)}


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
        ours = stack.enter_context(running(namespace, POOL, container["args"], tmp_path))
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
        other = stack.enter_context(running(namespace, POOL, [*upstreams, f"--config-text={yaml.safe_dump(config)}"], tmp_path))
        until("it has its pool", lambda: other.health == SERVING, other.log)
        until(
            "it knows the servers",
            lambda: other.pick("/v1/embeddings", {"model": "m", "input": ["a"]}) in SERVERS,
            other.log,
        )
        assert "must have prompt field" in other.pick("/score", SCORE)
