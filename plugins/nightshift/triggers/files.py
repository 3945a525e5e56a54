"""Watches a folder on Cloud Storage, in the triggerer: an event for each period in which objects appeared there.

The folder is listed once for each period, when the period is over and settled. The trigger remembers one name in Airflow's
database: the first period that it has not checked. It is written after the events were sent, so a triggerer that dies in
between fires a period twice, and none is lost. The receiver of a repeated event finds the run of its period again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from statistics import median
from typing import Any, Final, TypeVar

from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from nightshift.fields.values import duration_seconds
from nightshift.settings import Settings, SettingsError
from nightshift.spec import periods

Answer = TypeVar("Answer")

VERSION: Final = 1
LOOK_BACK: Final = timedelta(days=1)
"""Periods that were over longer ago are not fired any more when the triggerer comes back."""
APART_S: Final = 10.0
"""After each event, before the next one and before it is remembered. By then Airflow has stored the event and, unless it is
busy, made a run; events that it finds together have one run in common."""
AT_ONCE_S: Final = 2.0
"""A prompt answer: Airflow's process answers in rounds of about a second. On a slower one, `SLOWLY` decides."""
SLOWLY: Final = 2.0
"""An answer that takes more than this many times the usual is not prompt."""
TAKEN_S: Final = 60.0
"""How long to wait for a prompt answer after an event. Without one, the event is not remembered: it may come twice."""
PAUSE_S: Final = 5.0
PAUSE_MAX_S: Final = 300.0
"""Between two tries while storage or Airflow does not answer."""
NAP_S: Final = 60.0
"""The clock is read again at least this often, because a machine may be suspended."""
NEXT: Final = "next"
"""The key in the asset's state store."""
_ANSWERS: Final = 9
"""The number of last answers that define what is usual."""


class FilesTrigger(BaseEventTrigger):
    """
    Fires an event for each period in which objects appeared in a folder, and none for other periods.

    The event: ``{"version", "partition", "every", "url", "objects"}``; ``partition`` is the period's name
    (`nightshift.spec.periods`), ``objects`` their number.

    An object counts for the period in which it was created, as Cloud Storage says, and for those that ended less than
    ``settle`` before: its rows may be from that time. Empty objects and names that begin with ``_`` or ``.`` do not count.

    It begins with the first period that is not settled when it is first started. After an absence, the periods of the last
    `LOOK_BACK` that were not checked are made up for. As long as storage does not answer, it is asked again.

    :param url: ``gs://BUCKET/FOLDER``.
    :param every: the length of the periods, for example ``10m``; it divides a day.
    :param settle: how long after its end a period is checked, for example ``1m``.
    """

    def __init__(self, *, url: str, every: str, settle: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.url = url
        self.every = every
        self.settle = settle
        self._answers: deque[float] = deque(maxlen=_ANSWERS)

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
        taken = True
        while True:
            last = await self._settled(first)
            begin, found = first, await self._patiently(partial(asyncio.to_thread, self._list, first, last))
            for name in self._within_reach(found, last):
                self.log.info(
                    "Period %s: sending Airflow an event. Objects that appeared in %s: %d", name, self.url, found[name]
                )
                yield TriggerEvent(files_event(self.url, self.every, name, found[name]))  # type: ignore[no-untyped-call]
                # Airflow stores events in order, so those before a stored one are stored, too.
                taken = await self._taken()
                first = periods.after(name, self.every)
                if taken:
                    await self._remember(first)
            if not found:
                self.log.info("No objects appeared in %s from period %s to %s", self.url, begin, last)
            first = periods.after(last, self.every)
            taken = taken or await self._taken()
            if taken:
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
                "gets no event for these. To compute one, trigger the DAG with its name as the param partition.",
                self.url,
                gone[0],
                gone[-1],
                len(gone),
            )
        return names[len(gone) :]

    def _list(self, first: str, last: str) -> dict[str, int]:
        """How many objects each of these periods has, without those that have none. Raises StoreUnavailable."""
        from nightshift.triggers.folder import created, storage_client

        client = storage_client(Settings.from_environment())
        moments = created(client, self.url, periods.bounds(first, self.every)[0])
        return periods_of(moments, first, last, every=self.every, settle=self.settle)

    async def _taken(self) -> bool:
        """Waits until Airflow has surely stored the last event; False, with a warning, if that is not certain after `TAKEN_S`.

        Events and questions go to one process, which stores events between two rounds of answers. So it has stored what was
        fired, once it has answered promptly twice, with a pause between them.
        """
        at_once, began = 0, time.monotonic()
        while at_once < 2 and (left := began + TAKEN_S - time.monotonic()) > 0:
            await asyncio.sleep(APART_S / 2)
            usual = self._usual()
            try:
                async with asyncio.timeout(left):
                    await self._patiently(self._note)
            except TimeoutError:
                break
            took = self._answers[-1]
            at_once = at_once + 1 if took < max(AT_ONCE_S, SLOWLY * usual) else 0
            if not at_once:
                self.log.info(
                    "Waiting until Airflow has stored the last event for %s: it answered in %.1f s, usually in %.1f s",
                    self.url,
                    took,
                    usual,
                )
        if at_once < 2:
            self.log.warning(
                "After %.0f s it is not certain that Airflow has stored the last event for %s: the triggerer answers slowly "
                "(usually in %.1f s). Going on. If the triggerer ends soon, Airflow gets the event twice, which does no harm.",
                time.monotonic() - began,
                self.url,
                self._usual(),
            )
        return at_once == 2

    def _usual(self) -> float:
        """The seconds that an answer takes."""
        return median(self._answers) if self._answers else 0.0

    async def _note(self) -> Any:
        """What Airflow has noted, None if nothing."""
        began = time.monotonic()
        # The store's own methods for coroutines came with Airflow 3.3.2.
        noted = None if self.asset_state_store is None else await asyncio.to_thread(self.asset_state_store.get, NEXT)
        self._answers.append(time.monotonic() - began)
        return noted

    async def _remembered(self) -> str:
        """The first period to check. If there is none yet: the first that is not settled."""
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
            # It is written after the next period, too. Until then, a restart would fire this one again.
            self.log.warning("Airflow did not take down that periods before %s are done: %s", first, error)

    async def _store(self, first: str) -> None:
        if self.asset_state_store is not None:
            await asyncio.to_thread(self.asset_state_store.set, NEXT, first)

    async def _patiently(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The first answer. Until then, each failure is logged, and the pause doubles."""
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
