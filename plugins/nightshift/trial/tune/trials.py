"""The trials of a tune, kept in the bucket as they end, so that one that was killed goes on::

    JOB/_tune/TUNE/space.json             what is searched: decided once
    JOB/_tune/TUNE/rows.parquet           the rows of its trials, the warm-up first
    JOB/_tune/TUNE/begun/00000001-1       an attempt of a trial has begun; a killed one leaves no trial
    JOB/_tune/TUNE/trials/00000001.json   a trial; they count from 1, and each is created once
    JOB/_tune/TUNE/also/DIGEST.json       what a setting brought that may change answers

No partition of a job has the name ``_tune``. TUNE is a digest of the job, of the partition, and of how many rows a trial has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from nightshift.fields.stored import read
from nightshift.formats import TRIAL, loaded
from nightshift.run.names import canonical_json, digest_of
from nightshift.store import create_numbered, create_or_read, get_bytes, reaching
from nightshift.trial.outcomes import Cause
from nightshift.trial.tune.also import Found, Setting
from nightshift.trial.tune.points import Point, Space
from nightshift.trial.tune.search import Measure, Outcome, Question

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

TUNES: Final = "_tune"


class Elsewhere(Exception):
    """Another process keeps trials of the same tune. The message says so."""


class NotATune(Exception):
    """What is kept of a tune is not what this release writes. The message says where, and what to do."""


@dataclass(frozen=True)
class Trial:
    """One that has ended. rate, cause: as of `Outcome`. rows: that were answered, in `seconds` of the engine.

    took_s: with start-up and end. tokens_in, tokens_out: of these rows. preemptions, kv_cache: as
    `nightshift.trial.outcomes.Outcome`. words: the engine's last ones, if it failed.
    """

    point: Point
    measure: Measure
    rate: float = 0.0
    cause: Cause | None = None
    rows: int = 0
    seconds: float = 0.0
    took_s: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    preemptions: float = 0.0
    kv_cache: float = 0.0
    words: str = ""
    at: str = ""

    @property
    def question(self) -> Question:
        return Question(self.point, self.measure)

    @property
    def outcome(self) -> Outcome:
        """Raises ValueError for one with neither a rate nor a cause."""
        return Outcome(self.rate, self.cause)

    def __post_init__(self) -> None:
        _ = self.outcome


@dataclass(frozen=True)
class Kept:
    """The objects of one tune."""

    store: ObjectStore
    job: str
    tune: str

    @property
    def folder(self) -> str:
        return f"{self.job}/{TUNES}/{self.tune}"

    @property
    def rows_path(self) -> str:
        return f"{self.folder}/rows.parquet"

    def trial_path(self, number: int) -> str:
        return f"{self.folder}/trials/{number:08d}.json"

    def trials(self) -> list[Trial]:
        """In their order. Raises StoreUnavailable, and NotATune for what is no trial."""
        found: list[Trial] = []
        while (body := self._get(path := self.trial_path(len(found) + 1))) is not None:
            found.append(_read(path, body, Trial, "a trial", f"{self.folder} to begin again"))
        return found

    def begin(self, number: int) -> int:
        """Which attempt of this trial it is, counted from 1. Raises StoreUnavailable."""
        with reaching(f"write below {self.folder}/begun"):
            return create_numbered(self.store, lambda attempt: f"{self.folder}/begun/{number:08d}-{attempt}", 1, b"")

    def keep(self, number: int, trial: Trial) -> None:
        """Raises Elsewhere if this number is taken, StoreUnavailable."""
        body = canonical_json({**TRIAL.stamp(), **asdict(trial)})
        if self._create(self.trial_path(number), body) != body:
            raise Elsewhere(f"another process has kept trial {number} of {self.folder}: two tunes of one job run at once")

    def space(self, wanted: Callable[[], Space]) -> Space:
        """What this tune searches. wanted(): called if nobody has decided it yet. Raises StoreUnavailable, NotATune."""
        path = f"{self.folder}/space.json"
        body = self._get(path)
        if body is None:
            body = self._create(path, canonical_json({**TRIAL.stamp(), **asdict(wanted())}))
        return _read(path, body, Space, "what is searched", f"{self.folder} to begin again")

    def also(self, point: Point, setting: Setting, wanted: Callable[[], Found]) -> Found:
        """What a setting brought at a point. wanted(): called if that is not kept yet. Raises StoreUnavailable, NotATune."""
        digest = digest_of([asdict(point), setting.name, setting.value])
        path = f"{self.folder}/also/{digest}.json"
        body = self._get(path)
        if body is None:
            body = self._create(path, canonical_json({**TRIAL.stamp(), **wanted().to_json()}))
        return _read(path, body, Found, "what a setting brought", "it to try again")

    def rows(self) -> bytes | None:
        return self._get(self.rows_path)

    def keep_rows(self, body: bytes) -> bytes:
        """What is kept afterwards: the first that was written."""
        return self._create(self.rows_path, body)

    def _create(self, path: str, body: bytes) -> bytes:
        with reaching(f"write {path}"):
            return create_or_read(self.store, path, body)

    def _get(self, path: str) -> bytes | None:
        with reaching(f"read {path}"):
            return get_bytes(self.store, path)


def _read(path: str, body: bytes, kind: type[T], what: str, again: str) -> T:
    """What an object holds; entries that a later release added are passed over. what: it should be. again: what to delete, and
    what for."""
    try:
        value = loaded(body)
        TRIAL.check(value, path)
        return read(kind, value)
    except (AttributeError, ValueError) as error:
        raise NotATune(f"{path} is not {what}: {error}. Delete {again}.") from error
