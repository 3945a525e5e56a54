"""What a run keeps for ever, and what the job's file may change about it from one DAG run to the next."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.context import Context
from airflow.sdk.exceptions import AirflowFailException
from obstore.store import MemoryStore, ObjectStore

from nightshift.operators.run import TERMS_OF_PLAN, RunOperator
from nightshift.operators.seal import SealOperator
from nightshift.run import opening
from nightshift.run.ledger import Ledger
from nightshift.run.names import RunRef
from nightshift.run.plan import Plan, save_plan
from nightshift.spec import JobSpec
from nightshift.store import ObjectStorage
from tests.builders import a_chunk, a_plan, a_spec, bound, with_rows

pytestmark = pytest.mark.unit

DAY = "2026-11-20"


def opened(store: ObjectStore, **asked: Any) -> RunRef:
    return opening.open_run(store, a_spec(), DAY, opened_by="night", **asked)


def task(store: ObjectStore, run: RunRef, spec: JobSpec | None) -> SealOperator:
    terms = "null" if spec is None else json.dumps(spec.model_dump(mode="json"))
    with DAG("job", schedule=None):
        operator = SealOperator(task_id="seal", run_prefix=run.prefix, terms=terms)
    operator.__dict__["store"] = store
    return operator


class Told:
    """A task instance whose task `plan` has returned `value`."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def xcom_pull(self, task_ids: str) -> Any:
        return self._value


@pytest.mark.parametrize(("told", "terms"), [({"spec": {"a": "x < 'y'"}}, {"a": "x < 'y'"}), ({"rows": 1}, None)])
def test_the_terms_come_from_the_task_plan(told: Any, terms: Any) -> None:
    with DAG("job", schedule=None) as dag:
        operator = RunOperator(task_id="seal", run_prefix="x", terms=TERMS_OF_PLAN)
    context: Context = {"ti": Told(told), "dag": dag}  # type: ignore[typeddict-item]
    operator.render_template_fields(context)

    assert json.loads(operator.terms) == terms


def test_a_raised_tolerance_seals_a_run_that_was_over_it() -> None:
    store = MemoryStore()
    run = opened(store)
    plan = save_plan(store, run, bound(store, run, with_rows(store, Plan(run.run_id, 4, 4, 1, a_plan(4).files), run)))
    asyncio.run(Ledger(ObjectStorage(store), run, plan).commit(0, a_chunk(run, plan, 0, dead=[1, 2])))

    with pytest.raises(AirflowFailException, match="raise the tolerance and trigger the DAG again"):
        task(store, run, a_spec(dead_letters__tolerate=1)).execute({})
    sealed = task(store, run, a_spec(dead_letters__tolerate=2)).execute({})

    assert (sealed["predictions"], sealed["dead_letters"]) == (2, 2)


def test_without_terms_a_run_has_those_that_it_was_opened_with() -> None:
    store = MemoryStore()

    assert task(store, opened(store), None).spec == a_spec()


def test_terms_of_another_run_are_refused() -> None:
    store = MemoryStore()

    with pytest.raises(AirflowFailException, match="another query, model or request"):
        _ = task(store, opened(store), a_spec(model__revision="r2")).spec


class TestADayWithoutRows:
    """It is not empty for ever."""

    @staticmethod
    def empty(store: ObjectStore, run: RunRef) -> None:
        save_plan(store, run, Plan(run.run_id, 0, 1, 1, ()))

    def test_rows_that_come_later_get_the_next_generation(self) -> None:
        store = MemoryStore()
        self.empty(store, opened(store))
        late = opened(store, superseded=lambda run: run.generation == 1)

        assert late.generation == 2
        assert opened(store, superseded=lambda run: run.generation == 1) == opened(store) == late, "a repeat finds it"

    def test_so_does_a_repeat_of_the_fresh_run_that_found_none(self) -> None:
        store = MemoryStore()
        first = opened(store, fresh=True)

        assert opened(store, fresh=True) == first
        assert opened(store, fresh=True, superseded=lambda run: run == first).generation == 2
