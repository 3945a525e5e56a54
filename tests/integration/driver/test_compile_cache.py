"""What an engine compiles: left by the real driver, fetched by the container that a pod runs first, taken by a real vLLM."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from obstore.exceptions import PermissionDeniedError

from nightshift import exits
from nightshift.driver import compile_cache
from nightshift.jobset.manifest.constants import DRIVER
from nightshift.jobset.manifest.render import render
from nightshift.run.models.compile_cache import COMPILED, Place
from nightshift.settings import Settings
from nightshift.store import open_store
from tests.integration.driver.canned import CannedEngine
from tests.integration.driver.runs import PLUGINS, DriverProcess, PreparedRun, prepare
from tests.integration.driver.vllm import MINILM, Vllm
from tests.integration.emulators import OTHER_WORKER, WORKER, StorageEmulator, below, grant

pytestmark = pytest.mark.integration

COMPILES: dict[str, Any] = {**MINILM, "engine__args": {}}
TEXTS: list[str | None] = [f"package number {n} does thing {n * 7 % 13}" for n in range(3000)]
OWN = "_workers/"
TOKEN = "STORAGE_EMULATOR_TOKEN"
RIGHTS = {TOKEN: "worker-token"}


def variables_of(prepared: PreparedRun, container: str, root: Path) -> dict[str, str]:
    """Those of the manifest's container that concern the cache. root: what an image's environment says on the local runtime."""
    settings = Settings(bucket="runs", project="acme", runtime="local:/state", service_account="nightshift-{job}")
    manifest = render(prepared.spec, prepared.run, prepared.plan, settings, name="night")
    [replicated] = manifest["spec"]["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    [found] = [each for each in (*pod["initContainers"], *pod["containers"]) if each["name"] == container]
    key = next(each["value"] for each in found["env"] if each["name"] == "ENGINE_CACHE_KEY")
    return {"ENGINE_CACHE_KEY": key, "VLLM_CACHE_ROOT": str(root)}


def fetched(prepared: PreparedRun, root: Path) -> str:
    """What the pod's first container says."""
    variables = {"PYTHONPATH": str(PLUGINS), "NIGHTSHIFT_RUN_URL": f"{prepared.url}/{prepared.run.prefix}"}
    done = subprocess.run(
        [sys.executable, "-m", "nightshift.driver.compile_cache"],
        env={**os.environ, **RIGHTS, **variables, **variables_of(prepared, "compile-cache", root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    message: str = json.loads(done.stdout)["message"]
    return message


@contextmanager
def engine(prepared: PreparedRun, root: Path, log: Path) -> Iterator[Vllm]:
    """Without what vLLM has learned here before; its seconds are printed."""
    began = time.monotonic()
    server = Vllm(prepared.spec, log, variables={"VLLM_CACHE_ROOT": str(root)})
    try:
        server.await_health()
        print(f"{log.name}: healthy after {time.monotonic() - began:.1f} s")
        yield server
    finally:
        server.kill()


@pytest.fixture
def bucket(storage_emulator: StorageEmulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """One in which each job's worker has the rights of k8s/README.md, and no more: `WORKER` is the account of the job "job"."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_emulator.url)
    made = storage_emulator.client().create_bucket(f"runs-{tmp_path.name}".replace("_", "-"))
    bindings = []
    for worker, job in ((WORKER, "job"), (OTHER_WORKER, "other")):
        seen = [
            f'resource.name == "projects/_/buckets/{made.name}"',
            *(below(made.name, f"{each}{job}/") for each in ("", OWN)),
        ]
        bindings.append(("storage.objectViewer", worker, " || ".join(seen)))
        bindings.append(("storage.objectCreator", worker, below(made.name, f"{OWN}{job}/")))
    grant(made, *bindings)
    return f"gs://{made.name}"


def compiled(root: Path) -> dict[str, int]:
    """When each library that torch's compiler has made was written, in ns."""
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in (root / COMPILED).rglob("*.so")}


def test_a_second_engine_takes_what_the_first_has_compiled(tmp_path: Path, bucket: str) -> None:
    """On a CPU vLLM 0.32 traces the model again, but its compiler finds the code of each part. It says so in no log."""
    root = tmp_path / "cache"
    first = prepare(tmp_path, TEXTS, url=bucket, **COMPILES)
    second = prepare(tmp_path, TEXTS[:64], url=bucket, request__input="a {{ text }}", **COMPILES)

    assert fetched(first, root) == "the engine compiles: there is no cache to fetch"
    with engine(first, root, tmp_path / "cold.log") as server:
        driver = DriverProcess(first, server.url, extra={**variables_of(first, DRIVER, root), **RIGHTS})
        stored = driver.wait_for("compile cache stored")
        assert driver.finish() == exits.DONE
    made = compiled(root)
    assert made

    shutil.rmtree(root)
    assert fetched(second, root) == "compile cache fetched"
    before = compiled(root)
    assert before.keys() == made.keys()
    with engine(second, root, tmp_path / "warm.log") as server:
        driver = DriverProcess(second, server.url, extra={**variables_of(second, DRIVER, root), **RIGHTS})
        assert driver.finish() == exits.DONE
    assert compiled(root) == before, "nothing was compiled again"
    print(f"archive: {stored['bytes']:,} bytes")


@pytest.mark.gate
def test_a_driver_leaves_what_its_engine_has_compiled_and_a_later_pod_fetches_it(tmp_path: Path, bucket: str) -> None:
    store, root = open_store(bucket), tmp_path / "cache"

    async def until_it_is_there(texts: list[str]) -> None:
        """The last row is not answered before: a driver that is done does not wait."""
        for _ in range(300 if TEXTS[59] in texts else 0):
            if store.list(f"{OWN}job/compile-cache").collect():
                return
            await asyncio.sleep(0.1)

    first = prepare(tmp_path, TEXTS[:60], url=bucket)
    assert fetched(first, root) == "the engine compiles: there is no cache to fetch"
    (root / COMPILED).mkdir(parents=True)
    (root / COMPILED / "model").write_bytes(b"code")
    with CannedEngine(until_it_is_there) as canned:
        driver = DriverProcess(first, canned.url, extra={**variables_of(first, DRIVER, root), **RIGHTS})
        assert driver.finish() == exits.DONE

    shutil.rmtree(root)
    assert fetched(first, root) == "compile cache fetched"
    assert (root / COMPILED / "model").read_bytes() == b"code"


@pytest.mark.gate
def test_another_jobs_worker_can_neither_write_it_nor_read_it(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is code that the job's engines run."""
    place = Place(tmp_path / "root", "key")
    (place.root / COMPILED).mkdir(parents=True)
    (place.root / COMPILED / "model").write_bytes(b"code")

    async def keep() -> None:
        async with compile_cache.kept(opened, "job", place, answered=lambda: True, drained=asyncio.Event()):
            await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=30, return_when=asyncio.FIRST_COMPLETED)

    def fetch() -> int | None:
        shutil.rmtree(tmp_path / "fetched", ignore_errors=True)
        return compile_cache.fetch(opened, place.path("job"), Place(tmp_path / "fetched", "key"))

    monkeypatch.setenv(TOKEN, "other-worker-token")
    opened = open_store(bucket)
    asyncio.run(keep())
    monkeypatch.setenv(TOKEN, "worker-token")
    opened = open_store(bucket)
    assert fetch() is None, "nothing was written"

    asyncio.run(keep())
    assert fetch() == 1
    monkeypatch.setenv(TOKEN, "other-worker-token")
    opened = open_store(bucket)
    with pytest.raises(PermissionDeniedError):
        fetch()
