"""Lines of a batch file as a task kind of the driver: the line is the request, and the whole reply is the prediction.

Its chunks are those of a job, plus the HTTP status that the output reports for a failed line. No warehouse loads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from nightshift.driver.codec import ParquetCodec
from nightshift.run import chunks
from nightshift.run.chunks import Result
from nightshift.tasks import ABORT, choice_that_ended
from nightshift.tasks.base import Answer, Answers, BadInput, InvalidReply, NotDone, RowName, usage

KEY: Final = ("custom_id",)
COLUMNS: Final = ("path", "body", "error")
_NO_ANSWER: Final = ("queued", "in_progress", "failed", "cancelled")
"""Of the status of a reply to ``/v1/responses``. One that is "incomplete" was cut, as by ``length`` elsewhere."""
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")


class Whole(dict[str, Any]):
    """A reply, and the JSON text that it was read from: no parser keeps every number."""

    def __init__(self, parsed: Mapping[str, Any], text: bytes) -> None:
        super().__init__(parsed)
        # One line of the output: outside of strings a line break means as much as a space, inside of them JSON has none.
        self.text = text.translate(_ONE_LINE)


class BatchLines:
    """Not one of `nightshift.tasks`: no job names it."""

    server_args: tuple[str, ...] = ()
    columns: tuple[str, ...] = COLUMNS
    rows_per_request: int = 1

    @property
    def prediction_type(self) -> pa.DataType:
        """The reply's JSON text."""
        return pa.large_string()

    def render(self, row: Mapping[str, Any], name: RowName) -> tuple[str, bytes]:
        if row["error"] is not None:
            raise BadInput(row["error"])
        return row["path"], row["body"]

    def request(self, payloads: Sequence[tuple[str, bytes]], retry: int) -> tuple[str, bytes]:
        return payloads[0]

    def answers(self, reply: Any, payloads: Sequence[Any]) -> Answers:
        if not isinstance(reply, Whole):
            raise InvalidReply("the reply is not a JSON object")
        if choice_that_ended(reply, ABORT) is not None:
            raise NotDone
        if reply.get("object") == "response" and (status := reply.get("status")) in _NO_ANSWER:
            raise InvalidReply(f"the response is {status}")
        return Answers([Answer(reply.text)], *usage(reply))


@dataclass(frozen=True, kw_only=True)
class LineCodec(ParquetCodec):
    """`nightshift.driver.commits.Codec` of `nightshift batch`."""

    optional: tuple[str, ...] = (chunks.STATUS,)

    def _results(self, table: pa.Table) -> list[Result]:
        return results_with_status(table)


def results_with_status(table: pa.Table) -> list[Result]:
    """The rows of a batch's chunk or partial, with statuses. Predictions are JSON bytes. Raises NotAChunk for a job's."""
    if chunks.STATUS not in table.column_names:
        raise chunks.NotAChunk("not a chunk of nightshift batch: it has no statuses")
    return chunks.results_of(table, pa.large_binary(), optional=(chunks.STATUS,))
