"""Which of a partition's runs the table shows: one fact, from the last publication. Whatever shows a run to people asks here.

The table of publications decides (`nightshift.warehouse.publications`). Each publication is also an ending in the folder of its
run, from which pages and commands read the fact without asking BigQuery.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from obstore.store import ObjectStore

from nightshift.run.names import RunRef
from nightshift.run.observed import endings
from nightshift.run.observed.endings import Ending
from nightshift.run.record import RunRecord
from nightshift.store import get_bytes, reaching


class Word(StrEnum):
    """SHOWN: the run was published last. COMPLETED: the table has its answers beside those of the redo that it shows. REPLACED:
    another run is shown, which was published in its place, or was asked for later."""

    SHOWN = "shown"
    COMPLETED = "completed"
    REPLACED = "replaced"


@dataclass(frozen=True)
class Place:
    """run_id: of the run that the table shows."""

    word: Word
    run_id: str

    def __str__(self) -> str:
        return "the table shows it" if self.word is Word.SHOWN else f"{self.word} by run {self.run_id}, which the table shows"


@dataclass(frozen=True)
class Known:
    """What the fact is made of, of one run. redo_of: the id of the run that it completes. published: its last publication."""

    run: RunRef
    opened_at: str
    redo_of: str | None
    published: Ending | None

    @property
    def asked_at(self) -> str:
        """When it was asked for last: opened, or published on request. Of two runs the table shows the later one."""
        return max(self.opened_at, self.published.asked_at if self.published else "")


def places(runs: Iterable[Known]) -> dict[str, Place]:
    """Of the runs of one partition, by id. None of a run that was asked for after the one that is shown, or if none is."""
    known = {each.run.run_id: each for each in runs}
    published = [(each.published.at, name) for name, each in known.items() if each.published]
    if not published:
        return {}
    shown = max(published)[1]
    found = {name: Place(Word.COMPLETED, shown) for name in whole(known, shown)} | {shown: Place(Word.SHOWN, shown)}
    for name, each in known.items():
        if name not in found and (each.published or each.asked_at < known[shown].asked_at):
            found[name] = Place(Word.REPLACED, shown)
    return found


def whole(known: Mapping[str, Known], run_id: str) -> list[str]:
    """The run and those that it completes, the latest first. known: the runs of a partition by id; some may be gone."""
    found: list[str] = []
    earlier: str | None = run_id
    while earlier is not None and earlier not in found:
        found.append(earlier)
        earlier = known[earlier].redo_of if earlier in known else None
    return found


def read(store: ObjectStore, run: RunRef) -> Known | None:
    """None for a folder that is not a run's. Raises StoreUnavailable."""
    with reaching(f"read {run.spec_path}"):
        body = get_bytes(store, run.spec_path)
    try:
        value = None if body is None else json.loads(body)
        record = RunRecord.from_json(value) if isinstance(value, Mapping) else None
    except (RecursionError, ValueError, KeyError, TypeError):
        record = None
    if record is None or not isinstance(record.opened_at, str):
        return None
    return Known(run, record.opened_at, record.redo.run_id if record.redo else None, endings.last_two(store, run)[1])
