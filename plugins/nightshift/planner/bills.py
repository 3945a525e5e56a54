"""What a run's attempts measured, as its folder has it: for the seal, and for the bill (`nightshift.planner.costs.bill`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from obstore.store import ObjectStore

from nightshift.planner import measured, speeds
from nightshift.planner.costs.bill import Bill, Machine, bill
from nightshift.planner.costs.prices import Prices
from nightshift.planner.decisions import decision_if_any
from nightshift.run.chunks import Part
from nightshift.run.manifest import RunManifest
from nightshift.run.names import RunRef
from nightshift.run.pins import UNPINNED, Pins
from nightshift.run.plan import Plan
from nightshift.run.redo.redo import Redo
from nightshift.run.seal import seal
from nightshift.spec import JobSpec
from nightshift.store import ObjectStorage


def machine_of(spec: JobSpec, profile: str) -> Machine:
    """Of a worker of this profile, by the job's terms."""
    try:
        shape = spec.compute.worker(profile) if profile else None
    except ValueError:  # The job was changed meanwhile, and its worker no longer fits this profile.
        shape = None
    return measured.UNKNOWN_MACHINE if shape is None else Machine(shape.price_name, shape.machines)


def measure_run(store: ObjectStore, run: RunRef, plan: Plan | None, spec: JobSpec, parts: Sequence[Part]) -> dict[str, Any]:
    """What the attempts of a run claim of their time, as its manifest says it (`nightshift.planner.measured.measure`).

    parts: of all committed chunks. Without a plan nothing was attempted.
    """
    objects = ObjectStorage(store, measured.BYTES_MOST)
    seen = asyncio.run(measured.look(objects, run, plan.uid)) if plan else measured.Seen()
    return measured.measure(seen, parts, lambda profile: machine_of(spec, profile))


def seal_measured(
    store: ObjectStore, run: RunRef, spec: JobSpec, plan: Plan, pins: Pins = UNPINNED, redo: Redo | None = None
) -> RunManifest:
    """The run manifest of `seal`, which raises, with the entry `measured`. Also records the run's speed for later plans; if
    that fails, the run is sealed all the same."""
    manifest = seal(store, run, spec, plan, pins, redo, measure=partial(measure_run, store, run, plan, spec))
    if redo is None:  # Rows that died once are not like others.
        speeds.keep(store, run, spec, manifest, plan)
    return manifest


def bill_of(
    store: ObjectStore,
    manifest: RunManifest,
    plan: Plan | None,
    spec: JobSpec | None,
    prices: Prices,
    *,
    bigquery_bytes: int | None = None,
) -> Bill | None:
    """Of a sealed run. Without an estimate if there is no decision, or none that this release reads, or no spec.

    None if the manifest does not say what the attempts were paid for.
    """
    decision = decision_if_any(store, plan.decision) if plan and spec else None
    decided = (decision, machine_of(spec, decision.profile)) if decision and spec else None
    tokens = manifest.prompt_tokens + (manifest.output_tokens or 0)
    own = _own(spec) if spec is not None and manifest.rows else None
    return bill(
        manifest.measured,
        prices,
        chunks=len(manifest.chunks),
        rows=manifest.rows,
        tokens=tokens,
        own=own,
        estimated=decided,
        bigquery_bytes=bigquery_bytes,
    )


def bill_so_far(
    store: ObjectStore, run: RunRef, plan: Plan | None, spec: JobSpec, prices: Prices, bigquery_bytes: int | None
) -> Bill:
    """Of a run that is not sealed: what its attempts were paid for. How much of it is useful is only known at the seal, so its
    parts mean nothing yet."""
    return _paid_for(measure_run(store, run, plan, spec, []), spec, prices, bigquery_bytes)


def bill_seen(seen: measured.Seen, spec: JobSpec, prices: Prices) -> Bill:
    """As `bill_so_far`, of attempts whose heartbeats were read before."""
    return _paid_for(measured.measure(seen, [], lambda profile: machine_of(spec, profile)), spec, prices)


def _own(spec: JobSpec) -> tuple[str, Machine]:
    return spec.compute.profile, machine_of(spec, spec.compute.profile)


def _paid_for(found: dict[str, Any], spec: JobSpec, prices: Prices, bigquery_bytes: int | None = None) -> Bill:
    made = bill(found, prices, own=_own(spec), bigquery_bytes=bigquery_bytes)
    assert made is not None, "it was measured here"
    return made
