"""A night whose one worker has two engines in one container, of which one is killed in the middle: real vLLM, local runtime."""

import json
import os
import re
import signal
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from local import models
from local.environments import python_of
from local.stack.parts import node_configuration
from nightshift.jobset.manifest.constants import DRIVER, SERVER
from nightshift.jobset.manifest.render import render
from nightshift.jobset.observation import condition
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.chaos.inputs import real_texts
from tests.integration.driver.runs import PLUGINS, PreparedRun
from tests.integration.driver.tables import prepare_table
from tests.integration.runtime.agents import AgentProcess, LocalUnderTest
from tests.integration.runtime.manifests import wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1700)]

ROWS = 400
NAME = "several"


def a_job() -> JobSpec:
    model = models.ensure(models.TINY_LLAMA)
    return a_spec(
        task="chat",
        request={"user": "{{ text }}", "temperature": 0, "max_tokens": 64},
        model={"name": "tiny", "uri": model.uri, "revision": model.revision},
        engine={"max_num_seqs": 4, "max_model_len": 512, "dtype": "float32", "args": {"enforce-eager": True}},
        compute={"profile": "cpu", "engines": 2},
    )


@dataclass
class Night:
    """The JobSet that the manifest makes, on an agent of its own."""

    prepared: PreparedRun
    agent: AgentProcess

    def submit(self) -> None:
        settings = Settings(bucket="none", project="none", runtime=f"local:{self.agent.state}")
        manifest = render(self.prepared.spec, self.prepared.run, self.prepared.plan, settings, name=NAME)
        pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        [url] = [each for each in pod["containers"][0]["env"] if each["name"] == "NIGHTSHIFT_RUN_URL"]
        # In a folder, so that no bucket has to be there.
        url["value"] = f"{self.prepared.url}/{self.prepared.run.prefix}"
        self.runtime.submit(manifest)

    @property
    def runtime(self) -> LocalUnderTest:
        return LocalUnderTest(self.agent.state)

    @property
    def pod(self) -> dict[str, Any]:
        [pod] = self.runtime.observe(NAME).pods
        return dict(pod)

    def log(self, container: str) -> list[str]:
        return list(self.runtime.logs(NAME, self.pod["metadata"]["name"], container))

    def said(self, message: str) -> list[dict[str, Any]]:
        """By the driver, whose log lines are JSON."""
        lines = [json.loads(line) for line in self.log(DRIVER) if line.startswith("{")]
        return [line for line in lines if line["message"] == message]

    def lives(self, engine: int) -> list[tuple[int, int]]:
        """Port and process of each life, as the supervisor says."""
        found = re.findall(
            rf"^nightshift: engine {engine} starts on port (\d+) as process (\d+)$", "\n".join(self.log(SERVER)), re.M
        )
        return [(int(port), int(process)) for port, process in found]

    def driver(self) -> int:
        return self.agent.pid(NAME, self.pod["metadata"]["name"], DRIVER)


def answered_by(port: int) -> float:
    """Requests that the engine itself has counted; 0 while it is not there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
            lines = reply.read().decode().splitlines()
    except OSError:
        return 0.0
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:request_success_total"))


def is_healthy(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10).close()
    except OSError:
        return False
    return True


def test_the_other_engine_goes_on_and_the_killed_one_comes_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    driver, server = Path(sys.executable).parent, python_of("server").parent
    node = node_configuration({}, driver, server, {"PYTHONPATH": str(PLUGINS)})
    night = Night(
        prepare_table(tmp_path, a_job(), {"text": real_texts(ROWS, 1)}, chunk_rows=10), AgentProcess(tmp_path, **node)
    )
    began = time.monotonic()
    took = {}

    def note(what: str, holds: Callable[[], Any]) -> Any:
        found = wait_for(holds, what)
        took[what] = round(time.monotonic() - began, 1)
        return found

    night.agent.start()
    try:
        night.submit()
        note("a pod", lambda: night.runtime.observe(NAME).pods)
        note("committed", lambda: len(night.said("committed")) >= 2)
        [(port, process)], [(other, _)] = night.lives(0), night.lives(1)
        assert all(answered_by(each) for each in (port, other)), "both work"
        os.kill(process, signal.SIGKILL)
        [lost] = note("lost", lambda: night.said("engine lost"))
        before = len(night.said("committed"))
        note("the other one goes on", lambda: len(night.said("committed")) > before)
        # So that rows are left for the new engine, however slowly it starts here.
        os.kill(night.driver(), signal.SIGSTOP)
        note("another life", lambda: len(night.lives(0)) == 2)
        note("healthy", lambda: is_healthy(port))
        os.kill(night.driver(), signal.SIGCONT)
        note("back", lambda: night.said("engine back"))
        note("answers again", lambda: answered_by(port))
        note("the end", lambda: condition(night.runtime.observe(NAME).jobset or {}, "Completed"))
        [status] = night.pod["status"]["initContainerStatuses"]
        [done] = night.said("done")
    finally:
        night.agent.close()

    with capsys.disabled():
        print(f"\n{took}")
    rows = night.prepared.rows()
    assert sorted(rows) == list(range(ROWS))
    assert not [row for row in rows.values() if row["dead_reason"] is not None]
    assert (done["rows_dead"], done["engine_losses"], lost["engine"]) == (0, 1, 0)
    assert status["restartCount"] == 0, "the container was not restarted for one engine"
