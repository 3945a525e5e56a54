"""The conf of a DAG run: keys that are no params are refused, in each DAG of nightshift."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, Param
from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators.params import only_params
from nightshift.operators.plan import PlanOperator

pytestmark = pytest.mark.unit

DEFAULTS = {"partition": None, "fresh": False, "republish": None, "redo": None}


def context(conf: dict[str, Any] | None, **passed: Any) -> Any:
    """passed: what Airflow has made of it, by default what it does: keys that are no params are among its params, too."""
    with DAG("job", schedule=None, params={name: Param(value) for name, value in DEFAULTS.items()}):
        task = PlanOperator(task_id="plan", spec={})
    return {"task": task, "params": {**DEFAULTS, **(passed or conf or {})}, "dag_run": SimpleNamespace(conf=conf)}


@pytest.mark.parametrize("conf", [None, {}, {"partition": "2026-11-20"}, {"fresh": True, "partition": None}, {"fresh": False}])
def test_params_are_taken(conf: dict[str, Any] | None) -> None:
    only_params(context(conf))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("parition", "partition"), ("date", "partition"), ("Fresh", "fresh"), ("re-do", "redo"), ("ds", "partition")],
)
def test_another_key_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    """Another day than the one that was asked for was computed and published."""
    with pytest.raises(
        AirflowFailException, match=rf"no params: '{name}' \(did you mean {meant}\?\)\. Nothing was done\. The params"
    ):
        only_params(context({name: "2026-11-20", "fresh": True}))


def test_all_of_them_are_named_and_the_params_too() -> None:
    with pytest.raises(AirflowFailException, match=r"'x', 'y'\. .*The params are partition, fresh, republish, redo\."):
        only_params(context({"x": 1, "y": 2}))


def test_a_conf_that_airflow_does_not_pass_on_is_refused() -> None:
    with pytest.raises(AirflowFailException, match=r"sets partition, and Airflow does not pass it on.*dag_run_conf_overrides"):
        only_params(context({"partition": "2026-11-20"}, **DEFAULTS))


def test_plan_asks_before_anything_else() -> None:
    asked = context({"parition": "2026-11-20"})
    with pytest.raises(AirflowFailException, match="did you mean partition"):
        asked["task"].pre_execute(asked)
