"""Watches a folder on Cloud Storage, in the triggerer: an event for each period in which objects appeared there.

The folder is looked at once for each period, when the period is over and settled. What the trigger remembers is one name in
Airflow's database: the first period that it has not looked at yet. It is written after the events are on their way, so a
triggerer that dies in between fires a period twice, and none is lost. Who takes an event finds the run of its period again.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from nightshift.fields.values import duration_seconds
from nightshift.settings import Settings, SettingsError
from nightshift.spec import periods

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

Answer = TypeVar("Answer")

VERSION: Final = 1
LOOK_BACK: Final = timedelta(days=1)
"""Periods that were over longer ago are not fired any more when the triggerer comes back."""
LATE: Final = timedelta(days=8)
"""Folders ``dt=YYYY-MM-DD`` of days that began longer ago are not listed. Pub/Sub keeps a message for 7 days by default."""
APART_S: Final = 10.0
"""After each event, before the next one and before it is remembered. By then Airflow has stored the event and, unless it is
busy, made a run; events that it finds together have one run in common."""
AT_ONCE_S: Final = 2.0
"""Airflow's process answers in rounds, each of which takes about a second."""
PAUSE_S: Final = 5.0
PAUSE_MAX_S: Final = 300.0
"""Between two tries while storage or Airflow does not answer."""
NAP_S: Final = 60.0
"""The clock is read again at least so often, because a machine may be suspended."""
NEXT: Final = "next"
"""The key in the asset's state store."""
_DAY_FOLDER: Final = re.compile(r"dt=(\d{4}-\d\d-\d\d)")


