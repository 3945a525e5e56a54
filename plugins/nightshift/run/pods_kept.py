"""`nightshift.run.pods_now` read from the run's folder. Apart from it, so that a DAG file loads no store.

`nightshift.jobset.fleet.shown` writes it, in Airflow: no pod may overwrite an object.
"""

from __future__ import annotations

from typing import Final

import obstore
from obstore.store import ObjectStore

from nightshift.run.names import RunRef
from nightshift.run.pods_now import JobSetNow
from nightshift.store import StoreUnavailable, get_bytes

BYTES_MOST: Final = 4 << 20


def load_one(store: ObjectStore, run: RunRef, jobset: str) -> JobSetNow | None:
    """None if nothing is known of it. Raises StoreUnavailable."""
    try:
        body = get_bytes(store, run.now_path(jobset))
    except (obstore.exceptions.BaseError, OSError) as error:
        raise StoreUnavailable(f"read {run.now_path(jobset)}: {error}") from error
    return None if body is None else JobSetNow.from_bytes(body)


def load(store: ObjectStore, run: RunRef) -> tuple[JobSetNow, ...]:
    """All JobSets of the run of which anything is known, by name; () before the first. The store is rooted at the bucket.

    An object that cannot be read is passed over. Raises StoreUnavailable.
    """
    found: list[JobSetNow | None] = []
    try:
        for page in obstore.list(store, run.starts_folder):
            for meta in page:
                if run.is_now(meta["path"]) and meta["size"] <= BYTES_MOST:
                    body = get_bytes(store, meta["path"])
                    found.append(None if body is None else JobSetNow.from_bytes(body))
    except (obstore.exceptions.BaseError, OSError) as error:
        raise StoreUnavailable(f"read where the pods of {run.prefix} are: {error}") from error
    return tuple(sorted(filter(None, found), key=lambda each: each.name))
