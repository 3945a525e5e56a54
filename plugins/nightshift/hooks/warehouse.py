"""The warehouse, with the client of Airflow's Google connection."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.cloud.bigquery import Client

    from nightshift.settings import Settings
    from nightshift.warehouse import Warehouse


def warehouse_for(settings: Settings, **labels: str) -> Warehouse:
    """A `Warehouse` on the connection ``settings.gcp_conn_id``; BIGQUERY_EMULATOR_HOST is honoured by Google's client.

    labels: job, run, step: what its BigQuery jobs are for. Each gets the label ``nightshift-NAME``, by which the export of
    Cloud Billing and INFORMATION_SCHEMA.JOBS split their cost.
    Raises `nightshift.hooks.credentials.NoCredentials`, and WarehouseUnavailable if a repeat may help.
    """
    from nightshift.warehouse import Warehouse

    return Warehouse(client_for(settings, **labels), settings)


def client_for(settings: Settings, **labels: str) -> Client:
    """The client that `warehouse_for` uses. Raises the same."""
    from airflow.providers.google.cloud.hooks.bigquery import BigQueryHook

    from nightshift.hooks.credentials import explained, refresh, unless_emulated
    from nightshift.warehouse import WarehouseUnavailable

    with explained(settings.gcp_conn_id, WarehouseUnavailable):
        hook = BigQueryHook(gcp_conn_id=settings.gcp_conn_id, location=settings.location, use_legacy_sql=False)
        refresh(hook.get_credentials())
        credentials = unless_emulated(hook.get_credentials(), "BIGQUERY_EMULATOR_HOST")
    # The hook's own client, but for these.
    hook.get_credentials = lambda: credentials  # type: ignore[method-assign]
    return labelled(hook.get_client(project_id=settings.project, location=settings.location), labels)


def labelled(client: Client, labels: Mapping[str, str]) -> Client:
    """The client, all of whose queries and load jobs get these labels."""
    from google.cloud.bigquery import LoadJobConfig, QueryJobConfig

    kept = {f"nightshift-{name}": _label(value) for name, value in labels.items()}
    client.default_query_job_config, client.default_load_job_config = QueryJobConfig(labels=kept), LoadJobConfig(labels=kept)
    return client


def _label(value: str) -> str:
    """As a label may be: BigQuery takes lower case, digits, - and _, 63 characters at most."""
    return re.sub(r"[^a-z0-9_-]", "-", value.lower())[:63]
