"""Whether the job's model can be read: its revision on the Hub, or its folder in a bucket. Asked as the task `plan` asks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Final

from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.run.models import hub_revision, weights
from nightshift.run.models.hub_cache import absent, folder_of, is_local, offline
from nightshift.run.pins import is_commit

NAME: Final = "model"


def ask(here: Surroundings) -> Iterator[Finding]:
    """Raises `nightshift.run.models.hub_revision.HubUnavailable` if plan would, and StoreUnavailable."""
    job = here.work
    scheme, _, place = job.model.uri.partition("://")
    breaks = f"plan of {job.job}, or its engines, which load the model"
    if scheme == "gs":
        try:
            found = weights.look(job.model.uri, here.connections.storage_credentials())
        except weights.NoWeights as error:
            bucket = re.sub(r"^gs://|/.*", "", job.model.uri)
            yield Failed(NAME, str(error), breaks, f"gcloud storage ls {shlex.quote(f'gs://{bucket}')}")
        else:
            yield Ok(NAME, f"{job.model.uri}: {_gib(found.size)}")
        return
    if missing := absent(place, job.model.revision, here.environment):
        yield Failed(NAME, missing.problem, f"infer of {job.job}: its engine cannot start", missing.advice)
        return
    if offline(here.environment):
        if is_local(here.environment):
            yield Ok(NAME, f"{job.model.uri} at {job.model.revision} is in {folder_of(here.environment)}")
        else:
            yield Skipped(NAME, "HF_HUB_OFFLINE is set, so the Hub is not asked")
        return
    try:
        model = hub_revision.model_at(place, job.model.revision, here.environment)
    except hub_revision.HubUnavailable as error:
        if not is_commit(job.model.revision):
            raise
        because = f"the Hub does not answer here, and plan need not ask it for a commit; the workers must reach it ({error})"
        yield Skipped(NAME, because)
    except hub_revision.NoSuchRevision as error:
        yield Failed(NAME, str(error), breaks, f"hf download {place} --revision={shlex.quote(job.model.revision)} --dry-run")
    else:
        size = f", {_gib(model.size)}" if model.size else ""
        yield Ok(NAME, f"{job.model.uri} at {job.model.revision} is commit {model.commit[:12]}{size}")


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
