"""What the tables may show, for `publishing`: the truth about each run, and the invariants that it names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nightshift.run.manifest import RunManifest
from nightshift.run.names import FAILED, RunRef
from nightshift.settings import Settings
from nightshift.warehouse import publications
from tests.simulation.failed_nights import FailedAudit, Key, key_of
from tests.simulation.publishing_scenario import RATING, Asked

if TYPE_CHECKING:
    from tests.simulation.publishing import World


@dataclass
class Sealed:
    """The truth about a run. rows: (id, prediction, run, ordinal), also those of the run that it completes; dead: ordinals.

    ids: of its own rows. completes: the run whose dead letters these are. shown: the run that the day showed when this redo was
    opened. changed: at which step somebody altered it.
    """

    asked: Asked
    run: RunRef
    manifest: RunManifest
    ids: tuple[int, ...]
    rows: frozenset[tuple[int, str, str, int]]
    dead: frozenset[int]
    completes: Sealed | None = None
    shown: str = ""
    changed: int | None = None

    @property
    def altered(self) -> int | None:
        """At which step somebody first altered what it shows."""
        steps = [self.changed, self.completes.altered if self.completes else None]
        return min((step for step in steps if step is not None), default=None)


Owner = tuple[str, str]
"""Bucket and job."""


class Audit:
    """Holds what the tables show to the invariants. shown: the run that was published last, by day."""

    def __init__(self, world: World) -> None:
        self.shown: dict[str, Sealed] = {}
        self.latest: dict[tuple[Owner, str], int] = {}
        """The latest of what was published of an owner's day."""
        self._said: dict[tuple[Owner, str], str] = {}
        """When it was asked for, by the clocks of those who did: between deployments, the order of runs rests on them alone."""
        self._world = world
        self._owners: dict[str, set[Owner]] = {}
        """Who has had rows there."""
        self.dead: dict[Key, frozenset[tuple[str, int]]] = {}
        """By table, bucket, job and day: a deployment keeps its own, also in a dataset that it shares."""
        self.published: list[Sealed] = []
        """In turn."""
        self.failed = FailedAudit(world)
        self._commits = 0
        self._recorded: Counter[str] = Counter()

    def look(self) -> None:
        """After a step."""
        database = self._world.service.database
        if database.commits == self._commits:
            return
        self._commits = database.commits
        published = len(self.published)
        for settings in {
            sealed.asked.settings.dataset: sealed.asked.settings for sealed in self._world.sealed.values()
        }.values():
            self._recorded_of(settings)
        self._rows()
        self.failed.look({key_of(sealed)[0] for sealed in self._world.sealed.values()}, self._world.sealed)
        for sealed in self.published[published:]:
            self.failed.published(sealed)

    def publications_of(self, key: Key) -> int:
        return sum(key_of(each) == key for each in self.published)

    def _recorded_of(self, settings: Settings) -> None:
        """New publications."""
        table = publications.table(settings)
        if self._world.service.database.fields(table) is None:
            return
        for row in sorted(self._world.service.database.tables.content(table)):
            number, found = row[0], dict(zip(publications.COLUMNS, row[1:], strict=True))
            if number <= self._recorded[table]:
                continue
            self._recorded[table] = number
            if found["asked_at"] is None:
                continue  # A run that a redo completes.
            sealed = self._world.sealed[found["bucket"], found["run_id"]]
            self._published(sealed, found["asked_at"])

    def _published(self, sealed: Sealed, asked_at: str) -> None:
        world, day, owner = self._world, sealed.run.partition, owner_of(sealed)
        order = world.order_of(sealed, asked_at)
        world.seen["published"] += 1
        before = self.shown.get(day)
        if before is not None and before.rows and owner_of(before) != owner:
            world.fail("owner", f"{named(sealed)} replaces the rows of {named(before)}")
        if order < self.latest.get((owner, day), -1):
            world.fail("order", f"{named(sealed)} replaces a run that was asked for later")
        if self.overtaken(sealed, order):
            world.fail("redo", f"{named(sealed)} replaces {named(before) if before else 'nothing'}, which it does not complete")
        self.published.append(sealed)
        self.latest[owner, day] = max(order, self.latest.get((owner, day), -1))
        self._said[owner, day] = max(asked_at, self._said.get((owner, day), ""))
        if sealed.rows:
            self._owners.setdefault(day, set()).add(owner)
        self.shown[day] = sealed
        self.dead[key_of(sealed)] = frozenset((sealed.run.run_id, ordinal) for ordinal in sealed.dead)

    def _rows(self) -> None:
        tables = self._world.service.database.tables
        found: dict[str, list[tuple[Any, ...]]] = {day: [] for day in self.shown}
        for row in tables.run('SELECT * FROM "p.d.out"') if self.shown else ():
            found.setdefault(row["partition_date"], []).append(tuple(row))
        for day, rows in found.items():
            sealed = self.shown.get(day)
            expected = (
                [] if sealed is None else [(key, key * RATING, text, day, run_id, n) for key, text, run_id, n in sealed.rows]
            )
            if sorted(rows) != sorted(expected):
                what = "nothing that was published" if sealed is None else named(sealed)
                self._world.fail("rows", f"{day} holds {sorted(rows)}, which is not {what}")
        dead: dict[Key, set[tuple[str, int]]] = {key: set() for key in self.dead}
        for table in {key[0] for key in self.dead}:
            for row in tables.run(f"SELECT * FROM \"{table}\" WHERE state != '{FAILED}'"):
                whose = (table, row["bucket"], row["job"], row["partition_date"])
                dead.setdefault(whose, set()).add((row["run_id"], row["ordinal"]))
        if dead != self.dead:
            self._world.fail("rows", f"the dead letters are {dead}, not {self.dead}")

    def overtaken(self, sealed: Sealed, order: int) -> bool:
        """Whether a redo that nobody has asked for again was published too late: another run followed what was shown."""
        if sealed.completes is None or order != self._world.opened(sealed):
            return False
        bucket = sealed.asked.settings.bucket
        own = {(bucket, run_id) for run_id in (sealed.run.run_id, sealed.completes.run.run_id, sealed.shown)}
        since: list[tuple[str, str]] = []
        for each in self.published:
            if (each.run.job, each.run.partition) != (sealed.run.job, sealed.run.partition):
                continue
            since.append((each.asked.settings.bucket, each.run.run_id))
            if since[-1] == (bucket, sealed.shown):
                since = []
        return bool(set(since) - own)

    def refused(self, sealed: Sealed, asked_at: str, why: str) -> None:
        """A task has failed for good."""
        day, owner, order = sealed.run.partition, owner_of(sealed), self._world.order_of(sealed, asked_at)
        self._world.seen["refused"] += 1
        foreign = self._owners.get(day, set()) - {owner}
        later = self.latest.get((owner, day), -1) > order or any(
            said > asked_at
            for (whose, when), said in self._said.items()
            if whose[1] == owner[1] and whose != owner and when == day
        )
        if not foreign and not later and not self.overtaken(sealed, order) and sealed.altered is None:
            self._world.fail("refusal", f"{named(sealed)} is refused without a reason: {why}")

    def ended_well(self, sealed: Sealed, order: int) -> None:
        if self.latest.get((owner_of(sealed), sealed.run.partition), -1) < order:
            self._world.fail("green", f"the task of {named(sealed)} ends well, and that was never shown")


def owner_of(sealed: Sealed) -> Owner:
    return sealed.asked.settings.bucket, sealed.run.job


def named(sealed: Sealed) -> str:
    return f"run {sealed.run.run_id} of {sealed.run.job} in {sealed.asked.settings.bucket}"