class FilesTrigger(BaseEventTrigger):
    """
    Fires an event for each period in which objects appeared in a folder, and none for other periods.

    The event: ``{"version", "partition", "every", "url", "objects"}``; ``partition`` is the period's name
    (`nightshift.spec.periods`), ``objects`` their number.

    An object counts for the period in which it was created, as Cloud Storage says, and for those that ended less than
    ``settle`` before: its rows may be from that time. Empty objects and names that begin with ``_`` or ``.`` do not count.

    It begins with the first period that is not settled when it is first started. After an absence, the periods of the last
    `LOOK_BACK` that were not looked at are made up for. As long as storage does not answer, it is asked again.

    :param url: ``gs://BUCKET/FOLDER``.
    :param every: the length of the periods, for example ``10m``; it divides a day.
    :param settle: how long after its end a period is looked at, for example ``1m``.
    """

    def __init__(self, *, url: str, every: str, settle: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.url = url
        self.every = every
        self.settle = settle

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "nightshift.triggers.files.FilesTrigger", {"url": self.url, "every": self.every, "settle": self.settle}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        first = await self._patiently(self._remembered)
        self.log.info(
            "Watching %s for objects, in periods of %s from %s on; each is checked %s after its end",
            self.url,
            self.every,
            first,
            self.settle,
        )
        while True:
            last = await self._settled(first)
            begin, found = first, await self._patiently(partial(asyncio.to_thread, self._look, first, last))
            for name in self._within_reach(found, last):
                self.log.info(
                    "Period %s: sending Airflow an event. Objects that appeared in %s: %d", name, self.url, found[name]
                )
                yield TriggerEvent(files_event(self.url, self.every, name, found[name]))  # type: ignore[no-untyped-call]
                await self._taken()
                first = periods.after(name, self.every)
                await self._remember(first)
            if not found:
                self.log.info("No objects appeared in %s from period %s to %s", self.url, begin, last)
            first = periods.after(last, self.every)
            await self._remember(first)

    async def _settled(self, first: str) -> str:
        """Waits until a period is settled; the last one that is."""
        settle = timedelta(seconds=duration_seconds(self.settle))
        while True:
            now = datetime.now(UTC)
            left = (periods.bounds(first, self.every)[1] + settle - now).total_seconds()
            if left <= 0:
                return periods.before(periods.holding(now - settle, self.every), self.every)
            await asyncio.sleep(min(left, NAP_S))

    def _within_reach(self, found: Mapping[str, int], last: str) -> list[str]:
        """The names of the periods that are fired, in order; names the others in the log."""
        begin = periods.bounds(last, self.every)[1] - LOOK_BACK
        names = sorted(found)
        gone = [name for name in names if periods.bounds(name, self.every)[0] < begin]
        if gone:
            self.log.warning(
                "Objects appeared in %s in periods that were over more than a day before (from %s to %s, in all: %d). Airflow "
                "is not told of these. To compute one, trigger the DAG with its name as the param partition.",
                self.url,
                gone[0],
                gone[-1],
                len(gone),
            )
        return names[len(gone) :]

    def _look(self, first: str, last: str) -> dict[str, int]:
        """How many objects each of these periods has, without those that have none. Raises StoreUnavailable."""
        import obstore

        from nightshift.hooks.credentials import storage_credentials
        from nightshift.store import StoreUnavailable, open_store

        credentials = storage_credentials(Settings.from_environment())
        try:
            store = open_store(self.url, credentials=credentials)
            since = periods.bounds(first, self.every)[0]
            created = (meta["last_modified"] for meta in listed(store, since) if meta["size"])
            return periods_of(created, first, last, every=self.every, settle=self.settle)
        except (obstore.exceptions.BaseError, OSError) as error:
            raise StoreUnavailable(f"list {self.url}: {error}") from error

    async def _taken(self) -> None:
        """Waits until Airflow has surely stored the last event.

        Events and questions go to one process, which stores events between two rounds of answers. So it has stored what was
        fired, once it has answered at once twice, with a pause between them.
        """
        at_once = 0
        while at_once < 2:
            await asyncio.sleep(APART_S / 2)
            began = time.monotonic()
            await self._patiently(self._note)
            at_once = at_once + 1 if time.monotonic() - began < AT_ONCE_S else 0

    async def _note(self) -> Any:
        """What Airflow has noted, None if nothing."""
        # The store's own methods for coroutines came with Airflow 3.3.2.
        return None if self.asset_state_store is None else await asyncio.to_thread(self.asset_state_store.get, NEXT)

    async def _remembered(self) -> str:
        """The first period to look at. If there is none yet: the first that is not settled."""
        name = await self._note()
        if name is not None:
            try:
                return periods.read(str(name), self.every)
            except periods.NoPartition as error:
                self.log.warning(
                    "Airflow's state store has %r for %s: %s Beginning with the present period", name, self.url, error
                )
        name = periods.holding(datetime.now(UTC) - timedelta(seconds=duration_seconds(self.settle)), self.every)
        await self._store(name)
        return name

    async def _remember(self, first: str) -> None:
        try:
            await self._store(first)
        except AirflowRuntimeError as error:
            # It is written again after the next period. Until then, a restart would fire this one again.
            self.log.warning("Airflow did not take down that periods before %s are done: %s", first, error)

    async def _store(self, first: str) -> None:
        if self.asset_state_store is not None:
            await asyncio.to_thread(self.asset_state_store.set, NEXT, first)

    async def _patiently(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The first answer. As long as there is none, the log says why, and the pause doubles."""
        from nightshift.store import StoreUnavailable

        pause = PAUSE_S
        while True:
            try:
                return await ask()
            except (StoreUnavailable, SettingsError, AirflowException, AirflowRuntimeError) as error:
                self.log.warning("%s cannot be watched now (%s); trying again in %.0f s", self.url, error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_MAX_S)


def files_event(url: str, every: str, partition: str, objects: int) -> dict[str, Any]:
    """What `FilesTrigger` fires, plain JSON."""
    return {"version": VERSION, "partition": partition, "every": every, "url": url, "objects": objects}


def periods_of(created: Iterable[datetime], first: str, last: str, *, every: str, settle: str) -> dict[str, int]:
    """How many objects each period from `first` to `last` has. created: when, aware."""
    begin, end = periods.bounds(first, every)[0], periods.bounds(last, every)[1]
    waited = timedelta(seconds=duration_seconds(settle))
    found: Counter[str] = Counter()
    for moment in created:
        if not begin <= moment < end + waited:
            continue
        name = periods.holding(moment, every)
        while moment < periods.bounds(name, every)[1] + waited:
            if first <= name <= last:
                found[name] += 1
            name = periods.before(name, every)
    return dict(found)


def listed(store: ObjectStore, since: datetime) -> Iterator[ObjectMeta]:
    """The objects of a folder, without those that are hidden, and without days that are too old to get any more.

    Only folders right below it are known as days (``dt=2026-11-19``). Raises obstore's errors.
    """
    import obstore

    from nightshift.store import is_hidden

    top = obstore.list_with_delimiter(store)
    yield from (meta for meta in top["objects"] if not is_hidden(meta["path"]))
    oldest = (since - LATE).date()
    for folder in top["common_prefixes"]:
        day = _DAY_FOLDER.fullmatch(folder)
        if is_hidden(folder) or (day and _date(day[1]) < oldest):
            continue
        for page in obstore.list(store, folder):
            yield from (meta for meta in page if not is_hidden(meta["path"]))


def _date(text: str) -> date:
    """The latest day there is for what is not one, so that its folder is listed."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        return date.max
