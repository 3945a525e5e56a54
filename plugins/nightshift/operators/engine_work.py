"""What tasks that send rows of a job to an engine have in common: the job by its name, its partition, where everything is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from nightshift.fields.terminal import harmless

if TYPE_CHECKING:
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec
    from nightshift.trial.world import World


class TrialOperator(BaseOperator):
    """
    Tries rows of a job.

    :param job: the name of a job of the folder (templated).
    :param rows: how many rows (templated).
    :param partition: the day, or the start of a period; empty for the last one that is over (templated).
    :param jobs_folder: where the jobs' files are.
    """

    template_fields: Sequence[str] = ("job", "rows", "partition")
    rows_most: ClassVar[int]

    def __init__(self, *, job: str, rows: int | str, partition: str = "", jobs_folder: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job, self.rows, self.partition = job, rows, partition
        self.jobs_folder = jobs_folder

    def job_file(self, name: str) -> tuple[Path, JobSpec]:
        """The file of the job with this name, and the job. Raises AirflowFailException, and SpecErrors for a broken file."""
        from nightshift.spec import load, load_job

        folder = Path(self.jobs_folder)
        found = load_job(folder, name)
        if not found:
            for broken in (folder / f"{name}{ending}" for ending in (".yaml", ".yml")):
                if broken.is_file():
                    load(broken)  # Its mistakes are the reason.
            raise AirflowFailException(f"There is no job {name!r} in {folder}. Name a job as its file does (job:).")
        ((path, spec),) = found.items()
        return path, spec

    def partition_of(self, spec: JobSpec) -> str:
        """What the param `partition` means for a job. Raises AirflowFailException."""
        from nightshift.spec import periods

        try:
            return periods.read(self.partition, spec.every) if self.partition else periods.at(datetime.now(UTC), spec.every)
        except periods.NoPartition as error:
            raise AirflowFailException(f"The param partition is {self.partition!r}. {error}") from None

    @property
    def row_count(self) -> int:
        """The param `rows` as a template leaves it. Raises AirflowFailException."""
        text = str(self.rows)
        if not (text.isdecimal() and 1 <= int(text) <= self.rows_most):
            raise AirflowFailException(f"The param rows is {text}. Write a number from 1 to {self.rows_most:,}.")
        return int(text)

    def world(self) -> World:
        """Raises SettingsError, PricesError, and what the connections raise."""
        from nightshift.settings import Settings

        return world_of(Settings.from_environment(), lambda sentence: self.log.info("%s", sentence))

    def show(self, line: str) -> None:
        self.log.info("%s", harmless(line))

    @contextmanager
    def permanent(self) -> Iterator[None]:
        """Fails the task for good if a repeat cannot help."""
        from nightshift.operators.run import permanent_failures
        from nightshift.trial.engine_jobset import NoEngine
        from nightshift.trial.outcomes import UnfitEngine
        from nightshift.trial.rows import NoRows
        from nightshift.trial.tune.trials import NotATune
        from nightshift.trial.tune.tuner import UnfitRows

        with permanent_failures():
            try:
                yield
            except (NoEngine, NoRows, NotATune, UnfitEngine, UnfitRows) as error:
                raise AirflowFailException(str(error)) from error


def world_of(settings: Settings, say: Callable[[str], None]) -> World:
    """With the accounts of Airflow's connections. Raises PricesError."""
    from nightshift.hooks.deployment import Deployment
    from nightshift.planner.costs.prices import load_prices
    from nightshift.trial.world import World

    at, prices = Deployment(settings), load_prices(settings.prices)
    return World(at.store, settings, at.samples, at.runtime, prices, os.environ, say, at.storage_credentials())
