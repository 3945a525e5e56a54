"""The speeds of sealed runs, across jobs: create-only objects in the bucket, from which later runs are planned. Their layout::

    _speeds/MODEL-HARDWARE/ANSWERS-ACCELERATORS-CPUS-PERFORMANCE/NEWEST_FIRST-RUN-PROFILE.json

MODEL, ANSWERS and PERFORMANCE are digests, so that a listing shows which records are near a workload before any is read. No
job's folder begins with an underscore. NEWEST_FIRST counts down with time, because a listing begins with the smallest name. The
bucket's lifecycle rule deletes them like everything else: a model that has not run for so long is planned from an estimate.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

import obstore
from obstore.store import LocalStore, ObjectStore

from nightshift.planner.decisions import decision_if_any
from nightshift.planner.record import NotARecord, Record, Workload, workload_of
from nightshift.run.manifest import RunManifest
from nightshift.run.names import RunRef, canonical_json, digest_of
from nightshift.run.plan import Plan
from nightshift.spec import JobSpec
from nightshift.spec.profile_names import known
from nightshift.store import create_or_read, get_bytes, reaching

log = logging.getLogger(__name__)

FOLDER: Final = "_speeds"
FOLDERS_MOST: Final = 20
"""Folders of records that one look-up lists, each for one page at most."""
DEAD_MOST: Final = 0.05
"""Of a run's rows, if its speed is to be believed."""
LOOKED_AT: Final = 20
"""Objects of a folder, the newest. Some of them may not be records."""
BYTES_MOST: Final = 1 << 16
"""Of a record, which has about 1 KB. What is larger is not read."""
AHEAD_MOST: Final = timedelta(days=1)
"""By which the clock of the machine that sealed a run may be ahead. Else its record would stay the newest for as long."""
SAID_MOST: Final = 200
_LAST_MOMENT: Final = 10**10
"""Seconds since 1970, far away: names count down from it."""


def records_of(run: RunRef, spec: JobSpec, manifest: RunManifest, row_tokens: float | None = None) -> list[Record]:
    """A record for each profile whose engines answered rows. None for attempts that were not told their profile, and none of a
    run with more than `DEAD_MOST` dead letters: most of these cost an engine nothing, and the rest is not like other runs.

    row_tokens: of a mean row, as the planner counted them; None if it did not.
    """
    found: list[Record] = []
    if manifest.dead_letters > DEAD_MOST * manifest.rows:
        return found
    for each in (manifest.measured or {}).get("profiles", ()):
        rows = each.get("rows_answered", each["rows"])  # An earlier release did not tell them apart.
        if each["profile"] not in known() or not rows or not each["work_s"]:
            continue
        record = Record(
            workload=workload_of(spec, each["profile"], cpus=each["cpus"]),
            run=run.prefix,
            sealed_at=manifest.sealed_at,
            rows=rows,
            workers=each["workers"],
            work_s=each["work_s"],
            alive_s=each["alive_s"] + each.get("before_s", 0.0),
            input_tokens=each["input_tokens"],
            output_tokens=each["output_tokens"],
            preemptions=each.get("preempted", 0),
            # A sum without its largest part would be taken for all of it.
            start_up_s=each["start_up_s"] if "weights" in each["start_up_s"] else {},
            profile=each["profile"],
            row_tokens=row_tokens,
        )
        found.append(record)
    return found


def keep(store: ObjectStore, run: RunRef, spec: JobSpec, manifest: RunManifest, plan: Plan) -> None:
    """Stores the records of a sealed run; a repeat finds them there. Never raises: a run without a record is sealed too."""
    try:
        decision = decision_if_any(store, plan.decision)
        for record in records_of(run, spec, manifest, decision.row_tokens if decision else None):
            create_or_read(store, path_of(record), canonical_json(record.to_json()))
    except Exception as error:  # What workers claimed is in it.
        log.warning("The speed of %s is not recorded: %s: %s", run.prefix, type(error).__name__, error)


def path_of(record: Record) -> str:
    """Where a record is stored."""
    newest_first = _LAST_MOMENT - int(datetime.fromisoformat(record.sealed_at).timestamp())
    name = f"{newest_first:010d}-{record.run.replace('/', '-')}-{record.profile}.json"
    return f"{_model_folder(record.workload)}/{'-'.join(_name_of(record.workload))}/{name}"


