"""Starts this repository's own emulators as real processes for tests, and hands out the official clients for them.

An emulator can be started again after `Emulator.stop` or `Emulator.kill`: it keeps its ports and its data folder, which is what
tests about durability need. Nothing here touches the environment of the test process: addresses go to the clients by argument.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.auth.credentials import AnonymousCredentials
from google.cloud import bigquery, bigquery_storage_v1
from google.cloud.bigquery_storage_v1.services.big_query_read.transports import BigQueryReadGrpcTransport
from google.cloud.bigquery_storage_v1.services.big_query_write.transports import BigQueryWriteGrpcTransport
from google.cloud.storage import Bucket  # type: ignore[import-untyped]
from google.cloud.storage import Client as StorageClient
from google.oauth2.credentials import Credentials

from local.ports import new_port
from local.postgres import access

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".envs" / "emulators" / "bin" / "python"
HOST = "127.0.0.1"
PROJECT = "local"
ANONYMOUS = AnonymousCredentials()  # type: ignore[no-untyped-call]
ANONYMOUS_CONNECTION = json.dumps({"conn_type": "google_cloud_platform", "extra": {"is_anonymous": True, "project": PROJECT}})
"""Airflow's Google connection to the emulators, as ``AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT`` takes it."""
OWNER = "user:owner@example.com"
AIRFLOW = "serviceAccount:nightshift-airflow@local.iam.gserviceaccount.com"
WORKER = "principal://iam.googleapis.com/pool/subject/ns/nightshift/sa/nightshift-worker"
OTHER_WORKER = f"{WORKER}-other"
IDENTITIES = {
    # Clients without a token own all buckets: most tests are not about rights.
    "": {"member": OWNER, "roles": ["roles/storage.admin"]},
    "airflow-token": {"member": AIRFLOW},
    "worker-token": {"member": WORKER},
    "other-worker-token": {"member": OTHER_WORKER},
}
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 180.0
POLL_S = 0.05


class EmulatorError(Exception):
    """An emulator did not start; the message holds the end of its log."""


@dataclass
class Emulator:
    """One emulator process. ``log`` collects the output of all its lives."""

    command: tuple[str, ...]
    environment: dict[str, str]
    health_url: str
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Starts the process and returns when its health URL answers 200. Raises EmulatorError after `START_TIMEOUT_S`."""
        with open(self.log, "ab") as output:
            self.process = subprocess.Popen(
                self.command, cwd=ROOT, env={**os.environ, **self.environment}, stdout=output, stderr=subprocess.STDOUT
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise EmulatorError(f"{' '.join(self.command)} did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(POLL_S)

    def healthy(self) -> bool:
        return _healthy(self.health_url)

    def stop(self) -> int:
        """SIGTERM; returns the exit code. Raises subprocess.TimeoutExpired, the process killed, after `STOP_TIMEOUT_S`."""
        process = self._started()
        process.terminate()
        try:
            return process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""
        process = self._started()
        process.kill()
        process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        if self.process is None:
            raise RuntimeError("the emulator was never started")
        return self.process


@dataclass
class StorageEmulator(Emulator):
    """``url`` is what STORAGE_EMULATOR_HOST takes."""

    url: str

    def client(self, token: str | None = None) -> StorageClient:
        """token: of an identity; None: the client sends none."""
        credentials = ANONYMOUS if token is None else Credentials(token)  # type: ignore[no-untyped-call]
        return StorageClient(project=PROJECT, credentials=credentials, client_options={"api_endpoint": self.url})


@dataclass
class BigQueryEmulator(Emulator):
    """``url`` is what BIGQUERY_EMULATOR_HOST takes; ``grpc_target`` (host:port) speaks the BigQuery Storage API."""

    url: str
    grpc_target: str

    def client(self) -> bigquery.Client:
        return bigquery.Client(project=PROJECT, credentials=ANONYMOUS, client_options={"api_endpoint": self.url})

    def read_client(self) -> bigquery_storage_v1.BigQueryReadClient:
        transport = BigQueryReadGrpcTransport(channel=self._channel())
        return bigquery_storage_v1.BigQueryReadClient(transport=transport)  # type: ignore[no-untyped-call]

    def write_client(self) -> bigquery_storage_v1.BigQueryWriteClient:
        transport = BigQueryWriteGrpcTransport(channel=self._channel())
        return bigquery_storage_v1.BigQueryWriteClient(transport=transport)  # type: ignore[no-untyped-call]

    def _channel(self) -> grpc.Channel:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        return grpc.insecure_channel(self.grpc_target, options=unlimited)


@dataclass
class PubSubEmulator(Emulator):
    """``target`` (host:port) is what PUBSUB_EMULATOR_HOST takes; ``control`` is the address for faults and statistics."""

    target: str
    control: str


@dataclass
class PostgresServer(Emulator):
    """``folder`` is its data folder."""

    port: int
    folder: Path

    @property
    def url(self) -> str:
        """The address of its database, with the password."""
        return access.url(self.folder, self.port)

    def healthy(self) -> bool:
        return access.problem(self.port) is None


def start_storage(directory: Path, host: str = HOST, identities: Mapping[str, Any] | None = None) -> StorageEmulator:
    """A Cloud Storage emulator that keeps its objects under ``directory``. host: the address of this machine to serve at.

    identities: as its option ``--identities`` takes them; None: everybody may do everything.
    """
    port = new_port()
    url = f"http://{host}:{port}"
    directory.mkdir(parents=True, exist_ok=True)
    options = ["--host", host, "--port", str(port), "--data-dir", str(directory / "storage")]
    if identities is not None:
        (directory / "identities.json").write_text(json.dumps(identities))
        options += ["--identities", str(directory / "identities.json")]
    emulator = StorageEmulator(
        command=_module("local.storage", *options),
        environment={},
        health_url=f"{url}/storage/v1/b?project={PROJECT}",
        log=directory / "storage.log",
        url=url,
    )
    emulator.start()
    return emulator


def below(bucket: str, prefix: str) -> str:
    """The condition of k8s/README.md: on names of objects."""
    return f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{prefix}")'


def grant(bucket: Bucket, *bindings: tuple[str, str, str | None]) -> None:
    """Sets a bucket's policy. bindings: role, member, condition."""
    bucket.iam_configuration.uniform_bucket_level_access_enabled = True
    bucket.patch()
    policy = bucket.get_iam_policy(requested_policy_version=3)
    policy.version = 3
    policy.bindings = [
        {"role": f"roles/{role}", "members": {member}}
        | ({"condition": {"title": "own", "expression": condition}} if condition else {})
        for role, member, condition in bindings
    ]
    bucket.set_iam_policy(policy)


