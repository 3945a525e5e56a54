"""What tasks know of a run's dead letters: how many there are, where, and what their rows were asked."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from nightshift.fields.text import n

if TYPE_CHECKING:
    from obstore.store import ObjectStore

    from nightshift.run.names import RunRef
    from nightshift.run.plan import Plan
    from nightshift.spec.model import DeadLetters as Letters
    from nightshift.status.dead_letters import DeadLetters
    from nightshift.warehouse.dead_letters import Prompts
    from nightshift.warehouse.failed_nights import DeadChunks

log = logging.getLogger(__name__)

COUNT_S: Final = 20.0
"""How long the dead letters of a run that has too many are counted."""
PROMPTS_MOST: Final = 1_000
"""Dead letters of a run, from its first one, whose prompts are in the table: for each of them rows may have to be read."""


def dead_chunks(store: ObjectStore, run: RunRef, plan: Plan) -> DeadChunks:
    """The committed chunks of a run that have dead letters, as far as their notes and footers say it. Raises what
    `nightshift.status.folder.RunFolder` raises."""
    from nightshift.run.names import digest_of
    from nightshift.status.dead_letters import DeadLetters
    from nightshift.warehouse.failed_nights import DeadChunks

    letters, work = DeadLetters(store, run), run.work(plan.uid)
    numbers = letters.chunks()
    if not numbers:
        return DeadChunks(())
    name = digest_of([plan.uid, *numbers])
    chunks = tuple((work.chunk_path(number), len(plan.chunk_range(number))) for number in numbers)
    return DeadChunks(chunks, _kept(store, run, letters, name))


def too_many(store: ObjectStore, run: RunRef, plan: Plan, letters: Letters, untried: Callable[[], int]) -> str:
    """That the run has more dead letters than its job tolerates, and what to do; '' if it has not, as far as workers noted.

    untried: how many rows have no result. Raises StoreUnavailable.
    """
    from nightshift.run import tolerance
    from nightshift.run.ledger import Ledger
    from nightshift.status.chunk_footer import committed
    from nightshift.store import ObjectStorage

    allowed = letters.allowed(plan.rows)
    noted = asyncio.run(Ledger(ObjectStorage(store), run, plan).dead_letters_noted(allowed))
    if noted <= allowed:
        return ""
    seen, left = committed(store, run.work(plan.uid), plan, COUNT_S), untried()
    # A note may be missing, never a footer; but not all footers may have been read.
    exact = not seen.left and seen.dead_letters >= noted
    dead, reasons = (seen.dead_letters, dict(seen.reasons.most_common())) if exact else (noted, {})
    more = f", and {tolerance.not_tried(left)}" if left else ""
    words = tolerance.found(dead, plan.rows, reasons, or_more=not exact)
    try:
        tolerance.judge(dead, allowed, f"{words}{more}", tolerance.what_to_do(str(letters.tolerate), reasons))
    except tolerance.ToleranceExceeded as error:
        return str(error)
    return ""


def prompts_of(store: ObjectStore, run: RunRef, merkle_root: str) -> Prompts | None:
    """What the dead letters of a sealed run were asked; None if that cannot be said. Never keeps a run from being published.

    Raises StoreUnavailable.
    """
    from nightshift.formats import UnreadableFormat
    from nightshift.run.opening import NoSuchRun
    from nightshift.run.plan import PlanError
    from nightshift.status.dead_letters import DeadLetters

    try:
        return _kept(store, run, DeadLetters(store, run), merkle_root[:16])
    except (NoSuchRun, PlanError, UnreadableFormat, FileNotFoundError) as error:
        log.warning("The dead letters of %s will have no prompts in their table: %s", run.prefix, error)
        return None


def _kept(store: ObjectStore, run: RunRef, letters: DeadLetters, name: str) -> Prompts | None:
    """The object with the prompts, written unless it is there."""
    import pyarrow.parquet as pq

    from nightshift.store import create_or_read, get_bytes
    from nightshift.warehouse.dead_letters import Prompts

    path = run.prompts_path(name)
    body = get_bytes(store, path)
    if body is None:
        made = _rendered(letters)
        body = create_or_read(store, path, made) if made else None
    return None if body is None else Prompts(path, pq.ParquetFile(io.BytesIO(body)).metadata.num_rows)


def _rendered(letters: DeadLetters) -> bytes | None:
    """Parquet, with the first dead letters that have a prompt; None if none of them has one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[int, str] = {}
    seen, after, total = 0, -1, 0
    while seen < PROMPTS_MOST:
        page = letters.page(after=after, count=min(50, PROMPTS_MOST - seen))
        total, seen = page.total, seen + len(page.rows)
        found |= {each.ordinal: each.prompt.text for each in page.rows if each.prompt.problem is None}
        if page.after is None:
            break
        after = page.after
    if total > seen:
        log.info("The first %d of %s have their prompts in the table", seen, n(total, "dead letter"))
    if not found:
        return None
    body = io.BytesIO()
    pq.write_table(pa.table({"ordinal": pa.array(list(found), pa.int64()), "prompt": pa.array(list(found.values()))}), body)
    return body.getvalue()
