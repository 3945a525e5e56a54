"""A redo: a run whose rows are those that an earlier run has left without an answer, and which completes that run's partition.

These are its dead letters, and, if its tolerance stopped it early, the rows that it had not committed. The earlier run is
sealed, and may be published; or it was closed (`nightshift.run.seal.close`) because it has more dead letters than its job
tolerates. It may be a redo itself.

Its rows (`nightshift.run.redo.redo_rows`) are copied from the files that the earlier run exported. Or the user has corrected
them, or the job: then they are read from the query again and matched by their keys (`nightshift.run.redo.corrected_rows`).
Either way the partition stays whole: what it shows is the predictions of the earlier run and those of the redo, and its dead
letters are those of the redo. Why it is so: docs/adr/0026-redo-corrected.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nightshift.fields.stored import read
from nightshift.run.names import RunRef

if TYPE_CHECKING:
    from nightshift.run.manifest import RunManifest
    from nightshift.spec import JobSpec


class NotRedone(ValueError):
    """The rows without an answer of a run cannot be computed alone. Nothing was changed."""


class NothingToRedo(NotRedone):
    """The partition has no dead letters."""


@dataclass(frozen=True)
class Redo:
    """What makes a run a redo. run_id: the earlier run. manifest_digest: sha256, in hex, of its `manifest.json`, or closing.

    rows: of the whole partition. dead_letters, unanswered: of the earlier run; these are the redo's rows. corrected: whether
    they are read from the query again, for the job as it was when the redo was opened. shown: the run that the partition showed
    then; empty if it showed none.
    """

    run_id: str
    manifest_digest: str
    rows: int
    dead_letters: int
    shown: str
    unanswered: int = 0
    corrected: bool = False

    @classmethod
    def of(cls, entry: Mapping[str, Any] | None) -> Redo | None:
        """From the entry `redo` of a run's record; None for a run that is not a redo."""
        if entry is None:
            return None
        # Of release 0.2.0: a redo of the run that the partition shows, with its own rows.
        return read(cls, {"shown": entry.get("run_id"), **entry})

    @classmethod
    def after(cls, manifest: RunManifest, *, corrected: bool = False, shown: str | None = None) -> Redo:
        """A redo of a sealed or closed run. shown: by default that run. Raises NothingToRedo."""
        if not manifest.as_completed.left:
            raise NothingToRedo(
                f"Run {manifest.run_id}, which partition {manifest.partition} shows, has no dead letters: there is "
                "nothing to compute again. To compute all rows again, trigger with fresh."
            )
        return cls(
            manifest.run_id,
            manifest.digest,
            manifest.totals.rows + manifest.unanswered,
            manifest.dead_letters,
            manifest.run_id if shown is None else shown,
            manifest.unanswered,
            corrected,
        )

    @property
    def left(self) -> int:
        """How many rows the redo has."""
        return self.dead_letters + self.unanswered

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def earlier(self, run: RunRef) -> RunRef:
        """The earlier run of the redo `run`."""
        return RunRef.from_prefix(f"{run.job}/{run.partition}/{self.run_id}")

    def terms(self, spec: JobSpec) -> JobSpec:
        """The job's terms for this run: a share of rows that may be dead letters is one of the partition's rows."""
        allowed = spec.dead_letters.allowed(self.rows)
        return spec.model_copy(update={"dead_letters": spec.dead_letters.model_copy(update={"tolerate": allowed})})
