"""IAM: who may be named in a policy, and what a policy then allows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud, Refused
from local.google_cloud.command_line import Given
from local.google_cloud.state import Fields

_WORKLOAD = re.compile(
    r"principal://iam\.googleapis\.com/projects/(\d+)/locations/global/workloadIdentityPools/([\w-]+)\.svc\.id\.goog"
    r"/subject/ns/([\w-]+)/sa/([\w-]+)"
)

_IN_POOL = re.compile(r"([\w-]+)\.svc\.id\.goog\[[\w-]+/[\w-]+\]")


def workload(project: str, number: str, namespace: str, account: str) -> str:
    """The member that a Kubernetes account is, once a cluster has made the project's pool."""
    pool = f"projects/{number}/locations/global/workloadIdentityPools/{project}.svc.id.goog"
    return f"principal://iam.googleapis.com/{pool}/subject/ns/{namespace}/sa/{account}"


def check_member(cloud: Cloud, member: str) -> None:
    """Raises Refused with IAM's words for a member that does not exist."""
    kind, _, name = member.partition(":")
    if kind == "serviceAccount" and (match := _IN_POOL.fullmatch(name)):
        _check_pool(cloud, match[1])
    elif kind == "serviceAccount":
        if cloud.account(name) is None:
            raise Refused(f"INVALID_ARGUMENT: Service account {name} does not exist.")
    elif kind == "principal":
        match = _WORKLOAD.fullmatch(member)
        if match is None:
            raise Refused(f"INVALID_ARGUMENT: The member {member} is of an unknown type.")
        number, project, _, _ = match.groups()
        _check_pool(cloud, project)
        if cloud.number(project) != number:
            raise Refused(f"INVALID_ARGUMENT: Identity Pool does not exist ({project}.svc.id.goog).")
    elif kind not in ("user", "group"):
        raise Refused(f"INVALID_ARGUMENT: Invalid member {member}.")


def _check_pool(cloud: Cloud, project: str) -> None:
    """A project has its pool once it has a cluster with workload identity."""
    pools = {each.get("workloadIdentityConfig", {}).get("workloadPool") for each in cloud.state.of(types.CLUSTER).values()}
    if f"{project}.svc.id.goog" not in pools:
        raise Refused(f"INVALID_ARGUMENT: Identity Pool does not exist ({project}.svc.id.goog).")


def bind(cloud: Cloud, resource: Fields, given: Given) -> str:
    """``add-iam-policy-binding`` on a resource. Raises Refused.

    gcloud asks for a condition where a policy has one already, and cannot ask in a script
    (its own source: AddBindingToIamPolicyWithCondition of its module iam_util).
    """
    condition = given.value("condition")
    bindings: list[dict[str, Any]] = resource.setdefault("iamPolicy", {}).setdefault("bindings", [])
    if any("condition" in each for each in bindings) and not condition:
        raise Refused(
            "Adding a binding without specifying a condition to a policy containing conditions is prohibited in "
            "non-interactive mode. Run the command again with `--condition=None`"
        )
    check_member(cloud, given.value("member"))
    add(resource, given.value("role"), given.value("member"), "" if condition == "None" else condition)
    return "Updated IAM policy."


def add(resource: Fields, role: str, member: str, condition: str = "") -> None:
    binding: dict[str, Any] = {"role": role, "members": [member]}
    if condition:
        title, _, expression = condition.partition(",")
        binding["condition"] = {"title": title.partition("=")[2], "expression": expression.partition("=")[2]}
    resource.setdefault("iamPolicy", {}).setdefault("bindings", []).append(binding)


def roles(resource: Fields | None, member: str) -> set[str]:
    """Without ``roles/``; those with a condition too."""
    return set(_roles((resource or {}).get("iamPolicy", {}).get("bindings", []), member))


def _roles(bindings: Iterable[dict[str, Any]], member: str) -> Iterator[str]:
    for each in bindings:
        if member in each["members"]:
            yield str(each["role"]).removeprefix("roles/")
