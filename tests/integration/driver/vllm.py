"""A real vLLM on the CPU, started by the very arguments that the manifest renders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from local import hub, vllm
from local.environments import ROOT, python_of
from local.ports import new_port
from local.runtime.expansion import expand
from nightshift.jobset.manifest.server import server_args
from nightshift.spec import JobSpec
from nightshift.spec.engine_defaults import API_SERVERS
from tests.launch import launched

MINILM: dict[str, Any] = {
    "model__name": "minilm",
    "model__uri": f"hf://{hub.REPOSITORY}",
    "model__revision": hub.REVISION,
    "engine__max_num_seqs": 16,
    "engine__max_model_len": 128,
    "engine__dtype": "float32",
    "engine__args": {"enforce-eager": True},
    "request__rows_per_request": 8,
}
"""Changes to `a_spec` for embeddings by a model that this CPU computes quickly."""


class Vllm:
    """A vLLM server as the manifest starts it, on one port through all its lives. arguments, variables: beside the job's."""

    def __init__(
        self, spec: JobSpec, log: Path, arguments: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> None:
        self.port = new_port()
        self._arguments = [expand(each, {"ENGINE_PORT": str(self.port)}) for each in (*server_args(spec), *arguments)]
        self._several = spec.engine.flags.get(API_SERVERS, 1) > 1
        self._variables = dict(variables or {})
        self._log = log
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        environment = {**os.environ, **vllm.environment(), **self._variables}
        command = vllm.command(*self._arguments)
        if self._several:
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
        with open(self._log, "ab") as log:
            # A server outlives no test process, however that one ends: two of them leave nothing of a small machine to others.
            self._process = subprocess.Popen(
                launched(command, ends_with_us=True),
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def await_health(self) -> None:
        while True:
            assert self._process.poll() is None, self._log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def requests_served(self) -> float:
        """What the engine itself has counted since its start."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=120) as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:request_success_total"))

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        """The reply to one request, sent past the driver. Raises urllib.error.HTTPError for a refusal."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)


def in_server_environment(script: Path, *arguments: str, stdin: str = "") -> Any:
    """What a script that needs the server environment (transformers, torch) prints as JSON."""
    done = subprocess.run(
        [str(python_of("server")), str(script), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **vllm.environment(), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
