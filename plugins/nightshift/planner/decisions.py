"""What the task `plan` decided about a run, as an object in its folder: a retry of any task finds it there.

A run may have several: another deadline, or other rows by the time of the next DAG run, is another decision, until `plan.json`
fixes the run. The DAG run that decided names its own by path.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import PurePosixPath

from obstore.store import ObjectStore

from nightshift.planner.plan import Decision, NotADecision
from nightshift.run.names import RunRef, canonical_json
from nightshift.store import create_or_read, get_bytes


def save_decision(store: ObjectStore, run: RunRef, decision: Decision) -> str:
    """Writes it, unless it is there; returns its path in the store, which is rooted at the bucket."""
    body = canonical_json(decision.to_json())
    path = run.decision_path(_name_of(body))
    create_or_read(store, path, body)
    return path


def _name_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def load_decision(store: ObjectStore, path: str) -> Decision | None:
    """None if there is no such object. Raises NotADecision for one that this release does not read, or that was replaced."""
    body = get_bytes(store, path)
    if body is None:
        return None
    if _name_of(body) != PurePosixPath(path).stem:
        raise NotADecision(
            f"{path} is not what the task 'plan' wrote: its name is not its digest. Find out who may write into the bucket, "
            "then trigger the DAG with fresh."
        )
    try:
        return Decision.from_json(json.loads(body))
    except (ValueError, RecursionError) as error:
        raise NotADecision(f"{path}: {error}") from error


def decision_if_any(store: ObjectStore, path: str | None) -> Decision | None:
    """As `load_decision`, but also None for one that cannot be used."""
    with suppress(NotADecision):
        return load_decision(store, path) if path else None
    return None
