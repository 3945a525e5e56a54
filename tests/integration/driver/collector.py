"""Where spans are sent in tests: a receiver in this process, and OpenTelemetry's own collector."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

from local.cluster import build
from local.ports import new_port
from tests.integration.driver.serving import ThreadedServer


@dataclass(frozen=True)
class Seen:
    """A span. trace, span, parent: ids in hexadecimal; parent is empty for none. attributes: as text."""

    service: str
    name: str
    trace: str
    span: str
    parent: str
    attributes: dict[str, str]


class Receiver(ThreadedServer):
    """Takes OTLP over HTTP on a free port."""

    def __init__(self) -> None:
        super().__init__(0)
        self.spans: list[Seen] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/traces", self._take)]

    async def _take(self, request: web.Request) -> web.Response:
        got = ExportTraceServiceRequest.FromString(await request.read())
        for each in got.resource_spans:
            service = next(item.value.string_value for item in each.resource.attributes if item.key == "service.name")
            self.spans += [
                Seen(
                    service,
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    {item.key: item.value.string_value or str(item.value.int_value) for item in span.attributes},
                )
                for scope in each.scope_spans
                for span in scope.spans
            ]
        return web.Response(body=ExportTraceServiceResponse().SerializeToString(), content_type="application/x-protobuf")


class Collector:
    """A real one, at its OTLP/HTTP port; it prints what it receives into a file."""

    def __init__(self, port: int, printed: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._printed = printed

    def spans(self) -> list[Seen]:
        """What has come so far."""
        found: list[Seen] = []
        service = ""
        for part in re.split(r"(?=ResourceSpans #|^Span #|^ScopeSpans #)", self._printed.read_text(), flags=re.M):
            attributes = dict(re.findall(r"^ +-> ([\w.]+): \w+\((.*)\)$", part, re.M))
            if part.startswith("ResourceSpans"):
                service = attributes.get("service.name", "")
            elif part.startswith("Span #"):
                said = dict(re.findall(r"^    (Name|Trace ID|ID|Parent ID) +: *(.*)$", part, re.M))
                found.append(Seen(service, said["Name"], said["Trace ID"], said["ID"], said["Parent ID"], attributes))
        return found

    def metrics(self) -> dict[str, float]:
        """Last value of each gauge by its name."""
        found = {}
        for part in re.split(r"(?=^Metric #)", self._printed.read_text(), flags=re.M):
            name, value = re.search(r"^     -> Name: (.*)$", part, re.M), re.findall(r"^Value: (.*)$", part, re.M)
            if part.startswith("Metric #") and name and value:
                found[name[1]] = float(value[-1])
        return found


@contextmanager
def collecting(folder: Path) -> Iterator[Collector]:
    """Builds it once for all clones, which takes a minute or two. Raises `local.cluster.build.BuildError`."""
    program = build.on_demand("collector", print)
    folder.mkdir(parents=True, exist_ok=True)
    port, printed = new_port(), folder / "collector.log"
    pipelines = {kind: {"receivers": ["otlp"], "exporters": ["debug"]} for kind in ("traces", "metrics")}
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"debug": {"verbosity": "detailed", "sampling_initial": 100_000}},
        "service": {"pipelines": pipelines, "telemetry": {"metrics": {"level": "none"}}},
    }
    file = folder / "collector.yaml"
    file.write_text(yaml.safe_dump(config))
    with open(printed, "w") as out:
        process = subprocess.Popen([program, f"--config={file}"], stdout=out, stderr=subprocess.STDOUT)
    try:
        await_condition(
            lambda: "Everything is ready" in printed.read_text() or process.poll() is not None, "the collector is up"
        )
        assert process.poll() is None, printed.read_text()[-2000:]
        yield Collector(port, printed)
    finally:
        process.terminate()
        process.wait()


def await_condition(met: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
