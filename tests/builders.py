"""Small valid specs, plans and chunks for tests; each test changes only what it is about."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.store import ObjectStore

from nightshift.formats import SPEC
from nightshift.planner.plan import fixed, weigh
from nightshift.planner.speed import Known, tokens_of
from nightshift.profiles.hardware import GPUS, TPUS
from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result
from nightshift.run.manifest import RunManifest
from nightshift.run.names import RunRef, canonical_json
from nightshift.run.plan import InputFile, Plan
from nightshift.run.seal import merkle_root
from nightshift.spec import JobSpec
from nightshift.store import get_bytes
from nightshift.tasks.base import Answer, Answers

RUN = RunRef("job", "2026-11-20", "0123456789abcdef")
PLAN_UID = "fedcba9876543210"
WORK = RUN.work(PLAN_UID)
"""What workers write of `a_plan`."""

RESERVATIONS = ",".join(
    f"{machine.name}=nights"
    for machine in (
        *(machine for gpu in GPUS.values() for machine in gpu.machines),
        *dict.fromkeys(slice_.machine for tpu in TPUS.values() for slice_ in tpu.slices.values()),
    )
)
"""NIGHTSHIFT_RESERVATIONS with one for each machine."""

_SPEC: dict[str, Any] = {
    "job": "job",
    "owner": "team",
    "start_date": "2026-11-01",
    "source": {"query": "SELECT id, text FROM `d.t` WHERE day = @partition", "key": ["id"]},
    "task": "embedding",
    "request": {"input": "{{ text }}", "rows_per_request": 4},
    "model": {"name": "m", "uri": "hf://org/m", "revision": "r1"},
    "engine": {"max_num_seqs": 8},
    "destination": {"table": "d.out", "column": "vector"},
    "deadline": "2h",
    "compute": {"profile": "cpu"},
}


def a_spec(**changes: Any) -> JobSpec:
    """A valid spec; ``a_spec(request__overlong="truncate")`` changes one field of a part."""
    body = copy.deepcopy(_SPEC)
    for path, value in changes.items():
        *parents, name = path.split("__")
        target = body
        for parent in parents:
            target = target.setdefault(parent, {})
        target[name] = value
    return JobSpec.model_validate(body)


def predictions(answers: Answers) -> list[Any]:
    """Of answers that are all kept."""
    assert all(isinstance(row, Answer) for row in answers.rows)
    return [row.prediction for row in answers.rows if isinstance(row, Answer)]


def a_plan(rows: int, chunk_rows: int = 4, workers: int = 1, files: tuple[InputFile, ...] | None = None) -> Plan:
    if files is None:
        files = (InputFile("inputs/a.parquet", rows, (rows,), 1, "e"),) if rows else ()
    return Plan(RUN.run_id, rows, chunk_rows, workers, files, uid=PLAN_UID)


def a_record(spec: JobSpec, **more: Any) -> bytes:
    """The object `spec.json` of a run."""
    opening = {"opened_by": "scheduled", "opened_at": "2026-11-21T01:00:00+00:00"}
    return canonical_json({**SPEC.stamp(), **opening, "spec": spec.model_dump(mode="json"), **more})


def a_manifest(**changes: Any) -> RunManifest:
    """Of a sealed run without rows, but for the changes."""
    known: dict[str, Any] = {
        "run_id": RUN.run_id,
        "job": RUN.job,
        "partition": RUN.partition,
        "generation": RUN.generation,
        "opening": "",
        "plan": PLAN_UID,
        "rows": 0,
        "predictions": 0,
        "dead_letters": 0,
        "dead_reasons": {},
        "duplicates": 0,
        "prompt_tokens": 0,
        "output_tokens": 0,
        "truncated": 0,
        "engine_versions": {},
        "merkle_root": merkle_root([]),
        "sealed_at": "2026-11-21T03:00:00+00:00",
        "attempts": (),
        "chunks": (),
    }
    return RunManifest(**{**known, **changes})


def bound(store: ObjectStore, run: RunRef, plan: Plan) -> Plan:
    """The plan as `extract` makes it: of the opening of the run, and with a folder of its own for what workers write."""
    return replace(plan, uid=PLAN_UID, opening=opening_of(store, run))


def opening_of(store: ObjectStore, run: RunRef) -> str:
    """The uid of the run's record; empty for a run that was never opened."""
    body = get_bytes(store, run.spec_path)
    return json.loads(body)["uid"] if body else ""


