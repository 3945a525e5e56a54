"""Projects, their APIs, accounts, networks and quotas."""

from __future__ import annotations

import re
from typing import Final

from local.google_cloud import access
from local.google_cloud import state as types
from local.google_cloud.cloud import PERSON, Cloud, Refused
from local.google_cloud.command_line import Given
from local.google_cloud.state import full_name

QUOTAS: Final = {
    "PREEMPTIBLE_NVIDIA_L4_GPUS": 0,
    "NVIDIA_L4_GPUS": 0,
    "PREEMPTIBLE_NVIDIA_H100_GPUS": 0,
    "PREEMPTIBLE_TPU_LITE_PODSLICE_V6E": 0,
    "CPUS": 24,
    "IN_USE_ADDRESSES": 8,
    "SSD_TOTAL_GB": 500,
}
"""Of a region of a new project: no accelerators, and little else (Compute Engine, "Allocation quotas"; the numbers vary)."""
GLOBAL_QUOTAS: Final = {"GPUS_ALL_REGIONS": 0}
AGENTS: Final = {"pubsub.googleapis.com": "gcp-sa-pubsub", "alloydb.googleapis.com": "gcp-sa-alloydb"}


def config_set(cloud: Cloud, given: Given, project: str) -> str:
    if given.arguments[0] == "project":
        cloud.machine.project = given.arguments[1]
    return f"Updated property [core/{given.arguments[0]}]."


def config_get(cloud: Cloud, given: Given, project: str) -> str:
    return {"account": PERSON, "project": cloud.machine.project}.get(given.arguments[0], "(unset)")


def describe(cloud: Cloud, given: Given, project: str) -> str:
    return cloud.number(given.arguments[0])


def bind(cloud: Cloud, given: Given, project: str) -> str:
    return access.bind(cloud, cloud.project(given.arguments[0]), given)


def enable(cloud: Cloud, given: Given, project: str) -> str:
    cloud.project(project)
    for service in given.arguments:
        if not re.fullmatch(r"[a-z0-9-]+\.googleapis\.com", service):
            raise Refused(f"PERMISSION_DENIED: Not found or permission denied for service(s): {service}.")
        name = full_name("serviceusage", "projects", project, "services", service)
        cloud.state.put(types.SERVICE, name, {"name": service, "state": "ENABLED"})
    return "Operation finished successfully."


def services(cloud: Cloud, given: Given, project: str) -> str:
    prefix = full_name("serviceusage", "projects", project, "services", "")
    return "\n".join(name.removeprefix(prefix) for name in cloud.state.of(types.SERVICE) if name.startswith(prefix))


def identity(cloud: Cloud, given: Given, project: str) -> str:
    """Google's own account for a service, which some services make only when it is asked for."""
    service = given.value("service")
    cloud.needs(service.removesuffix(".googleapis.com"), project)
    email = f"service-{cloud.number(project)}@{AGENTS[service]}.iam.gserviceaccount.com"
    cloud.state.put(
        types.SERVICE_ACCOUNT, full_name("iam", "projects", AGENTS[service], "serviceAccounts", email), {"email": email}
    )
    return f"Service identity created: {email}"


def make_account(cloud: Cloud, given: Given, project: str) -> str:
    email = f"{given.arguments[0]}@{project}.iam.gserviceaccount.com"
    number = f"11000000000000000000{len(cloud.state.of(types.SERVICE_ACCOUNT)) + 1}"
    name = full_name("iam", "projects", project, "serviceAccounts", email)
    exists = (
        f"Resource in projects [{project}] is the subject of a conflict: Service account {given.arguments[0]} already exists "
        f"within project projects/{project}."
    )
    cloud.make(types.SERVICE_ACCOUNT, name, {"email": email, "uniqueId": number}, exists)
    return f"Created service account [{given.arguments[0]}]."


def _account(cloud: Cloud, given: Given) -> types.Fields:
    found = cloud.account(given.arguments[0])
    if found is None:
        raise Refused(f"NOT_FOUND: Unknown service account {given.arguments[0]}.")
    return found


def describe_account(cloud: Cloud, given: Given, project: str) -> str:
    return str(_account(cloud, given)["uniqueId"])


def bind_account(cloud: Cloud, given: Given, project: str) -> str:
    return access.bind(cloud, _account(cloud, given), given)


def machine_types(cloud: Cloud, given: Given, project: str) -> str:
    """Of the filter only ``zone~^REGION AND name=TYPE`` is known."""
    match = re.fullmatch(r"zone~\^([\w-]+) AND name=([\w-]+)", given.value("filter"))
    if match is None:
        raise Refused(f"the stand-in does not know the filter {given.value('filter')!r}")
    return "\n".join(zone for zone, machines in cloud.zones.get(match[1], {}).items() if match[2] in machines)


