"""What a deployment offers, as interfaces and values only: a test can bring its own, and nothing here imports Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from obstore.store import GCSCredentialProvider

    from nightshift.jobset.kubernetes.api import JobSetApi
    from nightshift.spec.notifiers import Named
    from nightshift.warehouse import Warehouse
    from nightshift.warehouse.permission_probe import Trial

LOGIN: Final = """gcloud auth application-default login (for the local stack: eval "$(make env)")"""
"""An account for a machine that has none."""


class Wrong(Exception):
    """Something of the deployment is not as it has to be; the text says what. fix: the command that helps."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.fix = fix


@dataclass(frozen=True)
class Reply:
    """An HTTP reply."""

    status: int
    body: bytes


class Google(Protocol):
    """The account of an Airflow connection. Every call is bounded in time and may raise OSError if there is no answer."""

    @property
    def email(self) -> str | None:
        """As the credentials know it; None if they do not, or are anonymous."""
        ...

    @property
    def token(self) -> str | None:
        """An access token; None for an anonymous connection."""
        ...

    def ask(self, method: str, url: str, *, headers: Mapping[str, str] | None = None) -> Reply:
        """One request without a body, with the account's token, without retries; redirects are not followed."""
        ...


@dataclass(frozen=True)
class Components:
    """nightshift as an Airflow component sees it.

    airflow: its version. plugins: their names with where each comes from. plugin_errors: by source. providers: names with
    versions.
    """

    airflow: str
    plugins: Mapping[str, str]
    plugin_errors: Mapping[str, str]
    providers: Mapping[str, str]


@dataclass(frozen=True)
class Database:
    """Of an Airflow connection. login: its user; '' if it names none."""

    host: str
    login: str = ""


class Connections(Protocol):
    """Airflow's way to each service. Every call may raise any exception: it becomes a finding of the check."""

    def components(self) -> Components: ...

    def google(self) -> Google: ...

    def storage_credentials(self) -> GCSCredentialProvider:
        """As the tasks open the bucket, see `nightshift.store.open_store`."""
        ...

    def trial(self) -> Trial: ...

    def warehouse(self, **labels: str) -> Warehouse: ...

    def notifier(self, named: Named) -> str | None:
        """Why one of the operator's notifiers cannot be made here; None if it can."""
        ...

    def cluster(self) -> JobSetApi | None:
        """None if JobSets run on the local runtime."""
        ...

    def database(self) -> Database | None:
        """Of the streams' tables; None if Airflow has no connection to one."""
        ...
