"""Where an engine of trials is asked: a question lies where the job's workers may read, its answer where they may write
(`nightshift.run.names`)::

    JOB/preview/ENGINE/asks/ID.json
    _workers/JOB/preview/ENGINE/taken/ID, answers/ID.json
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from nightshift.run.names import WORKERS, RunRef

PREVIEWS: Final = "_previews"
"""The folder of what trials keep of a query and show to people. No job has this name."""
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


@dataclass(frozen=True)
class EngineFolder:
    """digest: of the job and of how its engine is started, so that other flags make another one."""

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
