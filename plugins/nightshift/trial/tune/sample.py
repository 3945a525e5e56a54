"""The rows of a trial: real ones of the job, as a night has them, stratified by length and by how they begin. Pure but for
`pool_of_run`, which reads them from an earlier run's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from nightshift.run.inputs import InputReader
from nightshift.run.opening import load_run, opened_last
from nightshift.run.plan import load_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from obstore.store import ObjectStore

    from nightshift.run.names import RunRef
    from nightshift.spec import JobSpec

STRATA: Final = 10
"""By length, with as many rows each."""
BEGINNING: Final = 64
"""Characters of a row that say which others share its beginning."""
POOL: Final = 4
"""Rows that are looked at for each one of the sample."""
BLOCKS: Final = 32
"""Places of a run from which they are read."""


def stratified(texts: Sequence[str], rows: int) -> list[int]:
    """Which of them stand for all, in their own order: from each stratum of lengths its share, spread over beginnings."""
    if rows >= len(texts):
        return list(range(len(texts)))
    by_length = sorted(range(len(texts)), key=lambda index: (len(texts[index]), index))
    size = len(texts) / STRATA
    ordered: list[int] = []
    for stratum in range(STRATA):
        members = by_length[round(stratum * size) : round((stratum + 1) * size)]
        ordered += sorted(members, key=lambda index: (texts[index][:BEGINNING], index))
    step = len(ordered) / rows
    return sorted(ordered[int((number + 0.5) * step)] for number in range(rows))


def longest(texts: Sequence[str], rows: int) -> list[int]:
    """The longest of them, again and again if there are fewer: what a soak needs. The longest come first."""
    ordered = sorted(range(len(texts)), key=lambda index: (-len(texts[index]), index))
    return [ordered[number % len(ordered)] for number in range(rows)] if ordered else []


def texts_of(table: pa.Table, columns: Sequence[str]) -> list[str]:
    """What a row's template reads of it, as text: two rows that begin alike have prompts that do."""
    found = [""] * len(table)
    for name in columns:
        if name in table.column_names:
            values: list[Any] = table.column(name).to_pylist()
            found = [text + ("" if value is None else str(value)) for text, value in zip(found, values, strict=True)]
    return found


def pool_of_run(
    store: ObjectStore, spec: JobSpec, partition: str, columns: Sequence[str], rows: int
) -> tuple[RunRef, pa.Table] | None:
    """Some rows of the inputs of the partition's latest run, from places spread over them; None if there is none of the same
    query. Raises StoreUnavailable, InputChanged and InputBroken."""
    import pyarrow as pa

    run = opened_last(store, spec.job, partition)
    plan = load_plan(store, run) if run else None
    if run is None or plan is None or not plan.rows:
        return None
    earlier, _ = load_run(store, run)
    if earlier.source.query != spec.source.query or list(earlier.source.key) != list(spec.source.key):
        return None
    reader = InputReader(store, run, plan, tuple(dict.fromkeys([*spec.source.key, *columns])))
    if plan.rows <= rows:
        return run, reader.rows(range(plan.rows))
    blocks = min(BLOCKS, rows)
    each, apart = rows // blocks, plan.rows / blocks
    starts = [int(number * apart) for number in range(blocks)]
    return run, pa.concat_tables([reader.rows(range(start, min(start + each, plan.rows))) for start in starts])
