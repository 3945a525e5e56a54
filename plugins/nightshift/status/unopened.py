"""Nights that have no run in the bucket, by what Airflow knows of their DAG: one failed in its task plan, or never began.

Commands ask Airflow's REST API (`nightshift.cli.unopened`), the pages read its database (`nightshift.plugin.pages.dag_runs`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from nightshift.run.observed.pods_now import waited_s

WAITS_S: Final = 900.0
"""After so long, a night that was due or was triggered should have begun."""


@dataclass(frozen=True)
class Newest:
    """The DAG of a job and its newest DAG run: when that was asked for, its state and that of its task plan in Airflow's words.

    due_at: when the next night is due. Times are ISO 8601; '' is none.
    """

    job: str
    paused: bool
    due_at: str = ""
    dag_run_id: str = ""
    state: str = ""
    at: str = ""
    plan: str = ""


@dataclass(frozen=True)
class Unopened:
    """kind: failed (in its task plan), waiting (no task has begun), overdue (there is no DAG run), or paused (the DAG)."""

    job: str
    kind: str
    at: str
    words: str
    dag_run_id: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def unopened(dag: Newest, why: Callable[[], str], now: datetime | None = None) -> Unopened | None:
    """None if the newest night has a run, or begins in time. why: what the failed task plan said last."""
    if dag.state == "failed" and dag.plan == "failed":
        words = f"The last night of {dag.job} failed in its task plan: {why()}"
        return Unopened(dag.job, "failed", dag.at, words, dag.dag_run_id)
    if dag.paused and (dag.due_at or dag.state == "queued"):
        words = f"The DAG {dag.job} is paused in Airflow: no night of it begins until you unpause it there."
        return Unopened(dag.job, "paused", dag.due_at or dag.at, words)
    at = (now or datetime.now(UTC)).timestamp()
    if dag.state == "queued" and waited_s(dag.at, at) > WAITS_S:
        words = f"A night of {dag.job} was asked for at {dag.at}, and no task of it has begun. Is Airflow's scheduler at work?"
        return Unopened(dag.job, "waiting", dag.at, words, dag.dag_run_id)
    if waited_s(dag.due_at, at) > WAITS_S:
        words = f"The night of {dag.job} that was due at {dag.due_at} has not begun. Is Airflow's scheduler at work?"
        return Unopened(dag.job, "overdue", dag.due_at, words)
    return None
