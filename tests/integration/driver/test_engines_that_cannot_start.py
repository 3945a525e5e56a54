"""Engines that cannot start, on the local runtime: real vLLM, the real task, its trigger, and an agent's processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
import yaml
from airflow.sdk import DAG
from obstore.store import LocalStore

from local import models, vllm
from local.environments import python_of
from nightshift.jobset.fleet.watch import FleetWatch
from nightshift.jobset.verdict.cannot_start import WHAT_TO_DO, Cause
from nightshift.operators.infer import InferOperator
from nightshift.operators.jobset_errors import JobSetApplicationFailure
from nightshift.run.names import canonical_json
from nightshift.run.observed.pods_kept import load
from nightshift.run.observed.pods_now import Stage
from nightshift.settings import Settings
from tests.builders import RUN, a_plan, a_record, a_spec
from tests.integration.driver.vllm import MINILM
from tests.integration.runtime.agents import AgentProcess
from tests.unit.operators.infer_night import a_context

pytestmark = pytest.mark.integration

DEADLINE_S = 3600
LONG_S = 600
"""Far less than the deadline, and far more than any of them takes on a machine that has other work too."""
SERVER = "nightshift/server:under-test"
GREEDY = {"spec": {"initContainers": [{"name": "server", "env": [{"name": "VLLM_CPU_KVCACHE_SPACE", "value": "100000"}]}]}}
"""A deployment's override: 100 TB of keys and values in this machine's memory."""


class Night(InferOperator):
    """Waits in its own process."""

    deferrable = False


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    image = {"path": [str(python_of("server").parent)], "env": {**vllm.environment(), "HF_HUB_OFFLINE": "1"}}
    agent = AgentProcess(tmp_path, images={SERVER: image}, env={"PYTHONUNBUFFERED": "1"})
    agent.start()
    yield agent
    agent.close()


def the_error(
    agent: AgentProcess, folder: Path, monkeypatch: pytest.MonkeyPatch, image: str, spec: dict[str, Any], pod_patch: str = ""
) -> str:
    """Of the task `infer` of a run of this job."""
    (folder / "bucket").mkdir()
    store = LocalStore(folder / "bucket")
    plan = a_plan(8).to_json()
    obstore.put(store, RUN.spec_path, a_record(a_spec(deadline=f"{DEADLINE_S}s", **spec)))
    obstore.put(store, RUN.plan_path, canonical_json(plan))
    obstore.put(store, f"{RUN.prefix}/{plan['files'][0]['path']}", b"x" * plan["files"][0]["size"])
    monkeypatch.setattr(FleetWatch, "_store", store)
    settings = Settings(bucket="runs", project="acme", runtime=f"local:{agent.state}", server_image=image, pod_patch=pod_patch)
    for name in ("bucket", "project", "runtime"):
        monkeypatch.setenv(f"NIGHTSHIFT_{name.upper()}", getattr(settings, name))
    with DAG("job", schedule=None):
        task = Night(task_id="infer", run_prefix=RUN.prefix, terms="")
    task.__dict__.update(settings=settings, store=store)
    began = time.monotonic()

    with pytest.raises(JobSetApplicationFailure) as raised:
        task.execute(a_context())

    print(f"after {time.monotonic() - began:.0f} s: {raised.value}")
    assert time.monotonic() - began < LONG_S
    (now,) = load(store, RUN)
    assert (now.stage, len(now.pods)) == (Stage.ENDED, 1)
    words = now.last_words()
    assert words is not None
    assert words.exits >= 3
    return str(raised.value)


@pytest.mark.parametrize(
    ("changes", "cause", "words"),
    [
        (
            {"model__uri": "hf://nobody/no-such-model"},
            Cause.MODEL,
            "LocalEntryNotFoundError: Cannot find an appropriate cached",
        ),
        ({"engine__args": {"no-such-flag": True}}, Cause.FLAG, "error: unrecognized arguments: --no-such-flag"),
        # This machine's vLLM has no streamer of weights: what it says of a bucket is that.
        ({"model__uri": "gs://runs/models/nowhere"}, Cause.OTHER, "No module named 'runai_model_streamer'"),
    ],
    ids=["wrong-model", "bad-flag", "no-weights"],
)
def test_an_engine_that_cannot_start_ends_the_night_with_its_own_words(
    agent: AgentProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    cause: Cause,
    words: str,
) -> None:
    error = the_error(agent, tmp_path, monkeypatch, SERVER, {**MINILM, **changes})

    assert error.startswith("The engine cannot start: ")
    assert words in error
    assert WHAT_TO_DO[cause] in error
    assert "Last lines of server in" in capsys.readouterr().out


def test_so_does_too_little_memory(
    agent: AgentProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a model that generates: one that embeds keeps no keys and values."""
    model = models.ensure(models.TINY_LLAMA)
    chat = {"model__uri": model.uri, "model__revision": model.revision, "engine__max_num_seqs": 4, "engine__max_model_len": 256}
    request = {"user": "{{ text }}", "max_tokens": 8}

    patch = tmp_path / "patch.yaml"
    patch.write_text(yaml.safe_dump(GREEDY))
    spec = {**MINILM, **chat, "task": "chat", "request": request}

    error = the_error(agent, tmp_path, monkeypatch, SERVER, spec, pod_patch=str(patch))

    assert "less than requested memory for kv" in error
    assert WHAT_TO_DO[Cause.MEMORY] in error
    assert "Last lines of server in" in capsys.readouterr().out


def test_so_does_an_image_without_the_program(agent: AgentProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = the_error(agent, tmp_path, monkeypatch, "nightshift/server:absent", MINILM)

    assert "image 'nightshift/server:absent' is not in the configuration" in error
    assert WHAT_TO_DO[Cause.PROGRAM] in error
