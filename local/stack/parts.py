"""The parts of a stack: how each is started, and how its health is checked."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from local import vllm
from local.package import installed
from local.postgres import access
from local.stack import airflow, environment, marks, shell
from local.stack.folder import HOST, ROOT, Folder
from local.stack.kubernetes import Kubernetes

NAMES: Final = ("storage", "bigquery", "pubsub", "postgres", "agent", "airflow")
"""In order of dependency: a part uses only parts before it. They are stopped in reverse order."""
NIGHT: Final = ("storage", "bigquery", "agent", "airflow")
"""What a night needs, and what starts by default. A stream needs "pubsub" and "postgres"."""
PORTS: Final[dict[str, tuple[str, ...]]] = {
    "storage": ("storage",),
    "bigquery": ("bigquery", "bigquery_grpc"),
    "pubsub": ("pubsub", "pubsub_control"),
    "postgres": ("postgres",),
    "agent": ("runtime",),
    "airflow": airflow.PORTS,
}
DRIVER_IMAGE: Final = "nightshift/driver:0.3.0"
STREAM_IMAGE: Final = "nightshift/stream:0.3.0"
SERVER_IMAGE: Final = "vllm/vllm-openai:v0.33.0"
PROBE_TIMEOUT_S: Final = 3.0
AGENT_SILENCE_S: Final = 10.0


class Missing(Exception):
    """The machine lacks something that a part needs; the message says what to run."""


@dataclass(frozen=True)
class Part:
    """One process of the stack and all that it starts.

    probe: why the part is not healthy, or None; takes its pid and start time (epoch seconds). Bounded in time.
    broken: why it cannot recover by itself, or None; takes its pid. Called often, so it must be cheap.
    stop_signal: asks for an orderly end, which may take stop_s seconds. start_s: longest time from start to health.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    address: str
    probe: Callable[[int, float], str | None]
    broken: Callable[[int], str | None] = field(default=lambda _: None)
    stop_signal: signal.Signals = signal.SIGTERM
    stop_s: float = 10.0
    start_s: float = 60.0


def build(
    folder: Folder,
    life: str,
    names: tuple[str, ...],
    ports: Mapping[str, int],
    choice: airflow.Choice,
    kubernetes: Kubernetes | None,
) -> list[Part]:
    """The parts, in the order of `NAMES`. Writes the files that they read. Raises Missing, SetupError."""
    shared = environment.clients(folder, ports, kubernetes)
    if kubernetes and "storage" in ports:
        folder.pod_patch.write_text(json.dumps(kubernetes.pod_patch(environment.storage_url(ports, kubernetes)), indent=1))
    makers: dict[str, Callable[[], Part]] = {
        "storage": lambda: _storage(folder, ports, kubernetes),
        "bigquery": lambda: _bigquery(folder, ports, shared),
        "pubsub": lambda: _pubsub(folder, ports),
        "postgres": lambda: _postgres(folder, ports),
        "agent": lambda: _agent(folder, life, shared, ports["runtime"]),
        "airflow": lambda: _airflow(folder, ports, shared, choice),
    }
    return [makers[name]() for name in NAMES if name in names]


def _storage(folder: Folder, ports: Mapping[str, int], kubernetes: Kubernetes | None) -> Part:
    address = environment.storage_url(ports, kubernetes)
    command = (
        "-m",
        "local.storage",
        "--host",
        environment.storage_host(kubernetes),
        "--port",
        str(ports["storage"]),
        "--data-dir",
        str(folder.path / "storage"),
    )
    return Part("storage", (_program("emulators", "python"), *command), {}, address, _answers(f"{address}/_health"))


def _bigquery(folder: Folder, ports: Mapping[str, int], shared: Mapping[str, str]) -> Part:
    address = f"http://{HOST}:{ports['bigquery']}"
    command = ["-m", "local.bigquery", "--host", HOST, "--port", str(ports["bigquery"])]
    command += ["--grpc-port", str(ports["bigquery_grpc"]), "--data-dir", str(folder.path / "bigquery")]
    return Part("bigquery", (_program("emulators", "python"), *command), shared, address, _answers(f"{address}/healthz"))


def _pubsub(folder: Folder, ports: Mapping[str, int]) -> Part:
    command = ["-m", "local.pubsub", "--host", HOST, "--port", str(ports["pubsub"])]
    command += ["--control-port", str(ports["pubsub_control"]), "--data-dir", str(folder.path / "pubsub")]
    health = _answers(f"{environment.pubsub_control(ports)}/_health")
    return Part("pubsub", (_program("emulators", "python"), *command), {}, f"{HOST}:{ports['pubsub']}", health)


