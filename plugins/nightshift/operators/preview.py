"""The one task of the DAG nightshift_preview."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.trial.preview.session import Question

ROWS_MOST: Final = 200
"""Of a preview by DAG: its result is shown on a page."""


class PreviewOperator(BaseOperator):
    """
    Tries a job on some rows, as ``nightshift preview`` does, and keeps the result in the bucket, where
    the page reads it. Returns ``{job, id}``. Nothing is opened or published.

    :param job: the name of a job of the folder (templated).
    :param rows: how many rows (templated).
    :param partition: the day, or the start of a period; empty for the last one that is over (templated).
    :param against: the name of another job of the folder, to compare with; empty for none (templated).
    :param jobs_folder: where the jobs' files are.
    """

    template_fields: Sequence[str] = ("job", "rows", "partition", "against")

    def __init__(
        self,
        *,
        job: str,
        rows: int | str = 20,
        partition: str = "",
        against: str = "",
        jobs_folder: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job, self.rows, self.partition, self.against = job, rows, partition, against
        self.jobs_folder = jobs_folder

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.fields.terminal import harmless
        from nightshift.operators.engine_work import surroundings
        from nightshift.operators.run import permanent_failures
        from nightshift.settings import Settings
        from nightshift.trial.preview.outcome import UnfitEngine
        from nightshift.trial.preview.rows import NoRows
        from nightshift.trial.preview.session import preview
        from nightshift.trial.preview.text import lines
        from nightshift.trial.preview.warm import NoEngine

        with permanent_failures():
            settings = Settings.from_environment()
            question = self._question(str(context["dag_run"].run_id))
            try:
                found = preview(question, surroundings(settings, partial(self.log.info, "%s")))
            except (NoEngine, NoRows, UnfitEngine) as error:
                raise AirflowFailException(str(error)) from error
        for line in lines(found, width=120):
            self.log.info("%s", harmless(line))
        return {"job": found.job, "id": found.id}

    def _question(self, by: str) -> Question:
        from nightshift.operators.engine_work import job_file, number_of, partition_of
        from nightshift.trial.preview.session import Question

        found = [job_file(self.jobs_folder, name) for name in (self.job, self.against) if name]
        files = tuple((path.name, spec) for path, spec in found)
        first = files[0][1]
        if any(spec.every != first.every for _, spec in files):
            raise AirflowFailException(
                f"The periods of {self.against} are not those of {self.job} (every). Compare jobs that share them."
            )
        return Question(files, partition_of(self.partition, first), number_of("rows", self.rows, 1, ROWS_MOST), by)
