"""What a deployment has, over Airflow's connections: nothing is reached, and Airflow is not imported, before it is used."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from obstore.store import GCSCredentialProvider, ObjectStore

    from nightshift.hooks.services import Components, Database, Google
    from nightshift.jobset.kubernetes.api import JobSetApi
    from nightshift.jobset.runtime import Runtime
    from nightshift.settings import Settings
    from nightshift.spec.notifiers import Named
    from nightshift.warehouse import Warehouse
    from nightshift.warehouse.permission_probe import Trial
    from nightshift.warehouse.samples import Samples

PATIENCE_S: Final = 10.0
"""How long those retry who can do without the cluster (`Deployment.cluster`); others retry longer (`Deployment.runtime`)."""


class Deployment:
    """`nightshift.hooks.services.Connections`, and what a trial of rows needs. Each call raises ImportError without Airflow."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def store(self) -> ObjectStore:
        """The bucket. Raises as `storage_credentials`."""
        from nightshift.store import open_store

        return open_store(f"gs://{self.settings.bucket}", credentials=self.storage_credentials())

    def components(self) -> Components:
        import airflow
        from airflow.plugins_manager import get_import_errors, get_plugin_info
        from airflow.providers_manager import ProvidersManager

        from nightshift.hooks.services import Components

        plugins = {each["name"]: str(each["source"]) for each in get_plugin_info(["source"])}
        providers = {name: each.version for name, each in ProvidersManager().providers.items()}  # type: ignore[no-untyped-call]
        return Components(airflow.__version__, plugins, dict(get_import_errors()), providers)

    def google(self) -> Google:
        return self._google

    def storage_credentials(self) -> GCSCredentialProvider:
        return self._storage_credentials

    def trial(self) -> Trial:
        from nightshift.hooks.warehouse import client_for
        from nightshift.warehouse.permission_probe import Trial

        return Trial(client_for(self.settings, step="doctor"), self.settings)

    def warehouse(self, **labels: str) -> Warehouse:
        from nightshift.hooks.warehouse import warehouse_for

        return warehouse_for(self.settings, **labels)

    def samples(self, **labels: str) -> Samples:
        """Rows of queries. Labels, and what it raises: as of `warehouse`."""
        from nightshift.hooks.warehouse import client_for
        from nightshift.warehouse.samples import Samples

        return Samples(client_for(self.settings, **labels), self.settings)

    def runtime(self) -> Runtime:
        """What runs its JobSets. Raises NoSuchRuntime."""
        from nightshift.hooks.runtime import runtime_for

        return runtime_for(self.settings).runtime

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

        from nightshift.hooks.services import Database

        try:
            connection = Connection.get(self.settings.postgres_conn_id)
        except AirflowNotFoundException:
            return None
        return Database(str(connection.host), connection.login or "") if connection.host else None

    @cached_property
    def _storage_credentials(self) -> GCSCredentialProvider:
        from nightshift.hooks.credentials import storage_credentials

        return storage_credentials(self.settings)

    @cached_property
    def _google(self) -> Google:
        from nightshift.hooks.google import GoogleAccount

        return GoogleAccount(self.settings.gcp_conn_id)

    @cached_property
    def _cluster(self) -> JobSetApi | None:
        """None for the local runtime, which has no queues, nodes or accounts to ask about."""
        from nightshift.hooks.runtime import runtime_for

        if self.settings.local_folder:
            return None
        api = runtime_for(self.settings).api
        api.patience_s = PATIENCE_S
        return api
