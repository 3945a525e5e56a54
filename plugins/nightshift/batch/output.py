"""The output file: a line for each line of the input, in its order, in the schema of ``vllm run-batch``.

It is made from the committed chunks only, and is streamed. Ids are made from the run and the line's number, so writing it again
gives the same bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import obstore
import orjson
from obstore.store import ObjectStore

from nightshift.batch.target import Target
from nightshift.batch.task_kind import results_with_status
from nightshift.run import chunks
from nightshift.run.chunks import Result
from nightshift.run.names import RunRef
from nightshift.run.plan import Plan
from nightshift.store import StoreUnavailable, reaching
from nightshift.tasks.base import Reason

STATUS: Final = {
    Reason.BAD_INPUT: 400,
    Reason.TOO_LONG: 400,
    Reason.REJECTED: 400,
    Reason.INVALID_OUTPUT: 502,
    Reason.TRUNCATED: 502,
    Reason.ENGINE_ERROR: 500,
    Reason.ENGINE_KILLED: 500,
    Reason.TIMEOUT: 504,
}
"""The status code of a failed line by the reason of its dead letter, if the engine's own is unknown."""
_TYPES: Final = {400: "BadRequestError", 404: "NotFoundError"}


EXAMPLES: Final = 3
"""Of each reason, in the summary."""


class Incomplete(Exception):
    """A chunk is torn or foreign: the output cannot be written from it."""


class ChunkMissing(Exception):
    """A committed chunk is gone: the progress was removed."""


@dataclass
class OutputCounts:
    """What the output holds. examples: by reason, the first messages that differ, each with the number of its line, from 1."""

    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    examples: dict[str, dict[str, int]] = field(default_factory=dict)
    prompt_tokens: int = 0
    output_tokens: int = 0


def lines_of(body: bytes, run_id: str, expected: range, counts: OutputCounts) -> bytes:
    """The output lines of one committed chunk. Raises Incomplete unless it holds these rows of this run."""
    try:
        table, provenance = chunks.decode(body)
        results = results_with_status(table)
    except chunks.NotAChunk as error:
        raise Incomplete(str(error)) from error
    if provenance.run_id != run_id:
        raise Incomplete(f"it belongs to run {provenance.run_id}")
    if [result.ordinal for result in results] != list(expected):
        raise Incomplete(f"it does not hold lines {expected.start + 1} to {expected.stop}")
    ids = table.column("custom_id").to_pylist()
    counts.prompt_tokens += provenance.prompt_tokens_all
    counts.output_tokens += provenance.output_tokens_all
    lines = []
    for result, custom_id in zip(results, ids, strict=True):
        if result.reason is None:
            counts.answered += 1
            lines.append(_line(run_id, result.ordinal, custom_id, 200, result.prediction, b"null"))
        else:
            counts.failed[result.reason] += 1
            examples = counts.examples.setdefault(result.reason, {})
            if len(examples) < EXAMPLES:
                examples.setdefault((result.text or "").removeprefix(f"line {result.ordinal + 1}: "), result.ordinal + 1)
            code, said = error_of(result)
            lines.append(_line(run_id, result.ordinal, custom_id, code, b"null", orjson.dumps(said)))
    return b"".join(lines)


def error_of(dead: Result) -> tuple[int, Any]:
    """Status code and ``error`` of a failed line: text for a line that was never sent, else an object, as vLLM does."""
    reason, message = Reason(str(dead.reason)), dead.message or ""
    code = STATUS[reason]
    if dead.status is not None and dead.status >= 400:
        code = dead.status
    else:
        message = dead.text or ""
    if reason is Reason.BAD_INPUT:
        return code, message
    kind = _TYPES.get(code, "BadRequestError" if code < 500 else "InternalServerError")
    return code, {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _line(run_id: str, ordinal: int, custom_id: str, code: int, body: bytes, error: bytes) -> bytes:
    name = f"{run_id}-{ordinal}"
    return (
        b'{"id":"nightshift-%b","custom_id":%b,"response":{"status_code":%d,"request_id":"nightshift-batch-%b","body":%b},"error":%b}\n'
        % (name.encode(), orjson.dumps(custom_id), code, name.encode(), body, error)
    )


def write(store: ObjectStore, run: RunRef, plan: Plan, target: Target) -> OutputCounts:
    """Writes the output of a run whose chunks are all committed. Raises Incomplete, ChunkMissing, StoreUnavailable, OSError."""
    counts = OutputCounts()
    try:
        target.write(_blocks(store, run, plan, counts))
    except obstore.exceptions.BaseError as error:
        raise StoreUnavailable(f"write {target.name}: {error}") from error
    return counts


def has_failed(store: ObjectStore, run: RunRef, plan: Plan) -> bool:
    """Whether a line of a run failed whose chunks are all committed. Raises as `write`, but for OSError."""
    counts = OutputCounts()
    with reaching(f"read {run.prefix}"):
        return any(counts.failed for _ in _blocks(store, run, plan, counts))


def _blocks(store: ObjectStore, run: RunRef, plan: Plan, counts: OutputCounts) -> Iterator[bytes]:
    """The lines, one chunk at a time; the next chunk is read meanwhile."""

    def fetch(chunk: int) -> tuple[str, bytes]:
        path = run.work(plan.uid).chunk_path(chunk)
        try:
            return path, bytes(obstore.get(store, path).bytes())
        except FileNotFoundError as error:
            raise ChunkMissing(f"{path} is gone") from error

    with ThreadPoolExecutor(1) as ahead:
        coming = ahead.submit(fetch, 0) if plan.chunk_count else None
        for chunk in range(plan.chunk_count):
            assert coming is not None
            path, body = coming.result()
            if chunk + 1 < plan.chunk_count:
                coming = ahead.submit(fetch, chunk + 1)
            try:
                yield lines_of(body, run.run_id, plan.chunk_range(chunk), counts)
            except Incomplete as error:
                raise Incomplete(f"{path}: {error}") from error
