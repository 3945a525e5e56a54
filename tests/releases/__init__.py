"""Small runs as each release has left them, which this release must finish: a folder for each, named after the release.

``python -m tests.releases.make`` writes the folder of the release that is checked out. It is never made again: the runs are
evidence of what that release wrote. docs/operate/formats.md has the rules that the tests of these folders hold::

    0.2.0/MADE_BY                    the commit whose code wrote the folder
    0.2.0/bucket/JOB/PARTITION/RUN/  a night for each state in `nightshift` terms (`STATES`)
    0.2.0/batch/                     `nightshift batch`, stopped in the middle: its input, and its progress
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.store import ObjectStore

from nightshift.run.names import WORKERS, RunRef, canonical_json
from nightshift.store import open_store, version_of

FOLDER: Final = Path(__file__).resolve().parent
STATES: Final = {"unfinished": "2026-11-17", "half": "2026-11-18", "complete": "2026-11-19", "sealed": "2026-11-20"}
"""Partitions. unfinished: opened and planned. half: some chunks committed, others saved as partials by a drain. complete: every
chunk committed, not sealed. sealed: not published."""
PRICES: Final = tuple(Decimal(number) / 2 for number in range(48))
"""Of each row, in a column of BigQuery's type NUMERIC. The column `customer` is NULL in every row."""
TEXTS: Final = tuple(
    "" if number == 13 else f"text {number} at {price.quantize(Decimal('1E-9'))} for " for number, price in enumerate(PRICES)
)
"""What release 0.2.0 sent to the engine for the rows of each run: of 0 it made 0E-9, and of NULL nothing. A run goes on as it
began. The empty one is a dead letter."""
LINES: Final = tuple(f"line {number}" for number in range(48))
"""The texts of the batch file's lines."""
JOB: Final[dict[str, Any]] = {
    "job": "kept-runs",
    "owner": "team",
    "start_date": "2026-11-01",
    "source": {"query": "SELECT id, text, price, customer FROM `kept.texts` WHERE day = @partition", "key": ["id"]},
    "task": "embedding",
    "request": {"input": "{% if text %}{{ text }} at {{ price }} for {{ customer }}{% endif %}", "rows_per_request": 4},
    "model": {"name": "m", "uri": "hf://org/m", "revision": "r1"},
    "engine": {"max_num_seqs": 8, "max_model_len": 256, "args": {"enforce-eager": True, "seed": 7}},
    "destination": {"table": "kept.vectors", "column": "vector"},
    "dead_letters": {"tolerate": 1},
    "deadline": "2h",
    "compute": {"profile": "cpu"},
}
"""The job whose runs these are, with only what release 0.2.0 knows."""
NOTIFY: Final[dict[str, Any]] = {
    "failed": {"notifier": "airflow.providers.smtp.notifications.smtp.SmtpNotifier", "arguments": {"to": "a@b.c"}}
}
"""The job's `notify` when the runs were opened: it affects no answer, so a run goes on even if no job may say this any more."""


def releases() -> list[str]:
    """The releases that have left runs here, the oldest first."""
    found = (path.name for path in FOLDER.iterdir() if (path / "MADE_BY").is_file())
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")])


def place(release: str, state: str, store: ObjectStore) -> RunRef:
    """Puts the run into a store rooted at a bucket, as if the release had written it there.

    An object's version (ETag, generation) belongs to the place where it lies, so the plan and the run manifest, which name
    versions, get those of the copies. Everything else is copied byte by byte.
    """
    source = open_store(f"file://{FOLDER / release / 'bucket'}")
    folder = f"{JOB['job']}/{STATES[state]}"
    paths = [str(meta["path"]) for at in (folder, f"{WORKERS}/{folder}") for meta in obstore.list(source, at).collect()]
    run = RunRef.from_prefix("/".join(paths[0].split("/")[:3]))
    for path in paths:
        obstore.put(store, path, obstore.get(source, path).bytes())
    plan = _read(store, run.plan_path)
    for file in plan["files"]:
        file["etag"] = obstore.head(store, f"{run.prefix}/{file['path']}")["e_tag"]
    obstore.put(store, run.plan_path, canonical_json(plan))
    if run.manifest_path in paths:
        manifest = _read(store, run.manifest_path)
        for entry in manifest["chunks"]:
            entry["object_version"] = version_of(obstore.head(store, entry["path"]))
        obstore.put(store, run.manifest_path, canonical_json(manifest))
    return run


def _read(store: ObjectStore, path: str) -> dict[str, Any]:
    return dict(json.loads(bytes(obstore.get(store, path).bytes())))
