"""Where a preview's objects are.

A command or a task writes ``_previews/JOB/ID.json``, the result, and ``_previews/JOB/rows/DIGEST.parquet``, rows of a query. No
job has the name ``_previews``. A question lies where the job's workers may read, and its answer where they may write
(`nightshift.run.names`)::

    JOB/preview/ENGINE/asks/ID.json
    _workers/JOB/preview/ENGINE/taken/ID, answers/ID.json
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from nightshift.run.names import WORKERS, RunRef, digest_of

if TYPE_CHECKING:
    from nightshift.spec import JobSpec

PREVIEWS: Final = "_previews"
PARTITION: Final = "preview"
"""In place of a partition's name, in the folder of an engine. No partition has this name."""
LIFE_S: Final = 3600.0
"""How long the process beside an engine takes questions. The next one starts another engine."""
_ID: Final = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{6}")


def new_id(now: datetime | None = None) -> str:
    """Later ones sort after earlier ones."""
    moment = now or datetime.now(UTC)
    return f"{moment:%Y%m%dT%H%M%S}{moment.microsecond // 1000:03}Z-{secrets.token_hex(3)}"


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def result_folder(job: str) -> str:
    return f"{PREVIEWS}/{job}"


def result_path(job: str, id_: str) -> str:
    return f"{PREVIEWS}/{job}/{id_}.json"


def rows_path(spec: JobSpec, partition: str, rows: int, project: str) -> str:
    """Of some rows of the job's query. project: of the tables that the query does not name in full."""
    named = [spec.source.query, list(spec.source.key), partition, spec.every, rows, project]
    return f"{PREVIEWS}/{spec.job}/rows/{digest_of(named)}.parquet"


@dataclass(frozen=True)
class EngineFolder:
    """Where a warm engine is asked. digest: of the job and of how it is started, so that other flags make another one."""

    job: str
    digest: str

    @property
    def run(self) -> RunRef:
        """What stands for a run in its JobSet: its labels, and the URL that its keeper gets."""
        return RunRef(self.job, PARTITION, self.digest)

    @property
    def jobset(self) -> str:
        return f"nightshift-preview-{self.digest}"

    @property
    def asks_folder(self) -> str:
        return f"{self.run.prefix}/asks"

    def ask_path(self, id_: str) -> str:
        return f"{self.asks_folder}/{id_}.json"

    def taken_path(self, id_: str) -> str:
        return f"{WORKERS}/{self.run.prefix}/taken/{id_}"

    def answer_path(self, id_: str) -> str:
        return f"{WORKERS}/{self.run.prefix}/answers/{id_}.json"
