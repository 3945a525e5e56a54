"""A redo: a run whose rows are the dead letters of an earlier run, and which completes that run's partition.

Its rows (`nightshift.run.redo_rows`) are read from the files that the earlier run exported, never from the query again. So
they are the same rows, and the partition stays whole: what it shows is the predictions of the earlier run and those of the
redo, and its dead letters are those of the redo. The earlier run may be a redo itself. Why it is so: docs/adr/0022-redo.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from nightshift.run.names import RunRef

if TYPE_CHECKING:
    from nightshift.run.manifest import RunManifest
    from nightshift.spec import JobSpec


class NotRedone(ValueError):
    """The dead letters of a run cannot be computed alone. Nothing was changed."""


class NothingToRedo(NotRedone):
    """The partition has no dead letters."""


@dataclass(frozen=True)
class Redo:
    """What makes a run a redo. run_id: the earlier run. manifest_digest: sha256 of its `manifest.json`, in hex.

    rows: of the whole partition. dead_letters: of the earlier run; these are the redo's rows.
    """

    run_id: str
    manifest_digest: str
    rows: int
    dead_letters: int

    @classmethod
    def of(cls, entry: Mapping[str, Any] | None) -> Redo | None:
        """From the entry `redo` of a run's record; None for a run that is not a redo."""
        return None if entry is None else cls(**{each.name: entry[each.name] for each in fields(cls)})

    @classmethod
    def after(cls, manifest: RunManifest) -> Redo:
        """A redo of a sealed run. Raises NothingToRedo."""
        if not manifest.dead_letters:
            raise NothingToRedo(
                f"Run {manifest.run_id}, which partition {manifest.partition} shows, has no dead letters: there is "
                "nothing to compute again. To compute all rows again, trigger with fresh."
            )
        return cls(manifest.run_id, manifest.digest, manifest.totals.rows, manifest.dead_letters)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def earlier(self, run: RunRef) -> RunRef:
        """The earlier run of the redo `run`."""
        return RunRef.from_prefix(f"{run.job}/{run.partition}/{self.run_id}")

    def terms(self, spec: JobSpec) -> JobSpec:
        """The job's terms for this run: a share of rows that may be dead letters is one of the partition's rows."""
        allowed = spec.dead_letters.allowed(self.rows)
        return spec.model_copy(update={"dead_letters": spec.dead_letters.model_copy(update={"tolerate": allowed})})
