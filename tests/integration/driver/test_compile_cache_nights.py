"""Two nights of a job on the local runtime, as rendered: the pods of the second take what the engine of the first compiled."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml

from local.environments import ROOT
from nightshift.jobset.manifest.constants import SERVER
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings
from tests.integration.driver.runs import PLUGINS, PreparedRun, prepare
from tests.integration.emulators import StorageEmulator
from tests.integration.runtime.agents import AgentProcess, LocalUnderTest
from tests.integration.runtime.manifests import finished
from tests.integration.runtime.view import look

pytestmark = pytest.mark.integration

TEXTS: list[str | None] = [f"text {number}" for number in range(24)]
ENGINE = """
import asyncio, os, pathlib, time, obstore
from nightshift.store import open_store
from tests.integration.driver.canned import CannedEngine
code = pathlib.Path(os.environ["VLLM_CACHE_ROOT"], "torch_compile_cache/a/code")
print("taken" if code.exists() else "compiled", flush=True)
code.parent.mkdir(parents=True, exist_ok=True)
code.write_text("code")
store = open_store(os.environ["BUCKET"])
async def until_it_is_there(texts):
    for _ in range(300 if "text 23" in texts else 0):
        if store.list("_workers/job/compile-cache").collect():
            return
        await asyncio.sleep(0.1)
with CannedEngine(until_it_is_there, int(os.environ["ENGINE_PORT"])):
    time.sleep(600)
"""
"""It compiles unless it finds what it needs. The last row is not answered before the archive is there: a driver that is done
does not wait for it."""


def computed(runtime: LocalUnderTest, night: PreparedRun, settings: Settings, name: str) -> dict[str, list[str]]:
    """The first lines of its pod's containers, when it is done."""
    runtime.submit(render(night.spec, night.run, night.plan, settings, name=name))
    assert finished(runtime, name).phase == "Completed"
    [pod] = look(runtime, name).pods
    return {each: list(runtime.logs(name, pod.name, each)) for each in ("compile-cache", SERVER)}


def test_the_second_night_takes_it(tmp_path: Path, storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    bucket = storage_emulator.client().create_bucket(f"nights-{tmp_path.name}".replace("_", "-")).name
    server = {
        "name": SERVER,
        "command": [sys.executable, "-c", ENGINE],
        "args": [],
        "env": [{"name": "BUCKET", "value": f"gs://{bucket}"}, {"name": "PYTHONPATH", "value": f"{ROOT}:{PLUGINS}"}],
        "startupProbe": {"periodSeconds": 1},
    }
    patch = tmp_path / "patch.yaml"
    patch.write_text(yaml.safe_dump({"spec": {"initContainers": [server]}}))
    cache = tmp_path / "cache"
    python = {"path": [str(Path(sys.executable).parent)], "env": {"PYTHONPATH": str(PLUGINS), "VLLM_CACHE_ROOT": str(cache)}}
    settings = Settings(
        bucket=bucket,
        project="acme",
        runtime=f"local:{tmp_path / 'state'}",
        service_account="nightshift-{job}",
        pod_patch=str(patch),
    )
    agent = AgentProcess(
        tmp_path,
        images={settings.driver_image: python, settings.server_image: python},
        env={"STORAGE_EMULATOR_HOST": storage_emulator.url},
    )
    runtime = LocalUnderTest(agent.state)
    first, second = (
        prepare(tmp_path, TEXTS, url=f"gs://{bucket}", request__input=each) for each in ("{{ text }}", "a {{ text }}")
    )
    try:
        agent.start()
        said = computed(runtime, first, settings, "one")
        assert "there is no cache to fetch" in said["compile-cache"][0]
        assert said[SERVER][0] == "compiled"

        shutil.rmtree(cache)
        said = computed(runtime, second, settings, "two")
        assert "compile cache fetched" in said["compile-cache"][0]
        assert said[SERVER][0] == "taken"
    finally:
        agent.close()
