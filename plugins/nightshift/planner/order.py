"""Whether the rows of a run are sorted before they are computed, and by which columns. Pure.

vLLM's prefix cache computes the common beginning of two prompts once, if it still has the first's keys and values when the
second comes. Of rows that are sorted by columns which the prompt names first, neighbours begin alike. By the number of these
columns, k = 1, 2, ...:

    f_k    the share of a prompt that stays as it is if all columns but the first k have another row's values; f_0: with none
    D_k    how many values the first k columns have; R: rows
    h_k    the share of the rows that find their beginning in the cache anyway, in whatever order: of D_k beginnings that come
           at random, one is there if it was among the last n rows, 1 - exp(-n / D_k). n rows fill what the cache has beside
           the rows at work, if each adds (1 - f_k) of its prompt and its answer
    saved by order = sum over j <= k of (f_j - f_j-1) (1 - D_j / R) (1 - h_j)

A share of the prompts' tokens. The cache holds whole blocks of tokens, so each f_k is rounded down to one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice, pairwise, takewhile
from typing import TYPE_CHECKING, Any, Final

from nightshift.fields.text import n
from nightshift.planner.roofline import CannotStart, cached_tokens
from nightshift.run.order import Counts, Order

if TYPE_CHECKING:
    from nightshift.planner.speed import Known
    from nightshift.spec import JobSpec

BUCKET_ROWS: Final = 2_000_000
"""Rows that are sorted together. The end of a sort is one worker's."""
BUCKETS_MAX: Final = 1_000
"""Each is a statement of the export's script, which has a megabyte."""
BUCKET_OVERFULL: Final = 5
"""How many times as many rows of one value are still sorted together."""
COLUMNS_MOST: Final = 4
SAVED_LEAST: Final = 0.05
"""Of the prompts' tokens. The sample, the counts and the model of the cache are off by some percent."""
ALIKE: Final = 0.01
"""A saving that much smaller is as good, if it takes fewer columns."""
COMPARED: Final = 100
"""Sampled rows. Each is rendered up to six times."""
BLOCK: Final = 16
"""Tokens that vLLM's cache holds together."""


def candidates(spec: JobSpec, types: Mapping[str, str]) -> tuple[str, ...]:
    """The columns by which it may pay to order the rows; of their leading parts the values are counted. None if it cannot.

    types: GoogleSQL types of the query's columns.
    """
    from nightshift.spec import lexer, one_select
    from nightshift.tasks.base import mentioned

    asked, request = spec.source.order, spec.request
    if isinstance(asked, tuple):
        return asked
    if asked == "none" or not request.LEADING or not _caches(spec) or one_select.is_sorted(lexer.words(spec.source.query)):
        return ()
    names = dict.fromkeys(name for field in request.LEADING if (text := getattr(request, field)) for name in mentioned(text))
    # What follows a column without an order is not sorted by either.
    ordered = takewhile(lambda name: types.get(name, "GEOGRAPHY") != "GEOGRAPHY", names)
    return tuple(islice(ordered, COLUMNS_MOST))


def _caches(spec: JobSpec) -> bool:
    flags = spec.engine.flags
    return flags.get("enable-prefix-caching") is not False and flags.get("no-enable-prefix-caching") is not True


