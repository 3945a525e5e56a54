"""The fourth task: proof that no row was lost or doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nightshift.operators.run import RunOperator, permanent_failures

if TYPE_CHECKING:
    from airflow.sdk import Context


class SealOperator(RunOperator):
    """
    Proves conservation over the ledger and writes ``manifest.json``.

    Fails for good if rows are missing or more rows are dead letters than the job tolerates: then nothing is published.
    """

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.run.seal import seal

        with permanent_failures():
            self.keep_lineage()
            manifest = seal(self.store, self.run, self.spec, self.plan)
        reasons = ", ".join(f"{count} {reason}" for reason, count in manifest["dead_reasons"].items()) or "none"
        self.log.info(
            "%d rows = %d predictions + %d dead letters (%s); Merkle root %s",
            manifest["rows"],
            manifest["predictions"],
            manifest["dead_letters"],
            reasons,
            manifest["merkle_root"],
        )
        return {name: manifest[name] for name in ("rows", "predictions", "dead_letters", "merkle_root")}
