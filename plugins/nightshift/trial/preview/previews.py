"""A preview from its question to its result, for the command and for the DAG's task."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from nightshift.fields.text import n
from nightshift.planner.plan import table
from nightshift.planner.speed import Known, tokens_of
from nightshift.planner.speeds import records_if_any
from nightshift.run.answers.compare import pairs
from nightshift.run.models.hub_cache import absent_at
from nightshift.run.names import run_digest
from nightshift.trial.engine_folder import new_id
from nightshift.trial.engine_jobset import JobSetEngines, NoEngine, folder_of, same_engine
from nightshift.trial.outcomes import Computed, Outcome
from nightshift.trial.preview import results
from nightshift.trial.preview.results import NightEstimate, Preview, PreviewRow, Variant, bounded
from nightshift.trial.rows import Rows, rows_of_query

if TYPE_CHECKING:
    import pyarrow as pa

    from nightshift.planner.costs.prices import Prices
    from nightshift.spec import JobSpec
    from nightshift.trial.world import World

WAIT_S: Final = 1.0
"""How long a person waits for the model's config.json after the answers: the Hub may take half a minute to refuse it."""
LATE: Final = "its config.json had not arrived when the answers had"


@dataclass(frozen=True)
class Question:
    """files: the job's, and that of the one to compare it with, each with its spec. engine_url: of an engine that is there."""

    files: tuple[tuple[str, JobSpec], ...]
    partition: str
    rows: int
    by: str
    engine_url: str | None = None


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Adds what it takes to the seconds of a step."""
    since = time.monotonic()
    yield
    seconds[step] = round(seconds.get(step, 0.0) + time.monotonic() - since, 3)


def preview(question: Question, world: World) -> Preview:
    """Answers the question and keeps the result in the bucket.

    Raises NoRows, NoEngine, EngineGone, UnfitEngine, StoreUnavailable, and what warehouse and runtime raise.
    """
    seconds: dict[str, float] = {}
    for _, spec in question.files:
        # Before a query is paid for, and before an engine fails for a minute and ends with the words of its packages.
        if not question.engine_url and (missing := absent_at(spec.model.uri, spec.model.revision, world.environment)):
            raise NoEngine(str(missing))
    found: list[tuple[str, JobSpec, Rows, Outcome]] = []
    first = question.files[0][1]
    knowing: list[Callable[[], Known]] = []
    for file, spec in question.files:
        with _timed(seconds, "rows"):
            rows = rows_of_query(world, spec, question.partition, question.rows, "preview")
        with _timed(seconds, "answers"):
            # Not before: what it imports takes a second of computing, which is free only while the engine answers.
            knowing.append(_knowing(spec, world))
            found.append((file, spec, rows, _outcome(question, world, first, spec, rows.table)))
    with _timed(seconds, "estimate"):
        nights = [
            _night_of(spec, rows.of_night, outcome, known(), world.prices)
            for known, (_, spec, rows, outcome) in zip(knowing, found, strict=True)
        ]
    variants = tuple(
        _variant(file, spec, question.partition, rows, outcome, night)
        for (file, spec, rows, outcome), night in zip(found, nights, strict=True)
    )
    made = Preview(
        new_id(),
        first.job,
        question.partition,
        datetime.now(UTC).isoformat(timespec="seconds"),
        question.by,
        variants,
        pairs(*(each.rows for each in variants)) if len(variants) > 1 else (),
        all(rows.kept for _, _, rows, _ in found),
        sum(rows.query_bytes or 0 for _, _, rows, _ in found if not rows.kept),
        {**seconds, "engine": round(sum(outcome.seconds for *_, outcome in found), 3)},
    )
    results.save(world.store, made)
    return made


def _outcome(question: Question, world: World, first: JobSpec, spec: JobSpec, table: pa.Table) -> Outcome:
    if question.engine_url:
        from nightshift.trial.compute import compute

        root = world.environment.get("NIGHTSHIFT_MODEL_ROOT") or spec.model.root
        return asyncio.run(compute(spec, table, question.engine_url, root=root))
    warm = JobSetEngines(world.store, world.settings, world.runtime, world.say)
    shared = spec is not first and same_engine(first, spec, world.settings)
    return warm.answers(spec, table, folder_of(first, world.settings) if shared else None)


def _knowing(spec: JobSpec, world: World) -> Callable[[], Known]:
    """Begins to read what the planner knows of a job before any tokens are counted, aside, while the engine answers. What it
    returns tells how far that has come, `WAIT_S` from then."""
    found = [Known(tokens_of(spec), None, LATE)]

    def read() -> None:
        records = records_if_any(world.store, spec, world.say)
        found.append(replace(found[0], records=records))
        found.append(world.known(spec, records=records))

    def known() -> Known:
        thread.join(WAIT_S)
        return found[-1]

    # A daemon: the process does not wait for what came too late.
    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return known


def _night_of(spec: JobSpec, rows: int, outcome: Outcome, known: Known, prices: Prices) -> NightEstimate:
    """rows: of the whole query. outcome: of some of them; those that became no request count as none."""
    sent = sum(row.prompt is not None for row in outcome.rows)
    mean_in, mean_out = (outcome.prompt_tokens / sent, outcome.output_tokens / sent) if sent else (0.0, 0.0)
    share = sent / len(outcome.rows) if outcome.rows else 0.0
    if sent:
        counted = f"{mean_in:,.0f} input tokens per row: the engine's count of {n(sent, 'row')}"
        tokens = tokens_of(spec, mean_in, counted, mean_out, "as those rows had")
        known = replace(known, tokens=replace(tokens, texts=None if spec.task == "rerank" else 1.0))
    of_all = (rows, round(mean_in * share * rows), round(mean_out * share * rows))
    chosen = next((row for row in table(spec, rows, known, prices=prices.machines) if row.chosen), None)
    if chosen is None:
        return NightEstimate(*of_all, profile=spec.compute.profile, currency=prices.currency, speed="unknown")
    return NightEstimate(
        *of_all,
        profile=chosen.profile,
        workers=chosen.workers,
        seconds=chosen.finish_s,
        hours=chosen.hours,
        cost=chosen.cost,
        currency=prices.currency,
        speed=chosen.speed,
        problem=chosen.problem,
        start_up_s=chosen.start_up_s,
        start_up_at_most=chosen.at_most,
    )


def _variant(file: str, spec: JobSpec, partition: str, rows: Rows, outcome: Outcome, night: NightEstimate) -> Variant:
    keys = rows.table.select(list(spec.source.key)).to_pylist()
    return Variant(
        file,
        spec.job,
        spec.model.name,
        run_digest(spec.job, partition, spec.semantic()),
        tuple(_row(key, row) for key, row in zip(keys, outcome.rows, strict=True)),
        outcome.prompt_tokens,
        outcome.output_tokens,
        outcome.engine,
        round(outcome.seconds, 3),
        night,
        tuple(_warnings(spec, partition, rows)),
    )


def _warnings(spec: JobSpec, partition: str, rows: Rows) -> Iterator[str]:
    """What the task plan would say of the rows, as far as these show it."""
    from nightshift.planner.source import Unfit, check_rows, sample_warnings
    from nightshift.tasks.base import read_columns, union

    try:
        check_rows(spec, partition, rows.of_night)
    except Unfit as unfit:
        yield f"The night would fail. {unfit}"
    columns = union(spec.source.key, *(names for field, names in read_columns(spec.request) if field != "image"))
    yield from sample_warnings(spec, rows.table.select(list(columns)).to_pylist())


def _row(key: Mapping[str, Any], row: Computed) -> PreviewRow:
    return PreviewRow(key=bounded(key), **{each.name: bounded(getattr(row, each.name)) for each in fields(row)})