def shares(spec: JobSpec, columns: Sequence[str], rows: Sequence[Mapping[str, Any]], length: float) -> tuple[float, ...]:
    """f_0 and the f_k of the leading parts of the columns, each at least the one before; () if no prompt can be rendered.

    rows: sampled. length: mean characters of their prompts. Each row is compared with itself with another row's values.
    """
    from nightshift.tasks.base import BadInput, SlowTemplate, Text

    texts = [
        Text(source, spec.rendering, blank=True, apart=True)
        for field in spec.request.LEADING
        if (source := getattr(spec.request, field)) is not None
    ]
    found: list[list[int]] = []
    rows = rows[:COMPARED]
    for row, other in zip(rows, (*rows[len(rows) // 2 :], *rows[: len(rows) // 2]), strict=True):
        try:
            whole = _rendered(texts, row)
            mixed = ({**other, **{name: row[name] for name in columns[:known]}} for known in range(len(columns) + 1))
            found.append([_alike(whole, _rendered(texts, each)) for each in mixed])
        except SlowTemplate:
            break  # It may be as slow for each of the others.
        except BadInput:
            continue
    means = [sum(each) / len(found) / max(1.0, length) for each in zip(*found, strict=True)]
    return tuple(min(1.0, max(means[: known + 1])) for known in range(len(means)))


def _rendered(texts: Sequence[Any], row: Mapping[str, Any]) -> str:
    return "\n".join(text.of(row) for text in texts)


def _alike(one: str, other: str) -> int:
    """With how many equal characters two texts begin."""
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def order_of(spec: JobSpec, rows: int, known: Known) -> Order | None:
    """What becomes of the rows; None if there is nothing to say."""
    asked, counts = spec.source.order, known.counts
    if not rows:
        return None
    if isinstance(asked, tuple):
        return _sorted(asked, rows, _spread(counts) or len(asked), f"ordered by {', '.join(asked)} (source.order)")
    if asked == "none" or counts is None or len(known.shared) != len(counts.columns) + 1:
        return None
    saved = _saved(spec, counts, known)
    most = next((k for k, each in enumerate(saved) if each >= max(saved) - ALIKE), 0)
    if not most or saved[most] < SAVED_LEAST:
        return Order(why=f"not ordered: that would save {max(saved):.0%} of the prompts' tokens (source.order: auto)")
    columns, distinct = counts.columns[:most], counts.distinct[most - 1]
    spread = _spread(counts, most)
    if spread is None and counts.largest[most - 1] > BUCKET_OVERFULL * BUCKET_ROWS:
        return Order(
            why=f"not ordered by {', '.join(columns)}, although that would save {saved[most]:.0%} of the prompts' tokens: "
            f"about {n(counts.largest[most - 1], 'row')} have one value, more than BigQuery sorts together (source.order: auto)"
        )
    why = (
        f"ordered by {', '.join(columns)}, which should save {saved[most]:.0%} of the prompts' tokens: about {distinct:,} "
        f"values in {n(rows, 'row')}, and rows of one value share {known.shared[most]:.0%} of their prompts "
        "(source.order: auto)"
    )
    return _sorted(columns, rows, spread or most, why)


def _saved(spec: JobSpec, counts: Counts, known: Known) -> list[float]:
    """By the number of columns, 0 included: the share of the prompts' tokens that an order by them saves."""
    tokens = max(1.0, known.tokens.input)
    shared = [math.floor(each * tokens / BLOCK) * BLOCK / tokens for each in known.shared]
    saved = [0.0]
    for (before, share), distinct in zip(pairwise(shared), counts.distinct, strict=True):
        recent = _recent(spec, known, (1 - share) * tokens + known.tokens.output)
        anyway = 1.0 if distinct <= 1 else 1 - math.exp(-recent / distinct)
        saved.append(saved[-1] + max(0.0, share - before) * max(0.0, 1 - distinct / max(1, counts.rows)) * (1 - anyway))
    return saved


def _recent(spec: JobSpec, known: Known, added: float) -> float:
    """How many of the last rows the cache of one worker still has, if each adds that many tokens. Rows at work it has."""
    worker = spec.compute.worker()
    with suppress(CannotStart):  # The plan says so elsewhere.
        if known.model is not None:
            return cached_tokens(known.model, worker, spec.engine.flags) / max(1.0, added)
    return float(spec.seats(worker))


def _sorted(columns: tuple[str, ...], rows: int, spread: int, why: str) -> Order:
    return Order(columns, min(BUCKETS_MAX, math.ceil(rows / BUCKET_ROWS)), spread, why)


def _spread(counts: Counts | None, most: int | None = None) -> int | None:
    """The fewest leading columns of which no value fills a bucket, so that rows that share few stay together, too; None if
    there are none."""
    largest = counts.largest[:most] if counts else ()
    return next((length for length, rows in enumerate(largest, 1) if rows <= BUCKET_ROWS), None)
