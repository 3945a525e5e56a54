"""Readers that ask all through a publish see all of the old run or all of the new one, whatever is repeated or killed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from google.cloud.storage import Client as StorageClient  # type: ignore[import-untyped]

from nightshift.run.names import RunRef
from tests.integration.emulators import PROJECT, BigQueryEmulator, StorageEmulator, start_bigquery
from tests.integration.warehouse.conftest import PARTITION, Night, make_night, prediction

pytestmark = [pytest.mark.integration, pytest.mark.gate]

NAMES = [f"row {number}" for number in range(12)]
READERS = 2
PUBLISHES = 4
KILLS = 3
ANSWERS_MIN = 12
"""How many answers the readers must have had while transactions were at work; publishing goes on until they have."""
ANSWER_TIMEOUT_S = 240.0

Shown = tuple[tuple[str, int, float | None], ...]
"""Run, ordinal and first number of the prediction (None: a dead letter) of each row that a query found, in that order."""


class Readers:
    """Threads that ask for the partition and its dead letters, over and over."""

    def __init__(self, night: Night, url: str) -> None:
        self._url = f"{url}/bigquery/v2/projects/{PROJECT}/queries"
        self._query = f"""\
            SELECT nightshift_run_id AS run, nightshift_ordinal AS ordinal, vector[OFFSET(0)] AS first
            FROM `{night.destination}` WHERE snapshot_date = DATE '{PARTITION}'
            UNION ALL
            SELECT run_id, ordinal, NULL FROM `{PROJECT}.{night.settings.dataset}.dead_letters`
            WHERE partition_date = DATE '{PARTITION}' ORDER BY run, ordinal"""
        self._more = threading.Condition()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=[number]) for number in range(READERS)]
        self._of: list[list[Shown]] = [[] for _ in range(READERS)]
        self.refusals: list[str] = []

    @contextmanager
    def asking(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    @property
    def answers(self) -> list[Shown]:
        """Of all of them."""
        return [answer for answers in self._of for answer in answers]

    def wait_for(self, more: int) -> None:
        """Returns when so many more answers have come."""
        with self._more:
            self._until_more(lambda: sum(map(len, self._of)), more)

    def now(self) -> set[Shown]:
        """What they find from now on: the second answer of each. The first may be to a question that was asked before."""
        with self._more:
            for answers in self._of:
                self._until_more(answers.__len__, 2)
            return {answers[-1] for answers in self._of}

    def _until_more(self, count: Callable[[], int], more: int) -> None:
        wanted = count() + more
        assert self._more.wait_for(lambda: count() >= wanted or self.refusals, ANSWER_TIMEOUT_S), "no answers"

    def _read(self, number: int) -> None:
        with requests.Session() as session:
            while not self._ended.is_set():
                try:
                    reply = session.post(self._url, json={"query": self._query, "useLegacySql": False, "timeoutMs": 30_000})
                except requests.RequestException:
                    self._ended.wait(0.02)  # the emulator was killed, perhaps in the middle of its answer
                    continue
                with self._more:
                    if reply.status_code == 200 and reply.json()["jobComplete"]:
                        self._of[number].append(_shown(reply.json()))
                    else:
                        self.refusals.append(reply.text)
                    self._more.notify_all()


def _shown(answer: dict[str, Any]) -> Shown:
    rows = [[cell["v"] for cell in row["f"]] for row in answer.get("rows", [])]
    return tuple((run, int(ordinal), None if first is None else float(first)) for run, ordinal, first in rows)


def expected(run: RunRef, dead: int, bias: float) -> Shown:
    return tuple((run.run_id, n, None if n == dead else prediction(n, bias)[0]) for n in range(len(NAMES)))


class Rivals:
    """Two runs of one partition, which differ in every row. `whole` is what a reader may see."""

    def __init__(self, night: Night) -> None:
        second = night.run_of(PARTITION, generation=2)
        self.night = night
        self._asked = 0
        self.runs = (night.run, second)
        self.manifests = (night.seal(night.run, NAMES, dead=[3]), night.seal(second, NAMES, dead=[7], bias=100.0))
        self.whole = (expected(night.run, 3, 0.0), expected(second, 7, 100.0))

    def publish(self, which: int, asked_at: str | None = None) -> None:
        asked_at = asked_at or self.asked_again()
        self.night.publish(self.runs[which], self.manifests[which], asked_at=asked_at)

    def asked_again(self) -> str:
        """When a person asks for one of the runs again: later each time."""
        self._asked += 1
        return f"2026-11-22T01:00:{self._asked:02d}+00:00"

    def judge(self, readers: Readers) -> None:
        assert readers.refusals == []
        torn = [json.dumps(answer) for answer in readers.answers if answer not in self.whole]
        assert torn == [], f"{len(torn)} of {len(readers.answers)} answers show neither run whole"
        assert set(readers.answers) == set(self.whole), "the readers saw both"


def test_readers_see_one_whole_run_all_through_many_publishes(night: Night, bigquery_emulator: BigQueryEmulator) -> None:
    rivals = Rivals(night)
    rivals.publish(0)
    readers = Readers(night, bigquery_emulator.url)
    meanwhile = published = 0
    with readers.asking():
        while published < PUBLISHES or meanwhile < ANSWERS_MIN:
            published += 1
            run, manifest = rivals.runs[published % 2], rivals.manifests[published % 2]
            asked_at = rivals.asked_again()
            night.staged(run, manifest, asked_at=asked_at)
            before = len(readers.answers)
            night.succeed(night.replace_partition(run, manifest, asked_at=asked_at))
            meanwhile += len(readers.answers) - before
            if readers.refusals:
                break

    rivals.judge(readers)


def test_readers_see_one_whole_run_though_the_warehouse_is_killed_in_the_middle_of_publishing(
    tmp_path: Path, storage_emulator: StorageEmulator, storage_client: StorageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each publish is killed one answer later than the one before, and is repeated once the warehouse is back."""
    emulator = start_bigquery(tmp_path, storage_emulator)
    try:
        night = make_night(emulator.client(), storage_client, monkeypatch, storage_emulator.url)
        rivals = Rivals(night)
        rivals.publish(0)
        readers = Readers(night, emulator.url)
        with readers.asking():
            for kill in range(KILLS):
                new = (kill + 1) % 2
                asked_at = rivals.asked_again()
                night.staged(rivals.runs[new], rivals.manifests[new], asked_at=asked_at)
                job = night.replace_partition(rivals.runs[new], rivals.manifests[new], asked_at=asked_at)
                if kill:
                    readers.wait_for(kill)
                emulator.kill()
                emulator.start()
                lost = night.finished(job).error is not None
                found = readers.now()
                # A job that the kill ended may have committed in the instant before (the emulator's fault model).
                assert lost or found == {rivals.whole[new]}
                rivals.publish(new, asked_at)
                assert readers.now() == {rivals.whole[new]}
    finally:
        emulator.kill()

    rivals.judge(readers)
