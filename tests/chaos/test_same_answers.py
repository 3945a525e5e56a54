"""A run whose driver is killed twenty times gives the answers of a run that nobody touched: same seed, same model."""

import asyncio
import contextlib
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from local import models
from nightshift import exits
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.chaos.inputs import chaos_seed, real_texts
from tests.chaos.processes import Child, Guard, vllm
from tests.chaos.proxy import Exchange, FaultProxy, Weather
from tests.integration.driver.runs import PLUGINS, PreparedRun
from tests.integration.driver.tables import prepare_table

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1700)]

KILLS = 20
ROWS = 500
# Those of all the killed drivers together, and what was under way then, are fewer than the rows.
MOST_ANSWERS = 20


class Turnstile:
    """A witness that counts the answers which reached a driver, and lets no more than some through until it is opened.

    So a driver is caught in the middle of its work however fast the machine is.
    """

    def __init__(self) -> None:
        self.weather = Weather()
        self.caught = asyncio.Event()
        self._left: int | None = None

    def let_through(self, answers: int) -> None:
        self.caught.clear()
        self._left = answers
        self._shut_if_none_is_left()

    def open(self) -> None:
        self._left = None
        self.weather.gate.set()

    def forwarded(self, exchange: Exchange) -> None: ...

    def answered(self, exchange: Exchange) -> None: ...

    def delivered(self, exchange: Exchange) -> None:
        if self._left is not None and exchange.method == "POST" and exchange.status == 200:
            self._left -= 1
            self._shut_if_none_is_left()

    def _shut_if_none_is_left(self) -> None:
        if self._left is not None and self._left <= 0:
            self.weather.gate.clear()
            self.caught.set()


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


async def disturb(driver: Child, number: int, rng: random.Random, turnstile: Turnstile) -> None:
    """Ends the driver, which gets so many answers and no more, by SIGKILL and by SIGTERM in turn; every fourth one starts."""
    await turnstile.caught.wait()
    if number % 4 == 3:
        await asyncio.sleep(rng.uniform(0.1, 0.9))
    draining = number % 2 == 1 and driver.takes(signal.SIGTERM)
    driver.send(signal.SIGTERM if draining else signal.SIGKILL)
    # A drain waits for what is under way.
    turnstile.open()
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
    seed = chaos_seed()
    rng = random.Random(seed)
    texts = real_texts(ROWS, 1)
    untouched, killed = a_run(tmp_path / "untouched", texts), a_run(tmp_path / "killed", texts)
    turnstile = Turnstile()
    async with contextlib.AsyncExitStack() as stack:
        guard = await stack.enter_async_context(Guard())
        engine = await stack.enter_async_context(vllm(a_job(), tmp_path, guard))
        proxy = await stack.enter_async_context(FaultProxy(engine.url, turnstile))
        turnstile.weather = proxy.weather
        url = await stack.enter_async_context(proxy.door("driver"))
        await engine.healthy()

        calm = await start(untouched, url, guard, tmp_path / "untouched.log")
        assert await calm.wait() == exits.DONE, calm.tail()
        for number in range(KILLS):
            turnstile.let_through(0 if number % 4 == 3 else rng.randint(1, MOST_ANSWERS))
            await disturb(await start(killed, url, guard, tmp_path / "killed.log"), number, rng, turnstile)
        committed = len(killed.rows())
        last = await start(killed, url, guard, tmp_path / "killed.log")
        assert await last.wait() == exits.DONE, last.tail()

    assert committed < ROWS
    expected, found = answers(untouched), answers(killed)
    different = [ordinal for ordinal in expected if expected[ordinal] != found[ordinal]]
    with capsys.disabled():
        print(f"\nseed {seed}: {KILLS} kills, {committed} of {ROWS} rows committed by then, {len(different)} answers differ")
    assert len(set(expected.values())) > ROWS * 0.9, "rows get answers of their own"
    assert different == []
