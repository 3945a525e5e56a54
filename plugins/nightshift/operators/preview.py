"""The one task of the DAG nightshift_preview."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.preview.session import Question, Surroundings
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec

ROWS_MOST: Final = 200
"""Of a preview by DAG: its result is shown on a page."""


class PreviewOperator(BaseOperator):
    """
    Tries a job on some rows, as ``nightshift preview`` does (docs/use/preview.md), and keeps the result in the bucket, where
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
        from nightshift.operators.run import permanent_failures
        from nightshift.preview.outcome import UnfitEngine
        from nightshift.preview.rows import NoRows
        from nightshift.preview.session import preview
        from nightshift.preview.text import lines
        from nightshift.preview.warm import NoEngine
        from nightshift.settings import Settings

        with permanent_failures():
            settings = Settings.from_environment()
            question = self._question(str(context["dag_run"].run_id))
            try:
                found = preview(question, self._world(settings))
            except (NoEngine, NoRows, UnfitEngine) as error:
                raise AirflowFailException(str(error)) from error
        for line in lines(found, width=120):
            self.log.info("%s", line)
        return {"job": found.job, "id": found.id}

    def _question(self, by: str) -> Question:
        from nightshift.preview.session import Question
        from nightshift.spec import periods

        files = tuple(self._file(name) for name in (self.job, self.against) if name)
        every = files[0][1].every
        if any(spec.every != every for _, spec in files):
            raise AirflowFailException(
                f"The periods of {self.against} are not those of {self.job} (every). Compare jobs that share them."
            )
        try:
            rows = int(self.rows)
            partition = periods.read(self.partition, every) if self.partition else periods.at(datetime.now(UTC), every)
        except periods.NoPartition as error:
            raise AirflowFailException(f"The param partition is {self.partition!r}. {error}") from None
        if not 1 <= rows <= ROWS_MOST:
            raise AirflowFailException(f"The param rows is {rows}. Write a number from 1 to {ROWS_MOST}.")
        return Question(files, partition, rows, by)

    def _file(self, name: str) -> tuple[str, JobSpec]:
        from nightshift.spec import load, load_job

        found = load_job(Path(self.jobs_folder), name)
        if not found:
            for broken in (Path(self.jobs_folder) / f"{name}{ending}" for ending in (".yaml", ".yml")):
                if broken.is_file():
                    load(broken)  # Its mistakes are the reason.
            raise AirflowFailException(f"There is no job {name!r} in {self.jobs_folder}. Name a job as its file does (job:).")
        ((path, spec),) = found.items()
        return path.name, spec

    def _world(self, settings: Settings) -> Surroundings:
        from nightshift.hooks.credentials import storage_credentials
        from nightshift.hooks.runtime import runtime_for
        from nightshift.hooks.warehouse import samples_for
        from nightshift.planner.costs.prices import load_prices
        from nightshift.preview.session import Surroundings
        from nightshift.store import open_store

        credentials = storage_credentials(settings)
        return Surroundings(
            store=open_store(f"gs://{settings.bucket}", credentials=credentials),
            settings=settings,
            warehouse=lambda: samples_for(settings),
            runtime=lambda: runtime_for(settings).runtime,
            prices=load_prices(settings.prices),
            environment=os.environ,
            say=lambda sentence: self.log.info("%s", sentence),
            credentials=credentials,
        )
