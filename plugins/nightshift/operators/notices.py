"""Notices about a run: makes the operator's notifier, fills in its texts, and calls it.

A notifier is foreign code, so nothing of it runs when a DAG is parsed: it is imported and made when it is due. It gets only
plain texts: neither Airflow's context, which reads every connection and variable, nor a template of Airflow, whose value may
be a file's name. It runs isolated (`nightshift.hooks.notifiers`).
"""

from __future__ import annotations

import asyncio
import html
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from airflow.sdk.configuration import conf

from nightshift.hooks.notifiers import NotNotified, isolated, notifier_class, one_line
from nightshift.operators.failures import ERROR_KEY
from nightshift.settings import Settings
from nightshift.spec import notifiers, periods
from nightshift.spec.notify import PLACES, Notifier, filled

if TYPE_CHECKING:
    from airflow.sdk.bases.notifier import BaseNotifier

log = logging.getLogger(__name__)

_AT_DEADLINE: Final = {
    "failed": "It has failed, and was not published before",
    "success": "It has ended, but after",
    "queued": "It has not begun at",
    "running": "It is not over at",
}
"""By Airflow's state of the DAG run."""


@dataclass(frozen=True)
class Notice:
    """What a job sends at one event. every: of the job's periods. by_files: whether files decide a run's period."""

    job: str
    event: str
    notifier: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    every: str | None = None
    by_files: bool = False

    def __call__(self, context: Mapping[str, Any]) -> None:
        """As Airflow calls a callback. Raises NotNotified."""
        isolated(f"The notifier {self.notifier} of {self.job} ({self.event})", lambda: self._send(context))

    def _send(self, context: Mapping[str, Any]) -> None:
        known = notifiers.read(Settings.from_environment().notifiers)
        if wrong := list(known.mistakes(Notifier(notifier=self.notifier, arguments=dict(self.arguments)))):
            raise NotNotified(" ".join(wrong))
        named = known.named[self.notifier]
        places = self.places(context)
        arguments = {
            # The text of an error may come from a row, and must not run in a mail reader.
            name: filled(value, {key: html.escape(text) for key, text in places.items()} if "html" in name else places)
            for name, value in {**named.arguments, **self.arguments}.items()
        }
        _call(notifier_class(named)(**arguments), dict(places))

    def places(self, context: Mapping[str, Any]) -> dict[str, str]:
        """A text for each of `PLACES`, empty where Airflow has none.

        context: Airflow's, which differs by caller: the DAG processor, a task, or the triggerer.
        """
        run = context.get("dag_run")
        run_id = context.get("run_id") or _of(run, "run_id") or _of(run, "dag_run_id")
        task_id, error = _kept(context) if self.event == "failed" else (None, None)
        found = {
            "dag_id": self.job,
            "event": self.event,
            "run_id": run_id,
            "partition": self._partition(context, run),
            "task_id": task_id or _of(context.get("ti") or context.get("task_instance"), "task_id"),
            "error": error or context.get("exception") or context.get("reason"),
            "url": _page(self.job, run_id),
        }
        return {name: one_line(found[name]) for name in PLACES}

    def _partition(self, context: Mapping[str, Any], run: Any) -> str | None:
        try:
            asked = (_of(run, "conf") or {}).get("partition") or (context.get("params") or {}).get("partition")
            if asked:
                return periods.read(asked, self.every)
            moment = _of(run, "logical_date") or _of(run, "run_after")
            if self.by_files or moment is None:
                return None
            return periods.at(datetime.fromisoformat(moment) if isinstance(moment, str) else moment, self.every)
        except (ValueError, TypeError, AttributeError, OverflowError):
            return None  # The notice matters more than its partition.


async def tell_late(notice: str, context: Mapping[str, Any] | None = None) -> None:
    """Airflow's triggerer calls it when a deadline is missed. notice: the fields of a `Notice`, JSON. Raises NotNotified."""
    late = Notice(**json.loads(notice))
    known = context or {}
    state = str(_of(known.get("dag_run"), "state"))
    reason = f"{_AT_DEADLINE.get(state, _AT_DEADLINE['running'])} its deadline"
    if deadline := _of(known.get("deadline"), "deadline_time"):
        reason = f"{reason}, {deadline}"
    await asyncio.to_thread(late, {**known, "reason": reason})


def _kept(context: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The first task of a DAG run that has failed for good, and its words: Airflow passes neither to a DAG's callback."""
    try:
        for task in context["dag"].tasks:
            if words := context["ti"].xcom_pull(task_ids=task.task_id, key=ERROR_KEY):
                return task.task_id, words
    except Exception as error:  # The notice matters more than its words.
        log.warning("What the tasks of %s said cannot be read: %r", context.get("run_id"), error)
    return None, None


def _page(dag_id: str, run_id: Any) -> str:
    """Airflow's page of a DAG run; '' if Airflow does not know its own address."""
    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return f"{base}/dags/{quote(dag_id, safe='')}/runs/{quote(str(run_id), safe='')}" if base and run_id else ""


def _call(notifier: BaseNotifier, context: Any) -> None:
    """Without Airflow's rendering of its fields (`BaseNotifier.__call__`): they are filled in already."""
    from airflow.sdk.bases.notifier import BaseNotifier

    if type(notifier).notify is BaseNotifier.notify:
        asyncio.run(notifier.async_notify(context))
    else:
        notifier.notify(context)


def _of(holder: Any, name: str) -> Any:
    """An attribute of Airflow's object, or an entry of its JSON; None if there is neither."""
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
