"""gcloud: each command's API, and what it does to the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from local.google_cloud import builds, clusters, composer, messages, projects, registry, storage
from local.google_cloud.cloud import Cloud, Refused
from local.google_cloud.command_line import Given, parse
from local.google_cloud.state import full_name

TOKEN: Final = "ya29.of-somebody"
"""Of the person, for Airflow's API."""
Handler = Callable[[Cloud, Given, str], str]


def _secret(cloud: Cloud, given: Given, project: str) -> str:
    name = full_name("secretmanager", "projects", project, "secrets", given.arguments[0])
    cloud.make("secretmanager.googleapis.com/Secret", name, {})
    return f"Created version [1] of the secret [{given.arguments[0]}]."


HANDLERS: Final[dict[str, tuple[str, Handler]]] = {
    "config set": ("", projects.config_set),
    "config get-value": ("", projects.config_get),
    "projects describe": ("", projects.describe),
    "projects add-iam-policy-binding": ("", projects.bind),
    "services enable": ("", projects.enable),
    "services list": ("", projects.services),
    "beta services identity create": ("", projects.identity),
    "services vpc-peerings connect": ("servicenetworking", projects.peering),
    "compute machine-types list": ("compute", projects.machine_types),
    "compute regions describe": ("compute", projects.quotas),
    "compute networks create": ("compute", projects.network),
    "compute addresses create": ("compute", projects.address),
    "beta quotas info list": ("cloudquotas", projects.quota_ids),
    "beta quotas preferences create": ("cloudquotas", projects.prefer),
    "beta quotas preferences list": ("cloudquotas", projects.preferences),
    "storage buckets create": ("storage", storage.make),
    "storage buckets update": ("storage", storage.update),
    "storage buckets describe": ("storage", storage.describe),
    "storage buckets add-iam-policy-binding": ("storage", storage.bind),
    "storage buckets get-iam-policy": ("storage", storage.policy),
    "storage cp": ("storage", storage.copy),
    "storage rsync": ("storage", storage.sync),
    "iam service-accounts create": ("iam", projects.make_account),
    "iam service-accounts describe": ("iam", projects.describe_account),
    "iam service-accounts add-iam-policy-binding": ("iam", projects.bind_account),
    "artifacts repositories create": ("artifactregistry", registry.make),
    "artifacts repositories add-iam-policy-binding": ("artifactregistry", registry.bind),
    "artifacts repositories describe": ("artifactregistry", registry.describe),
    "builds submit": ("cloudbuild", builds.submit),
    "artifacts versions describe": ("artifactregistry", registry.describe_version),
    "auth configure-docker": ("", registry.configure_docker),
    "auth print-access-token": ("", lambda cloud, given, project: TOKEN),
    "container clusters create": ("container", clusters.make),
    "container clusters create-auto": ("container", clusters.make_autopilot),
    "container clusters update": ("container", clusters.update),
    "container clusters get-credentials": ("container", clusters.credentials),
    "container node-pools create": ("container", clusters.make_pool),
    "container node-pools list": ("container", clusters.pools),
    "composer environments create": ("composer", composer.make),
    "composer environments update": ("composer", composer.update),
    "composer environments describe": ("composer", composer.describe),
    "composer environments run": ("composer", composer.run),
    "pubsub topics create": ("pubsub", messages.make_topic),
    "pubsub topics publish": ("pubsub", messages.publish),
    "pubsub topics add-iam-policy-binding": ("pubsub", messages.bind_topic),
    "pubsub subscriptions create": ("pubsub", messages.make_subscription),
    "pubsub subscriptions add-iam-policy-binding": ("pubsub", messages.bind_subscription),
    "alloydb clusters create": ("alloydb", messages.make_database),
    "alloydb instances create": ("alloydb", messages.make_instance),
    "alloydb instances describe": ("alloydb", messages.describe_instance),
    "alloydb users create": ("alloydb", messages.make_user),
    "secrets create": ("secretmanager", _secret),
}  # fmt: skip


def run(cloud: Cloud, words: Sequence[str]) -> str:
    """What the command prints. Raises Refused with gcloud's words and exit code."""
    given = parse(words)
    project = given.value("project") or cloud.machine.project
    try:
        api, handler = HANDLERS[given.command]
        if api:
            if not project:
                raise Refused("The required property [project] is not currently set.")
            cloud.needs(api, project)
        return handler(cloud, given, project)
    except Refused as error:
        text = str(error)
        if text.startswith("ERROR:"):
            raise
        raise Refused(f"ERROR: (gcloud.{given.command.replace(' ', '.')}) {text}", error.code) from None


def zones_of_europe() -> dict[str, dict[str, set[str]]]:
    """A region with the accelerators that pages use, in two of its three zones or in all; and one with flex-start for TPUs."""
    every = {"e2-standard-4", "g2-standard-8", "g2-standard-24", "n2-standard-8"}
    return {
        "europe-west4": {
            "europe-west4-a": every | {"ct6e-standard-4t", "ct6e-standard-1t"},
            "europe-west4-b": every | {"a3-highgpu-8g", "ct6e-standard-4t", "ct6e-standard-1t"},
            "europe-west4-c": every | {"a3-highgpu-8g"},
        },
    }