def start_bigquery(directory: Path, storage: StorageEmulator) -> BigQueryEmulator:
    """A BigQuery emulator that keeps its tables under ``directory`` and reads and writes gs:// in ``storage``."""
    emulator = bigquery_at(directory, storage)
    emulator.start()
    return emulator


def bigquery_at(directory: Path, storage: StorageEmulator, *options: str) -> BigQueryEmulator:
    """The same, not yet started. options: of its command line."""
    port, grpc_port = new_port(), new_port()
    url = f"http://{HOST}:{port}"
    directory.mkdir(parents=True, exist_ok=True)
    ports = ("--host", HOST, "--port", str(port), "--grpc-port", str(grpc_port))
    return BigQueryEmulator(
        command=_module("local.bigquery", *ports, "--data-dir", str(directory / "bigquery"), *options),
        environment={"STORAGE_EMULATOR_HOST": storage.url},
        health_url=f"{url}/healthz",
        log=directory / "bigquery.log",
        url=url,
        grpc_target=f"{HOST}:{grpc_port}",
    )


def start_pubsub(directory: Path, host: str = HOST) -> PubSubEmulator:
    """A Pub/Sub emulator that keeps its messages under ``directory``. host: the address of this machine to serve at."""
    port, control_port = new_port(), new_port()
    control = f"http://{host}:{control_port}"
    directory.mkdir(parents=True, exist_ok=True)
    ports = ("--host", host, "--port", str(port), "--control-port", str(control_port))
    emulator = PubSubEmulator(
        command=_module("local.pubsub", *ports, "--data-dir", str(directory / "pubsub")),
        environment={},
        health_url=f"{control}/_health",
        log=directory / "pubsub.log",
        target=f"{host}:{port}",
        control=control,
    )
    emulator.start()
    return emulator


def start_postgres(directory: Path, *before: str) -> PostgresServer:
    """PostgreSQL that keeps its files under ``directory``. before: what its command line begins with."""
    port = new_port()
    directory.mkdir(parents=True, exist_ok=True)
    folder = directory / "postgres"
    server = PostgresServer(
        command=(*before, *_module("local.postgres", "--port", str(port), "--data-dir", str(folder))),
        environment={},
        health_url="",
        log=directory / "postgres.log",
        port=port,
        folder=folder,
    )
    server.start()
    return server


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return (str(PYTHON), "-m", name, *arguments)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
