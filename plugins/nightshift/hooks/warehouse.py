"""The warehouse, with the client of Airflow's Google connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nightshift.settings import Settings
    from nightshift.warehouse import Warehouse


def warehouse_for(settings: Settings) -> Warehouse:
    """A `Warehouse` on the connection ``settings.gcp_conn_id``; BIGQUERY_EMULATOR_HOST is honoured by Google's client.

    Raises `nightshift.hooks.credentials.NoCredentials`, and WarehouseUnavailable if a repeat may help.
    """
    from airflow.providers.google.cloud.hooks.bigquery import BigQueryHook

    from nightshift.hooks.credentials import explained, refresh
    from nightshift.warehouse import Warehouse, WarehouseUnavailable

    with explained(settings.gcp_conn_id, WarehouseUnavailable):
        hook = BigQueryHook(gcp_conn_id=settings.gcp_conn_id, location=settings.location, use_legacy_sql=False)
        refresh(hook.get_credentials())
    return Warehouse(hook.get_client(project_id=settings.project, location=settings.location), settings)