def _postgres(folder: Folder, ports: Mapping[str, int]) -> Part:
    """PostgreSQL's own processes overwrite the marks in their environment; they die with the one process that keeps them."""
    port = ports["postgres"]
    command = ("-m", "local.postgres", "--port", str(port), "--data-dir", str(folder.postgres))
    python = _program("emulators", "python")
    # The address is shown to everybody who asks for the status: without the password.
    return Part("postgres", (python, *command), {}, f"{HOST}:{port}", lambda _pid, _since: access.problem(port))


def _agent(folder: Folder, life: str, shared: Mapping[str, str], port: int) -> Part:
    python, package = _program("emulators", "python"), {"PYTHONPATH": str(installed())}
    command = ("-m", "local.runtime", "--state", str(folder.runtime), "--config", str(folder.runtime_config))
    beat = folder.runtime / "agent.json"

    def probe(pid: int, since: float) -> str | None:
        try:
            written = beat.stat().st_mtime
            announced = json.loads(beat.read_text())["pid"]
        except (OSError, ValueError):
            return "not ready yet"
        if announced != pid or written < since:
            return "not ready yet"
        silence = time.time() - written
        return f"silent for {silence:.0f} s" if silence > AGENT_SILENCE_S else None

    driver, server = (Path(_program(each, "python")).parent for each in ("driver", "server"))
    own = {marks.STACK: str(folder.path), marks.LIFE: life, marks.PART: "agent", **marks.TITLES_KEEP_ENVIRONMENT}
    # The source that Airflow has, even if a file of this clone changes while the stack is up.
    node = node_configuration({**shared, **own}, driver, server, package)
    folder.runtime_config.write_text(json.dumps({**node, "host": HOST, "port": port}, indent=1))
    # Its pods have 15 s to drain.
    return Part("agent", (python, *command), {**shared, **package}, f"local:{folder.runtime}", probe, stop_s=25)


def node_configuration(env: Mapping[str, str], driver: Path, server: Path, driver_env: Mapping[str, str]) -> dict[str, Any]:
    """The agent's configuration. env: of every container. driver, server: the folders with their programs.

    vLLM's variables were chosen by measurement, see docs/develop/local-stack.md. Raises Missing.
    """
    try:
        engine = vllm.environment()
    except FileNotFoundError as error:
        raise Missing(str(error)) from error
    return {
        "images": {
            DRIVER_IMAGE: {"path": [str(driver)], "env": driver_env},
            SERVER_IMAGE: {"path": [str(server)], "env": engine},
        },
        "env": {**env, "PYTHONUNBUFFERED": "1"},
        "max_pods": environment.PODS + environment.WARM,
        "pod_backoff_s": 2,
    }


def _airflow(folder: Folder, ports: Mapping[str, int], shared: Mapping[str, str], choice: airflow.Choice) -> Part:
    program = _program(choice.environment, "airflow")
    airflow.write_config(folder)
    airflow.write_passwords(folder)
    package = installed()
    settings = airflow.settings(folder, ports, choice, package)
    shell.prepare(folder, settings, package)
    # standalone looks for `airflow` on the PATH to start its components.
    path = os.pathsep.join([str(Path(program).parent), os.environ.get("PATH", os.defpath)])
    health = f"{airflow.url(ports)}/api/v2/monitor/health"

    def probe(_: int, since: float) -> str | None:
        reply, problem = _get(health)
        return problem or airflow.unhealthy(json.loads(reply), since)

    return Part(
        "airflow",
        (program, "standalone"),
        {**shared, **settings, "PATH": path},
        airflow.url(ports),
        probe,
        airflow.dead_component,
        # standalone stops its components only on Ctrl-C; a SIGTERM would end it alone.
        stop_signal=signal.SIGINT,
        stop_s=15,
        start_s=300,
    )


def _program(name: str, program: str) -> str:
    """The program's path in environment `name`."""
    folder = ROOT / ".venv" if name == "driver" else ROOT / ".envs" / name
    path = folder / "bin" / program
    if not path.exists():
        raise Missing(f"The environment '{name}' does not exist: no {path}; make it: python3 local/environments.py {name}")
    return str(path)


def _answers(address: str) -> Callable[[int, float], str | None]:
    return lambda _pid, _since: _get(address)[1]


def _get(address: str) -> tuple[bytes, str | None]:
    """The reply's body, and what went wrong, if anything."""
    # No proxy, whatever the environment has: the address is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=PROBE_TIMEOUT_S) as reply:
            return reply.read(), None
    except (OSError, urllib.error.URLError, ValueError) as error:
        return b"", f"{address}: {error}"
