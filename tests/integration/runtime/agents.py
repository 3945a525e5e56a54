"""An agent of the local runtime as a real process, and how tests look for processes that it should not have left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from local.runtime.folder import AgentFolder
from local.runtime.process import STATE_MARK, marked
from nightshift.jobset.kubernetes.runtime import KubernetesRuntime
from tests.cluster.runtime import Api
from tests.folder_cluster import FolderRuntime
from tests.integration.runtime.manifests import IMAGE, wait_for

PLUGINS = Path(__file__).parents[3] / "plugins"


class LocalUnderTest(FolderRuntime):
    """The agent's folder, which also has pods that its API has no more. What changes a JobSet that runs goes over the API."""

    def __init__(self, state: Path) -> None:
        super().__init__(state)
        self._kubeconfig = state / "kubeconfig"

    def pause(self, name: str, note: str) -> None:
        self._cluster().pause(name, note)

    def resume(self, name: str) -> None:
        self._cluster().resume(name)

    def claim(self, name: str, uid: str, owner: str) -> None:
        self._cluster().claim(name, uid, owner)

    def mark_judged(self, name: str, uid: str, by: str) -> None:
        self._cluster().mark_judged(name, uid, by)

    def evict(self, name: str, pod: str) -> None:
        self._state.jobset(name).ask_eviction(pod)

    def _cluster(self) -> KubernetesRuntime:
        return KubernetesRuntime(Api(self._kubeconfig), "default")


class AgentProcess:
    """``start`` may be called again after the agent has ended; ``close`` kills it and whatever it left."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.state = folder / "state"
        self.kubeconfig = self.state / "kubeconfig"
        self._config = folder / "config.json"
        image = {"path": [str(Path(sys.executable).parent)]}
        defaults = {"images": {IMAGE: image}, "pod_backoff_s": 0.1, "restart_backoff_s": 0.1, "poll_s": 0.05}
        self._config.write_text(json.dumps({**defaults, **config}))
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "local.runtime", "--state", str(self.state), "--config", str(self._config)]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(PLUGINS)}, **options)

    def start(self) -> None:
        process = self.launch()
        self._process = process

        def ready() -> bool:
            assert process.poll() is None, "the agent ended at its start"
            try:
                return bool(json.loads((self.state / "agent.json").read_text())["pid"] == process.pid)
            except FileNotFoundError:
                return False

        wait_for(ready, "an agent that is ready")

    def running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def signal(self, number: int) -> int:
        """Sends a signal to the agent and waits for its end; its exit code."""
        self.running().send_signal(number)
        return self.running().wait(timeout=600)

    def processes(self) -> list[int]:
        """Processes of containers that live now, shims included."""
        return marked({STATE_MARK: str(self.state.resolve())})

    def pods(self, name: str) -> dict[str, Any]:
        """pods.json of a JobSet."""
        return dict(json.loads((self.state / "jobsets" / name / "pods.json").read_text()))

    def pid(self, name: str, pod: str, container: str) -> int:
        """Process id of a container's main process, once it is recorded: that may be after its first output."""
        return int(
            wait_for(lambda: self.pods(name).get(pod, {}).get("pids", {}).get(container), f"a process id of {container}")
        )

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGKILL)
        wait_for(lambda: not self.processes(), "the end of all containers")
        # Else the next agent would remove what a killed one left outside its folder.
        AgentFolder(self.state.resolve()).clean()


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
