"""The warehouse, with the client of Airflow's Google connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.cloud.bigquery import Client

    from nightshift.settings import Settings
    from nightshift.warehouse import Warehouse
    from nightshift.warehouse.permission_probe import Trial
    from nightshift.warehouse.samples import Samples


def warehouse_for(settings: Settings) -> Warehouse:
    """A `Warehouse` on the connection ``settings.gcp_conn_id``; BIGQUERY_EMULATOR_HOST is honoured by Google's client.

    Raises `nightshift.hooks.credentials.NoCredentials`, and WarehouseUnavailable if a repeat may help.
    """
    from nightshift.warehouse import Warehouse

    return Warehouse(_client(settings), settings)


def samples_for(settings: Settings) -> Samples:
    """`Samples` on the same connection. Raises the same."""
    from nightshift.warehouse.samples import Samples

    return Samples(_client(settings), settings)


def trial_for(settings: Settings) -> Trial:
    """A `Trial` on the same connection. Raises the same."""
    from nightshift.warehouse.permission_probe import Trial

    return Trial(_client(settings), settings)


def _client(settings: Settings) -> Client:
    from airflow.providers.google.cloud.hooks.bigquery import BigQueryHook

    from nightshift.hooks.credentials import explained, refresh, unless_emulated
    from nightshift.warehouse import WarehouseUnavailable

    with explained(settings.gcp_conn_id, WarehouseUnavailable):
        hook = BigQueryHook(gcp_conn_id=settings.gcp_conn_id, location=settings.location, use_legacy_sql=False)
        refresh(hook.get_credentials())
        credentials = unless_emulated(hook.get_credentials(), "BIGQUERY_EMULATOR_HOST")
    # The hook's own client, but for these.
    hook.get_credentials = lambda: credentials  # type: ignore[method-assign]
    return hook.get_client(project_id=settings.project, location=settings.location)
