"""GKE: clusters and node pools, and what a cluster then has.

From gcloud's source (its module api_adapter, CreateClusterCommon): ``--addons`` switches off HttpLoadBalancing and
HorizontalPodAutoscaling unless it names them; ``--monitoring`` takes the components of MONITORING_OPTIONS alone.
"""

from __future__ import annotations

from typing import Any, Final

from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud, Refused
from local.google_cloud.command_line import Given
from local.google_cloud.projects import find_network
from local.google_cloud.state import Fields, full_name

ADDONS: Final = {
    "HttpLoadBalancing", "HorizontalPodAutoscaling", "KubernetesDashboard", "NetworkPolicy", "NodeLocalDNS", "ConfigConnector",
    "GcePersistentDiskCsiDriver", "GcpFilestoreCsiDriver", "BackupRestore", "GcsFuseCsiDriver", "StatefulHA",
    "ParallelstoreCsiDriver", "HighScaleCheckpointing", "LustreCsiDriver", "RayOperator", "SlurmOperator", "Kueue",
    "NodeReadinessController",
}  # fmt: skip
MONITORING: Final = {
    "NONE", "SYSTEM", "WORKLOAD", "API_SERVER", "CONTROLLER_MANAGER", "SCHEDULER", "STORAGE", "HPA", "POD", "DAEMONSET",
    "DEPLOYMENT", "STATEFULSET", "CADVISOR", "KUBELET", "DCGM", "JOBSET",
}  # fmt: skip
NEEDS_PROMETHEUS: Final = {
    "STORAGE", "HPA", "POD", "DAEMONSET", "DEPLOYMENT", "STATEFULSET", "CADVISOR", "KUBELET", "DCGM", "JOBSET"
}  # fmt: skip
CREATION_S: Final = 600
COMPUTE_CLASS_S: Final = 1500
"""How long after its creation a cluster has the CRD of ComputeClass: "up to an hour" (google/skills, gke-compute-classes)."""


def name_of(project: str, location: str, cluster: str) -> str:
    return full_name("container", "projects", project, "locations", location, "clusters", cluster)


def _error(code: int, message: str) -> Refused:
    return Refused(f"ResponseError: code={code}, message={message}")


def _find(cloud: Cloud, project: str, location: str, cluster: str) -> tuple[str, Fields]:
    name = name_of(project, location, cluster)
    found = cloud.state.get(types.CLUSTER, name)
    if found is None:
        raise _error(404, f"Not found: {name.partition('.com/')[2]}.")
    return name, found


def _make(cloud: Cloud, given: Given, project: str) -> tuple[str, Fields]:
    location = given.value("location") or given.value("region")
    if location not in cloud.zones:
        raise _error(400, f'Location "{location}" does not exist.')
    account = given.value("service-account")
    if account and cloud.account(account) is None:
        raise _error(400, f'The service account "{account}" does not exist.')
    network = find_network(cloud, project, given.value("network", "default"))
    name = name_of(project, location, given.arguments[0])
    fields: Fields = {
        "name": given.arguments[0],
        "location": location,
        "createdAtSeconds": cloud.state.seconds,
        "network": network.rpartition("/")[2],
        "controlPlaneEndpointsConfig": {"dnsEndpointConfig": {"allowExternalTraffic": given.has("enable-dns-access")}},
        "workloadIdentityConfig": {"workloadPool": given.value("workload-pool")},
        "networkConfig": {
            "network": network,
            "datapathProvider": "ADVANCED_DATAPATH" if given.has("enable-dataplane-v2") else "LEGACY_DATAPATH",
            "gatewayApiConfig": {"channel": f"CHANNEL_{given.value('gateway-api', 'disabled').upper()}"},
        },
        "privateClusterConfig": {"enablePrivateNodes": given.has("enable-private-nodes")},
    }
    cloud.make(types.CLUSTER, name, fields, f"ResponseError: code=409, message=Already exists: {name.partition('.com/')[2]}.")
    cloud.state.seconds += CREATION_S
    return name, fields


def make(cloud: Cloud, given: Given, project: str) -> str:
    fields: Fields = {"addonsConfig": _addons(given), "monitoringConfig": _monitoring(given)}
    if given.value("hpa-profile", "none") not in ("none", "performance"):
        raise _error(400, "Invalid HPA profile.")
    if given.value("workload-pool", f"{project}.svc.id.goog") != f"{project}.svc.id.goog":
        raise _error(400, f'Invalid workload pool: only "{project}.svc.id.goog" is supported.')
    name, made = _make(cloud, given, project)
    made |= fields
    pool = {
        "config": {"machineType": given.value("machine-type"), "serviceAccount": given.value("service-account")},
        "initialNodeCount": int(given.value("num-nodes", "3")),
        "autoscaling": _autoscaling(given),
        "locations": given.list("node-locations") or sorted(cloud.zones[made["location"]])[:3],
    }
    cloud.state.put(types.NODE_POOL, f"{name}/nodePools/default-pool", pool)
    return f"Creating cluster {given.arguments[0]}...done."


