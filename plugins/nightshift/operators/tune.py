"""The one task of the DAG nightshift_tune."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from nightshift.fields.terminal import harmless
from nightshift.trial.tune.budget import DEFAULT, ROWS, ROWS_MOST, Budget

if TYPE_CHECKING:
    from airflow.sdk import Context

    from nightshift.spec import JobSpec
    from nightshift.trial.preview.session import Surroundings


class TuneOperator(BaseOperator):
    """
    Finds the settings under which a job's engine is fastest, as ``nightshift tune`` does. Returns what
    ``--json`` prints, without the trials, which are kept in the bucket: a retry goes on with the next one.

    :param job: the name of a job of the folder (templated).
    :param budget: how long all trials may take, or what they may cost: ``1h``, ``4.50`` (templated).
    :param rows: of a trial (templated).
    :param partition: the day, or the start of a period; empty for the last one that is over (templated).
    :param jobs_folder: where the jobs' files are.
    """

    template_fields: Sequence[str] = ("job", "budget", "rows", "partition")

    def __init__(
        self, *, job: str, budget: str = DEFAULT, rows: int | str = ROWS, partition: str = "", jobs_folder: str, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.job, self.budget, self.rows, self.partition = job, budget, rows, partition
        self.jobs_folder = jobs_folder

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.operators.engine_work import job_file, number_of, partition_of, surroundings
        from nightshift.operators.run import permanent_failures
        from nightshift.settings import Settings
        from nightshift.trial.preview.outcome import UnfitEngine
        from nightshift.trial.preview.rows import NoRows
        from nightshift.trial.tune import session, text
        from nightshift.trial.tune.trials import NotReadable

        def told(number: int, trial: Any, space: Any, rate: float | None) -> None:
            self.log.info("%s", text.trial_line(number, trial, space, rate))

        with permanent_failures():
            settings = Settings.from_environment()
            file, spec = job_file(self.jobs_folder, self.job)
            partition, rows = partition_of(self.partition, spec), number_of("rows", self.rows, 1, ROWS_MOST)
            world = surroundings(settings, partial(self.log.info, "%s"))
            task = session.Task(spec, partition, rows, self._seconds(spec, world))
            try:
                found = session.tune(task, world, told)
            except (NoRows, NotReadable, UnfitEngine, session.UnfitRows) as error:
                raise AirflowFailException(str(error)) from error
        shown = [*text.plot(found.space, found.trials, found.choice), text.too_short(found.trials), found.sentence]
        for line in (*shown, *found.patch(file).splitlines()):
            self.log.info("%s", harmless(line))
        if found.choice.point is None:
            raise AirflowFailException(found.sentence)
        return {name: value for name, value in found.to_json(file).items() if name != "trials"}

    def _seconds(self, spec: JobSpec, world: Surroundings) -> float:
        try:
            return Budget.read(self.budget).seconds_for(spec, world.prices)
        except ValueError as error:
            raise AirflowFailException(f"The param budget is {self.budget!r}. It has to be another: {error}") from None
