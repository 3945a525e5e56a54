"""A stream's gateway with a canary: the rendered route, pools and pickers, behind a real Envoy.

Envoy gets what the rendered HTTPRoute says, translated here: a field that the translation does not know fails the test.
Upstream's pickers are asked over Envoy's own protocol for external processing, as the inference extension prescribes it. This
says nothing of GKE's own gateway, which is another program with another control plane. And nothing of a pool without its picker
(FailOpen): where bodies are streamed both ways, as the pickers want it, its filter lets none through then, whatever its
`failure_mode_allow` is.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml
from aiohttp import web

from local.environments import python_of
from local.ports import new_port
from nightshift.settings import Settings
from nightshift.stream.manifests.render import render
from nightshift.stream.manifests.render_request import Variant
from tests.cluster.kube import Namespace
from tests.cluster.pickers import SERVING, Picker, a_server, running, until
from tests.stream_manifests import a_canary, an_order

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

HOST: Final = "models.internal"
PERCENT: Final = 25
VARIANT: Final = Variant(
    engine_url=f"http://{HOST}/texts", gateway="gateways/inference", canary=a_canary(), canary_percent=PERCENT
)
POOLS: Final = {"package-texts-server": ("127.0.0.2", "127.0.0.3"), "package-texts-canary": ("127.0.0.4",)}
"""With the addresses of their servers."""
CANARY: Final = "127.0.0.4"
REQUESTS: Final = 10_000
AT_ONCE: Final = 32
DESTINATION: Final = "x-gateway-destination-endpoint"
EXTENSIONS: Final = "type.googleapis.com/envoy.extensions"


class Server:
    """A pool's server at one address. served: paths, with how often each was asked for. erring: every answer is a 500."""

    def __init__(self, address: str) -> None:
        self.address, self.erring = address, False
        self.served: Counter[str] = Counter()
        self.site: web.TCPSite | None = None

    async def start(self, port: int) -> None:
        app = web.Application()
        app.add_routes([web.get("/metrics", self._metrics), web.post("/{path:.*}", self._answer)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        self.site = web.TCPSite(runner, self.address, port)
        await self.site.start()
        self._runner = runner

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        gauges = {"num_requests_waiting": 0, "num_requests_running": 1, "kv_cache_usage_perc": 0.1}
        text = "".join(f'# TYPE vllm:{name} gauge\nvllm:{name}{{model_name="m"}} {value}\n' for name, value in gauges.items())
        return web.Response(text=text, content_type="text/plain")

    async def _answer(self, request: web.Request) -> web.Response:
        await request.read()
        self.served[request.path] += 1
        return web.json_response({"server": self.address}, status=500 if self.erring else 200)


class Servers:
    """All servers, in a thread of their own."""

    def __init__(self, port: int) -> None:
        self._port, self._loop = port, asyncio.new_event_loop()
        self.all = {address: Server(address) for addresses in POOLS.values() for address in addresses}
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        for each in self.all.values():
            self._done(each.start(port))

    def _done(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def goes_away(self, address: str) -> None:
        self._done(self.all[address].stop())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


def of(mapping: Mapping[str, Any], *known: str) -> list[Any]:
    """The values of these keys, None for one that is missing. Fails for any other key: the translation would lose it."""
    assert not mapping.keys() - {*known}, f"the translation does not know {sorted(mapping.keys() - {*known})}"
    return [mapping.get(key) for key in known]


def route_config(route: Mapping[str, Any], pools: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Envoy's, of an HTTPRoute. pools: InferencePool objects by name."""
    parents, hosts, rules = of(route["spec"], "parentRefs", "hostnames", "rules")
    assert parents == [{"name": "inference", "namespace": "gateways"}]
    routes = []
    for rule in rules:
        matches, filters, backends = of(rule, "matches", "filters", "backendRefs")
        for match in matches:
            [path] = of(match, "path")
            kind, prefix = of(path, "type", "value")
            assert kind == "PathPrefix"
            # A prefix of whole segments; Envoy's has no slash at its end.
            matched = {"prefix": "/"} if prefix == "/" else {"path_separated_prefix": prefix.rstrip("/")}
            action: dict[str, Any] = {"weighted_clusters": {"clusters": [weighted(each, pools) for each in backends]}}
            action["timeout"] = "0s"
            for each in filters or ():
                kind, rewrite = of(each, "type", "urlRewrite")
                [changed] = of(rewrite, "path")
                how, by = of(changed, "type", "replacePrefixMatch")
                assert (kind, how, by) == ("URLRewrite", "ReplacePrefixMatch", "/")
                pattern = f"^{re.escape(prefix.rstrip('/'))}/*"
                action["regex_rewrite"] = {"pattern": {"regex": pattern}, "substitution": "/"}
            routes.append({"match": matched, "route": action})
    return {"virtual_hosts": [{"name": "stream", "domains": hosts or ["*"], "routes": routes}]}


def weighted(backend: Mapping[str, Any], pools: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A pool with its share, and with its picker in place of the filter's own."""
    group, kind, name, weight = of(backend, "group", "kind", "name", "weight")
    assert (group, kind) == ("inference.networking.k8s.io", "InferencePool")
    picker, port, mode = of(pools[name]["spec"]["endpointPickerRef"], "name", "port", "failureMode")
    assert (picker, port) == (f"{name}-epp", {"number": 9002})
    own = {
        "@type": f"{EXTENSIONS}.filters.http.ext_proc.v3.ExtProcPerRoute",
        "overrides": {
            "grpc_service": {"envoy_grpc": {"cluster_name": picker}, "timeout": "5s"},
            "failure_mode_allow": {"FailOpen": True, "FailClose": False}[mode],
        },
    }
    return {"name": name, "weight": weight, "typed_per_filter_config": {"picker": own}}


def envoy_config(
    route: Mapping[str, Any], pools: Mapping[str, Mapping[str, Any]], pickers: Mapping[str, int], listening: int, log: Path
) -> dict[str, Any]:
    """pickers: their ports, by pool."""
    asked = {
        "@type": f"{EXTENSIONS}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": f"{next(iter(pools))}-epp"}},
        "processing_mode": {
            "request_header_mode": "SEND",
            "response_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_trailer_mode": "SEND",
        },
        "message_timeout": "5s",
        # Chosen anew, the route would draw another pool than the one whose picker was asked.
        "route_cache_action": "RETAIN",
    }
    manager = {
        "@type": f"{EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "route_config": route_config(route, pools),
        "http_filters": [
            {"name": "picker", "typed_config": asked},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{EXTENSIONS}.filters.http.router.v3.Router"},
            },
        ],
    }
    listener = {
        "name": "gateway",
        "address": socket_address("127.0.0.1", listening),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    clusters = [servers_of(name, pool) for name, pool in pools.items()]
    clusters += [picker_of(name, port) for name, port in pickers.items()]
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


def servers_of(name: str, pool: Mapping[str, Any]) -> dict[str, Any]:
    """A pool: the server that the picker names in a header, or any other one where it named none that is here."""
    _, ports, _ = of(pool["spec"], "selector", "targetPorts", "endpointPickerRef")
    [[port]] = [of(each, "number") for each in ports]
    override = {
        "@type": f"{EXTENSIONS}.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"header": DESTINATION}],
        "fallback_policy": policies(
            "round_robin", {"@type": f"{EXTENSIONS}.load_balancing_policies.round_robin.v3.RoundRobin"}
        ),
    }
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_balancing_policy": policies("override_host", override),
        "load_assignment": assignment(name, *((address, port) for address in POOLS[name])),
    }


def picker_of(pool: str, port: int) -> dict[str, Any]:
    http2 = {
        "@type": f"{EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    return {
        "name": f"{pool}-epp",
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
        "load_assignment": assignment(f"{pool}-epp", ("127.0.0.1", port)),
    }


def policies(name: str, config: dict[str, Any]) -> dict[str, Any]:
    full = f"envoy.load_balancing_policies.{name}"
    return {"policies": [{"typed_extension_config": {"name": full, "typed_config": config}}]}


def assignment(name: str, *places: tuple[str, int]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": socket_address(*place)}} for place in places]
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}


def socket_address(address: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": address, "port_value": port}}


@contextmanager
def envoy(config: Mapping[str, Any], folder: Path) -> Iterator[None]:
    file, log = folder / "envoy.yaml", folder / "envoy.log"
    file.write_text(yaml.safe_dump(dict(config)))
    program = python_of("emulators").parent / "envoy"
    command = [
        str(program),
        "-c",
        str(file),
        "--concurrency",
        "1",
        "--base-id-path",
        str(folder / "base-id"),
        "--use-dynamic-base-id",
    ]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--log-level", "warning"], stdout=output, stderr=output)
    try:
        yield
        assert process.poll() is None, log.read_text()[-4000:]
    finally:
        process.terminate()
        process.wait(30)


class Caller:
    """As a subscriber calls: what is refused or fails is sent again. statuses: of every attempt."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/texts/score"
        self.statuses: Counter[int] = Counter()
        self.answered: Counter[str] = Counter()

    def calls(self, requests: int) -> None:
        """Returns when all are answered."""
        self.statuses.clear()
        self.answered.clear()
        asyncio.run(self._all(requests))

    async def _all(self, requests: int) -> None:
        left = iter(range(requests))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
            await asyncio.gather(*(self._some(session, left) for _ in range(AT_ONCE)))

    async def _some(self, session: aiohttp.ClientSession, left: Iterator[int]) -> None:
        body = {"model": "m", "text_1": "a", "text_2": "b"}
        for _ in left:
            for attempt in range(200):
                async with session.post(self._url, json=body, headers={"Host": HOST}) as reply:
                    self.statuses[reply.status] += 1
                    if reply.status == 200:
                        self.answered[(await reply.json())["server"]] += 1
                        break
                await asyncio.sleep(min(1.0, 0.02 * 2**attempt))
            else:
                pytest.fail(f"a request is not answered: {self.statuses}")


class Gateway:
    def __init__(self, servers: Servers, pickers: Mapping[str, Picker], listening: int, namespace: Namespace) -> None:
        self.servers, self.pickers, self.namespace = servers, pickers, namespace
        self.caller = Caller(listening)
        self.listening = listening


@pytest.fixture
def gateway(namespace: Namespace, stream_kinds: None, tmp_path: Path) -> Iterator[Gateway]:
    order = an_order(VARIANT, Settings(bucket="runs", project="acme", namespace=namespace.name))
    objects = {(each["kind"], each["metadata"]["name"]): each for each in render(order)}
    pools = {name: objects["InferencePool", name] for name in POOLS}
    port, listening = new_port(), new_port()
    with ExitStack() as stack:
        servers = Servers(port)
        stack.callback(servers.close)
        pickers: dict[str, Picker] = {}
        for number, (name, pool) in enumerate(pools.items()):
            pool["spec"]["targetPorts"] = [{"number": port}]
            mine = [pool, *(objects[kind, f"{name}-epp"] for kind in ("ServiceAccount", "Role", "RoleBinding"))]
            namespace.kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(mine))
            for at, address in enumerate(POOLS[name]):
                a_server(namespace, pool["spec"]["selector"]["matchLabels"], 10 * number + at, address)
            [container] = objects["Deployment", f"{name}-epp"]["spec"]["template"]["spec"]["containers"]
            found = stack.enter_context(running(namespace, name, container["args"], tmp_path))
            pickers[name] = found
            until("it has its pool", lambda: found.health == SERVING, found.log)  # noqa: B023
            question = {"model": "m", "text_1": "a", "text_2": "b"}
            until("it knows the servers", lambda: found.pick("/score", question) in POOLS[name], found.log)  # noqa: B023
        ports = {name: each.port for name, each in pickers.items()}
        config = envoy_config(objects["HTTPRoute", "package-texts"], pools, ports, listening, tmp_path / "envoy.log")
        stack.enter_context(envoy(config, tmp_path))
        yield Gateway(servers, pickers, listening, namespace)


async def status_of(port: int, path: str, host: str) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://127.0.0.1:{port}{path}", json={}, headers={"Host": host}) as reply,
    ):
        return reply.status


def test_requests_are_divided_as_the_route_says_and_nothing_is_lost_whatever_goes_away(gateway: Gateway) -> None:
    caller, servers = gateway.caller, gateway.servers.all
    until_up(gateway)

    # Shares: those of the route between the pools, and about halves within the one with two servers that are alike.
    caller.calls(REQUESTS)
    share = caller.answered[CANARY] / REQUESTS
    print(f"shares of {REQUESTS:,}: {dict(caller.answered)}, statuses {dict(caller.statuses)}")
    assert caller.statuses == {200: REQUESTS}
    assert share == pytest.approx(PERCENT / 100, abs=0.02)  # Four and a half standard deviations.
    assert min(caller.answered[address] for address in POOLS["package-texts-server"]) > REQUESTS / 5
    # The prefix is gone from the path, and nothing else reaches a server.
    assert {path for each in servers.values() for path in each.served} == {"/score"}
    assert asyncio.run(status_of(gateway.listening, "/textsmith/score", HOST)) == 404
    assert asyncio.run(status_of(gateway.listening, "/texts/score", "other.internal")) == 404

    # A server goes away: what it is sent until the cluster says that it is not ready is sent again, and all is answered.
    gateway.servers.goes_away("127.0.0.2")
    caller.calls(1000)
    print(f"a server is gone: {dict(caller.answered)}, statuses {dict(caller.statuses)}")
    assert "127.0.0.2" not in caller.answered
    not_ready(gateway.namespace, "server-0")
    until(
        "it is not picked",
        lambda: picks(gateway, "package-texts-server") == {"127.0.0.3"},
        gateway.pickers["package-texts-server"].log,
    )
    caller.calls(1000)
    print(f"and known to be not ready: {dict(caller.answered)}, statuses {dict(caller.statuses)}")
    assert caller.statuses == {200: 1000}

    # A canary that errs costs its share of the attempts, and no answer.
    servers[CANARY].erring = True
    caller.calls(2000)
    failed = caller.statuses[500] / sum(caller.statuses.values())
    print(f"the canary errs: {dict(caller.answered)}, statuses {dict(caller.statuses)}")
    assert caller.answered == {"127.0.0.3": 2000}
    assert failed == pytest.approx(PERCENT / 100, abs=0.05)


def until_up(gateway: Gateway) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            if asyncio.run(status_of(gateway.listening, "/texts/score", HOST)) == 200:
                break
        except aiohttp.ClientError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.2)
    for each in gateway.servers.all.values():
        each.served.clear()


def picks(gateway: Gateway, pool: str) -> set[str]:
    return {gateway.pickers[pool].pick("/score", {"model": "m", "text_1": "a", "text_2": "b"}) for _ in range(20)}


def not_ready(namespace: Namespace, pod: str) -> None:
    """As a node's agent says it of a server whose probe fails."""
    status = {"conditions": [{"type": "Ready", "status": "False"}]}
    namespace.kubectl("patch", "pod", pod, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
