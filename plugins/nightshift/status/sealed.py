"""The status of a sealed run from its manifest alone: no chunk is listed or read."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from nightshift.planner.costs.bill import Bill
from nightshift.run.manifest import RunManifest
from nightshift.run.names import RunRef
from nightshift.run.plan import Plan
from nightshift.status.report import Status


def sealed_status(
    url: str,
    run: RunRef,
    spec: dict[str, Any],
    plan: Plan | None,
    manifest: RunManifest,
    sealed_at: float,
    bill: Bill | None,
    problems: Mapping[str, str],
) -> Status:
    """Without attempts, which a manifest only names. sealed_at: Unix time by the store's clock."""
    chunks = len(manifest.chunks)
    profiles = (manifest.measured or {}).get("profiles", ())
    unused, lost = (sum(each.get(name, 0) for each in profiles) for name in ("rows_unused", "rows_lost"))
    return Status(
        url=url,
        run=run,
        spec=spec,
        planned=True,
        rows_total=manifest.rows,
        rows_done=manifest.rows,
        rows_saved=0,
        rows_bad=0,
        dead_reasons=dict(Counter(manifest.dead_reasons).most_common()),
        chunks_total=chunks,
        chunks_committed=chunks,
        chunks_read=chunks,
        chunks_left=0,
        chunks_bad=0,
        foreign_objects=0,
        unanswered=0,
        partials=0,
        partials_bad=0,
        prompt_tokens=manifest.prompt_tokens,
        output_tokens=manifest.output_tokens or 0,
        truncated=manifest.truncated,
        engine_versions=dict(manifest.engine_versions),
        rate=None,
        elapsed_s=None,
        last_commit=None,
        workers_planned=plan.workers if plan else 0,
        attempts=[],
        waste_lost_rows=lost,
        waste_partial_rows=max(0, unused - lost),
        problems=dict(problems),
        sealed_at=sealed_at,
        observed_at=time.time(),
        measured=manifest.measured,
        bill=bill,
    )