def network(cloud: Cloud, given: Given, project: str) -> str:
    name = full_name("compute", "projects", project, "global", "networks", given.arguments[0])
    exists = f"Could not fetch resource:\n - The resource '{name[24:]}' already exists"
    cloud.make(types.NETWORK, name, {"name": given.arguments[0]}, exists)
    return f"Created [{name}]."


def find_network(cloud: Cloud, project: str, network: str) -> str:
    """The FULL_NAME of a network, given by its name or by ``projects/P/global/networks/N``. Raises Refused."""
    path = network if "/" in network else f"projects/{project}/global/networks/{network}"
    name = full_name("compute", *path.split("/"))
    if cloud.state.get(types.NETWORK, name) is None:
        raise Refused(f'ResponseError: code=400, message=Network "{network}" does not exist.')
    return name


def address(cloud: Cloud, given: Given, project: str) -> str:
    where = find_network(cloud, project, given.value("network"))
    name = full_name("compute", "projects", project, "global", "addresses", given.arguments[0])
    exists = f"Could not fetch resource:\n - The resource '{name[24:]}' already exists"
    cloud.make(types.ADDRESS, name, {"purpose": given.value("purpose"), "network": where}, exists)
    return f"Created [{name}]."


def peering(cloud: Cloud, given: Given, project: str) -> str:
    """Private service access: the network meets the one in which Google runs AlloyDB."""
    where = find_network(cloud, project, given.value("network"))
    for name in given.list("ranges"):
        found = cloud.state.get(types.ADDRESS, full_name("compute", "projects", project, "global", "addresses", name))
        if found is None or found["purpose"] != "VPC_PEERING":
            raise Refused(f"INVALID_ARGUMENT: Cannot find allocated IP range {name} of network {where.partition('.com/')[2]}.")
    name = f"{full_name('servicenetworking', *where.partition('.com/')[2].split('/'))}/connections/servicenetworking"
    cloud.state.put(types.PEERING, name, {"reservedPeeringRanges": given.list("ranges")})
    return "Operation finished successfully."


def quotas(cloud: Cloud, given: Given, project: str) -> str:
    return "\n".join(f"{metric}  {limit(cloud, project, given.arguments[0], metric)}  0" for metric in QUOTAS)


def quota_ids(cloud: Cloud, given: Given, project: str) -> str:
    regional = [f"{metric.replace('_', '-')}-per-project-region" for metric in QUOTAS]
    return "\n".join([*regional, *(f"{metric.replace('_', '-')}-per-project" for metric in GLOBAL_QUOTAS)])


def prefer(cloud: Cloud, given: Given, project: str) -> str:
    """Granted at once: what takes hours or days there."""
    quota, region = given.value("quota-id"), given.pairs("dimensions").get("region", "global")
    if quota not in quota_ids(cloud, given, project).splitlines():
        raise Refused(f"NOT_FOUND: Quota {quota} does not exist for service {given.value('service')}.")
    if (region == "global") != quota.endswith("-per-project"):
        raise Refused(f"INVALID_ARGUMENT: The dimensions of quota {quota} do not fit.")
    name = full_name("cloudquotas", "projects", project, "locations", "global", "quotaPreferences", f"{quota}-{region}")
    value = int(given.value("preferred-value"))
    fields = {
        "quotaId": quota,
        "dimensions": {"region": region},
        "quotaConfig": {"preferredValue": value, "grantedValue": value},
    }
    cloud.make(types.QUOTA, name, fields)
    return f"Created quotaPreference [{quota}-{region}]."


def preferences(cloud: Cloud, given: Given, project: str) -> str:
    found = cloud.state.of(types.QUOTA).values()
    return "\n".join(
        f"{each['quotaId']}  {each['quotaConfig']['preferredValue']}  {each['quotaConfig']['grantedValue']}" for each in found
    )


def limit(cloud: Cloud, project: str, region: str, metric: str) -> int:
    """What is granted of a quota of Compute Engine in a region; of a global one, anywhere."""
    for each in cloud.state.of(types.QUOTA).items():
        name, fields = each
        own = name.startswith(full_name("cloudquotas", "projects", project, ""))
        place = fields["dimensions"].get("region", "global")
        if own and fields["quotaId"].startswith(f"{metric.replace('_', '-')}-per-") and place in (region, "global"):
            return int(fields["quotaConfig"]["grantedValue"])
    return QUOTAS[metric] if metric in QUOTAS else GLOBAL_QUOTAS[metric]
