"""A redo: a run whose rows are the dead letters of an earlier run, and which completes that run's partition.

Its rows (`nightshift.run.redo_rows`) are read from the files that the earlier run exported, never from the query again. So
they are the same rows, and the partition stays whole: what it shows is the predictions of the earlier run and those of the
redo, and its dead letters are those of the redo. The earlier run may be a redo itself. Why it is so: docs/adr/0022-redo.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from nightshift.run.names import RunRef, canonical_json

if TYPE_CHECKING:
    from nightshift.spec import JobSpec

KEY: Final = "redo"
"""The entry of `spec.json`."""
COMPLETES: Final = "completes"
"""The entry of a redo's `manifest.json`: the earlier runs that its partition also shows, the latest first (`entry_of`)."""
EARLIER: Final = "earlier"
"""The entry of a manifest in memory: the manifests of those runs (`nightshift.run.sealed_objects.whole`)."""


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
    def of(cls, record: Mapping[str, Any]) -> Redo | None:
        """From the record of a run (`nightshift.run.opening.Record`); None for a run that is not a redo."""
        said = record.get(KEY)
        return None if said is None else cls(said["run_id"], said["manifest_digest"], said["rows"], said["dead_letters"])

    @classmethod
    def after(cls, manifest: Mapping[str, Any]) -> Redo:
        """A redo of a sealed run. Raises NothingToRedo."""
        if not manifest["dead_letters"]:
            raise NothingToRedo(
                f"Run {manifest['run_id']}, which partition {manifest['partition']} shows, has no dead letters: there is "
                "nothing to compute again. To compute all rows again, trigger with fresh."
            )
        return cls(manifest["run_id"], digest_of(manifest), totals(manifest)["rows"], manifest["dead_letters"])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def earlier(self, run: RunRef) -> RunRef:
        """The earlier run of the redo `run`."""
        return RunRef.from_prefix(f"{run.job}/{run.partition}/{self.run_id}")

    def terms(self, spec: JobSpec) -> JobSpec:
        """The job's terms for this run: a share of rows that may be dead letters is one of the partition's rows."""
        allowed = spec.dead_letters.allowed(self.rows)
        return spec.model_copy(update={"dead_letters": spec.dead_letters.model_copy(update={"tolerate": allowed})})


def digest_of(manifest: Mapping[str, Any]) -> str:
    """sha256, in hex, of the object `manifest.json`, which is written in canonical form."""
    stored = {name: value for name, value in manifest.items() if name != EARLIER}
    return hashlib.sha256(canonical_json(stored)).hexdigest()


def entry_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What the manifest of a redo says of an earlier run."""
    counts = {name: manifest[name] for name in ("run_id", "rows", "predictions", "dead_letters")}
    return {**counts, "manifest_digest": digest_of(manifest)}


def totals(manifest: Mapping[str, Any]) -> dict[str, int]:
    """rows, predictions and dead_letters of the partition that a sealed run shows: its own, and those of earlier runs."""
    completes = manifest.get(COMPLETES, ())
    predictions = manifest["predictions"] + sum(each["predictions"] for each in completes)
    dead_letters = manifest["dead_letters"]
    return {"rows": predictions + dead_letters, "predictions": predictions, "dead_letters": dead_letters}
