"""`--retry-failed`: a further generation of a run, which has what the generation before it answered and sends the rest again.

Nothing is copied beforehand: a chunk of the earlier generation, without its failed lines, is read as a partial of the new one.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pyarrow as pa
from obstore.store import ObjectStore

from nightshift.batch.task_kind import KEY, results_with_status
from nightshift.run import chunks
from nightshift.run.ledger import Ledger
from nightshift.run.names import RunRef
from nightshift.run.plan import Plan
from nightshift.store import ObjectStorage


class Damaged(ValueError):
    """Progress that cannot be read, after a power failure for instance."""


class RetryLedger(Ledger):
    """The ledger of a run that repeats the failed lines of `earlier`, all of whose chunks are committed. plan: same chunks."""

    def __init__(self, store: ObjectStore, run: RunRef, plan: Plan, earlier: RunRef, earlier_plan: Plan) -> None:
        super().__init__(ObjectStorage(store), run, plan)
        self._run_id = run.run_id
        self._earlier = earlier
        self._earlier_work = earlier.work(earlier_plan.uid)

    async def partials(self, chunk: int) -> dict[str, str]:
        return {self._earlier.run_id: self._earlier_work.chunk_path(chunk), **await super().partials(chunk)}

    async def read_partial(self, path: str) -> bytes | None:
        """Raises Damaged if an answer that was kept is gone: the line must not be paid for again without a word."""
        body = await super().read_partial(path)
        if self._earlier_work.parse_chunk(path) is None:
            return body
        try:
            return await asyncio.to_thread(self._answered, body or b"")
        except chunks.NotAChunk as error:
            problem = f"{path} cannot be read ({error}), and its answers are to be kept" if body else f"{path} is gone"
            raise Damaged(f"{problem}. To send all lines, use --fresh") from error

    def _answered(self, body: bytes) -> bytes:
        """The answered lines of an earlier chunk as a partial of this run; its tokens stay counted."""
        table, made = chunks.decode(body)
        if made.run_id != self._earlier.run_id:
            raise chunks.NotAChunk(f"it belongs to run {made.run_id}")
        results = results_with_status(table)
        places = [place for place, result in enumerate(results) if result.reason is None]
        provenance = replace(
            made,
            run_id=self._run_id,
            predictions=len(places),
            dead_letters=0,
            prompt_tokens=made.prompt_tokens_all,
            output_tokens=made.output_tokens_all,
            taken=(),
        )
        answered = [results[place] for place in places]
        keys = table.select(list(KEY)).take(pa.array(places, pa.int64()))
        return chunks.encode(keys, answered, pa.large_string(), provenance, optional=(chunks.STATUS,))
