"""`nightshift.run.observed.pods_now` read from the run's folder. Apart from it, so that a DAG file loads no store.

`nightshift.jobset.fleet.shown` writes it, in Airflow: no pod may overwrite an object.
"""

from __future__ import annotations

from typing import Final

import obstore
from obstore.store import ObjectStore

from nightshift.run.names import RunRef
from nightshift.run.observed.pods_now import JobSetNow
from nightshift.store import get_bytes, reaching

BYTES_MOST: Final = 4 << 20


def load_one(store: ObjectStore, run: RunRef, jobset: str) -> JobSetNow | None:
    """None if nothing is known of it. Raises StoreUnavailable."""
    with reaching(f"read {run.now_path(jobset)}"):
        body = get_bytes(store, run.now_path(jobset))
    return None if body is None else JobSetNow.from_bytes(body)


def load(store: ObjectStore, run: RunRef) -> tuple[JobSetNow, ...]:
    """All JobSets of the run of which anything is known, by name; () before the first. The store is rooted at the bucket.

    An object that cannot be read is passed over. Raises StoreUnavailable.
    """
    found: list[JobSetNow | None] = []
    with reaching(f"read where the pods of {run.prefix} are"):
        for page in obstore.list(store, run.starts_folder):
            for meta in page:
                if run.is_now(meta["path"]) and meta["size"] <= BYTES_MOST:
                    body = get_bytes(store, meta["path"])
                    found.append(None if body is None else JobSetNow.from_bytes(body))
    return tuple(sorted(filter(None, found), key=lambda each: each.name))
