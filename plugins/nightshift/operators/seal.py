"""The fourth task: proof that no row was lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from nightshift.fields.text import n
from nightshift.operators.run import RunOperator, permanent_failures

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.run.manifest import RunManifest


class SealOperator(RunOperator):
    """
    Proves conservation over the ledger and writes ``manifest.json``.

    Fails for good if rows are missing or more rows are dead letters than the job tolerates: then nothing is published.
    """

    def doubts(self) -> str:
        """What a person should look at before using the answers; '' if there is nothing, or if the run is not sealed."""
        from nightshift.run.answers.thresholds import concerns
        from nightshift.run.manifest import load_manifest

        manifest = load_manifest(self.store, self.run)
        return " ".join(each.words for each in concerns(manifest)) if manifest else ""

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.planner.bills import seal_measured

        with permanent_failures():
            self.keep_lineage()
            manifest = seal_measured(self.store, self.run, self.spec, self.plan, self.record.pins, self.redo)
        reasons = ", ".join(f"{count} {reason}" for reason, count in manifest.dead_reasons.items()) or "none"
        dead = n(manifest.dead_letters, "dead letter")
        self.tell(f"{n(manifest.rows, 'row')} = {n(manifest.predictions, 'prediction')} + {dead} ({reasons})")
        for warning in _warnings(manifest):
            self.tell(warning, warns=True)
        self.tell(f"Merkle root {manifest.merkle_root}")
        return {name: getattr(manifest, name) for name in ("rows", "predictions", "dead_letters", "merkle_root")}


def _warnings(manifest: RunManifest) -> Iterator[str]:
    """Warnings about a run that is complete."""
    from nightshift.run.answers.thresholds import concerns

    versions = manifest.engine_versions
    if len(versions) > 1:
        listed = ", ".join(f"{n(rows, 'row')} by {version}" for version, rows in versions.items())
        yield (
            "Trigger the DAG with fresh to have all rows answered by one version of the engine. "
            f"Several answered them, and may answer the same row differently ({listed})."
        )
    found = list(concerns(manifest))
    yield from (each.words for each in found)
    if manifest.truncated and not any(each.kind == "cut" for each in found):
        yield (
            "Raise request.max_tokens, or write 'truncated: dead_letter' under request. "
            f"{manifest.truncated} of {n(manifest.predictions, 'answer')} were cut, at max_tokens or before their text began. "
            "They are published as they are, some without any text if the model reasons first: then leave request.stop out."
        )
