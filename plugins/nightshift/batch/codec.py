"""The format of a batch's chunks: that of a job's chunks, plus the HTTP status that the output reports for a failed line.

No warehouse loads these chunks, so they may have a column that a job's chunks lack.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from nightshift.driver.codec import ParquetCodec
from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result


class LineCodec(ParquetCodec):
    """`nightshift.driver.commits.Codec` of `nightshift batch`."""

    def _bytes(self, keys: pa.Table, results: Iterable[Result], provenance: Provenance, group_rows: int) -> bytes:
        return chunks.encode(keys, results, self.prediction_type, provenance, group_rows=group_rows, optional=(chunks.STATUS,))

    def _results(self, table: pa.Table) -> list[Result]:
        return results_with_status(table)


def results_with_status(table: pa.Table) -> list[Result]:
    """The rows of a batch's chunk or partial, with statuses. Predictions are JSON bytes. Raises NotAChunk for a job's."""
    if chunks.STATUS not in table.column_names:
        raise chunks.NotAChunk("not a chunk of nightshift batch: it has no statuses")
    return chunks.results_of(table, pa.large_binary(), optional=(chunks.STATUS,))
