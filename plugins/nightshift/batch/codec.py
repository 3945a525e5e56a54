"""The format of a batch's chunks: that of a job's chunks, plus the HTTP status that the output reports for a failed line.

No warehouse loads these chunks, so they may have a column that a job's chunks lack.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import pyarrow as pa

from nightshift.driver.codec import ParquetCodec
from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result
from nightshift.tasks.base import Reason

_STATUS_FIRST: Final = re.compile(r"([45]\d\d): (.*)", re.DOTALL)
"""A message of release 0.1.0, whose chunks had no column for the status."""
_NO_STATUS: Final = (Reason.BAD_INPUT, Reason.TOO_LONG)


class LineCodec(ParquetCodec):
    """`nightshift.driver.commits.Codec` of `nightshift batch`."""

    def _bytes(self, keys: pa.Table, results: Iterable[Result], provenance: Provenance, group_rows: int) -> bytes:
        return chunks.encode(keys, results, self.prediction_type, provenance, group_rows=group_rows, with_status=True)

    def _results(self, table: pa.Table) -> list[Result]:
        return results_with_status(table)


def results_with_status(table: pa.Table) -> list[Result]:
    """The rows of a batch's chunk or partial, with statuses, whichever release wrote it. Predictions are JSON bytes."""
    told = chunks.STATUS in table.column_names
    results = chunks.results_of(table, pa.large_binary(), with_status=told)
    return results if told else [_with_status(result) for result in results]


def _with_status(result: Result) -> Result:
    if result.reason is None or result.reason in _NO_STATUS or not (found := _STATUS_FIRST.fullmatch(result.message or "")):
        return result
    return replace(result, status=int(found[1]), message=found[2])
