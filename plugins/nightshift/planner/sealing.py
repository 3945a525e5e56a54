"""Sealing a run with what its attempts measured: what the task `seal` does, once the proof (`nightshift.run.seal`) holds."""

from __future__ import annotations

from functools import partial

from obstore.store import ObjectStore

from nightshift.planner import speeds
from nightshift.planner.bills import measure_run
from nightshift.run.manifest import RunManifest
from nightshift.run.names import RunRef
from nightshift.run.pins import UNPINNED, Pins
from nightshift.run.plan import Plan
from nightshift.run.redo import Redo
from nightshift.run.seal import seal
from nightshift.spec import JobSpec


def seal_measured(
    store: ObjectStore, run: RunRef, spec: JobSpec, plan: Plan, pins: Pins = UNPINNED, redo: Redo | None = None
) -> RunManifest:
    """The run manifest of `seal`, which raises, with the entry `measured`. Also records the run's speed for later plans; if
    that fails, the run is sealed all the same."""
    manifest = seal(store, run, spec, plan, pins, redo, measure=partial(measure_run, store, run, plan, spec))
    if redo is None:  # Rows that died once are not like others.
        speeds.keep(store, run, spec, manifest, plan)
    return manifest
