"""The record of a run, `spec.json`: who opened it and when, and what was frozen then. It is created once and never changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from nightshift import __version__
from nightshift.fields.stored import read
from nightshift.formats import WRITTEN_BY, UnreadableFormat
from nightshift.run.pins import Pins
from nightshift.run.redo.redo import Redo
from nightshift.spec import JobSpec


@dataclass(frozen=True)
class RunRecord:
    """opened_by: an Airflow DAG run, or a command. opened_at: ISO 8601, UTC. stored: all entries as they are stored: of a run
    of `nightshift batch`, its input.

    uid: of this opening, since another may have the same name, like Kubernetes' uid; empty for a run of release 0.2.0.
    project: of the query's tables that do not name theirs; None for a run of 0.2.0.
    fresh: whether this generation was opened because a user asked for `fresh`; None for a run of 0.2.0.
    redo: what the run is, if its rows are the dead letters of an earlier one.
    rendering: how values read in prompts (`nightshift.tasks.Rendering`); None for a run of 0.2.0: as Python writes them.
    """

    opened_by: str
    opened_at: str
    stored: Mapping[str, Any]
    uid: str = ""
    project: str | None = None
    fresh: bool | None = None
    redo: Redo | None = None
    rendering: str | None = None

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> RunRecord:
        """Of any version: these entries mean the same in all, so that runs can always be put in order. Raises ValueError for
        anything else."""
        redo = Redo.of(stored.get("redo"))
        return replace(read(cls, {**stored, "stored": {}, "redo": None}), stored=stored, redo=redo)

    @property
    def opened(self) -> datetime:
        return datetime.fromisoformat(self.opened_at)

    @property
    def pins(self) -> Pins:
        return Pins.of(self.stored)

    def spec(self, where: str) -> JobSpec:
        """The frozen spec. where: the record's path, for messages.

        A setting that this release does not have cannot be passed over: it may affect answers. Raises UnreadableFormat.
        """
        try:
            return JobSpec.model_validate(self.stored["spec"])
        except ValidationError as error:
            names = ", ".join(".".join(map(str, each["loc"])) for each in error.errors())
            writer = self.stored.get(WRITTEN_BY, "another release")
            raise UnreadableFormat(
                f"{where} was written by nightshift {writer}; this is nightshift {__version__}, which cannot read these "
                f"settings of the job: {names}. Finish the run with that release, or trigger the DAG with fresh."
            ) from error
