"""The one task of the DAG nightshift_pause: it pauses or resumes a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from nightshift.settings import Settings, SettingsError

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.jobset.fleet.work import Waited
    from nightshift.jobset.runtime import Runtime
    from nightshift.operators.run import RunOperator

ACTIONS = ("pause", "resume")


class PauseOperator(BaseOperator):
    """
    Pauses a run, or resumes it (docs/operate/capacity.md): as ``nightshift pause`` and ``resume``, over Airflow's connections.

    Returns who asked for what and when, and the names of the JobSets that it was applied to. A repeat does it again.

    :param run: JOB/PARTITION/RUN, or its URL, as the task ``plan`` logs it (templated).
    :param action: ``pause`` or ``resume`` (templated).
    """

    template_fields: Sequence[str] = ("run", "action")

    def __init__(self, *, run: str, action: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.run = run
        self.action = action

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.hooks.deployment import Deployment
        from nightshift.jobset.fleet.pause import apply, tell
        from nightshift.operators.jobset_errors import runtime_failures
        from nightshift.operators.run import permanent_failures
        from nightshift.run.names import RunRef
        from nightshift.run.pauses import NotPausable, record

        if self.action not in ACTIONS:
            raise AirflowFailException(f"The param action is {self.action!r}. Write pause or resume.")
        try:
            settings = Settings.from_environment()
            deployment = Deployment(settings)
            run = RunRef.from_prefix(self.run.strip().removeprefix(f"gs://{settings.bucket}"))
            with permanent_failures():
                request = record(deployment.store, run, paused=self.action == "pause", by=_who(context))
        except (NotPausable, SettingsError, ValueError) as error:
            raise AirflowFailException(str(error)) from error
        self.log.info("%s is %s", run.prefix, request)
        with runtime_failures():
            names = apply(deployment.runtime(), run.url(settings.bucket), request)
        self.log.info("%s", tell(names, request))
        return {**request.to_json(), "run": run.prefix, "jobsets": names}


def _who(context: Context) -> str:
    """The user who triggered the DAG, if Airflow knows."""
    dag_run = context["dag_run"]
    return getattr(dag_run, "triggering_user_name", None) or f"DAG run {dag_run.run_id}"


def follow_request(task: RunOperator, runtime: Runtime, waited: Iterable[Waited]) -> None:
    """Pauses or resumes the JobSets of the task's run, as a user has asked. The deadline does not move."""
    from nightshift.jobset.fleet.pause import apply_to
    from nightshift.run.pauses import newest

    if (request := newest(task.store, task.run)) is None:
        return
    if request.paused:
        task.log.warning("The run is %s: its JobSets are suspended until you resume it", request)
    for each in waited:
        if each.seen.jobset is not None:
            apply_to(runtime, each.name, request, each.seen.jobset)
