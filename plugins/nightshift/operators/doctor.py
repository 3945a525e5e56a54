"""The one task of the DAG nightshift_doctor."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, TaskDeferralError, TaskDeferralTimeout

from nightshift.triggers.doctor import DoctorTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.doctor.context import Triggerer
    from nightshift.doctor.findings import Finding

TRIGGERER_LIMIT: Final = timedelta(minutes=3)
"""How long the triggerer may take for a trigger of ten seconds."""


class DoctorOperator(BaseOperator):
    """
    Checks everything that a run needs (docs/operate/doctor.md), logs a line for each check, and fails if something is wrong.

    It first waits in the triggerer, which has to import a trigger of nightshift for that. Whatever happens there, the checks
    then run in the worker. Returns the report as ``nightshift doctor --json`` prints it.

    :param job: the name of a job or a stream, or the path of its file (templated); empty for the deployment alone.
    :param jobs_folder: where a name is looked for.
    :param streams_folder: where it is looked for next; empty for nowhere.
    """

    template_fields: Sequence[str] = ("job",)

    def __init__(self, *, job: str = "", jobs_folder: str = "", streams_folder: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.jobs_folder = jobs_folder
        self.streams_folder = streams_folder

    def execute(self, context: Context) -> None:
        self.defer(trigger=DoctorTrigger(), method_name="on_triggerer", timeout=TRIGGERER_LIMIT)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Airflow's own, but a trigger that could not run is a finding: it must not hide the others."""
        from nightshift.doctor.context import Triggerer

        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            minutes = TRIGGERER_LIMIT.total_seconds() / 60
            return self._examine(Triggerer(problem=f"no answer within {minutes:g} minutes; is a triggerer running?"))
        except TaskDeferralError as error:
            return self._examine(Triggerer(problem=f"{error} (its log says why)"))

    def on_triggerer(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Continues when the trigger has fired."""
        from nightshift.doctor.context import Triggerer

        return self._examine(Triggerer(version=event["nightshift"], settings=event["settings"]))

    def _examine(self, triggerer: Triggerer) -> dict[str, Any]:
        from nightshift.doctor.checks import diagnose
        from nightshift.doctor.findings import Failed, Report, is_bad
        from nightshift.doctor.job import file_of
        from nightshift.hooks.deployment import Deployment
        from nightshift.triggers.night_gauges import send

        folders = [Path(each) for each in (self.jobs_folder, self.streams_folder) if each]
        file = file_of(self.job, *folders) if self.job else None
        report = diagnose(os.environ, Deployment, job_file=file, triggerer=triggerer)
        report = Report((*report.findings, *self._orphans()))
        for finding, line in zip((*report.findings, None), report.lines(), strict=True):
            (self.log.error if isinstance(finding, Failed) else self.log.info)("%s", line)
        send({"failed": sum(isinstance(each, Failed) for each in report.findings)}, {}, prefix="nightshift.checks.")
        if report.exit_code:
            bad = [each.check for each in report.findings if is_bad(each)]
            raise AirflowFailException(f"Not ready for a night: {', '.join(bad)}. The log has a line for each.")
        return report.to_json()

    def _orphans(self) -> Iterable[Finding]:
        from nightshift.doctor.findings import Skipped
        from nightshift.hooks.deployment import Deployment
        from nightshift.operators.orphans import NAME, orphans
        from nightshift.settings import Settings

        try:
            settings = Settings.from_environment()
            credentials = Deployment(settings).storage_credentials()
            return orphans(settings, credentials, Path(self.jobs_folder))
        except Exception as error:
            # The other findings cover settings and connections; Airflow's answer may be any error.
            return [Skipped(NAME, f"{type(error).__name__}: {error}".splitlines()[0])]
