"""`nightshift tune` on the local runtime, whose machine is taken away in the middle of a trial: real JobSets, real keepers, the
storage emulator, and in vLLM's place an engine that takes its time."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import obstore
import pyarrow as pa
import pytest
import yaml

from local.environments import ROOT
from nightshift import exits
from nightshift.cli import main
from nightshift.settings import Settings
from nightshift.spec import JobSpec, load
from nightshift.store import open_store
from nightshift.trial.rows import read_rows
from nightshift.trial.tune.tuner import POOL, WARM_UP
from tests.cluster import engine
from tests.integration.emulators import StorageEmulator
from tests.integration.runtime.agents import AgentProcess, LocalUnderTest
from tests.integration.runtime.manifests import wait_for

pytestmark = pytest.mark.integration

BUCKET, PROJECT, DAY = "tuned-evicted", "local", "2026-11-20"
ROWS = 40
SLOW = {"ENGINE_SEATS": "4", "ENGINE_ROW_S": "0.5"}
"""Five seconds for the rows of a trial."""
JOB = {
    "job": "texts",
    "owner": "docs",
    "start_date": "2026-11-01",
    "source": {"query": "SELECT id, text FROM `d.t` WHERE day = @partition", "key": ["id"]},
    "task": "embedding",
    "request": {"input": "{{ text }}"},
    "model": {"name": "m", "uri": "hf://org/m", "revision": "r1"},
    "engine": {"max_num_seqs": 4, "max_model_len": 256},
    "destination": {"table": "d.out", "column": "vector"},
    "deadline": "2h",
    "compute": {"profile": "cpu"},
}


class Texts:
    """A warehouse."""

    def query_bytes(self, spec: JobSpec, partition: str) -> int | None:
        return None

    def some_rows(self, spec: JobSpec, partition: str, rows: int) -> tuple[int, pa.Table]:
        return rows, pa.table({"id": list(range(rows)), "text": [f"text {number}" for number in range(rows)]})


@pytest.fixture
def agent(tmp_path: Path, storage_emulator: StorageEmulator) -> Iterator[AgentProcess]:
    settings = Settings(bucket=BUCKET, project=PROJECT)
    program = tmp_path / "image/vllm/entrypoints/cli/main.py"
    program.parent.mkdir(parents=True)
    program.write_text(Path(engine.__file__).read_text())
    path = [str(Path(sys.executable).parent)]
    server = {"path": path, "env": {"PYTHONPATH": str(tmp_path / "image"), **SLOW}}
    images = {
        settings.driver_image: {"path": path, "env": {"PYTHONPATH": str(ROOT / "plugins")}},
        settings.server_image: server,
        settings.cpu_server_image: server,
    }
    made = AgentProcess(tmp_path, images=images, env={"STORAGE_EMULATOR_HOST": storage_emulator.url}, max_pods=1)
    made.start()
    yield made
    made.close()


def test_a_trial_whose_machine_is_taken_away_is_repeated(
    tmp_path: Path, agent: AgentProcess, storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage_emulator.client().create_bucket(BUCKET)
    variables = {
        "STORAGE_EMULATOR_HOST": storage_emulator.url,
        "NIGHTSHIFT_BUCKET": BUCKET,
        "NIGHTSHIFT_PROJECT": PROJECT,
        "NIGHTSHIFT_RUNTIME": f"local:{agent.state}",
        "HF_HUB_OFFLINE": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "texts.yaml"
    file.write_text(yaml.safe_dump(JOB))
    store, runtime = open_store(f"gs://{BUCKET}"), LocalUnderTest(agent.state)
    read_rows(store, Texts(), load(file), DAY, POOL * (ROWS + WARM_UP), PROJECT, None)

    def kept(part: str) -> list[str]:
        pages = [*obstore.list(store, "texts"), *obstore.list(store, "_workers")]
        return sorted(meta["path"] for page in pages for meta in page if part in meta["path"])

    evicted: list[str] = []

    def evict() -> None:
        """When the rows of the first trial have begun, after its warm-up."""
        wait_for(lambda: len(kept("/taken/")) == 2, "the rows of a trial")
        (jobset,) = (entry.name for entry in (agent.state / "jobsets").iterdir())
        (pod,) = (each["metadata"]["name"] for each in runtime.observe(jobset).pods)
        evicted.append(pod)
        runtime.evict(jobset, pod)

    thread = threading.Thread(target=evict)
    thread.start()
    code = main(["tune", str(file), "--rows", str(ROWS), "--partition", DAY, "--budget", "1s"])
    thread.join()

    assert code == exits.FAILED, "the budget ended before a soak"
    assert len(evicted) == 1
    assert [path.rpartition("/")[2] for path in kept("/begun/")] == ["00000001-1", "00000001-2"]
    (path,) = kept("/trials/")
    trial = json.loads(bytes(obstore.get(store, path).bytes()))
    assert (trial["cause"], trial["rows"]) == (None, ROWS)
    assert trial["rate"] == pytest.approx(4 / 0.5, rel=0.3)
    assert not list((agent.state / "jobsets").iterdir()), "no engine is left"
