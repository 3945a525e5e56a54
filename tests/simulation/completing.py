"""Nights that fail, and the redos that complete them: `publishing` with a tolerance, and with a source that changes.

A night commits its chunks one by one. Too many of its rows are dead, so it is stopped early, or fails at the seal; or it is
within the tolerance. DAG runs ask for redos, of the same rows or of corrected ones, by the same job or an edited one; some
raise the tolerance; others continue the night that failed, or ask for a fresh one. Meanwhile rows of the source are mended,
dropped, copied and put back, and a worker that is thought dead commits another chunk of a night that was given up.

Invariants, besides those of `publishing`:

whole      the rows and the dead letters of a published day are the rows of its night, each once
tolerance  a run is sealed if and only if its day has no more dead letters than its job tolerates
match      a corrected row is the source's row of that key as it is read; the redo is refused if and only if a key names no
           row or several; once that is mended, it is not
answers    a day has one model; a redo of the same rows has the same job; each run's digest is that of its job
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import obstore
import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.operators.redo import CORRECTED, DEAD_LETTERS, open_again, take_rows
from nightshift.planner.bills import seal_measured
from nightshift.run import opening
from nightshift.run.manifest import load_completed, load_manifest
from nightshift.run.names import RunRef, run_digest
from nightshift.run.plan import InputFile, Plan, PlanError, load_plan, save_plan
from nightshift.run.redo import corrected_rows
from nightshift.run.redo.corrected_rows import NotMatched
from nightshift.run.redo.redo import NotRedone, Redo
from nightshift.run.redo.redo_rows import WRITTEN
from nightshift.run.seal import ConservationError
from nightshift.run.sealed_objects import SealBroken
from nightshift.run.tolerance import ToleranceExceeded
from nightshift.settings import Settings
from nightshift.store import create_or_read
from nightshift.warehouse import Warehouse, WarehouseError, WarehouseUnavailable
from nightshift.warehouse.extract import build_plan
from tests.builders import bound, opening_of
from tests.simulation.bigquery import Client
from tests.simulation.publishing import Report, World, chunk_of, outcome_of, prediction_of, run
from tests.simulation.publishing_audit import Audit, Sealed, named
from tests.simulation.publishing_scenario import DAYS, RATING, SOURCE, SPECS, Asked, Scenario

EDITED: Final = SPECS[0].model_copy(update={"request": SPECS[0].request.model_copy(update={"user": "{{ text }}!"})})
JOBS: Final = (SPECS[0], EDITED, SPECS[1])
"""A job, the same with another prompt, and with another model."""
ROWS: Final = (3, 5, 8)
GROUP_ROWS: Final = 2
CHANGES: Final = ("mend", "drop", "copy", "restore")
"""Of the source."""


@dataclass(frozen=True)
class Request(Asked):
    """how: the param redo; empty if there is none. stops: its workers stop as soon as too many rows are dead."""

    how: str = ""
    stops: bool = False


def draw(seed: int) -> Scenario:
    rng = random.Random(f"completing {seed}")
    place, rows = Settings(bucket="a", project="p", dataset="own"), rng.choice(ROWS)
    tolerate = rng.choice(("0%", "20%", "40%"))

    def request(how: str, start_s: float) -> Request:
        job = rng.choices(JOBS, (6, 4, 1))[0] if how or rng.random() < 0.3 else JOBS[0]
        raised = rng.choice((tolerate, tolerate, tolerate, "100%"))
        return Request(
            settings=place,
            spec=job.model_copy(update={"dead_letters": job.dead_letters.model_copy(update={"tolerate": raised})}),
            day=DAYS[0],
            start_s=start_s,
            pace=rng.choice((0.2, 1.0, 1.0, 4.0)),
            skew_s=0.0,
            fresh=not how and rng.random() < 0.4,
            again=not how and start_s > 100 and rng.random() < 0.3,
            rows=rows,
            chunk_rows=rng.choice((1, 2, 5)),
            dead=frozenset(),
            redo=bool(how),
            how=how,
            stops=rng.random() < 0.7,
        )

    hows = (DEAD_LETTERS, CORRECTED, CORRECTED)
    asked = [request("", 0.0), *(request("", rng.uniform(0, 300.0)) for _ in range(rng.choice((0, 0, 1, 2))))]
    asked += [request(rng.choice(hows), rng.uniform(5.0, 300.0)) for _ in range(rng.choice((1, 2, 3, 4)))]
    events = [*CHANGES, "mend", "restore", "restore", "late", "late", "kill", "again", "overwrite", "delete"]
    rough = rng.random() < 0.4
    return Scenario(
        seed=seed,
        asked=tuple(asked),
        unavailable=rng.choice((0.0, 0.01)) * rough,
        lost_reply=rng.choice((0.0, 0.2)) * rough,
        lost_job=rng.choice((0.0, 0.03)) * rough,
        events=tuple(sorted((rng.randrange(250), rng.choice(events)) for _ in range(rng.choice((0, 4, 8, 12))))),
        calm=600,
    )


@dataclass
class Work:
    """The truth about a run that is planned. texts: of its rows. night: ids of all rows of the day. dead: ordinals.

    altered: whether somebody has overwritten one of its chunks before it was sealed, so that nobody knows what it holds.
    """

    asked: Request
    run: RunRef
    plan: Plan
    ids: tuple[int, ...]
    texts: tuple[str, ...]
    night: tuple[int, ...]
    completes: Sealed | None
    redo: Redo | None
    altered: bool = False

    @property
    def dead(self) -> frozenset[int]:
        return self.asked.dead

    def rows(self, ordinals: Callable[[int], bool]) -> frozenset[tuple[int, str, str, int]]:
        """What a day shows of it, and of what it completes."""
        answered = [n for n in range(len(self.ids)) if n not in self.dead and ordinals(n)]
        own = {(self.ids[n], prediction_of(self.asked, self.run, n, "genuine"), self.run.run_id, n) for n in answered}
        return frozenset(own) | (self.completes.rows if self.completes else frozenset())


class CompletingAudit(Audit):
    def _published(self, sealed: Sealed, asked_at: str) -> None:
        super()._published(sealed, asked_at)
        world: Completing = self._world  # type: ignore[assignment]
        work = world.works[sealed.run.run_id]
        shown = Counter(row[0] for row in sealed.rows) + Counter(sealed.ids[n] for n in sealed.dead)
        if shown != Counter(work.night):
            world.fail("whole", f"{named(sealed)} shows {sorted(shown.elements())} of the rows {work.night}")


@dataclass
class _Export:
    """What a redo has read of the source. refused: by a task."""

    rows: list[tuple[int, str]]
    refused: bool = False


class Completing(World):
    """Runs one schedule."""

    audit_by = CompletingAudit

    def __init__(self, scenario: Scenario, say: Callable[[str], None]) -> None:
        super().__init__(scenario, say)
        self.works: dict[str, Work] = {}
        """By run id: there is one bucket, and one job."""
        self._store = self._stores["a"]
        self._closed: dict[tuple[str, str], Sealed] = {}
        self._source = [(n, 0) for n in range(scenario.asked[0].rows)]
        """Key and version of each row."""
        self._exports: dict[str, _Export] = {}
        if self._rng.random() < 0.25:
            self._source.append((0, 1))

    # ---- the world changes

    def _happen(self, what: str) -> None:
        if what in CHANGES:
            self._say(f"{self.step:6}  {what.upper()}")
            self._change(what)
        elif what == "late":
            self._late()
        else:
            super()._happen(what)

    def _change(self, what: str) -> None:
        at = self._rng.randrange(len(self._source) or 1)
        if what == "restore" or not self._source:
            known = {key for key, _ in self._source}
            missing = [(n, 9) for n in range(self.scenario.asked[0].rows) if n not in known]
            self._source = [*dict(self._source).items(), *missing]
        elif what == "mend":
            key, version = self._source[at]
            self._source[at] = (key, version + 1)
        elif what == "drop":
            del self._source[at]
        else:
            self._source.insert(0, self._source[at])

    def _late(self) -> None:
        """A worker of a night that was given up commits a chunk."""
        waiting = [(work, chunk) for work in self.works.values() for chunk in self._missing(work) if not work.altered]
        if waiting:
            self.seen["late"] += 1
            work, chunk = self._rng.choice(waiting)
            self._say(f"{self.step:6}  LATE chunk {chunk} of {work.run.run_id}")
            self._commit(work, chunk)

    def _alter(self, sealed: Sealed, what: str) -> None:
        """Of a sealed run, or of one that was closed."""
        sealed = self._rng.choice([*self.sealed.values(), *self._closed.values()])
        if not sealed.manifest.chunks:
            return
        self.seen[what] += 1
        path = self._rng.choice(sealed.manifest.chunks).path
        work = self.works[sealed.run.run_id]
        for each in (*self.sealed.values(), *self._closed.values()):
            if each.changed is None and path in [entry.path for entry in each.manifest.chunks]:
                each.changed = self.step
        if what == "delete":
            obstore.delete(self._store, [path])
        else:
            work.altered = True
            chunk = work.run.work(work.plan.uid).parse_chunk(path)
            assert chunk is not None
            obstore.put(self._store, path, chunk_of(work.asked, work.run, work.plan.uid, chunk, "forged", work.ids))

    # ---- a DAG run

    def _opened(self, asked: Asked) -> RunRef | None:
        assert isinstance(asked, Request)
        if not asked.how:
            run = super()._opened(asked)
            assert run is not None
            return run
        client = Client(self.service, self.pause, self._reply_lost, lambda _: None)
        warehouse = Warehouse(client, asked.settings)  # type: ignore[arg-type]
        warehouse.check_query = lambda spec, partition: SOURCE  # type: ignore[method-assign]
        shown, turn = self._shown(), len(self.audit.published)
        before = self._opened_runs()
        try:
            while True:
                try:
                    run = open_again(self._store, warehouse, asked.spec, asked.day, str(id(asked)), how=asked.how)
                    break
                except WarehouseUnavailable:
                    self.sleep(self._rng.uniform(1.0, 60.0))
        except (NotRedone, SealBroken, ConservationError, WarehouseError) as error:
            self.seen["redos refused"] += 1
            self.say(f"NO REDO: {error}")
            return None
        if run in before:
            self.seen["redos joined"] += 1
            return run
        meanwhile = {each.run.run_id for each in self.audit.published[turn:]}
        return run if self._well_opened(asked, run, {shown, self._shown(), *meanwhile}) else None

    def _opened_runs(self) -> list[RunRef]:
        found = [each["path"] for each in obstore.list(self._store).collect()]
        return [RunRef.from_prefix(path.removesuffix("/spec.json")) for path in found if path.endswith("/spec.json")]

    def _shown(self) -> str:
        return self.audit.published[-1].run.run_id if self.audit.published else ""

    def _well_opened(self, asked: Request, run: RunRef, shown: set[str]) -> bool:
        """Compares a redo that was opened now with the truth; False if nobody knows what it completes."""
        spec, record = opening.load_run(self._store, run)
        redo = record.redo
        assert redo is not None
        if redo.shown not in shown:
            self.fail("redo", f"{run.run_id} says that the day showed {redo.shown!r}, and it showed {shown}")
        earlier = self.works[redo.run_id]
        if (completes := self._completed(redo)) is None:
            return False
        manifest = completes.manifest
        allowed = asked.spec.dead_letters.allowed(len(earlier.night))
        sealed = load_manifest(self._store, earlier.run) is not None
        if not sealed and manifest.unanswered and manifest.dead_letters <= allowed:
            # A redo that nobody has finished does not stand in the way of another one of the same run.
            others = [opening.load_run(self._store, each)[1].redo for each in self._opened_runs() if each != run]
            if all(each is None or each.manifest_digest != redo.manifest_digest for each in others):
                self.fail("redo", f"{redo.run_id} may go on, and {run.run_id} is a redo of it")
        if earlier.redo and load_manifest(self._store, earlier.run) is None and earlier.redo.shown != redo.shown:
            self.fail("redo", f"{run.run_id} takes away {redo.shown!r}, which {redo.run_id} did not know")
        if run.digest != run_digest(run.job, run.partition, spec.semantic()):
            self.fail("answers", f"{run.run_id} is named by another job than its own")
        if spec.semantic() != asked.spec.semantic():
            self.fail("answers", f"{run.run_id} is not what was asked for")
        before = earlier.asked.spec
        if spec.model != before.model or (asked.how == DEAD_LETTERS and spec.semantic() != before.semantic()):
            self.fail("answers", f"{run.run_id} completes {redo.run_id} with other answers")
        if redo.corrected != (asked.how == CORRECTED):
            self.fail("answers", f"{run.run_id} was asked for as {asked.how}")
        return True

    def _completed(self, redo: Redo) -> Sealed | None:
        """The truth about what a redo completes; None if nobody knows it."""
        work, found = self.works[redo.run_id], self.sealed.get(("a", redo.run_id))
        if found is not None and found.manifest.digest == redo.manifest_digest:
            return found
        key = (redo.run_id, redo.manifest_digest)
        if key not in self._closed:
            closing = load_completed(self._store, work.run, redo.manifest_digest)
            if closing is None or work.altered:
                return None
            self.seen["closings"] += 1
            there = {n for entry in closing.chunks for n in work.plan.chunk_range(entry.chunk)}
            left = frozenset(n for n in range(work.plan.rows) if n not in there or n in work.dead)
            shown = work.redo.shown if work.redo else ""
            rows = work.rows(there.__contains__)
            self._closed[key] = Sealed(work.asked, work.run, closing, work.ids, rows, left, work.completes, shown)
        return self._closed[key]

    def _sealed(self, asked: Asked, run: RunRef, redo: Redo | None) -> Sealed | None:
        assert isinstance(asked, Request)
        key = ("a", run.run_id)
        if key not in self.sealed:
            work = self.works.get(run.run_id) or (
                self._extracted(asked, run, redo) if redo else self._night_planned(asked, run)
            )
            if work is not None and self._compute(work, asked):
                self._seal(work, asked)
        return self.sealed.get(key)

    def _night_planned(self, asked: Request, run: RunRef) -> Work:
        rows = [(key, f"{key}, version {version}") for key, version in self._source]
        path = f"{run.inputs_folder}/1-part-0.parquet"
        create_or_read(self._store, path, _parquet(rows))
        meta = obstore.head(self._store, path)
        groups = tuple(min(GROUP_ROWS, len(rows) - start) for start in range(0, len(rows), GROUP_ROWS))
        file = InputFile(path.removeprefix(f"{run.prefix}/"), len(rows), groups, meta["size"], str(meta["e_tag"]))
        plan = Plan(run.run_id, len(rows), asked.chunk_rows, 1, (file,) if rows else (), source=SOURCE)
        plan = save_plan(self._store, run, bound(self._store, run, plan))
        ids = tuple(key for key, _ in rows)
        return self._planned(asked, run, plan, rows, ids, None, None, 0.45)

    def _planned(
        self,
        asked: Request,
        run: RunRef,
        plan: Plan,
        rows: list[tuple[int, str]],
        night: tuple[int, ...],
        completes: Sealed | None,
        redo: Redo | None,
        share: float,
    ) -> Work:
        dead = frozenset(n for n in range(plan.rows) if self._rng.random() < share)
        asked = replace(asked, rows=plan.rows, chunk_rows=plan.chunk_rows, dead=dead)
        ids, texts = tuple(key for key, _ in rows), tuple(text for _, text in rows)
        self.works[run.run_id] = Work(asked, run, plan, ids, texts, night, completes, redo)
        return self.works[run.run_id]

    def _extracted(self, asked: Request, run: RunRef, redo: Redo) -> Work | None:
        """The task extract; a person may clear it once it has failed."""
        while (work := self._redo_planned(asked, run, redo)) is None and self._rng.random() < 0.5 and not self.violations:
            self.sleep(self._rng.uniform(1.0, 60.0))
            if run.run_id in self.works:
                return self.works[run.run_id]
        return work

    def _redo_planned(self, asked: Request, run: RunRef, redo: Redo) -> Work | None:
        """The task extract."""
        completes, earlier = self._completed(redo), self.works[redo.run_id]
        if completes is None:
            return None
        try:
            if redo.corrected:
                if not self._take_corrected(run, redo, completes, earlier):
                    return None
            else:
                take_rows(self._store, run, redo)
            plan = build_plan(
                self._store,
                run,
                asked.spec,
                SOURCE,
                fix=lambda rows, size: (1, asked.chunk_rows, ()),
                opening=opening_of(self._store, run),
                rows=redo.left,
                attempt=WRITTEN,
            )
        except NotRedone as error:
            self.say(f"NO REDO: {error}")
            if completes.altered is None:
                self.fail("refusal", f"the redo of {named(completes)} is refused without a reason: {error}")
            return None
        except PlanError as error:
            self.fail("match", f"the redo {run.run_id} has not the rows that it should have: {error}")
            return None
        rows = [
            (row["id"], row["text"])
            for file in plan.files
            for row in pq.read_table(
                io.BytesIO(bytes(obstore.get(self._store, f"{run.prefix}/{file.path}").bytes()))
            ).to_pylist()
        ]
        left = sorted(completes.dead)
        texts = dict(self._exports[run.run_id].rows) if redo.corrected else {}
        wanted = [(earlier.ids[n], texts[earlier.ids[n]] if redo.corrected else earlier.texts[n]) for n in left]
        if sorted(rows) != sorted(wanted):
            self.fail("match", f"the redo {run.run_id} has the rows {rows}, and not {wanted}")
        self.seen["corrected" if redo.corrected else "same rows"] += 1
        return self._planned(asked, run, plan, rows, earlier.night, completes, redo, 0.25)

    def _take_corrected(self, run: RunRef, redo: Redo, completes: Sealed, earlier: Work) -> bool:
        """Whether the source's rows could be matched."""
        export = self._exports.get(run.run_id)
        paths = [each["path"] for each in obstore.list(self._store, run.source_folder).collect()]
        attempt = max((run.parse_source(path) or 0 for path in paths), default=0)
        if not corrected_rows.exported(self._store, run, attempt):
            self.seen["exported again"] += attempt > 0
            attempt += 1
            export = _Export([(key, f"{key}, version {version}") for key, version in self._source])
            path = run.source_pattern(attempt).replace("*", "0")
            obstore.put(self._store, path, _parquet(self._rng.sample(export.rows, len(export.rows))))
            self._exports[run.run_id] = export
            self._hub.switch()  # Another try may have planned it meanwhile, or refused it.
            if load_plan(self._store, run) is not None or self._exports[run.run_id] is not export or export.refused:
                return False
        assert export is not None
        if export.refused:
            self.fail("match", f"{run.run_id} uses an export again that was refused")
            return False
        keys = {earlier.ids[n] for n in completes.dead}
        times, nightly = Counter(key for key, _ in export.rows), Counter(earlier.night)
        reason = any(times[key] != 1 for key in keys) or any(nightly[key] != 1 for key in keys)
        try:
            corrected_rows.take_corrected(self._store, run, redo, ("id",), SOURCE.columns, attempt=attempt)
        except NotMatched as error:
            self.seen["not matched"] += 1
            self.say(f"NOT MATCHED: {error}")
            export.refused = True
            if not reason:
                self.fail("match", f"{run.run_id} is refused without a reason: {error}")
            return False
        if reason:
            self.fail("match", f"{run.run_id} takes rows whose keys name none, or several")
        return True

    def _missing(self, work: Work) -> list[int]:
        there = {each["path"] for each in obstore.list(self._store, work.run.work(work.plan.uid).ledger_folder).collect()}
        return [n for n in range(work.plan.chunk_count) if work.run.work(work.plan.uid).chunk_path(n) not in there]

    def _commit(self, work: Work, chunk: int) -> None:
        path = work.run.work(work.plan.uid).chunk_path(chunk)
        create_or_read(self._store, path, chunk_of(work.asked, work.run, work.plan.uid, chunk, "genuine", work.ids))

    def _allowed(self, work: Work, asked: Request) -> int:
        """Dead letters of the whole day."""
        return asked.spec.dead_letters.allowed(len(work.night))

    def _compute(self, work: Work, asked: Request) -> bool:
        """Whether all its chunks are committed."""
        allowed = self._allowed(work, asked)
        while missing := self._missing(work):
            there = [n for n in range(work.plan.rows) if n // work.plan.chunk_rows not in missing]
            if work.altered or (asked.stops and len(work.dead & set(there)) > allowed):
                self.seen["stopped early"] += 1
                return False
            self._commit(work, self._rng.choice(missing))
            self._hub.switch()
        return not work.altered

    def _seal(self, work: Work, asked: Request) -> None:
        spec = work.redo.terms(asked.spec) if work.redo else asked.spec
        tolerated = len(work.dead) <= self._allowed(work, asked)
        before = load_manifest(self._store, work.run)
        try:
            manifest = seal_measured(self._store, work.run, spec, work.plan, redo=work.redo)
        except ToleranceExceeded as error:
            self.seen["failed at the seal"] += 1
            self.say(f"NOT SEALED: {error}")
            if tolerated:
                self.fail("tolerance", f"{work.run.run_id} is not sealed, although the job tolerates it: {error}")
            return
        except (NotRedone, ConservationError) as error:
            self.say(f"NOT SEALED: {error}")
            if work.completes is None or work.completes.altered is None:
                self.fail("refusal", f"{work.run.run_id} is not sealed, without a reason: {error}")
            return
        if before is None and not tolerated:
            self.fail("tolerance", f"{work.run.run_id} is sealed with {len(work.dead)} dead letters")
        if before is not None and ("a", work.run.run_id) not in self.sealed:
            self.fail("tolerance", f"{work.run.run_id} has a manifest, and nobody has sealed it")
        shown = work.redo.shown if work.redo else ""
        every: Callable[[int], bool] = lambda _: True  # noqa: E731
        rows = work.rows(every)
        sealed = Sealed(work.asked, work.run, manifest, work.ids, rows, work.dead, work.completes, shown)
        self.sealed.setdefault(("a", work.run.run_id), sealed)
        self.seen["redos" if work.redo else "nights"] += 1


def _parquet(rows: list[tuple[int, str]]) -> bytes:
    body = io.BytesIO()
    keys = [key for key, _ in rows]
    table = {"id": pa.array(keys, pa.int64()), "rating": pa.array([key * RATING for key in keys], pa.int64())}
    pq.write_table(
        pa.table({**table, "text": pa.array([text for _, text in rows], pa.string())}), body, row_group_size=GROUP_ROWS
    )
    return body.getvalue()


def simulate(seed: int, say: Callable[[str], None] = lambda line: None) -> Report:
    """Runs the schedule of a seed. Raises Violated."""
    return run(Completing(draw(seed), say), seed)


def outcome(seed: int) -> Report | str:
    """The report of a schedule, or what it violated."""
    return outcome_of(simulate, seed)