def records_for(store: ObjectStore, spec: JobSpec) -> dict[str, Record]:
    """The nearest record for each profile of a job, its fallbacks included, and a `filled` one before others. A profile that
    nothing near is known of is missing.

    Raises StoreUnavailable.
    """
    found = {}
    for profile in spec.compute.profiles:
        try:
            workload = workload_of(spec, profile)
        except ValueError:
            continue  # A fallback on which the job's engine does not fit.
        # A run of a few rows, as one to try a job out, does not hide how fast a large one was.
        for record in sorted(nearest(store, workload, profile=profile), key=lambda record: not record.filled)[:1]:
            found[profile] = record
    return found


def records_if_any(store: ObjectStore, spec: JobSpec, warn: Callable[[str], None]) -> dict[str, Record]:
    """As `records_for`, but none if that fails, for whatever reason: a plan can do without. warn: gets the reason."""
    try:
        return records_for(store, spec)
    except Exception as error:
        warn(f"Planned without recorded speeds: {type(error).__name__}: {error}")
        return {}


def nearest(store: ObjectStore, workload: Workload, most: int = 5, *, profile: str = "") -> list[Record]:
    """At most `most` records of a workload: first those with its own settings, then those with other settings that change the
    speed alone; of each, those of `profile`, then the newest.

    Other profiles of the same hardware are bought otherwise: they are preempted, and start, at another pace. One LIST of
    folders, then a page of `LOOKED_AT` names for each of at most `FOLDERS_MOST`, and reads until there are enough. What is not
    a record is passed over. Raises StoreUnavailable.
    """
    found: list[Record] = []
    with reaching("look for recorded speeds"):
        folders = obstore.list_with_delimiter(store, _model_folder(workload))["common_prefixes"]
        ranked = sorted((tuned, folder) for folder in folders if (tuned := _tuned(folder, workload)) is not None)
        for wanted in (False, True):
            near = [folder for tuned, folder in ranked[:FOLDERS_MOST] if tuned is wanted]
            records = [record for folder in near for record in _newest(store, folder, most)]
            found += sorted(records, key=lambda record: (record.profile == profile, record.sealed_at), reverse=True)
            if len(found) >= most:
                break
    return found[:most]


def _newest(store: ObjectStore, folder: str, most: int) -> Iterator[Record]:
    """At most `most`: objects that are not records hide none."""
    if isinstance(store, LocalStore):
        # A folder is listed in no particular order.
        found = sorted(obstore.list(store, folder).collect(), key=lambda meta: meta["path"])
    else:
        found = list(next(iter(obstore.list(store, folder, chunk_size=LOOKED_AT)), ()))
    records = (record for meta in found[:LOOKED_AT] if (record := _read(store, meta["path"], meta["size"])))
    return itertools.islice(records, most)


def _read(store: ObjectStore, name: str, size: int) -> Record | None:
    """None for what is not a record. Raises what the store raises."""
    try:
        if size > BYTES_MOST:
            raise NotARecord(f"it has {size:,} bytes")
        record = Record.from_json(json.loads(get_bytes(store, name) or b"null"))
        if path_of(record) != name:
            raise NotARecord("another workload, run or time than its name says")
        if datetime.fromisoformat(record.sealed_at) > datetime.now(UTC) + AHEAD_MOST:
            raise NotARecord(f"sealed at {record.sealed_at}, which is still to come")
    except (obstore.exceptions.BaseError, OSError):
        raise
    except Exception as error:  # Whatever it holds, it costs this record alone.
        log.warning("%s is not a record: %s: %s", name, type(error).__name__, str(error)[:SAID_MOST])
        return None
    return record


def _tuned(folder: str, workload: Workload) -> bool | None:
    """Whether the records in a folder have other settings that change the speed alone; None if they are of other work."""
    wanted, there = _name_of(workload), folder.rstrip("/").rpartition("/")[2].split("-")
    if len(there) != len(wanted):
        return None
    answers, accelerators, cpus, performance = (theirs == ours for theirs, ours in zip(there, wanted, strict=True))
    return not performance if answers and accelerators and (cpus or workload.cpus == 0) else None


def _model_folder(workload: Workload) -> str:
    return f"{FOLDER}/{digest_of([workload.model_uri, workload.model_revision])}-{workload.hardware}"


def _name_of(workload: Workload) -> tuple[str, str, str, str]:
    answers = digest_of([workload.task, workload.answers])
    return answers, str(workload.accelerators), f"{workload.cpus:g}", digest_of(dict(workload.performance))
