"""The tasks audit_failure and publish once BigQuery's jobs are done, and what is kept of what dead letters were asked."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import obstore
import pyarrow.parquet as pq
import pytest
from airflow.sdk import DAG
from obstore.store import MemoryStore

from nightshift.hooks import warehouse as hook
from nightshift.operators.audit import AuditFailureOperator
from nightshift.operators.dead_letters import prompts_of
from nightshift.operators.failures import Entry, NightFailed
from nightshift.operators.publish import PublishOperator
from nightshift.run.observed import endings
from nightshift.settings import Settings
from tests.chat_run import OPENED, ChatRun, a_chat_run

pytestmark = pytest.mark.unit

SETTINGS = Settings(bucket="runs", project="acme")
TASKS = ("plan", "extract", "infer", "seal", "publish")
DONE: dict[str, Any] = {"jobs": []}


@pytest.fixture
def run() -> ChatRun:
    """Of 120 rows in two chunks, all of which are dead letters."""
    made = a_chat_run(MemoryStore(), rows=120, chunk_rows=60)
    for number in range(2):
        made.commit(number, lambda row: None)
    return made


@pytest.mark.parametrize("rest", ["skipped", "upstream_failed"])
def test_a_night_with_dead_letters_ends_as_failed_if_a_person_has_stopped_it(
    run: ChatRun, monkeypatch: pytest.MonkeyPatch, rest: str
) -> None:
    made: list[dict[str, str]] = []
    kept: list[int] = []

    def keep(spec: Any, named: Any, found: Any) -> int:
        kept.append(sum(rows for _, rows in found.chunks))
        return kept[-1]

    def warehouse_for(settings: Settings, **labels: str) -> Any:
        made.append(labels)
        return SimpleNamespace(failed_nights=SimpleNamespace(keep=keep))

    monkeypatch.setattr(hook, "warehouse_for", warehouse_for)
    with DAG("tickets", schedule=None):
        task = AuditFailureOperator(task_id="audit_failure", spec=run.spec.model_dump(mode="json"), tasks=TASKS)
    task.__dict__.update(settings=SETTINGS, store=run.store)
    states = {"plan": "success", "extract": "success", "infer": "failed", **dict.fromkeys((*TASKS[3:], "audit"), rest)}
    passed = {"plan": {"run_prefix": run.run.prefix}}
    ti = SimpleNamespace(
        xcom_pull=lambda task_ids, key="return_value": passed.get(task_ids) if key == "return_value" else None,
        get_task_states=lambda dag_id, run_ids: {run_ids[0]: states},
    )
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(run_id="night", dag_id="tickets")}

    if rest == "skipped":
        with pytest.raises(NightFailed, match="A person stopped the night") as stopped:
            task.keep_dead_letters(context, DONE)
        assert stopped.value.entry is Entry.STOPPED
    else:
        task.keep_dead_letters(context, DONE)

    assert kept == [120]
    assert made == [{"job": "tickets", "run": run.run.run_id, "step": "audit_failure"}], "whose its BigQuery jobs are"


def test_each_dead_letter_has_its_prompt_however_many_are_shown_at_once(run: ChatRun) -> None:
    prompts = prompts_of(run.store, run.run, run.seal().merkle_root)

    assert prompts is not None
    table = pq.read_table(io.BytesIO(bytes(obstore.get(run.store, prompts.path).bytes())))
    assert (prompts.rows, table.column("ordinal").to_pylist()) == (120, list(range(120)))
    assert table.column("prompt").to_pylist()[119].endswith("Label this: text of row 119")


@pytest.mark.parametrize("asked_at", ["", "2026-11-24T07:00:00+00:00"])
def test_a_publication_is_of_when_it_was_asked_for(run: ChatRun, asked_at: str) -> None:
    """An old run that a person publishes again is the later one, and shown."""
    run.seal()
    counts = {
        "published_at": "2026-11-24T08:00:00+00:00",
        "partition": "p",
        "table": "t",
        "predictions": 0,
        "dead_letters": 120,
    }
    with DAG("tickets", schedule=None):
        task = PublishOperator(task_id="publish", run_prefix=run.run.prefix, terms="", asked_at=asked_at)
    warehouse = SimpleNamespace(finish_publish=lambda *_, **__: counts)
    task.__dict__.update(settings=SETTINGS, store=run.store, source=None, warehouse=warehouse)

    context: Any = {"dag_run": SimpleNamespace(run_id="by_hand"), "outlet_events": {}}
    assert task.verify(context, DONE) == counts

    _, published = endings.last_two(run.store, run.run)
    assert published is not None
    assert (published.at, published.dag_run_id) == (counts["published_at"], "by_hand")
    assert published.asked_at == (asked_at or OPENED.isoformat())
