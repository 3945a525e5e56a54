"""What tasks that send rows of a job to an engine have in common: the job by its name, its partition, where everything is."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from nightshift.settings import Settings
    from nightshift.spec import JobSpec
    from nightshift.trial.preview.session import Surroundings


def job_file(folder: str, name: str) -> tuple[Path, JobSpec]:
    """The file of the job with this name, and the job. Raises AirflowFailException, and SpecErrors for a broken file."""
    from nightshift.spec import load, load_job

    found = load_job(Path(folder), name)
    if not found:
        for broken in (Path(folder) / f"{name}{ending}" for ending in (".yaml", ".yml")):
            if broken.is_file():
                load(broken)  # Its mistakes are the reason.
        raise AirflowFailException(f"There is no job {name!r} in {folder}. Name a job as its file does (job:).")
    ((path, spec),) = found.items()
    return path, spec


def partition_of(text: str, spec: JobSpec) -> str:
    """What the param `partition` means for a job; the last one that is over if it is empty. Raises AirflowFailException."""
    from nightshift.spec import periods

    try:
        return periods.read(text, spec.every) if text else periods.at(datetime.now(UTC), spec.every)
    except periods.NoPartition as error:
        raise AirflowFailException(f"The param partition is {text!r}. {error}") from None


def number_of(name: str, value: int | str, least: int, most: int) -> int:
    """A param as a template leaves it. Raises AirflowFailException."""
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise AirflowFailException(f"The param {name} is {value}. Write a number from {least} to {most:,}.")
    return number


def surroundings(settings: Settings, say: Callable[[str], None]) -> Surroundings:
    """With the accounts of Airflow's connections. Raises PricesError."""
    from nightshift.hooks.deployment import Deployment
    from nightshift.planner.costs.prices import load_prices
    from nightshift.trial.preview.session import Surroundings

    at, prices = Deployment(settings), load_prices(settings.prices)
    return Surroundings(at.store, settings, at.samples, at.runtime, prices, os.environ, say, at.storage_credentials())
