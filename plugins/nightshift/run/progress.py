"""How far a run has got, from one LIST of its ledger: names and times say it, no object is read."""

from __future__ import annotations

from typing import Final

import obstore
from obstore.store import ObjectStore

from nightshift.run.names import Work

PAGE: Final = 1000


def committed_rows(store: ObjectStore, work: Work, rows: int, chunk_rows: int, since: float) -> tuple[int, int]:
    """Rows that are committed, and of these, those that were committed after `since`, Unix time by the store's clock.

    rows, chunk_rows: the plan's. Names that are not chunks of the plan do not count: the seal complains about them.
    """
    last = (rows - 1) // chunk_rows
    done = recent = 0
    for page in obstore.list(store, work.ledger_folder, chunk_size=PAGE):
        for meta in page:
            chunk = work.parse_chunk(meta["path"])
            if chunk is None or chunk > last:
                continue
            size = chunk_rows if chunk < last else rows - last * chunk_rows
            done += size
            if meta["last_modified"].timestamp() > since:
                recent += size
    return done, recent
