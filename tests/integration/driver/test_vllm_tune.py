"""`nightshift tune` on real vLLM, as a user runs it: engines as JobSets of the local runtime, trials in the storage emulator;
killed in the middle, and run again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
import yaml

from local import models, vllm
from local.environments import ROOT, python_of
from nightshift import exits
from nightshift.settings import Settings
from nightshift.spec import JobSpec, load
from nightshift.store import open_store
from nightshift.trial.rows import read_rows
from nightshift.trial.tune.tuner import POOL, WARM_UP
from tests.integration.emulators import StorageEmulator
from tests.integration.runtime.agents import AgentProcess

pytestmark = pytest.mark.integration

BUCKET, PROJECT, DAY = "tuned", "local", "2026-11-20"
ROWS = 400
BUDGET = os.environ.get("TUNE_BUDGET", "6m")
WORDS = ("parser", "settings", "file", "checks", "each", "value", "says", "where", "it", "was", "wrong", "or", "right")


class Sentences:
    """A warehouse whose rows have from 3 to 120 words."""

    def query_bytes(self, spec: JobSpec, partition: str) -> int | None:
        return None

    def some_rows(self, spec: JobSpec, partition: str, rows: int) -> tuple[int, pa.Table]:
        rng = random.Random(7)
        texts = [" ".join(rng.choices(WORDS, k=rng.choice([3, 8, 20, 60, 120]))) for _ in range(rows)]
        return 100_000, pa.table({"id": list(range(rows)), "text": texts})


@pytest.fixture
def agent(tmp_path: Path, storage_emulator: StorageEmulator) -> Iterator[AgentProcess]:
    settings = Settings(bucket=BUCKET, project=PROJECT)
    images = {
        settings.driver_image: {"path": [str(python_of("driver").parent)], "env": {"PYTHONPATH": str(ROOT / "plugins")}},
        settings.server_image: {"path": [str(python_of("server").parent)], "env": vllm.environment()},
    }
    made = AgentProcess(tmp_path, images=images, env={"STORAGE_EMULATOR_HOST": storage_emulator.url}, max_pods=1)
    made.start()
    yield made
    made.close()


def job_file(folder: Path, **args: Any) -> Path:
    model = models.ensure(models.TINY_LLAMA)
    body: dict[str, Any] = {
        "job": "sentences",
        "owner": "docs",
        "start_date": "2026-11-01",
        "source": {"query": "SELECT id, text FROM `d.t` WHERE day = @partition", "key": ["id"]},
        "task": "completion",
        "request": {"prompt": "{{ text }}", "max_tokens": 8, "temperature": 0},
        "model": {"name": "tiny", "uri": model.uri, "revision": model.revision},
        "engine": {"max_num_seqs": 4, "max_model_len": 256, "dtype": "float32", "args": {"enforce-eager": True, **args}},
        "destination": {"table": "d.out", "column": "answer"},
        "deadline": "2h",
        "compute": {"profile": "cpu"},
    }
    file = folder / "sentences.yaml"
    file.write_text(yaml.safe_dump(body, sort_keys=False))
    return file


class Tunes:
    """The command in a process of its own."""

    def __init__(self, agent: AgentProcess, file: Path) -> None:
        self.store = open_store(f"gs://{BUCKET}")
        read_rows(self.store, Sentences(), load(file), DAY, POOL * (ROWS + WARM_UP), PROJECT, None)
        self._command = [sys.executable, "-m", "nightshift.cli", "tune", str(file), "--rows", str(ROWS), "--partition", DAY]
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT / "plugins"),
            "NIGHTSHIFT_BUCKET": BUCKET,
            "NIGHTSHIFT_PROJECT": PROJECT,
            "NIGHTSHIFT_RUNTIME": f"local:{agent.state}",
            "HF_HUB_CACHE": vllm.environment()["HF_HUB_CACHE"],
            "HF_HUB_OFFLINE": "1",
        }

    def begun(self, budget: str) -> subprocess.Popen[str]:
        command = [*self._command, "--budget", budget]
        return subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True)

    def done(self, budget: str, *more: str) -> tuple[dict[str, Any], list[str]]:
        """The result, and the lines of its trials."""
        command = [*self._command, "--budget", budget, "--json", *more]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True)
        print(done.stderr, done.stdout, sep="\n")
        assert done.returncode == exits.DONE, done.stderr
        return json.loads(done.stdout), [line for line in done.stderr.splitlines() if line.startswith("  ")]

    def kept(self) -> list[str]:
        pages = obstore.list(self.store, "sentences/_tune")
        return [meta["path"] for page in pages for meta in page if "/trials/" in meta["path"]]


@pytest.fixture
def bucket(storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    made = storage_emulator.client().create_bucket(BUCKET)
    yield
    made.delete(force=True)


@pytest.mark.usefixtures("bucket")
def test_a_tune_that_was_killed_goes_on_and_finds_what_is_faster_than_four_rows_at_once(
    tmp_path: Path, agent: AgentProcess
) -> None:
    tunes = Tunes(agent, job_file(tmp_path))
    first = tunes.begun(BUDGET)
    assert first.stdout is not None
    said = [first.stdout.readline().rstrip("\n") for _ in range(2)]
    time.sleep(5)  # In the middle of the third trial, whose engine is started.
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = tunes.kept()

    result, lines = tunes.done(BUDGET, "--also", "dtype=bfloat16")

    assert len(before) == 2
    assert lines[:2] == said
    assert result["trials"][0]["point"] == result["default"]
    assert len(result["trials"]) == len(tunes.kept()) > len(before)
    assert result["better"]
    assert result["chosen"]["max_num_seqs"] > 4
    assert any(each["measure"] == "soak" and each["point"] == result["chosen"] for each in result["trials"])
    assert f"+  max_num_seqs: {result['chosen']['max_num_seqs']}" in result["patch"]
    assert not list((agent.state / "jobsets").iterdir()), "no engine is left"
    (also,) = result["also"]
    assert (also["cause"], also["same"]["rows"]) == (None, ROWS)
    assert 0 < also["same"]["equal"] <= 1
    assert also["ratio"] > 0


@pytest.mark.usefixtures("bucket")
def test_what_has_no_room_for_the_longest_rows_is_not_recommended(tmp_path: Path, agent: AgentProcess) -> None:
    """Each row takes two blocks of 128 tokens at most: twelve hold six."""
    tunes = Tunes(agent, job_file(tmp_path, **{"num-gpu-blocks-override": 12}))

    result, _ = tunes.done(BUDGET)

    failed = [trial for trial in result["trials"] if trial["cause"]]
    assert {trial["cause"] for trial in failed} <= {"preempted", "kv_cache_full"}
    assert failed
    assert result["chosen"] not in [trial["point"] for trial in failed]
