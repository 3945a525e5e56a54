"""nightshift's Airflow plugin: what the scheduler and the web server must know by name.

The package names it as an entry point, so every component of Airflow that has the package has the plugin.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from nightshift.operators.links import RunFolderLink
from nightshift.plugin.address import PREFIX, address
from nightshift.plugin.mounted import Mounted

_OF_A_DAG_RUN = f"{address('/dag-runs')}/{{DAG_ID}}?dag_run_id={{RUN_ID}}"
"""Airflow puts the ids into the braces."""


class NightshiftPlugin(AirflowPlugin):
    """The link from a task to its run's folder, and pages of our own: all runs, those of a job, and the run of a DAG run.

    Airflow shows the last two at all DAGs, DAG runs and tasks: before 3.4 a view cannot name the DAGs that it is for.
    """

    name = "nightshift"
    operator_extra_links = [RunFolderLink()]  # noqa: RUF012 - Airflow's own declaration
    fastapi_apps = [{"name": "nightshift", "app": Mounted(), "url_prefix": PREFIX}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "nightshift",
            "href": address("/"),
            "destination": "nav",
            "url_route": "nightshift",
            "nav_top_level": True,
            "icon": address("/static/icon.svg"),
            "icon_dark_mode": address("/static/icon-dark.svg"),
        },
        {"name": "nightshift", "href": f"{address('/jobs')}/{{DAG_ID}}", "destination": "dag", "url_route": "nightshift-job"},
        {"name": "nightshift", "href": _OF_A_DAG_RUN, "destination": "dag_run", "url_route": "nightshift-run"},
        {"name": "nightshift", "href": _OF_A_DAG_RUN, "destination": "task_instance", "url_route": "nightshift-task"},
    ]
