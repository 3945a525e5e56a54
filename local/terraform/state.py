"""OpenTofu's state, read as the state of the stand-ins: what `infra/` has made is what `gcloud` and the others then see.

Each kind of resource that the stand-ins know has a function here from its attributes, as the provider spells them, to its name
and fields as Google's API spells them (`local.google_cloud.state` lists both). Grants become the IAM policies of what they are
on. Everything else in a state, for example a router, is left out: no stand-in asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from local.google_cloud import state as cloud
from local.google_cloud import storage

Attributes = dict[str, Any]
Made = tuple[str, str, dict[str, Any]]
"""TYPE, FULL_NAME, FIELDS."""


def from_tfstate(tfstate: dict[str, Any], folder: Path) -> cloud.State:
    """The stand-ins' state with what a `terraform.tfstate` holds. folder: the root's, where files of objects are looked for."""
    state = cloud.State()
    resources = list(_instances(tfstate))
    for kind, attributes in resources:
        if attributes.get("source") is not None:
            attributes["source"] = str(folder / attributes["source"])
        if kind in _MADE:
            for type_, name, fields in _MADE[kind](attributes):
                state.put(type_, name, _without_none(fields))
    for kind, attributes in resources:
        if kind in _GRANTED:
            _grant(state, *_GRANTED[kind](attributes), attributes)
    return state


def _instances(tfstate: dict[str, Any]) -> Iterator[tuple[str, Attributes]]:
    for resource in tfstate["resources"]:
        prefix = "data." if resource["mode"] == "data" else ""
        for instance in resource["instances"]:
            yield f"{prefix}{resource['type']}", instance["attributes"]


def _grant(state: cloud.State, type_: str, name: str, attributes: Attributes) -> None:
    """Adds a member to the binding of its role and condition, on something that is there or that others have made."""
    on = state.get(type_, name)
    if on is None:
        state.put(type_, name, {})
        on = state.of(type_)[name]
    condition = next(({key: each[key] for key in ("title", "expression")} for each in attributes.get("condition") or []), None)
    bindings = on.setdefault("iamPolicy", {}).setdefault("bindings", [])
    for binding in bindings:
        if binding["role"] == attributes["role"] and binding.get("condition") == condition:
            binding["members"].append(attributes["member"])
            return
    bindings.append(_without_none({"role": attributes["role"], "members": [attributes["member"]], "condition": condition}))


def _without_none(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _first(attributes: Attributes, *path: str) -> Any:
    """What lies in nested blocks, each of which is there at most once; None if one is not there."""
    value: Any = attributes
    for name in path:
        if isinstance(value, list):
            value = value[0] if value else None
        if value is None:
            return None
        value = value[name]
    return value


def _project(each: Attributes) -> Iterator[Made]:
    name = cloud.full_name("cloudresourcemanager", "projects", each["project_id"])
    yield cloud.PROJECT, name, {"projectId": each["project_id"], "projectNumber": each["number"]}


def _service(each: Attributes) -> Iterator[Made]:
    name = cloud.full_name("serviceusage", "projects", each["project"], "services", each["service"])
    yield cloud.SERVICE, name, {"state": "ENABLED"}


def _account(each: Attributes) -> Iterator[Made]:
    yield cloud.SERVICE_ACCOUNT, f"//iam.googleapis.com/{each['name']}", {"email": each["email"], "uniqueId": each["unique_id"]}


def _object(each: Attributes) -> Iterator[Made]:
    text = each["content"] if each["content"] is not None else Path(each["source"]).read_text()
    yield storage.OBJECT, f"{cloud.full_name('storage', each['bucket'])}/objects/{each['name']}", {"text": text, "atSeconds": 0}


def _bucket(each: Attributes) -> Iterator[Made]:
    fields = {
        "location": each["location"].upper(),
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": each["uniform_bucket_level_access"]}},
        "softDeletePolicy": {"retentionDurationSeconds": str(_first(each, "soft_delete_policy", "retention_duration_seconds"))},
        "encryption": {"defaultKmsKeyName": _first(each, "encryption", "default_kms_key_name")},
    }
    yield cloud.BUCKET, cloud.full_name("storage", each["name"]), fields


def _dataset(each: Attributes) -> Iterator[Made]:
    name = cloud.full_name("bigquery", "projects", each["project"], "datasets", each["dataset_id"])
    yield cloud.DATASET, name, {"location": each["location"]}


def _repository(each: Attributes) -> Iterator[Made]:
    yield (
        cloud.REPOSITORY,
        f"//artifactregistry.googleapis.com/{each['id']}",
        {
            "format": each["format"],
            "mode": each["mode"] or "STANDARD_REPOSITORY",
            "kmsKeyName": each["kms_key_name"],
            "virtualRepositoryConfig": next(
                ({"upstreamPolicies": one["upstream_policies"]} for one in each["virtual_repository_config"]), None
            ),
        },
    )


def _network(each: Attributes) -> Iterator[Made]:
    yield cloud.NETWORK, f"//compute.googleapis.com/{each['id']}", {"autoCreateSubnetworks": each["auto_create_subnetworks"]}


def _address(each: Attributes) -> Iterator[Made]:
    yield cloud.ADDRESS, f"//compute.googleapis.com/{each['id']}", {"purpose": each["purpose"], "network": each["network"]}


def _peering(each: Attributes) -> Iterator[Made]:
    name = f"//servicenetworking.googleapis.com/{each['network']}/connections/servicenetworking"
    yield cloud.PEERING, name, {"reservedPeeringRanges": each["reserved_peering_ranges"]}


def _cluster(each: Attributes) -> Iterator[Made]:
    fields = {
        "name": each["name"],
        "location": each["location"],
        "addonsConfig": {
            "horizontalPodAutoscaling": {"disabled": _first(each, "addons_config", "horizontal_pod_autoscaling", "disabled")},
            "httpLoadBalancing": {"disabled": _first(each, "addons_config", "http_load_balancing", "disabled")},
            "gcePersistentDiskCsiDriverConfig": {
                # Autopilot has it always, and its configuration does not name it.
                "enabled": each["enable_autopilot"]
                or _first(each, "addons_config", "gce_persistent_disk_csi_driver_config", "enabled")
            },
            "gcsFuseCsiDriverConfig": {"enabled": _first(each, "addons_config", "gcs_fuse_csi_driver_config", "enabled")},
        },
        "autopilot": {"enabled": bool(each["enable_autopilot"])},
        "networkConfig": {
            "network": each["network"],
            "subnetwork": each["subnetwork"],
            "datapathProvider": each["datapath_provider"] or "ADVANCED_DATAPATH",
            "gatewayApiConfig": {"channel": _first(each, "gateway_api_config", "channel")},
        },
        "privateClusterConfig": {"enablePrivateNodes": _first(each, "private_cluster_config", "enable_private_nodes")},
        "workloadIdentityConfig": {"workloadPool": _first(each, "workload_identity_config", "workload_pool")},
        "controlPlaneEndpointsConfig": {
            "dnsEndpointConfig": {
                "allowExternalTraffic": _first(
                    each, "control_plane_endpoints_config", "dns_endpoint_config", "allow_external_traffic"
                ),
                "endpoint": _first(each, "control_plane_endpoints_config", "dns_endpoint_config", "endpoint"),
            }
        },
        "monitoringConfig": {
            "componentConfig": {"enableComponents": _first(each, "monitoring_config", "enable_components")},
            "managedPrometheusConfig": {"enabled": _first(each, "monitoring_config", "managed_prometheus", "enabled")},
        },
        "currentMasterVersion": each["master_version"],
    }
    yield cloud.CLUSTER, f"//container.googleapis.com/{each['id']}", fields


def _node_pool(each: Attributes) -> Iterator[Made]:
    accelerators = [
        {
            "acceleratorType": gpu["type"],
            "acceleratorCount": gpu["count"],
            "gpuDriverInstallationConfig": {
                "gpuDriverVersion": _first(gpu, "gpu_driver_installation_config", "gpu_driver_version")
            },
        }
        for gpu in _first(each, "node_config", "guest_accelerator") or []
    ]
    config = {
        "machineType": _first(each, "node_config", "machine_type"),
        "diskSizeGb": _first(each, "node_config", "disk_size_gb"),
        "serviceAccount": _first(each, "node_config", "service_account"),
        "spot": bool(_first(each, "node_config", "spot")),
        "flexStart": bool(_first(each, "node_config", "flex_start")),
        "labels": _first(each, "node_config", "labels") or {},
        "accelerators": accelerators,
    }
    fields = {
        "config": config,
        "autoscaling": {
            "enabled": True,
            "minNodeCount": _first(each, "autoscaling", "min_node_count"),
            "maxNodeCount": _first(each, "autoscaling", "max_node_count"),
            "totalMinNodeCount": _first(each, "autoscaling", "total_min_node_count"),
            "totalMaxNodeCount": _first(each, "autoscaling", "total_max_node_count"),
            "locationPolicy": _first(each, "autoscaling", "location_policy"),
        },
        "initialNodeCount": each["initial_node_count"] or 0,
        "locations": each["node_locations"],
        "placementPolicy": next(
            (_without_none({"type": one["type"], "tpuTopology": one["tpu_topology"]}) for one in each["placement_policy"]), None
        ),
    }
    yield cloud.NODE_POOL, f"//container.googleapis.com/{each['id']}", fields


def _environment(each: Attributes) -> Iterator[Made]:
    fields = {
        "config": {
            "dagGcsPrefix": _first(each, "config", "dag_gcs_prefix"),
            "airflowUri": _first(each, "config", "airflow_uri"),
            "nodeConfig": {"serviceAccount": _first(each, "config", "node_config", "service_account")},
            "softwareConfig": {
                "imageVersion": _first(each, "config", "software_config", "image_version"),
                "envVariables": _first(each, "config", "software_config", "env_variables"),
                "pypiPackages": _first(each, "config", "software_config", "pypi_packages"),
            },
        },
        "state": "RUNNING",
    }
    yield cloud.ENVIRONMENT, f"//composer.googleapis.com/{each['id']}", fields


def _topic(each: Attributes) -> Iterator[Made]:
    fields = {"kmsKeyName": each["kms_key_name"], "messageRetentionDuration": each["message_retention_duration"]}
    yield cloud.TOPIC, f"//pubsub.googleapis.com/{each['id']}", fields


def _subscription(each: Attributes) -> Iterator[Made]:
    dead = each["dead_letter_policy"]
    retry = each["retry_policy"]
    fields = {
        # By their FULL_NAMEs, as the stand-ins have them.
        "topic": f"//pubsub.googleapis.com/{each['topic']}",
        "deadLetterPolicy": dead
        and {
            "deadLetterTopic": f"//pubsub.googleapis.com/{dead[0]['dead_letter_topic']}",
            "maxDeliveryAttempts": dead[0]["max_delivery_attempts"],
        },
        "retryPolicy": retry and {"minimumBackoff": retry[0]["minimum_backoff"], "maximumBackoff": retry[0]["maximum_backoff"]},
        "messageRetentionDuration": each["message_retention_duration"],
        "enableMessageOrdering": each["enable_message_ordering"],
    }
    yield (
        cloud.SUBSCRIPTION,
        f"//pubsub.googleapis.com/{each['id']}",
        {name: value for name, value in fields.items() if value != []},
    )


def _database(each: Attributes) -> Iterator[Made]:
    yield (
        cloud.ALLOYDB,
        f"//alloydb.googleapis.com/{each['name']}",
        {"networkConfig": {"network": _first(each, "network_config", "network")}},
    )


def _instance(each: Attributes) -> Iterator[Made]:
    fields = {
        "instanceType": each["instance_type"],
        "databaseFlags": each["database_flags"],
        "ipAddress": each["ip_address"],
    }
    yield cloud.ALLOYDB_INSTANCE, f"//alloydb.googleapis.com/{each['name']}", fields


def _user(each: Attributes) -> Iterator[Made]:
    fields = {"userType": each["user_type"], "databaseRoles": each["database_roles"]}
    yield cloud.ALLOYDB_USER, f"//alloydb.googleapis.com/{each['name']}", fields


_MADE: Final[dict[str, Callable[[Attributes], Iterator[Made]]]] = {
    "data.google_project": _project,
    "google_alloydb_cluster": _database,
    "google_alloydb_instance": _instance,
    "google_alloydb_user": _user,
    "google_artifact_registry_repository": _repository,
    "google_bigquery_dataset": _dataset,
    "google_composer_environment": _environment,
    "google_compute_global_address": _address,
    "google_compute_network": _network,
    "google_container_cluster": _cluster,
    "google_container_node_pool": _node_pool,
    "google_project_service": _service,
    "google_pubsub_subscription": _subscription,
    "google_pubsub_topic": _topic,
    "google_service_account": _account,
    "google_service_networking_connection": _peering,
    "google_storage_bucket": _bucket,
    "google_storage_bucket_object": _object,
}

_GRANTED: Final[dict[str, Callable[[Attributes], tuple[str, str]]]] = {
    "google_artifact_registry_repository_iam_member": lambda each: (
        cloud.REPOSITORY,
        f"//artifactregistry.googleapis.com/{each['repository']}",
    ),
    "google_bigquery_dataset_iam_member": lambda each: (
        cloud.DATASET,
        cloud.full_name("bigquery", "projects", each["project"], "datasets", each["dataset_id"]),
    ),
    "google_project_iam_member": lambda each: (
        cloud.PROJECT,
        cloud.full_name("cloudresourcemanager", "projects", each["project"]),
    ),
    "google_pubsub_subscription_iam_member": lambda each: (
        cloud.SUBSCRIPTION,
        cloud.full_name("pubsub", "projects", each["project"], "subscriptions", each["subscription"]),
    ),
    "google_pubsub_topic_iam_member": lambda each: (
        cloud.TOPIC,
        cloud.full_name("pubsub", "projects", each["project"], "topics", each["topic"]),
    ),
    "google_service_account_iam_member": lambda each: (
        cloud.SERVICE_ACCOUNT,
        f"//iam.googleapis.com/{each['service_account_id']}",
    ),
    "google_storage_bucket_iam_member": lambda each: (cloud.BUCKET, cloud.full_name("storage", each["bucket"])),
}
