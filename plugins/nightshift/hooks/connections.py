"""What the doctor checks, over Airflow's connections and as this process of Airflow sees it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from obstore.store import GCSCredentialProvider

    from nightshift.doctor.context import Components, Database, Google
    from nightshift.jobset.kubernetes.api import JobSetApi
    from nightshift.settings import Settings
    from nightshift.spec.notifiers import Named
    from nightshift.warehouse import Warehouse
    from nightshift.warehouse.permission_probe import Trial

PATIENCE_S: Final = 10.0
"""How long the doctor retries a cluster that does not answer; a task retries longer (`nightshift.jobset.kubernetes.api`)."""


class AirflowConnections:
    """`nightshift.doctor.context.Connections`. The first call imports Airflow: without it, it raises ImportError."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def components(self) -> Components:
        import airflow
        from airflow.plugins_manager import get_import_errors, get_plugin_info
        from airflow.providers_manager import ProvidersManager

        from nightshift.doctor.context import Components

        plugins = {each["name"]: str(each["source"]) for each in get_plugin_info(["source"])}
        providers = {name: each.version for name, each in ProvidersManager().providers.items()}  # type: ignore[no-untyped-call]
        return Components(airflow.__version__, plugins, dict(get_import_errors()), providers)

    def google(self) -> Google:
        return self._google

    def storage_credentials(self) -> GCSCredentialProvider:
        from nightshift.hooks.credentials import storage_credentials

        return storage_credentials(self._settings)

    def trial(self) -> Trial:
        from nightshift.hooks.warehouse import trial_for

        return trial_for(self._settings)

    def warehouse(self, **labels: str) -> Warehouse:
        from nightshift.hooks.warehouse import warehouse_for

        return warehouse_for(self._settings, **labels)

    def notifier(self, named: Named) -> str | None:
        from inspect import signature

        from nightshift.hooks.notifiers import NotNotified, isolated_class

        try:
            signature(isolated_class(named)).bind_partial(**{**dict.fromkeys(named.jobs_may_set), **named.arguments})
        except (NotNotified, TypeError) as error:
            return str(error)
        return None

    def cluster(self) -> JobSetApi | None:
        return self._cluster

    def database(self) -> Database | None:
        from airflow.sdk import Connection
        from airflow.sdk.exceptions import AirflowNotFoundException

        from nightshift.doctor.context import Database

        try:
            connection = Connection.get(self._settings.postgres_conn_id)
        except AirflowNotFoundException:
            return None
        return Database(str(connection.host), connection.login or "") if connection.host else None

    @cached_property
    def _google(self) -> Google:
        from nightshift.hooks.google import GoogleAccount

        return GoogleAccount(self._settings.gcp_conn_id)

    @cached_property
    def _cluster(self) -> JobSetApi | None:
        from nightshift.hooks.runtime import runtime_for

        api = runtime_for(self._settings).api
        if api is not None:
            api.patience_s = PATIENCE_S
        return api
