"""nightshift's Airflow plugin: what the scheduler and the web server must know by name.

The package names it as an entry point, so every component of Airflow that has the package has the plugin.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from nightshift.operators.links import RunFolderLink


class NightshiftPlugin(AirflowPlugin):
    """The link from a task to its run's folder."""

    name = "nightshift"
    operator_extra_links = [RunFolderLink()]  # noqa: RUF012 - Airflow's own declaration
