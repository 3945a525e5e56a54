"""Brings a stream's files into BigQuery, each file's rows once in effect, however often a step is repeated or killed.

Which files are loaded is in a table of nightshift's own, written by the transaction that merges their rows. What is new is
what a listing of the last days shows and this table lacks, so a file that comes late is not missed. A batch of new files is
named by what is in it, and so are its jobs: a repeat finds them.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

import obstore

from nightshift.spec import stream_files
from nightshift.store import reaching
from nightshift.stream.bigquery import merge
from nightshift.stream.bigquery.tables import StreamTables
from nightshift.warehouse import schema
from nightshift.warehouse.errors import WarehouseError, WarehouseUnavailable
from nightshift.warehouse.jobs import Jobs, JobState
from nightshift.warehouse.statements import Statements
from nightshift.warehouse.tables import Tables

if TYPE_CHECKING:
    from google.cloud.bigquery import Client
    from obstore.store import ObjectStore

    from nightshift.settings import Settings
    from nightshift.spec import StreamSpec

log = logging.getLogger(__name__)

DAYS: Final = 8
"""A message may be answered so long after its publishing: a subscription keeps messages for 7 days unless it is told to keep
them for longer."""
FILES_MOST: Final = 1000
"""In a batch; their names are a parameter of its transaction."""
POLL_S: Final = 1.0
TRIES_MOST: Final = 20
"""Of one step of a batch, in one call of `StreamLoader.load`: two loaders may be in each other's way."""
KINDS: Final = (stream_files.ANSWERS, stream_files.DEAD)
_FOLDER: Final = re.compile(rf"/{stream_files.DAY}=(\d{{4}}-\d\d-\d\d)/{stream_files.HOUR}=(\d\d)/[^/]+$")
_REMEDY: Final = "Remove the cause, then load again."


@dataclass(frozen=True)
class Batch:
    """Files that are loaded together. files: their URLs, by kind."""

    files: dict[str, list[str]]

    @property
    def urls(self) -> list[str]:
        return [url for kind in KINDS for url in self.files.get(kind, ())]

    @property
    def kinds(self) -> list[str]:
        return [kind for kind in KINDS if self.files.get(kind)]

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.urls).encode()).hexdigest()[:16]

    @property
    def span(self) -> tuple[datetime, datetime]:
        """Between these all messages of the files were published."""
        hours = [_hour(url) for url in self.urls]
        return min(hours), max(hours) + timedelta(hours=1) - timedelta(microseconds=1)


