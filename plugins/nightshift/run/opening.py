"""Freezing a job into a run: `spec.json`, created once and never changed.

Opening is safe to repeat: the same job, partition and spec give the same run. `fresh` opens the next generation, and a
repeat of the same opener (an Airflow DAG run that is retried or cleared) finds the generation it opened before.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from obstore.store import ObjectStore

from nightshift.run.names import RunRef, canonical_json, run_digest
from nightshift.spec import JobSpec
from nightshift.store import create_or_read, get_bytes

VERSION: Final = 1


class NoSuchRun(LookupError):
    """There is no `spec.json` where a run was said to be."""


def open_run(
    store: ObjectStore,
    spec: JobSpec,
    partition: str,
    *,
    opened_by: str,
    fresh: bool = False,
    superseded: Callable[[RunRef], bool] = lambda _: False,
) -> RunRef:
    """Finds or creates the run of `spec` for `partition` (YYYY-MM-DD) in a store rooted at the bucket.

    Without `fresh`: the newest generation there is, else the first. With it: the generation that `opened_by` opened
    before, else a new one. superseded: says of a generation that would be returned that it must not be; the next one is
    taken then.
    """
    first = RunRef(spec.job, partition, run_digest(spec.job, partition, spec.semantic()))
    generations = (replace(first, generation=number) for number in itertools.count(1))
    newest = None
    candidate = next(generations)
    while (there := get_bytes(store, _path(candidate))) is not None:
        if fresh and json.loads(there)["opened_by"] == opened_by and not superseded(candidate):
            return candidate
        newest, candidate = candidate, next(generations)
    if newest is not None and not fresh and not superseded(newest):
        return newest
    # Several may open at once: create-only lets one of them have this generation, and the others look at who it was.
    while True:
        record = json.loads(create_or_read(store, _path(candidate), canonical_json(_record(candidate, spec, opened_by))))
        if record["opened_by"] == opened_by or not fresh:
            return candidate
        candidate = next(generations)


def load_run(store: ObjectStore, run: RunRef) -> tuple[JobSpec, dict[str, Any]]:
    """The frozen spec and the whole record of `spec.json`. Raises NoSuchRun."""
    body = get_bytes(store, _path(run))
    if body is None:
        raise NoSuchRun(f"There is no run {run.prefix}: {_path(run)} does not exist.")
    record = json.loads(body)
    return JobSpec.model_validate(record["spec"]), record


def _record(run: RunRef, spec: JobSpec, opened_by: str) -> dict[str, Any]:
    return {
        "version": VERSION,
        "job": run.job,
        "partition": run.partition,
        "run_id": run.run_id,
        "generation": run.generation,
        "opened_by": opened_by,
        "spec": spec.model_dump(mode="json"),
        "semantic": spec.semantic(),
    }


def _path(run: RunRef) -> str:
    return f"{run.prefix}/spec.json"
