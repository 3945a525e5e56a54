"""An engine's compiled code: fetched before the engine starts, and left for others once it answers (ADR 0032).

``python3 -m nightshift.driver.compile_cache`` fetches it. It is a pod's first container, so it always ends with 0: whatever is
missing or wrong, the engine compiles. Nothing here delays the work, or fails it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import obstore
from obstore.exceptions import AlreadyExistsError
from obstore.store import ObjectStore

from nightshift.driver.json_log import log_to_stdout
from nightshift.run.models.compile_cache import ARCHIVE_BYTES_MOST, BrokenArchive, NothingToPack, Place, is_filled, pack, unpack
from nightshift.run.names import split_run_url
from nightshift.store import first_words, open_store

log = logging.getLogger("nightshift.compile_cache")

FETCH_S: Final = 30.0
"""How long an engine may wait for the archive: 256 MiB at 9 MB a second, and no longer than compiling takes."""
LOOK_S: Final = 0.5
"""Between two looks at whether the engine has answered."""


def fetch(store: ObjectStore, path: str, place: Place) -> int | None:
    """Puts the archive's files where the engine looks for them: all or none. Returns how many; None if there is no archive, or
    the engine has files there already.

    Raises BrokenArchive, OSError and the store's errors.
    """
    if is_filled(place.root):
        return None
    try:
        found = obstore.get(store, path)
    except FileNotFoundError:
        return None
    if found.meta["size"] > ARCHIVE_BYTES_MOST:
        raise BrokenArchive(f"it has {found.meta['size']:,} bytes, more than any honest one")
    place.root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".compile-cache-", dir=place.root) as scratch:
        with open(Path(scratch) / "archive", "w+b") as archive:
            for block in found.stream():
                archive.write(block)
            files = unpack(archive, Path(scratch) / "files")
        # Each at once: an engine never sees a part. An empty folder may be there.
        for folder in (Path(scratch) / "files").iterdir():
            folder.rename(place.root / folder.name)
    return files


@contextlib.asynccontextmanager
async def kept(
    store: ObjectStore, job: str, place: Place | None, *, answered: Callable[[], bool], drained: asyncio.Event
) -> AsyncIterator[None]:
    """While this context is open, leaves what the engine has compiled in the bucket, if nobody has before.

    answered: whether the engine has answered a request. drained: ends it. Leaving the context waits for nothing: an upload that
    is not over then is lost.
    """
    if place is None:
        yield
        return
    keeping = asyncio.create_task(_keep(store, place.path(job), place, answered))
    asked = asyncio.create_task(drained.wait())
    asked.add_done_callback(lambda _: keeping.cancel())
    try:
        yield
    finally:
        asked.cancel()
        keeping.cancel()


async def _keep(store: ObjectStore, path: str, place: Place, answered: Callable[[], bool]) -> None:
    fields: dict[str, object] = {"path": path}
    stopped = threading.Event()
    try:
        if await _is_there(store, path):
            return
        with tempfile.TemporaryFile(prefix="compile-cache-") as archive:
            size = await asyncio.to_thread(pack, place.root, archive, stopped.is_set)
            while not answered():  # noqa: ASYNC110 -- a counter of the worker's, which sets no event
                await asyncio.sleep(LOOK_S)
            archive.seek(0)
            # Not in parts: a create that others may race with is one request.
            await obstore.put_async(store, path, archive, mode="create", use_multipart=False)
        log.info("compile cache stored", extra={"fields": {**fields, "bytes": size}})
    except AlreadyExistsError:
        log.info("compile cache not stored", extra={"fields": {**fields, "reason": "another worker was first"}})
    except NothingToPack as error:
        log.info("compile cache not stored", extra={"fields": {**fields, "reason": str(error)}})
    except Exception as error:
        log.warning("compile cache not stored", extra={"fields": {**fields, "error": first_words(error)}})
    finally:
        stopped.set()


async def _is_there(store: ObjectStore, path: str) -> bool:
    try:
        await obstore.head_async(store, path)
    except FileNotFoundError:
        return False
    return True


def main() -> None:
    """Never raises."""
    fields: dict[str, object] = {}
    try:
        place = Place.of(os.environ)
        if place is None:
            log.info("the engine compiles: no folder is named for its cache")
            return
        base, run = split_run_url(os.environ["NIGHTSHIFT_RUN_URL"])
        fields["path"] = path = place.path(run.job)
        files = fetch(open_store(base), path, place)
    except Exception as error:
        fields["error"] = f"{type(error).__name__}: {first_words(error)}"
        log.warning("the engine compiles: the cache could not be used", extra={"fields": fields})
        return
    if files is None:
        log.info("the engine compiles: there is no cache to fetch", extra={"fields": fields})
    else:
        log.info("compile cache fetched", extra={"fields": {**fields, "files": files}})


def _end() -> None:
    log.warning("the engine compiles: the cache did not come in time", extra={"fields": {"seconds": FETCH_S}})
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    log_to_stdout()
    timer = threading.Timer(FETCH_S, _end)
    timer.daemon = True
    timer.start()
    main()
    sys.stdout.flush()
    # As the driver ends, and for its reason.
    os._exit(0)
