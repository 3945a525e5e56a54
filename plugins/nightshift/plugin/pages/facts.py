"""What a page shows of one run: from `nightshift.status` and `nightshift.trial.preview`. Looks are kept for the next one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from nightshift.operators.links import folder_address
from nightshift.plugin.pages.bucket import Kept, bucket, settings

if TYPE_CHECKING:
    from nightshift.run.names import RunRef
    from nightshift.status.overview import RunLook

PREVIEWS: Final = 3


def _look(run: RunRef) -> RunLook:
    from nightshift.planner.costs.prices import load_prices
    from nightshift.status.overview import RunLook

    deployment = settings()
    return RunLook(bucket(), run, run.url(deployment.bucket), load_prices(deployment.prices or None))


of: Kept[RunRef, RunLook] = Kept(_look)


def previews(job: str) -> list[dict[str, Any]]:
    """The newest ones of a job."""
    from nightshift.trial.preview.results import newest

    return [each.to_json() for each in newest(bucket(), job, PREVIEWS)]


def folder_link(run: RunRef) -> str:
    """The run's files in the Cloud console, or in the emulator's listing."""
    return folder_address(settings().bucket, run.prefix, os.environ.get("STORAGE_EMULATOR_HOST", ""))
