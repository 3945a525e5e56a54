"""Real proxies in front of a server, with the configuration that a test gives them: nginx, HAProxy and Envoy."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

from local.environments import python_of
from local.ports import new_port
from tests.integration.debian import unpacked

PATIENCE_S: Final = 20.0
NGINX: Final = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
access_log off;
client_body_temp_path {folder}/body;
proxy_temp_path {folder}/proxy;
fastcgi_temp_path {folder}/fastcgi;
uwsgi_temp_path {folder}/uwsgi;
scgi_temp_path {folder}/scgi;
{server}
}}
"""
HAPROXY_LIBRARIES: Final = ("liblua5.3-0", "libopentracing1", "libopentracing-c-wrapper0")


class Front(Protocol):
    """Runs one, and gives its port. config: with `{port}` where that belongs. Raises debian.Missing."""

    def __call__(self, folder: Path, config: str) -> AbstractContextManager[int]: ...


@contextmanager
def nginx(folder: Path, config: str) -> Iterator[int]:
    """config: the server block."""
    program = (
        shutil.which("nginx")
        or shutil.which("nginx", path="/usr/sbin")
        or unpacked("usr/sbin/nginx", "nginx") / "usr/sbin/nginx"
    )
    file, port = folder / "nginx.conf", new_port()
    file.write_text(NGINX.format(folder=folder, server=config.replace("{port}", str(port))))
    with _running([program, "-c", file, "-p", folder], folder, port):
        yield port


@contextmanager
def haproxy(folder: Path, config: str) -> Iterator[int]:
    """config: its sections."""
    program, environment = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin"), {}
    if program is None:
        home = unpacked("usr/sbin/haproxy", "haproxy", *HAPROXY_LIBRARIES)
        program = str(home / "usr/sbin/haproxy")
        environment = {"LD_LIBRARY_PATH": str(next((home / "usr/lib").glob("*-linux-gnu")))}
    file, port = folder / "haproxy.cfg", new_port()
    file.write_text(config.replace("{port}", str(port)) + "\n")
    with _running([program, "-db", "-f", file], folder, port, environment):
        yield port


@contextmanager
def envoy(folder: Path, config: str) -> Iterator[int]:
    """config: its bootstrap, in YAML."""
    file, port = folder / "envoy.yaml", new_port()
    file.write_text(config.replace("{port}", str(port)))
    program = python_of("emulators").parent / "envoy"
    options: list[str | Path] = [
        "--concurrency",
        "1",
        "--base-id-path",
        folder / "base-id",
        "--use-dynamic-base-id",
        "--log-level",
        "warning",
    ]
    with _running([program, "-c", file, *options], folder, port):
        yield port


@contextmanager
def _running(
    command: list[str | Path], folder: Path, port: int, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    log = folder / "front.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment or None, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, log.read_text()[-4000:]
                assert time.monotonic() < deadline, f"it does not listen: {log.read_text()[-4000:]}"
                time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(30)
