"""Opening a run: what it computes is frozen into `spec.json`, created once and never changed. Also for `nightshift batch`.

Opening is safe to repeat: the same job, partition and spec give the same run. `fresh` opens the next generation, and a
repeat by the same opener (an Airflow DAG run that is retried or cleared) finds the generation that it opened before.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from obstore.store import ObjectStore

from nightshift.run import pins
from nightshift.run.names import RunRef, canonical_json, run_digest
from nightshift.run.pins import Pins
from nightshift.spec import JobSpec
from nightshift.store import create_or_read, get_bytes

VERSION: Final = 1

Record = dict[str, Any]
"""The content of `spec.json`: the run's names, who opened it, and what was frozen."""


class NoSuchRun(LookupError):
    """There is no run at the given place."""


def open_run(
    store: ObjectStore,
    spec: JobSpec,
    partition: str,
    *,
    opened_by: str,
    fresh: bool = False,
    superseded: Callable[[RunRef], bool] = lambda _: False,
    pin: Callable[[], Pins] = Pins,
) -> RunRef:
    """Finds or creates the run of `spec` for `partition` (YYYY-MM-DD) in a store rooted at the bucket.

    pin: says what a new run pins; not called if the run is open already. See `open_generation` for the other parameters.
    """
    semantic = spec.semantic()
    first = RunRef(spec.job, partition, run_digest(spec.job, partition, semantic))
    frozen = {"version": VERSION, "spec": spec.model_dump(mode="json"), "semantic": semantic}
    return open_generation(
        store,
        first,
        frozen,
        opened_by=opened_by,
        fresh=fresh,
        superseded=superseded,
        late=lambda: {pins.KEY: pin().to_json()},
    )[0]


def open_generation(
    store: ObjectStore,
    first: RunRef,
    frozen: Mapping[str, Any],
    *,
    opened_by: str,
    fresh: bool = False,
    superseded: Callable[[RunRef], bool] = lambda _: False,
    late: Callable[[], Mapping[str, Any]] = dict,
) -> tuple[RunRef, Record]:
    """Finds or creates a generation of the run `first`; returns it with the record of its `spec.json`.

    Without `fresh`: the newest generation, else the first. With it: the generation that `opened_by` opened before, else a
    new one. frozen: what a new record holds besides the run's names. superseded: whether a generation must not be
    returned; then the next one is used. late: more of what a new record holds, found out only if one is written.
    """
    newest = None
    number = 1
    for run, record in _generations(store, first):
        if fresh and record["opened_by"] == opened_by and not superseded(run):
            return run, record
        newest, number = (run, record), run.generation + 1
    if newest is not None and not fresh and not superseded(newest[0]):
        return newest
    # Several may open one at once: create-only gives this generation to one of them, and the others see who got it.
    frozen = {**frozen, **late()}
    while True:
        run = replace(first, generation=number)
        body = canonical_json({**_names_of(run), "opened_by": opened_by, **frozen})
        record = json.loads(create_or_read(store, run.spec_path, body))
        if record["opened_by"] == opened_by or not fresh:
            return run, record
        number += 1


def newest_generation(store: ObjectStore, first: RunRef) -> RunRef | None:
    """The newest generation of a run; None if it was never opened."""
    newest = None
    for run, _ in _generations(store, first):
        newest = run
    return newest


def load_run(store: ObjectStore, run: RunRef) -> tuple[JobSpec, Record]:
    """The frozen spec of a job's run and the whole record of `spec.json`. Raises NoSuchRun."""
    body = get_bytes(store, run.spec_path)
    if body is None:
        raise NoSuchRun(f"There is no run {run.prefix}: {run.spec_path} does not exist.")
    record = json.loads(body)
    return JobSpec.model_validate(record["spec"]), record


def _generations(store: ObjectStore, first: RunRef) -> Iterator[tuple[RunRef, Record]]:
    """Every generation that was opened, in order."""
    for number in itertools.count(1):
        run = replace(first, generation=number)
        body = get_bytes(store, run.spec_path)
        if body is None:
            return
        yield run, json.loads(body)


def _names_of(run: RunRef) -> dict[str, Any]:
    return {"job": run.job, "partition": run.partition, "run_id": run.run_id, "generation": run.generation}
