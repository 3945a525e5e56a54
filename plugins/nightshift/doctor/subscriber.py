"""A stream's subscribers as they are deployed: as whom they act, and which database they write to.

Without a Google account of their own IAM knows them by their Kubernetes account; with one (`nightshift render` with an address
whose user is a Google account) they act as that. What is not deployed yet is told by Airflow's connection to the same database.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote, urlsplit

from nightshift.doctor import cluster_objects
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import NotKnown
from nightshift.hooks.services import Database
from nightshift.stream.manifests.render_request import SUBSCRIBER

ACTS_AS: Final = "iam.gke.io/gcp-service-account"
_URL: Final = "NIGHTSHIFT_SINK_URL"


def name(here: Surroundings) -> str:
    """Of its Deployment and its Kubernetes account."""
    return f"{here.named_stream.job}-{SUBSCRIBER}"


def is_deployed(here: Surroundings) -> bool:
    """Raises NotKnown if the cluster may not be asked."""
    return _account(here) is not None


def google_account(here: Surroundings) -> str:
    """The e-mail address of the Google service account that it acts as; '' for none, or if it is not deployed.

    Raises NotKnown.
    """
    return str((_account(here) or {}).get("metadata", {}).get("annotations", {}).get(ACTS_AS, ""))


def members(here: Surroundings) -> re.Pattern[str]:
    """Which members of a policy it is. Raises NotKnown."""
    if account := google_account(here):
        return re.compile(re.escape(f"serviceAccount:{account}"))
    namespace = re.escape(here.settings.namespace)
    own = rf"principal://.*/subject/ns/{namespace}/sa/{re.escape(name(here))}"
    return re.compile(rf"{own}|principalSet://.*/namespace/{namespace}")


def member(here: Surroundings) -> str:
    """As the commands that grant it something write it. Raises NotKnown."""
    if account := google_account(here):
        return f"serviceAccount:{account}"
    pool = "principal://iam.googleapis.com/projects/NUMBER/locations/global/workloadIdentityPools/PROJECT.svc.id.goog"
    return f"{pool}/subject/ns/{here.settings.namespace}/sa/{name(here)}"


def _account(here: Surroundings) -> cluster_objects.Object | None:
    """Its Kubernetes account."""
    return cluster_objects.get(here, f"/api/v1/namespaces/{here.settings.namespace}/serviceaccounts/{name(here)}")


def database(here: Surroundings) -> Database:
    """Where it writes. Raises NotKnown if neither its Deployment nor Airflow's connection says so."""
    path = f"/apis/apps/v1/namespaces/{here.settings.namespace}/deployments/{name(here)}"
    try:
        found = cluster_objects.get(here, path) or {}
    except NotKnown:
        found = {}
    containers = found.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
    values = [str(each.get("value", "")) for one in containers for each in one.get("env", ()) if each["name"] == _URL]
    if values and (parts := urlsplit(values[0])).hostname:
        return Database(parts.hostname, unquote(parts.username or ""))
    known = here.connections.database()
    if known is None:
        raise NotKnown(
            f"neither the Deployment {name(here)} nor a connection {here.settings.postgres_conn_id} of Airflow says where the "
            "stream's database is"
        )
    return known
