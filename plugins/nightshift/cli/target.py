"""Which run a command is about, as people name it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from nightshift.cli.trouble import beside_the_stack, open_bucket
from nightshift.run.names import RunRef, split_run_url
from nightshift.run.opening import NoSuchRun

if TYPE_CHECKING:
    from obstore.store import ObjectStore

NAMES: Final = (
    "JOB (its newest run), JOB/DAY, or the id of a run or its beginning, in the bucket that NIGHTSHIFT_BUCKET names; or a URL, "
    "gs://BUCKET/JOB/DAY/RUN or file:///FOLDER/JOB/DAY/RUN"
)
"""For the help of options."""


@dataclass(frozen=True)
class Target:
    """store: rooted at the bucket, or at the folder of a batch. url: of the run, in full."""

    store: ObjectStore
    run: RunRef
    url: str


def bucket_url(about: str) -> str:
    """The deployment's bucket. about: what is looked for in it. Raises ValueError if no bucket is set."""
    if bucket := os.environ.get("NIGHTSHIFT_BUCKET"):
        return f"gs://{bucket}"
    raise ValueError(
        f"NIGHTSHIFT_BUCKET is not set, so there is no bucket to look in. Set it, or write gs://BUCKET{about}.{beside_the_stack()}"
    )


def target(text: str) -> Target:
    """Raises ValueError for what is no name, NoSuchRun, `nightshift.cli.trouble.NoAccount`, StoreUnavailable."""
    scheme, mark, _ = text.partition("://")
    if mark and scheme not in ("gs", "file"):
        raise ValueError(f"{text!r}: no runs are at {scheme}://. Write gs://BUCKET/JOB/DAY/RUN, or file:///FOLDER/JOB/DAY/RUN.")
    try:
        base, run = split_run_url(text if mark else f"{bucket_url(f'/{text}')}/{text}")
    except ValueError:
        if scheme == "file":
            raise
        return _found(text)
    # A local store would create the folder.
    if scheme == "file" and not Path(urlsplit(base).path, run.prefix).is_dir():
        raise NoSuchRun(f"There is no run at {text}")
    return Target(open_bucket(base), run, f"{base}/{run.prefix}")


def _found(text: str) -> Target:
    """A run that has to be looked for."""
    from nightshift.status.runs import find

    mark = text.startswith("gs://")
    bucket, _, rest = text.removeprefix("gs://").partition("/")
    base, rest = (f"gs://{bucket}", rest) if mark else (bucket_url(f"/{text}"), text)
    store = open_bucket(base)
    run = find(store, rest)
    return Target(store, run, f"{base}/{run.prefix}")