class StreamLoader:
    """One stream's way into BigQuery. Every method may raise WarehouseUnavailable (a repeat is safe) and WarehouseError.

    store: of the stream's folder. Long steps are started here and waited for elsewhere, or by `load`.
    """

    def __init__(self, client: Client, settings: Settings, spec: StreamSpec, store: ObjectStore) -> None:
        self._tables_of_stream = StreamTables(spec, settings)
        self._client = client
        self._settings = settings
        self._store = store
        self._jobs = Jobs(client, settings)
        self._tables = Tables(client, settings)
        self._statements = Statements(client, settings)

    def prepare(self) -> None:
        """Creates the tables that are missing. Raises WarehouseError for one that is there and cannot take the rows."""
        tables = self._tables_of_stream
        self._tables.ensure_own()
        for wanted in tables.as_created():
            partitioning = wanted.time_partitioning.field
            schema.check_compatible(self._tables.create_unless_there(wanted), wanted.schema, tables.written, partitioning)

    def new_batches(self, first: date, last: date) -> list[Batch]:
        """What is new of the files whose messages were published on these days, in UTC. Call `prepare` first.

        Two callers at one time may get the same files: loading them twice changes nothing.
        """
        loaded = self._loaded(first, last)
        new = [(kind, url) for kind, url in self._listed(first, last) if url not in loaded]
        # By the hour first, so that a batch reads few partitions.
        new.sort(key=lambda each: (_hour(each[1]), each))
        return [
            Batch({kind: [url for own, url in part if own == kind] for kind in KINDS})
            for at in range(0, len(new), FILES_MOST)
            if (part := new[at : at + FILES_MOST])
        ]

    def start_staging(self, batch: Batch) -> list[str]:
        """Starts to load the files into staging tables of their own; returns the job ids, one for each kind."""
        return [self._stage(batch, kind) for kind in batch.kinds]

    def start_merge(self, batch: Batch) -> str:
        """Starts the transaction, and returns its job id. Everything must be staged."""
        tables = self._tables_of_stream
        script = merge.script(tables, batch.digest, batch.kinds)
        values = merge.parameters(tables, batch.digest, batch.urls, *batch.span)

        def start(job_id: str, attempt: int) -> None:
            self._statements.submit(script, values, job_id=job_id)

        def holds(_attempt: int) -> bool:
            days = [_hour(url).date() for url in batch.urls]
            return set(batch.urls) <= self._loaded(min(days), max(days))

        what = f"Merging batch {batch.digest} of stream {tables.stream}"
        return self._jobs.find_or_start_named(f"{self._name(batch)}-merge", what, _REMEDY, start, holds=holds)

    def job(self, job_id: str) -> JobState:
        """The state of a job."""
        return self._jobs.state(job_id)

    def finish(self, batch: Batch) -> None:
        """Drops what was staged."""
        for kind in batch.kinds:
            self._tables.drop_staging(self._tables_of_stream.staging(batch.digest, kind))

    def load(
        self, first: date, last: date, *, sleep: Callable[[float], None] = time.sleep, on_batch: Callable[[Batch], None]
    ) -> int:
        """All steps, waited for, of everything that is new; returns how many files. on_batch: called when one is merged."""
        self.prepare()
        files = 0
        for batch in self.new_batches(first, last):
            self._load(batch, sleep)
            on_batch(batch)
            files += len(batch.urls)
        return files

    def _load(self, batch: Batch, sleep: Callable[[float], None]) -> None:
        for _ in range(TRIES_MOST):
            try:
                for job_id in self.start_staging(batch):
                    self._wait(job_id, sleep)
                self._wait(self.start_merge(batch), sleep)
            except _Again as error:
                log.warning("a job of the batch failed, and is started again: %s", error)
                sleep(POLL_S)
                continue
            self.finish(batch)
            return
        raise WarehouseUnavailable(f"batch {batch.digest} was tried {TRIES_MOST} times: others load the same files now")

    def _wait(self, job_id: str, sleep: Callable[[float], None]) -> None:
        while not (state := self.job(job_id)).done:
            sleep(POLL_S)
        if state.error is not None and state.retryable:
            raise _Again(state.error)
        if state.error is not None:
            raise WarehouseError(state.error)

    def _stage(self, batch: Batch, kind: str) -> str:
        tables = self._tables_of_stream
        name = tables.staging(batch.digest, kind)

        def start(job_id: str, attempt: int) -> None:
            self._tables.load(name, tables.fields(kind), batch.files[kind], job_id=job_id)

        # Not empty: a file has a row at least, and a table that was only created has none.
        counted = f"SELECT COUNT(*) FROM {schema.quoted(name)}"

        def holds(_attempt: int) -> bool:
            found = self._statements.rows_if_there(f"Staging table {name}", counted, [])
            return found is not None and found[0][0] > 0

        what = f"Loading the {kind} of batch {batch.digest} of stream {tables.stream}"
        return self._jobs.find_or_start_named(f"{self._name(batch)}-{kind}", what, _REMEDY, start, holds=holds)

    def _name(self, batch: Batch) -> str:
        """Part of its jobs' ids. The same files may be loaded into two tables, one after the other."""
        table = hashlib.sha256(self._tables_of_stream.destination.encode()).hexdigest()[:8]
        return f"stream-{self._tables_of_stream.stream}-{table}-{batch.digest}"

    def _loaded(self, first: date, last: date) -> set[str]:
        from google.cloud.bigquery import ScalarQueryParameter

        tables = self._tables_of_stream
        found = self._statements.rows(
            f"The files of stream {tables.stream}",
            f"SELECT file FROM {schema.quoted(tables.files)} "
            "WHERE stream = @stream AND destination = @destination AND day BETWEEN @first AND @last",
            [
                ScalarQueryParameter("stream", "STRING", tables.stream),
                ScalarQueryParameter("destination", "STRING", tables.destination),
                ScalarQueryParameter("first", "DATE", first),
                ScalarQueryParameter("last", "DATE", last),
            ],
        )
        return {str(row.file) for row in found}

    def _listed(self, first: date, last: date) -> Iterator[tuple[str, str]]:
        """Kind and URL of each file of these days."""
        for kind in KINDS:
            for number in range((last - first).days + 1):
                folder = f"{kind}/{stream_files.DAY}={first + timedelta(days=number)}"
                with reaching(f"list {folder}"):
                    paths = [meta["path"] for page in obstore.list(self._store, folder) for meta in page]
                for path in paths:
                    if path.endswith(stream_files.SUFFIX) and _FOLDER.search(path):
                        yield kind, f"{self._tables_of_stream.folder}/{path}"


class _Again(Exception):
    """A job failed, and another under the next number may succeed."""


def _hour(url: str) -> datetime:
    """When the hour of a file's folder began."""
    found = _FOLDER.search(url)
    assert found is not None, url
    return datetime.fromisoformat(f"{found[1]}T{found[2]}:00:00").replace(tzinfo=UTC)