def with_rows(store: ObjectStore, plan: Plan, run: RunRef = RUN) -> Plan:
    """The plan with rows that are there, as the seal needs them; their ids are their ordinals."""
    return replace(
        plan, files=write_input(store, run, [None] * plan.rows, per_file=max(1, plan.rows), per_group=max(3, plan.rows // 8))
    )


def a_fix(spec: JobSpec) -> Callable[[int, int], tuple[int, int, tuple[str, ...]]]:
    """What `nightshift.warehouse.extract.build_plan` asks, of a job about whose model nothing is known."""
    return lambda rows, size: fixed(weigh(spec, rows, Known(tokens_of(spec)))[1], spec, rows, size)


def write_input(
    store: ObjectStore,
    run: RunRef,
    texts: Sequence[str | None],
    *,
    per_file: int,
    per_group: int,
    more: Mapping[str, pa.Array] | None = None,
) -> tuple[InputFile, ...]:
    """Puts rows ``id, text`` into Parquet files of the run and returns how a plan lists them. more: further columns."""
    files = []
    for number, start in enumerate(range(0, len(texts), per_file)):
        part = list(texts[start : start + per_file])
        columns = {"id": pa.array(range(start, start + len(part)), pa.int64()), "text": pa.array(part, pa.string())}
        table = pa.table(columns | {name: values.slice(start, per_file) for name, values in (more or {}).items()})
        sink = io.BytesIO()
        pq.write_table(table, sink, row_group_size=per_group)
        path = f"inputs/part-{number:03d}.parquet"
        obstore.put(store, f"{run.prefix}/{path}", sink.getvalue())
        meta = obstore.head(store, f"{run.prefix}/{path}")
        groups = tuple(min(per_group, len(part) - at) for at in range(0, len(part), per_group))
        files.append(InputFile(path, len(part), groups, meta["size"], str(meta["e_tag"])))
    return tuple(files)


def a_chunk(
    run: RunRef,
    plan: Plan,
    chunk: int,
    *,
    dead: Iterable[int] = (),
    ordinals: Sequence[int] | None = None,
    ids: Sequence[int] | None = None,
    width: int = 2,
) -> bytes:
    """The object of a chunk: ordinals in `dead` are dead letters; `ordinals` replaces the ones that the plan asks for.

    ids: the keys of the rows; by default their ordinals. width: of the vectors.
    """
    rows = list(plan.chunk_range(chunk) if ordinals is None else ordinals)
    gone = set(dead)
    results = [
        Result(row, None, "rejected", "no", 1)
        if row in gone
        else Result(row, [float(row), *[0.5] * (width - 1)], None, None, 1)
        for row in rows
    ]
    provenance = Provenance(
        run_id=run.run_id,
        chunk=chunk,
        attempt="pod-1",
        node="node",
        model={"name": "m", "uri": "hf://org/m", "revision": "r1"},
        engine_version="0",
        started="2026-11-20T00:00:00+00:00",
        finished="2026-11-20T00:00:01+00:00",
        predictions=len(rows) - len(gone),
        dead_letters=len(gone),
        prompt_tokens=10,
        plan_uid=plan.uid,
    )
    keys = pa.table({"id": pa.array(rows if ids is None else ids, pa.int64())})
    return chunks.encode(keys, results, pa.list_(pa.float32()), provenance)
