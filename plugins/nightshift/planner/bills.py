"""The bill of a run (`nightshift.planner.costs.bill`) from what lies in its folder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from obstore.store import ObjectStore

from nightshift.planner import measured
from nightshift.planner.costs.bill import Bill, Delivered, Machine, bill
from nightshift.planner.costs.prices import Prices
from nightshift.planner.decisions import load_decision
from nightshift.planner.plan import NotADecision
from nightshift.run.chunks import Part
from nightshift.run.manifest import RunManifest
from nightshift.run.names import RunRef
from nightshift.run.plan import Plan
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
    decided = None
    if plan is not None and plan.decision is not None and spec is not None:
        try:
            if decision := load_decision(store, plan.decision):
                decided = (decision, machine_of(spec, decision.profile))
        except NotADecision:
            decided = None
    tokens = manifest.prompt_tokens + (manifest.output_tokens or 0)
    delivered = Delivered(len(manifest.chunks), manifest.rows, tokens)
    own = _own(spec) if spec is not None and manifest.rows else None
    return bill(manifest.measured, delivered, prices, own=own, estimated=decided, bigquery_bytes=bigquery_bytes)


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
    made = bill(found, Delivered(), prices, own=_own(spec), bigquery_bytes=bigquery_bytes)
    assert made is not None, "it was measured here"
    return made
