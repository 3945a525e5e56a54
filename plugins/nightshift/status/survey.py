"""Adds up a run's ledger. Each chunk and partial is read once, however often the survey is refreshed: objects never change.

Who cannot wait gives `Survey.refresh` a time: then the rest of the chunks is counted by the LIST alone, and read at the next
looks.

Memory: a set of numbers and a few sums per chunk or attempt, never rows.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import obstore
from obstore.store import ObjectStore
from pydantic import ValidationError

from nightshift.fields.text import n
from nightshift.formats import SPEC, UnreadableFormat, loaded
from nightshift.planner.bills import bill_of
from nightshift.planner.costs.bill import Bill
from nightshift.planner.costs.prices import Prices
from nightshift.run import pauses
from nightshift.run.manifest import RunManifest, load_manifest
from nightshift.run.names import RunRef, Work
from nightshift.run.opening import NoSuchRun
from nightshift.run.plan import Plan, PlanError, load_plan
from nightshift.spec import JobSpec
from nightshift.status.chunk_footer import Footer, ListedObject, NotReadable, asked, listed, read_footer
from nightshift.status.progress import Adding, Progress
from nightshift.status.rate import Rate
from nightshift.status.readers import readers
from nightshift.status.report import Attempt, Status
from nightshift.store import StoreUnavailable, get_bytes

READ_AT_ONCE: Final = 64
"""Chunks between two looks at the clock."""


class Survey:
    """The state of one run, updated by `refresh`. The store is rooted at the bucket; url is for people.

    prices: None for no bill.
    """

    def __init__(self, store: ObjectStore, run: RunRef, url: str, prices: Prices | None = None) -> None:
        self._store = store
        self._run = run
        self._url = url
        self._prices = prices
        # Threads, and no awaits: a process that ends right after an await of obstore may be aborted by the thread that
        # answered it (SIGABRT; 9 of 25 runs of this command were).
        self._readers = readers()
        self._spec: dict[str, Any] | None = None
        self._plan: Plan | None = None
        self._committed: set[int] = set()
        self._partials_seen: set[str] = set()
        self._bad_partials = 0
        self._own_by_partials: Counter[int] = Counter()
        self._merged: Counter[int] = Counter()
        self._bad_chunks: set[int] = set()
        self._problems: dict[str, str] = {}
        self.progress: Progress | None = None
        """Of the last look, from its LIST alone; None without a plan, and of a sealed run."""
        self._unread = _Unread()
        self._rows = 0
        self._reasons: Counter[str] = Counter()
        self._tokens = (0, 0)
        self._truncated = 0
        self._engine_versions: Counter[str] = Counter()
        self._rate = Rate()
        self._attempts: dict[str, Attempt] = {}
        self._manifest: RunManifest | None = None

    def refresh(self, within_s: float | None = None) -> Status:
        """Reads what is new. within_s: chunks are read until about so long after the call, spread over the run, but always
        some; and none of a sealed run, whose manifest counts them. None: until all are read.

        Raises NoSuchRun, and StoreUnavailable if the store does not answer.
        """
        until = None if within_s is None else time.monotonic() + within_s
        # The manifest first: then a run seen as sealed is also seen with all of its chunks.
        try:
            head = asked(self._run.manifest_path, lambda: obstore.head(self._store, self._run.manifest_path))
            sealed = float(head["last_modified"].timestamp())
        except FileNotFoundError:
            sealed = None
        if sealed is not None and self._manifest is None:
            self._manifest = self._read_manifest()
        if self._spec is None:
            self._spec = self._read_spec()
        if self._plan is None:
            self._plan = self._read_plan()
        if self._spec is None and self._plan is None and not self._anything():
            raise NoSuchRun(f"There is no run at {self._url}")
        if within_s is not None and sealed is not None and self._manifest is not None:
            return self._sealed_status(self._manifest, sealed)
        passing: dict[str, str] = {}
        foreign: dict[str, str] = {}
        lost: Counter[str] = Counter()
        if self._plan is not None:
            foreign = self._read_chunks(self._plan, passing, until)
            self._read_partials(self._plan, passing)
            lost = self._lost()
        return self._status(sealed, lost, foreign, passing)

    def _sealed_status(self, manifest: RunManifest, sealed: float) -> Status:
        """From the run manifest alone: without attempts, which it only names. sealed: Unix time by the store's clock."""
        chunks, bill = len(manifest.chunks), self._bill()
        profiles = (manifest.measured or {}).get("profiles", ())
        unused, lost = (sum(each.get(name, 0) for each in profiles) for name in ("rows_unused", "rows_lost"))
        return Status(
            url=self._url,
            run=self._run,
            spec=self._spec or {},
            planned=True,
            rows_total=manifest.rows,
            rows_done=manifest.rows,
            dead_reasons=dict(Counter(manifest.dead_reasons).most_common()),
            chunks_total=chunks,
            chunks_committed=chunks,
            chunks_read=chunks,
            prompt_tokens=manifest.prompt_tokens,
            output_tokens=manifest.output_tokens or 0,
            truncated=manifest.truncated,
            engine_versions=dict(manifest.engine_versions),
            workers_planned=self._plan.workers if self._plan else 0,
            waste_lost_rows=lost,
            waste_partial_rows=max(0, unused - lost),
            problems=dict(self._problems),
            sealed_at=sealed,
            observed_at=time.time(),
            measured=manifest.measured,
            bill=bill,
        )

    @property
    def _work(self) -> Work:
        assert self._plan is not None, "it is asked for what workers wrote only if there is a plan"
        return self._run.work(self._plan.uid)

    def _read_plan(self) -> Plan | None:
        try:
            return asked(self._run.plan_path, lambda: load_plan(self._store, self._run))
        except (PlanError, UnreadableFormat) as error:
            self._problems[self._run.plan_path] = str(error)
            return None

    def _read_chunks(self, plan: Plan, passing: dict[str, str], until: float | None) -> dict[str, str]:
        """Counts new chunks; returns the reason for each path that does not belong in the ledger."""
        foreign = {}
        new, adding = _Unread(), Adding(time.time())
        for page in listed(self._store, self._work.ledger_folder):
            for entry in page:
                chunk = self._work.parse_chunk(entry.path)
                if chunk is None or chunk >= plan.chunk_count:
                    foreign[entry.path] = "not the name of a chunk of this run"
                    continue
                rows = len(plan.chunk_range(chunk))
                adding.add(rows, entry.modified)
                if chunk not in self._committed and chunk not in self._bad_chunks:
                    new.add(chunk, entry.size, entry.modified, rows)
        self.progress = adding.made()
        for part in new.spread():
            entries = [(chunk, ListedObject(self._work.chunk_path(chunk), size, at)) for chunk, size, at in part]
            self._each(entries, lambda chunk, entry, footer: self._count_chunk(plan, chunk, entry, footer), passing)
            new.read.update(chunk for chunk, _, _ in part)
            if until is not None and time.monotonic() > until:
                break
        self._unread = new.left()
        return foreign

    def _read_partials(self, plan: Plan, passing: dict[str, str]) -> None:
        for page in listed(self._store, self._work.partials_folder()):
            named = ((self._work.parse_partial(entry.path), entry) for entry in page)
            new = [
                (found[0], entry)
                for found, entry in named
                if found and found[0] < plan.chunk_count and entry.path not in self._partials_seen
            ]
            self._each(new, lambda chunk, entry, footer: self._count_partial(plan, chunk, entry, footer), passing)

    def _each(
        self, new: list[tuple[int, ListedObject]], use: Callable[[int, ListedObject, Footer], None], passing: dict[str, str]
    ) -> None:
        """Reads footers, many at a time. Broken objects are recorded for good, unanswered reads only for this refresh."""
        reading = [(chunk, entry, self._readers.submit(read_footer, self._store, entry)) for chunk, entry in new]
        try:
            for chunk, entry, footer in reading:
                try:
                    use(chunk, entry, footer.result())
                except NotReadable as error:
                    self._note_bad(chunk, entry, error)
                except StoreUnavailable as error:
                    passing[entry.path] = str(error)
        finally:
            # After an interrupt, the rest is not needed.
            for _, _, footer in reading:
                footer.cancel()

    def _note_bad(self, chunk: int, entry: ListedObject, error: NotReadable) -> None:
        self._problems[entry.path] = str(error)
        if self._work.parse_chunk(entry.path) is not None:
            self._bad_chunks.add(chunk)
        else:
            self._partials_seen.add(entry.path)
            self._bad_partials += 1

    def _count_chunk(self, plan: Plan, chunk: int, entry: ListedObject, footer: Footer) -> None:
        _check_run(plan, footer)
        if footer.rows != (planned := len(plan.chunk_range(chunk))):
            raise NotReadable(f"it holds {n(footer.rows, 'row')}, but the plan says {planned}")
        self._committed.add(chunk)
        self._rows += footer.rows
        self._reasons += footer.reasons
        self._tokens = (self._tokens[0] + footer.prompt_tokens, self._tokens[1] + footer.output_tokens)
        self._truncated += footer.truncated
        self._engine_versions += footer.engine_versions
        self._rate.add(entry.modified, footer.own, footer.seconds)
        if footer.merged is None:
            # An older driver's chunk: whether partials went into it is unknown, so none of them is called waste.
            self._merged[chunk] = footer.rows
        elif footer.merged:
            self._merged[chunk] = footer.merged
        attempt = self._attempt(footer.attempt, footer.node, entry.modified)
        attempt.chunks += 1
        attempt.rows += footer.own

    def _count_partial(self, plan: Plan, chunk: int, entry: ListedObject, footer: Footer) -> None:
        _check_run(plan, footer)
        self._partials_seen.add(entry.path)
        self._own_by_partials[chunk] += footer.own
        self._attempt(footer.attempt, footer.node, entry.modified).partial_rows += footer.own

    def _lost(self) -> Counter[str]:
        """Rows computed for nothing by attempt, from the names of the notes; other names are ignored."""
        lost: Counter[str] = Counter()
        for page in listed(self._store, self._work.lost_notes_folder):
            for entry in page:
                if found := self._work.parse_lost_note(entry.path):
                    attempt, rows = found
                    lost[attempt] += rows
                    self._attempt(attempt, "?", entry.modified)
        return lost

    def _attempt(self, name: str, node: str, seen: float) -> Attempt:
        attempt = self._attempts.setdefault(name, Attempt(name, node, seen))
        if attempt.node == "?":
            attempt.node = node
        attempt.last_seen = max(attempt.last_seen, seen)
        return attempt

    def _status(self, sealed: float | None, lost: Counter[str], foreign: dict[str, str], passing: dict[str, str]) -> Status:
        plan = self._plan
        for name, attempt in self._attempts.items():
            attempt.lost_rows = lost[name]
        unread = self._unread
        committed = len(self._committed) + len(unread)
        left = 0 if plan is None else plan.chunk_count - committed - len(self._bad_chunks)
        now = time.time()
        last = max((at for at in (self._rate.last, *unread.times) if at is not None), default=None)
        return Status(
            url=self._url,
            run=self._run,
            spec=self._spec or {},
            planned=plan is not None,
            rows_total=plan.rows if plan else 0,
            rows_done=self._rows + sum(unread.rows),
            rows_saved=self._saved(plan),
            rows_bad=sum(len(plan.chunk_range(chunk)) for chunk in self._bad_chunks) if plan else 0,
            dead_reasons=dict(self._reasons.most_common()),
            chunks_total=plan.chunk_count if plan else 0,
            chunks_committed=committed,
            chunks_read=len(self._committed),
            chunks_left=left,
            chunks_bad=len(self._bad_chunks),
            foreign_objects=len(foreign),
            unanswered=len(passing),
            partials=len(self._partials_seen) - self._bad_partials,
            partials_bad=self._bad_partials,
            prompt_tokens=self._tokens[0],
            output_tokens=self._tokens[1],
            truncated=self._truncated,
            engine_versions=dict(sorted(self._engine_versions.items())),
            # Once everything is committed, the clock stops at the last commit.
            rate=self._rate.recent(now if left else last, zip(unread.times, unread.rows, strict=True)),
            elapsed_s=self._rate.elapsed_s,
            last_commit=last,
            workers_planned=plan.workers if plan else 0,
            attempts=sorted(self._attempts.values(), key=lambda attempt: (-attempt.last_seen, attempt.name)),
            waste_lost_rows=lost.total(),
            waste_partial_rows=sum(
                max(0, own - self._merged[chunk]) for chunk, own in self._own_by_partials.items() if chunk in self._committed
            ),
            problems=self._problems | foreign | passing,
            sealed_at=sealed,
            observed_at=now,
            measured=self._manifest.measured if self._manifest else None,
            bill=self._bill(),
            paused=self._paused(),
        )

    def _paused(self) -> dict[str, Any] | None:
        """Who paused the run and when; None if it may work."""
        try:
            request = pauses.newest(self._store, self._run)
        except ValueError as error:
            self._problems[self._run.pauses_folder] = str(error)
            return None
        return {"by": request.by, "at": request.at} if request is not None and request.paused else None

    def _saved(self, plan: Plan | None) -> int:
        """Rows in partials of open chunks. Two attempts may have saved the same row, so never more than the chunk holds."""
        if plan is None:
            return 0
        return sum(
            min(own, len(plan.chunk_range(chunk)))
            for chunk, own in self._own_by_partials.items()
            if chunk not in self._committed and chunk not in self._bad_chunks
        )

    def _anything(self) -> bool:
        prefix = self._run.prefix
        try:
            return any(asked(prefix, lambda: next(iter(obstore.list(self._store, prefix, chunk_size=1)), ())))
        except FileNotFoundError:
            return False
        except StoreUnavailable as error:
            # The client has no exception for this.
            if "NoSuchBucket" in str(error.__cause__):
                return False
            raise

    def _bill(self) -> Bill | None:
        """What a sealed run cost; None without prices, or if its manifest cannot say."""
        if self._prices is None or not self._manifest:
            return None
        manifest, prices = self._manifest, self._prices
        try:
            spec = JobSpec.model_validate((self._spec or {}).get("spec"))
        except ValidationError:  # Another kind of run, or a job of another release: its estimate is left out.
            spec = None
        try:
            return asked(self._run.plan_path, lambda: bill_of(self._store, manifest, self._plan, spec, prices))
        except (KeyError, TypeError, ValueError) as error:
            self._problems[self._run.manifest_path] = f"its costs cannot be read: {error!r}"
            return None

    def _read_manifest(self) -> RunManifest | None:
        path = self._run.manifest_path
        try:
            return asked(path, lambda: load_manifest(self._store, self._run))
        except UnreadableFormat as error:
            self._problems[path] = str(error)
            return None

    def _read_spec(self) -> dict[str, Any] | None:
        path = self._run.spec_path
        body = asked(path, lambda: get_bytes(self._store, path))
        if body is None:
            return None
        try:
            value = loaded(body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            self._problems[path] = "not a JSON object"
            return None
        try:
            SPEC.check(value, SPEC.name)
        except UnreadableFormat as error:
            self._problems[path] = str(error)
            return None
        return value


class _Unread:
    """Committed chunks that were listed and not read yet: 32 bytes for each. times: when each was committed. rows: of each."""

    def __init__(self) -> None:
        self.chunks, self.sizes, self.times, self.rows = array("q"), array("q"), array("d"), array("q")
        self.read: set[int] = set()

    def __len__(self) -> int:
        return len(self.chunks)

    def add(self, chunk: int, size: int, modified: float, rows: int) -> None:
        self.chunks.append(chunk)
        self.sizes.append(size)
        self.times.append(modified)
        self.rows.append(rows)

    def spread(self) -> Iterator[list[tuple[int, int, float]]]:
        """Parts of about `READ_AT_ONCE`, each from all over the run, so that a few of them say something about all."""
        step = max(1, -(-len(self) // READ_AT_ONCE))
        for start in range(step):
            yield list(zip(self.chunks[start::step], self.sizes[start::step], self.times[start::step], strict=True))

    def left(self) -> _Unread:
        """Those that are not in `read`."""
        found = _Unread()
        for chunk, size, at, rows in zip(self.chunks, self.sizes, self.times, self.rows, strict=True):
            if chunk not in self.read:
                found.add(chunk, size, at, rows)
        return found


def _check_run(plan: Plan, footer: Footer) -> None:
    if footer.run_id not in (None, plan.run_id):
        raise NotReadable(f"it belongs to run {footer.run_id}, not to {plan.run_id}")
