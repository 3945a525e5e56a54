"""What a deployment sets once for all jobs: where data is stored, which images run. Read from NIGHTSHIFT_* variables.

Cloud Composer and a self-hosted Airflow both set environment variables for every component; a job's YAML never repeats them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_REQUIRED: Final = {
    "bucket": "the bucket of the runs, for example acme-nightshift",
    "project": "the project of the BigQuery jobs, for example acme-ml",
}
_CHOICES: Final = {"image_pull_policy": ("Always", "IfNotPresent", "Never"), "weights": ("stream", "mount")}

GKE_CLUSTER: Final = re.compile(
    r"gke:projects/(?P<project_id>[^/]+)/locations/(?P<location>[^/]+)/clusters/(?P<cluster_name>[^/]+)"
)
"""A runtime that is a GKE cluster, in full."""
GKE_FORM: Final = "gke:projects/PROJECT/locations/LOCATION/clusters/CLUSTER"


_RESERVATION: Final = re.compile(
    r"(?P<machine>[a-z0-9-]+)=(projects/(?P<project>[a-z][-a-z0-9:.]*[a-z0-9])/reservations/)?(?P<name>[a-z]([-a-z0-9]*[a-z0-9])?)"
)
JOB_MARK: Final = "{job}"
"""Stands for a job's name in `Settings.service_account`."""
OTHERS_ACCOUNTS: Final = {
    "default": "the namespace's own account, which pods without one have",
    "nightshift-airflow": "Airflow's account (k8s/base/airflow.yaml)",
    "nightshift-models": "the account that writes the models of all jobs (nightshift render --copy-model)",
    "nightshift-worker": "the account of all jobs of a deployment without {job} (k8s/base/worker.yaml)",
}
"""Kubernetes service accounts of the namespace that are no job's; tests/unit/stream/test_accounts.py finds all that are
made."""
OF_STREAMS: Final = ("-subscriber", "-epp")
"""Ends of the names of the accounts that a stream's manifests make."""
_TRACES: Final = re.compile(r"https?://[^/\s]+/?")
_ACCOUNT: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class SettingsError(ValueError):
    """A deployment variable is missing or not valid; the message names it and says what to set."""