def make_autopilot(cloud: Cloud, given: Given, project: str) -> str:
    _, made = _make(cloud, given, project)
    made["autopilot"] = {"enabled": True}
    made["workloadIdentityConfig"] = {"workloadPool": f"{project}.svc.id.goog"}
    made["addonsConfig"] = {"gcsFuseCsiDriverConfig": {"enabled": True}}
    made["monitoringConfig"] = {"managedPrometheusConfig": {"enabled": True}}
    made["networkConfig"] |= {"datapathProvider": "ADVANCED_DATAPATH", "gatewayApiConfig": {"channel": "CHANNEL_STANDARD"}}
    return f"Creating cluster {given.arguments[0]}...done."


def _addons(given: Given) -> Fields:
    named = set(given.list("addons"))
    if unknown := sorted(named - ADDONS):
        raise Refused(
            f"ERROR: (gcloud.container.clusters.create) argument --addons: {unknown[0]} must be one of {sorted(ADDONS)}", 2
        )
    if not named:
        return {}
    return {
        "httpLoadBalancing": {"disabled": "HttpLoadBalancing" not in named},
        "horizontalPodAutoscaling": {"disabled": "HorizontalPodAutoscaling" not in named},
        "gcePersistentDiskCsiDriverConfig": {"enabled": "GcePersistentDiskCsiDriver" in named},
        "gcsFuseCsiDriverConfig": {"enabled": "GcsFuseCsiDriver" in named},
    }


def _monitoring(given: Given) -> Fields:
    named = given.list("monitoring")
    prometheus = given.has("enable-managed-prometheus")
    if set(named) - MONITORING:
        raise Refused(f"[{', '.join(named)}] contains option(s) that are not supported for monitoring.")
    if not prometheus and (wanting := sorted(NEEDS_PROMETHEUS & set(named))):
        raise _error(400, f"{', '.join(wanting)} need managed Prometheus.")
    return {"componentConfig": {"enableComponents": named}, "managedPrometheusConfig": {"enabled": prometheus}}


def _autoscaling(given: Given) -> Fields:
    if not given.has("enable-autoscaling"):
        if given.has("total-max-nodes") or given.has("max-nodes"):
            raise _error(400, "Autoscaling limits need --enable-autoscaling.")
        return {}
    most = "totalMaxNodeCount" if given.has("total-max-nodes") else "maxNodeCount"
    return {
        "enabled": True,
        most: int(given.value("total-max-nodes") or given.value("max-nodes") or "0"),
        "locationPolicy": given.value("location-policy", "BALANCED"),
    }


def make_pool(cloud: Cloud, given: Given, project: str) -> str:
    name, cluster = _find(cloud, project, given.value("location"), given.value("cluster"))
    machine = given.value("machine-type", "e2-medium")
    zones = given.list("node-locations") or sorted(cloud.zones[cluster["location"]])[:3]
    for zone in zones:
        if machine not in cloud.zones[cluster["location"]].get(zone, set()):
            raise _error(400, f'Machine type with name "{machine}" does not exist in zone "{zone}".')
    account = given.value("service-account")
    if account and cloud.account(account) is None:
        raise _error(400, f'The service account "{account}" does not exist.')
    if given.has("flex-start") and given.value("reservation-affinity") != "none":
        raise _error(400, "Flex-start needs --reservation-affinity=none.")
    accelerators = [dict(each.partition("=")[::2] for each in given.list("accelerator"))] if given.has("accelerator") else []
    config: dict[str, Any] = {
        "machineType": machine,
        "serviceAccount": account,
        "spot": given.has("spot"),
        "flexStart": given.has("flex-start"),
        "diskSizeGb": int(given.value("disk-size", "100")),
        "accelerators": [
            {"acceleratorType": each["type"], "acceleratorCount": int(each.get("count", "1"))} for each in accelerators
        ],
    }
    fields = {
        "config": config,
        "initialNodeCount": int(given.value("num-nodes", "3")),
        "autoscaling": _autoscaling(given),
        "locations": zones,
    }
    pool = f"{name}/nodePools/{given.arguments[0]}"
    cloud.make(types.NODE_POOL, pool, fields, f"ResponseError: code=409, message=Already exists: {pool.partition('.com/')[2]}.")
    return f"Created [{pool}]."


def pools(cloud: Cloud, given: Given, project: str) -> str:
    name, _ = _find(cloud, project, given.value("location"), given.value("cluster"))
    found = cloud.state.of(types.NODE_POOL)
    return "\n".join(f"{pool.split('/')[-1]}  RUNNING" for pool in found if pool.startswith(f"{name}/"))


def credentials(cloud: Cloud, given: Given, project: str) -> str:
    name, cluster = _find(cloud, project, given.value("location"), given.arguments[0])
    if given.has("dns-endpoint") and not cluster["controlPlaneEndpointsConfig"]["dnsEndpointConfig"]["allowExternalTraffic"]:
        raise Refused(f"DNS endpoint is disabled for cluster {given.arguments[0]}.")
    cloud.machine.cluster = name
    return "kubeconfig entry generated."


def update(cloud: Cloud, given: Given, project: str) -> str:
    _find(cloud, project, given.value("location"), given.arguments[0])
    return f"Updating {given.arguments[0]}...done."


def disabled(cluster: Fields, addon: str) -> bool:
    """Whether an add-on of AddonsConfig (``horizontalPodAutoscaling``) is switched off."""
    return bool(cluster.get("addonsConfig", {}).get(addon, {}).get("disabled"))
