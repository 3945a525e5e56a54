"""What is asked of a query's rows before a machine is: that there are some, that their keys differ, that no NULL is written.

One place for the task ``plan``, the command and the preview. What the job does not decide (``source.empty``, ``source.unique``,
``request.nulls``) is a warning that counts; what it decides stops the run (`Unfit`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from nightshift.fields.text import n

if TYPE_CHECKING:
    from nightshift.spec import JobSpec

NAMED: Final = 3
GB: Final = 10**9


class Unfit(ValueError):
    """The job does not want a run of these rows."""


class Keys(Protocol):
    """What is asked of the warehouse: `nightshift.warehouse.keys.Keys`."""

    def bytes_scanned(self, spec: JobSpec, partition: str) -> int | None: ...

    def repeated(self, spec: JobSpec, partition: str) -> tuple[int, int, Sequence[str]]:
        """How many keys stand in several rows, how many rows these are, and some of the keys as JSON."""
        ...


def check_rows(spec: JobSpec, partition: str, rows: int) -> str:
    """What to say of the number of rows; '' if there are enough. Raises Unfit."""
    source = spec.source
    if rows:
        if source.rows_min is not None and rows < source.rows_min:
            raise Unfit(
                f"The query has {n(rows, 'row')} for {partition}, and source.rows_min is {source.rows_min:,}: nothing is "
                "computed or published. Is the source late? Once it has its rows, trigger the DAG again; or lower rows_min."
            )
        return ""
    if source.empty == "fail":
        raise Unfit(
            f"The query has no rows for {partition}, and source.empty is fail: nothing is published. Is the source late? "
            "Once it has rows, trigger the DAG again. If a partition without rows is right, write source.empty: publish."
        )
    undecided = "" if source.empty else " Write source.empty: fail or publish, so that the job says which of both is right."
    return (
        f"The query has no rows for {partition}: the partition will be published without rows. Is the source late? Once it has "
        f"rows, trigger the DAG again to compute them.{undecided}"
    )


def check_keys(spec: JobSpec, partition: str, keys: Keys, say: Callable[[str], None]) -> None:
    """Counts the keys if the job says that they are unique. say: is told what that scans. Raises Unfit, and as `keys`."""
    if not spec.source.unique:
        return
    scanned = keys.bytes_scanned(spec, partition)
    size = "an unknown number of bytes" if scanned is None else f"{scanned / GB:,.3f} GB"
    say(f"The keys are counted (source.unique), which scans {size} by a dry run")
    repeated, rows, named = keys.repeated(spec, partition)
    if repeated:
        raise Unfit(
            f"{n(repeated, 'key')} of {partition} {'stands' if repeated == 1 else 'stand'} in {n(rows, 'row')}, and "
            f"source.unique is true: {_named(named, repeated)}. Remove the copies in the source or in source.query, or name "
            "columns as source.key that tell all rows apart."
        )


def sample_warnings(spec: JobSpec, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Of some rows of the query, with the columns that they have."""
    if spec.request.nulls is None and (found := _nulls_written(spec, rows)):
        columns = ", ".join(f"{name} in {count}" for name, count in sorted(found.items()))
        yield (
            f"{n(found.total(), 'row')} of {len(rows):,} sampled would be asked without a value, because a template writes a "
            f"NULL as nothing ({columns}): the model may invent what is missing. Write request.nulls: dead_letter, or empty if "
            "that is right."
        )
    if spec.source.unique is False or not rows or not set(spec.source.key) <= set(rows[0]):
        return
    times = Counter(json.dumps({name: row[name] for name in spec.source.key}, default=str, ensure_ascii=False) for row in rows)
    if twice := [key for key, count in times.items() if count > 1]:
        remedy = (
            "plan will refuse the run"
            if spec.source.unique
            else "Write source.unique: true, and plan refuses such a run, or false"
        )
        yield (
            f"{n(len(twice), 'key')} of {len(rows):,} sampled rows {'stands' if len(twice) == 1 else 'stand'} in several: "
            f"{_named(twice, len(twice))}. {remedy}."
        )


def _named(keys: Sequence[str], of: int) -> str:
    return ", ".join(keys[:NAMED]) + (", ..." if of > NAMED else "")


def _nulls_written(spec: JobSpec, rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """How many of the rows have a NULL that a template writes, by the first such column."""
    from nightshift.tasks import Rendering
    from nightshift.tasks.base import BadInput, NullInput, SlowTemplate, Text

    sources = [source for name in spec.request.TEMPLATES if (source := getattr(spec.request, name)) is not None]
    texts = [Text(source, Rendering.NO_NULL, blank=True, apart=True) for source in sources]
    found: Counter[str] = Counter()
    for row in filter(_has_null, rows):
        try:
            for text in texts:
                text.of(row)
        except NullInput as error:
            found[error.column] += 1
        except SlowTemplate:
            break  # It may be as slow for each of the others.
        except BadInput:
            pass  # It is a dead letter, whatever becomes of its NULLs.
    return found


def _has_null(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_null, value.values()))
    return value is None or (isinstance(value, list) and any(map(_has_null, value)))
