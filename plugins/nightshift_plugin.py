"""nightshift's Airflow plugin: registers what the scheduler and the web server must know by name."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from nightshift.operators.links import RunFolderLink
from nightshift.timetables.nightly import NightlyTimetable


class NightshiftPlugin(AirflowPlugin):
    """The timetable of the DAGs' schedules, and the link from a task to its run's folder."""

    name = "nightshift"
    timetables = [NightlyTimetable]  # noqa: RUF012 - Airflow's own declaration
    operator_extra_links = [RunFolderLink()]  # noqa: RUF012
