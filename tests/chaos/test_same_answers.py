"""A run whose driver is killed twenty times gives the answers of a run that nobody touched: same seed, same model."""

import asyncio
import contextlib
import os
import random
import secrets
import signal
import sys
from pathlib import Path

import pytest

from local import models
from nightshift import exits
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.chaos.inputs import real_texts
from tests.chaos.processes import Child, Guard, vllm
from tests.chaos.proxy import Exchange, FaultProxy
from tests.integration.driver.runs import PLUGINS, PreparedRun
from tests.integration.driver.tables import prepare_table

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]

KILLS = 20
ROWS = 500


class Counting:
    """A witness that counts the answers which reached a driver."""

    def __init__(self) -> None:
        self.answers = 0

    def forwarded(self, exchange: Exchange) -> None: ...

    def answered(self, exchange: Exchange) -> None: ...

    def delivered(self, exchange: Exchange) -> None:
        self.answers += exchange.method == "POST" and exchange.status == 200


def a_job() -> JobSpec:
    model = models.ensure(models.TINY_LLAMA)
    return a_spec(
        task="chat",
        request={"user": "{{ text }}", "temperature": 0.9, "max_tokens": 16, "seed": 7},
        model={"name": "tiny", "uri": model.uri, "revision": model.revision},
        engine={"max_num_seqs": 8, "max_model_len": 512, "dtype": "float32", "args": {"enforce-eager": True}},
    )


def a_run(folder: Path, texts: list[str]) -> PreparedRun:
    return prepare_table(folder, a_job(), {"text": texts}, chunk_rows=10)


async def start(run: PreparedRun, engine_url: str, guard: Guard, log: Path) -> Child:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PLUGINS),
        "NIGHTSHIFT_RUN_URL": f"{run.url}/{run.run.prefix}",
        "ENGINE_URL": engine_url,
        "JOB_COMPLETION_INDEX": "0",
    }
    return await guard.start([sys.executable, "-m", "nightshift.driver"], environment, log)


async def disturb(driver: Child, number: int, rng: random.Random, witness: Counting) -> None:
    """Ends the driver after some answers, by SIGKILL and by SIGTERM in turn; every fourth while it starts."""
    if number % 4 == 3:
        await asyncio.sleep(rng.uniform(0.1, 0.9))
    else:
        wanted = witness.answers + rng.randint(1, 20)
        while witness.answers < wanted and driver.running:  # noqa: ASYNC110 - either may end it
            await asyncio.sleep(0.002)
    draining = number % 2 == 1 and driver.takes(signal.SIGTERM)
    driver.send(signal.SIGTERM if draining else signal.SIGKILL)
    code = await driver.wait()
    assert code == (exits.RESUME if draining else -signal.SIGKILL), driver.tail()


def answers(run: PreparedRun) -> dict[int, str]:
    rows = run.rows()
    assert sorted(rows) == list(range(ROWS))
    assert all(row["dead_reason"] is None for row in rows.values())
    return {ordinal: row["prediction"] for ordinal, row in rows.items()}


async def test_a_run_killed_twenty_times_and_a_run_never_killed_give_the_same_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("NIGHTSHIFT_CHAOS_SEED") or secrets.randbelow(1 << 31))
    rng = random.Random(seed)
    texts = real_texts(ROWS, 1)
    untouched, killed = a_run(tmp_path / "untouched", texts), a_run(tmp_path / "killed", texts)
    witness = Counting()
    async with contextlib.AsyncExitStack() as stack:
        guard = await stack.enter_async_context(Guard())
        engine = await stack.enter_async_context(vllm(a_job(), tmp_path, guard))
        proxy = await stack.enter_async_context(FaultProxy(engine.url, witness))
        url = await stack.enter_async_context(proxy.door("driver"))
        await engine.healthy()

        calm = await start(untouched, url, guard, tmp_path / "untouched.log")
        assert await calm.wait() == exits.DONE, calm.tail()
        for number in range(KILLS):
            await disturb(await start(killed, url, guard, tmp_path / "killed.log"), number, rng, witness)
        committed = len(killed.rows())
        last = await start(killed, url, guard, tmp_path / "killed.log")
        assert await last.wait() == exits.DONE, last.tail()

    assert committed < ROWS, "the run was over before it was killed for the last time"
    expected, found = answers(untouched), answers(killed)
    different = [ordinal for ordinal in expected if expected[ordinal] != found[ordinal]]
    with capsys.disabled():
        print(f"\nseed {seed}: {KILLS} kills, {committed} of {ROWS} rows committed by then, {len(different)} answers differ")
    assert len(set(expected.values())) > ROWS * 0.9, "rows get answers of their own"
    assert different == []
