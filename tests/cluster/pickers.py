"""Upstream's endpoint picker as a process of this machine, with the arguments and the account that are rendered for a pool. It
watches a real API server; the servers of its pool are pods whose addresses are ports of this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import yaml

from local.cluster import build
from local.ports import new_port
from nightshift.jobset.manifest.constants import ENGINE_PORT
from nightshift.stream.manifests import picker
from tests.cluster.kube import Namespace

PATIENCE_S: Final = 60.0
SERVING: Final = b"\x08\x01"
NOT_SERVING: Final = b"\x08\x02"


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
        self.port, self.process, self.log = port, process, log
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


def a_server(namespace: Namespace, labels: dict[str, str], number: int, address: str) -> None:
    """A pod that no node ever runs."""
    container = {"name": "server", "image": "none", "ports": [{"containerPort": ENGINE_PORT}]}
    spec = {"schedulingGates": [{"name": "nightshift.dev/never"}], "containers": [container]}
    name = f"server-{number}"
    namespace.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec})
    conditions = [{"type": "Ready", "status": "True"}]
    status = {"podIP": address, "podIPs": [{"ip": address}], "phase": "Running", "conditions": conditions}
    namespace.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


@contextmanager
def running(namespace: Namespace, pool: str, arguments: Sequence[str], folder: Path) -> Iterator[Picker]:
    """As the account that is rendered for the pool, whose token is its only credential."""
    program = build.on_demand("epp", print)
    token = namespace.kubectl("create", "token", f"{pool}-epp").strip()
    config = yaml.safe_load(namespace.cluster.kubeconfig.read_text())
    config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
    port, health_port = new_port(), new_port()
    kubeconfig = folder / f"kubeconfig-{port}"
    kubeconfig.write_text(yaml.safe_dump(config))
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