@dataclass(frozen=True)
class Settings:
    """One deployment.

    bucket: Cloud Storage bucket that holds every run, without ``gs://``.
    project: Google Cloud project of the BigQuery jobs.
    location: BigQuery location of the datasets, for example ``EU``.
    dataset: BigQuery dataset for staging tables, dead letters and the audit table.
    runtime: ``kubernetes`` for the cluster of the Kubernetes connection,
        ``gke:projects/PROJECT/locations/LOCATION/clusters/CLUSTER`` for a GKE cluster through the Google connection, or
        ``local:FOLDER`` for the local runtime, whose address is in FOLDER/kubeconfig.
    namespace: Kubernetes namespace of the JobSets.
    driver_image, server_image: images of a worker's two containers.
    stream_image: of a stream's subscribers.
    cpu_server_image, tpu_server_image: the server's on CPUs and TPUs, because vLLM's ordinary image needs a GPU. The local
        runtime, where an image is only a name, uses server_image on CPUs too.
    image_pull_policy: ``Always``, ``IfNotPresent`` or ``Never``; if empty, Kubernetes decides.
    priority_class: PriorityClass of the pods; empty for none. (A job's ``priority:`` is Kueue's.)
    workers_max: the most workers that a plan may ask for; 0 for no limit. It does not limit a job that sets its own number.
    weights: how a model in a bucket is read: ``stream`` with vLLM's streamer, or ``mount`` with Cloud Storage FUSE.
    prices: path of a YAML file of prices, or a region of this release's (docs/operate/capacity.md); empty for its default.
    notifiers: path of a YAML file that names the notifiers that jobs may refer to (docs/operate/nights.md); empty for none.
    reservations: of machines, for the profiles ``-reservation``: ``MACHINE=NAME``, or
        ``MACHINE=projects/PROJECT/reservations/NAME`` of another project, with commas between them (`reserved`).
    traces: OTLP over HTTP as pods reach it, for example ``http://collector.traces:4318``; empty for no traces.
    traced_requests: the share of requests that is traced, 0 to 1.
    pod_patch: path of a YAML file that is merged into every rendered pod template (docs/operate/compute.md); empty for none.
    service_account: Kubernetes service account of the pods (workload identity on GKE). ``{job}`` in it stands for the job's
        name, so that each job has an account of its own (`account_of`).
    gcp_conn_id: Airflow connection for BigQuery, Cloud Storage and GKE.
    kubernetes_conn_id: Airflow connection of the cluster if runtime is ``kubernetes``.
    postgres_conn_id: Airflow connection of the database with the tables of streams.
    """

    bucket: str
    project: str
    location: str = "US"
    dataset: str = "nightshift"
    runtime: str = "kubernetes"
    namespace: str = "nightshift"
    driver_image: str = "nightshift/driver:0.3.0"
    stream_image: str = "nightshift/stream:0.3.0"
    server_image: str = "vllm/vllm-openai:v0.33.0"
    cpu_server_image: str = "vllm/vllm-openai-cpu:v0.31.0"
    tpu_server_image: str = "vllm/vllm-tpu:v0.27.0"
    image_pull_policy: str = ""
    priority_class: str = ""
    workers_max: int = 0
    weights: str = "stream"
    prices: str = ""
    notifiers: str = ""
    reservations: str = ""
    traces: str = ""
    traced_requests: float = 0.001
    pod_patch: str = ""
    service_account: str = "nightshift-worker"
    gcp_conn_id: str = "google_cloud_default"
    kubernetes_conn_id: str = "kubernetes_default"
    postgres_conn_id: str = "postgres_default"

    @property
    def deployment(self) -> str:
        """Eight hex digits that tell two deployments of one project apart: in the names of BigQuery jobs and staging tables."""
        return hashlib.sha256(f"{self.bucket}/{self.dataset}".encode()).hexdigest()[:8]

    def account_of(self, job: str) -> str:
        """Kubernetes service account of the pods of a job, or of a stream's servers. Raises SettingsError as `account_of`."""
        return account_of(self.service_account, job)

    @property
    def reserved(self) -> dict[str, tuple[str, str]]:
        """By machine type, the project of its reservation, "" for the cluster's own, and its name. Raises SettingsError."""
        return reservations_of(self.reservations)

    @property
    def local_folder(self) -> str:
        """The state folder of the local runtime; empty if JobSets run in a cluster."""
        kind, _, folder = self.runtime.partition(":")
        return folder if kind == "local" else ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """Reads ``NIGHTSHIFT_<FIELD>`` for each field. Raises SettingsError for one that is missing or not valid."""
        source = os.environ if environment is None else environment
        values: dict[str, Any] = {
            name: source[f"NIGHTSHIFT_{name.upper()}"]
            for name in cls.__dataclass_fields__
            if source.get(f"NIGHTSHIFT_{name.upper()}")
        }
        for required in _REQUIRED:
            if required not in values:
                raise SettingsError(
                    f"NIGHTSHIFT_{required.upper()} is not set: {_REQUIRED[required]}. Set it in the environment of every "
                    "Airflow component (Cloud Composer: the environment's variables)."
                )
        for name, choices in _CHOICES.items():
            if values.get(name, choices[0]) not in choices:
                raise SettingsError(f"NIGHTSHIFT_{name.upper()} is {values[name]!r}. Write {' or '.join(choices)}.")
        account = values.get("service_account", "")
        if account and not _ACCOUNT.fullmatch(account.replace(JOB_MARK, "job")):
            raise SettingsError(
                f"NIGHTSHIFT_SERVICE_ACCOUNT is {account!r}. Write the name of a Kubernetes service account, for example "
                f"nightshift-worker, or one with {JOB_MARK} for an account of each job, for example nightshift-{JOB_MARK}."
            )
        reservations_of(values.get("reservations", ""))
        if not _TRACES.fullmatch(values.get("traces", "http://unset:4318")):
            raise SettingsError(
                f"NIGHTSHIFT_TRACES is {values['traces']!r}. Write the URL of a collector for OTLP/HTTP, without a path, as "
                "pods reach it, for example http://opentelemetry-collector.gke-managed-otel.svc.cluster.local:4318."
            )
        if "traced_requests" in values:
            values["traced_requests"] = _share("NIGHTSHIFT_TRACED_REQUESTS", values["traced_requests"])
        if "workers_max" in values:
            values["workers_max"] = workers_max_of(values["workers_max"])
        return cls(**values)


def account_of(setting: str, job: str) -> str:
    """setting: `Settings.service_account`. Raises SettingsError if the name of the job or stream makes it an account that has
    other rights than a job's: whoever writes the file would have them."""
    account = setting.replace(JOB_MARK, job)
    if account == setting:
        return account
    whose = OTHERS_ACCOUNTS.get(account)
    if whose is None and account.endswith(OF_STREAMS):
        whose = "as a stream's own account is named"
    if whose is None:
        return account
    raise SettingsError(
        f"job: {job} makes {account} the account of its pods, and that is {whose}. Give the job another name, because it would "
        f"have that account's rights (NIGHTSHIFT_SERVICE_ACCOUNT is {setting})."
    )


def reservations_of(text: str) -> dict[str, tuple[str, str]]:
    """The value of NIGHTSHIFT_RESERVATIONS, as `Settings.reserved` has it. Raises SettingsError."""
    found: dict[str, tuple[str, str]] = {}
    for each in filter(None, (part.strip() for part in text.split(","))):
        match = _RESERVATION.fullmatch(each)
        if match is None or match["machine"] in found:
            why = "names a machine twice" if match else f"has {each!r}"
            raise SettingsError(
                f"NIGHTSHIFT_RESERVATIONS {why}. Write MACHINE=NAME, or MACHINE=projects/PROJECT/reservations/NAME, once for "
                "each machine type, with commas between them, for example a3-ultragpu-8g=nights."
            )
        found[match["machine"]] = (match["project"] or "", match["name"])
    return found


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise SettingsError(f"{name} is {text!r}. Write a number from 0 to 1, for example 0.001 for one in a thousand.")
    return share


def workers_max_of(text: str) -> int:
    """The value of NIGHTSHIFT_WORKERS_MAX. Raises SettingsError."""
    if not text.isascii() or not text.isdigit():
        raise SettingsError(f"NIGHTSHIFT_WORKERS_MAX is {text!r}. Write a whole number, or 0 for no limit.")
    return int(text)
