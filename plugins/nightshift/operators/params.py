"""The conf of a DAG run: Airflow ignores keys that are not params, and a misspelt one would compute another day."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from nightshift.fields.mistakes import nearest
from nightshift.operators.failures import Entry, NightFailed

if TYPE_CHECKING:
    from airflow.sdk import Context

_OTHER_WORDS: Final = dict.fromkeys(("date", "day", "ds", "execution_date", "logical_date", "period", "time"), "partition")
"""Other names for a param."""


def only_params(context: Context) -> None:
    """For ``pre_execute`` of a DAG's first task: the DAG run's conf has only keys that are params of the DAG, and they hold.

    Raises NightFailed.
    """
    dag_run: Any = context["dag_run"]
    asked: dict[str, Any] = getattr(dag_run, "conf", None) or {}
    dag = context["task"].dag
    params = list(dag.params) if dag else []
    if unknown := [name for name in asked if name not in params]:
        raise NightFailed(
            f"The DAG run's conf has keys that are no params: {', '.join(_named(unknown, params))}. Nothing was done. The "
            f"params are {', '.join(params)}. Trigger the DAG again.",
            Entry.WRONG_PARAM,
        )
    if passed_over := [name for name, value in asked.items() if context["params"].get(name) != value]:
        raise NightFailed(
            f"The DAG run's conf sets {', '.join(passed_over)}, and Airflow does not pass it on. Set its option [core] "
            "dag_run_conf_overrides_params to True. Nothing was done.",
            Entry.WRONG_PARAM,
        )


def _named(unknown: Iterable[str], params: list[str]) -> Iterable[str]:
    for name in unknown:
        near = nearest(str(name), params) or _OTHER_WORDS.get(str(name).casefold())
        yield f"{name!r} (did you mean {near}?)" if near in params else repr(name)
