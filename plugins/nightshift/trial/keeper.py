"""``python -m nightshift.trial.keeper``: the process beside a warm engine. It answers questions in the bucket, and ends
when there were none for `IDLE_S`, or after `LIFE_S`, between two of them; the engine, its sidecar, ends with it. Its
environment is the driver's (`nightshift.driver.environment`): NIGHTSHIFT_RUN_URL names the folder, ENGINE_URL the engine or
engines.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

import pyarrow as pa

from nightshift import exits
from nightshift.driver.engine import EngineClient
from nightshift.driver.environment import engine_urls
from nightshift.driver.json_log import log_to_stdout
from nightshift.formats import PREVIEW, UnreadableFormat, loaded
from nightshift.run.names import split_run_url
from nightshift.run.parquet_rows import whole
from nightshift.spec import JobSpec
from nightshift.store import ObjectStorage, StoreUnavailable, open_store, refusal_of
from nightshift.trial.compute import compute
from nightshift.trial.engine_folder import LIFE_S, EngineFolder
from nightshift.trial.outcomes import EngineGone, Outcome, UnfitEngine
from nightshift.trial.preview.results import ordered

log = logging.getLogger("nightshift.preview")

IDLE_S: Final = 600.0
"""How long an engine stays without a question: a person has edited a prompt by then, or has gone."""
EVERY_S: Final = 0.25
"""Between two looks. A LIST costs 5 millionths of a dollar: ten idle minutes take about a cent."""
OLD: Final = timedelta(minutes=30)
"""Nobody waits any longer for the answer to an older question, from before this process began, unless it says so: a machine may
take longer to come."""
ENGINE_WAIT_S: Final = 1800.0


class Keeper:
    """urls: of its engines. idle_s: as `IDLE_S`. pod: its own, by which whoever waits sees that it is there; "" if unknown."""

    def __init__(self, objects: ObjectStorage, folder: EngineFolder, *urls: str, idle_s: float = IDLE_S, pod: str = "") -> None:
        self._objects, self._folder, self._urls, self._idle_s, self._pod = objects, folder, urls, idle_s, pod

    async def keep(self) -> None:
        """Answers until it was idle for long enough. Raises StoreUnavailable."""
        done: set[str] = set()
        began = last = time.monotonic()
        while time.monotonic() < min(last + self._idle_s, began + LIFE_S):
            asked = [path async for path in self._objects.list(self._folder.asks_folder)]
            for path in [each for each in asked if each not in done]:
                if time.monotonic() > began + LIFE_S:
                    return  # Its pod may not live until the answer.
                done.add(path)
                if await self._answer(path):
                    last = time.monotonic()
            await asyncio.sleep(EVERY_S)

    async def _answer(self, path: str) -> bool:
        """Whether it was a question that somebody waits for."""
        id_ = path.rpartition("/")[2].removesuffix(".json")
        body = await self._objects.read(path)
        try:
            ask = loaded(body or b"{}")
            PREVIEW.check(ask, path)
            if datetime.now(UTC) - datetime.fromisoformat(ask["at"]) > OLD + timedelta(seconds=ask.get("waits_s", 0)):
                return False
            if not await self._objects.create(self._folder.taken_path(id_), self._pod.encode()):
                return False
            found: dict[str, Any] = {"outcome": (await self._computed(ask)).to_json()}
        except (EngineGone, StoreUnavailable, UnreadableFormat) as error:
            found = {"error": str(error)}
        except UnfitEngine as error:
            found = {"error": str(error), "unfit": True}
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            found = {"error": f"the question cannot be read: {error!r}. Its command may be of another release."}
        log.info("answered", extra={"fields": {"id": id_, "error": found.get("error")}})
        await self._objects.create(self._folder.answer_path(id_), ordered({**PREVIEW.stamp(), **found}))
        return True

    async def _computed(self, ask: dict[str, Any]) -> Outcome:
        spec = JobSpec.model_validate(ask["spec"])
        table = whole(base64.b64decode(ask["rows"]))
        found = await compute(spec, table, *self._urls)
        return replace(found, rows=()) if ask.get("brief") else found


async def _work() -> int:
    base, run = split_run_url(os.environ["NIGHTSHIFT_RUN_URL"])
    urls = engine_urls(os.environ["ENGINE_URL"])
    if "NIGHTSHIFT_SHARD" in os.environ and os.environ.get("JOB_COMPLETION_INDEX") != "0":
        await asyncio.Event().wait()  # Another host of the slice has the engine's API; a signal ends this one.
    for url in urls:
        async with EngineClient(url, "") as engine:
            # Its probe has found it ready if it is one host; the head of several is waited for here.
            if not await engine.wait_healthy(ENGINE_WAIT_S):
                log.error("engine did not become healthy")
                return exits.RESUME
    folder, pod = EngineFolder(run.job, run.digest), os.environ.get("POD_NAME", "")
    keeper = Keeper(ObjectStorage(open_store(base)), folder, *urls, pod=pod)
    await keeper.keep()
    return exits.DONE


def main() -> NoReturn:
    log_to_stdout()
    log.info("started", extra={"fields": {"folder": os.environ.get("NIGHTSHIFT_RUN_URL"), "idle_s": IDLE_S}})
    try:
        code = asyncio.run(_work())
    except StoreUnavailable as error:
        refusal = refusal_of(error)
        log.error("stopping", extra={"fields": {"error": f"{refusal}. {refusal.remedy}" if refusal else str(error)}})
        code = exits.CONFIG if refusal else exits.RESUME
    except Exception:
        log.exception("unexpected error")
        code = exits.RESUME
    log.info("exit", extra={"fields": {"code": code}})
    # As the driver: the store's threads may abort an interpreter that shuts down.
    os._exit(code)


if __name__ == "__main__":
    exits.on_signals(exits.RESUME)
    main()
