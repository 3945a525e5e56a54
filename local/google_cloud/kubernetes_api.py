"""The API of a cluster of the state: discovery, objects and lists, to the user that RBAC lets read them.

Objects are what ``kubectl apply`` put into the state, with what `controllers` would have written into their status.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from local.google_cloud import controllers, kubernetes
from local.google_cloud import state as types
from local.google_cloud.state import Fields, State

BUILT_IN: Final[dict[str, tuple[str, ...]]] = {
    "k8s.io/v1": ("pods", "services", "serviceaccounts", "configmaps", "namespaces", "secrets", "events"),
    "apps/v1": ("deployments",),
    "autoscaling/v2": ("horizontalpodautoscalers",),
    "scheduling.k8s.io/v1": ("priorityclasses",),
}
"""What every cluster serves, as far as it is asked for."""
GATEWAY_API: Final[dict[str, tuple[str, ...]]] = {
    "gateway.networking.k8s.io/v1": ("gateways", "httproutes", "gatewayclasses"),
    "inference.networking.k8s.io/v1": ("inferencepools",),
    "networking.gke.io/v1": ("healthcheckpolicies", "gcpbackendpolicies"),
}
"""GKE serves these once the channel of its Gateway API is standard ("Deploying Gateways")."""
VERSIONS: Final = {"jobset.x-k8s.io": "v1alpha2", "kueue.x-k8s.io": "v1beta2"}
"""Of the releases that pages name."""
METRICS: Final = ("external.metrics.k8s.io", "custom.metrics.k8s.io")
"""What the adapter serves."""
_PATH: Final = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?"
)


@dataclass(frozen=True)
class KubernetesApi:
    """cluster: its FULL_NAME. user: whom the cluster takes the caller for. version: of the control plane."""

    state: State
    cluster: str
    user: str
    version: str = "v1.34.1-gke.1829001"

    def answer(self, path: str, body: Mapping[str, Any] | None = None, selector: str = "") -> tuple[int, dict[str, Any]]:
        """HTTP status and document."""
        if body is not None:
            return self._review(path, body)
        if path == "/version":
            return 200, {"gitVersion": self.version}
        if found := self._discovery(path):
            return 200, found
        match = _PATH.fullmatch(path)
        if match is None or not self._is_served(match["group"] or "k8s.io", match["version"], match["plural"]):
            return _status(404, "NotFound", "the server could not find the requested resource")
        verb = "get" if match["name"] else "list"
        if not self.may(verb, match["group"] or "", match["plural"], match["namespace"] or ""):
            where = f' in the namespace "{match["namespace"]}"' if match["namespace"] else " at the cluster scope"
            what = f'cannot {verb} resource "{match["plural"]}" in API group "{match["group"] or ""}"{where}'
            return _status(403, "Forbidden", f'{match["plural"]} is forbidden: User "{self.user}" {what}')
        found_all = dict(self._objects(match))
        if match["name"]:
            one = found_all.get(match["name"])
            return (200, one) if one else _status(404, "NotFound", f'{match["plural"]} "{match["name"]}" not found')
        items = [each for each in found_all.values() if _selected(each, selector)]
        return 200, {"kind": "List", "metadata": {}, "items": items}

    def may(self, verb: str, group: str, resource: str, namespace: str) -> bool:
        """By RBAC: what Roles and ClusterRoles that are bound to the user hold."""
        return any(_allows(rule, verb, group, resource) for rule in self._rules(namespace))

    def _review(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        if path.endswith("/selfsubjectreviews"):
            return 201, {**body, "status": {"userInfo": {"username": self.user}}}
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
        allowed = self.may(asked["verb"], asked["group"], resource, asked["namespace"])
        return 201, {**body, "status": {"allowed": allowed}}

    def _discovery(self, path: str) -> dict[str, Any] | None:
        group, _, version = path.removeprefix("/apis/").partition("/")
        if not path.startswith("/apis/") or "/" in version:
            return None
        served = self._served()
        if version:
            resources = served.get(f"{group}/{version}")
            return {"kind": "APIResourceList", "resources": [{"name": each} for each in resources]} if resources else None
        versions = [each.partition("/")[2] for each in served if each.partition("/")[0] == group]
        return {"kind": "APIGroup", "versions": [{"version": each} for each in versions]} if versions else None

    def _is_served(self, group: str, version: str, plural: str) -> bool:
        return plural in self._served().get(f"{group}/{version}", ())

    def _served(self) -> dict[str, tuple[str, ...]]:
        found = dict(BUILT_IN)
        cloud, cluster = controllers.cloud_of(self.state), self.state.get(types.CLUSTER, self.cluster) or {}
        for crd in self._of_kind(kubernetes.CRD):
            group, _, kind = str(crd["kind"]).partition("/")
            found[f"{group}/{VERSIONS[group]}"] = (*found.get(f"{group}/{VERSIONS[group]}", ()), kubernetes.plural(kind))
        if kubernetes.compute_class_is_there(cloud, cluster):
            found["cloud.google.com/v1"] = ("computeclasses",)
        if controllers.serves_gateways(cluster):
            found |= GATEWAY_API
        if controllers.has_adapter(cloud, self.cluster):
            found |= {f"{group}/v1beta1": ("*",) for group in METRICS}
        return found

    def _of_kind(self, kind: str) -> list[Fields]:
        return [each for name, each in self.state.of(kind).items() if name.startswith(f"{self.cluster}/k8s/")]

    def _objects(self, match: re.Match[str]) -> Iterator[tuple[str, Fields]]:
        scope = f"namespaces/{match['namespace']}/" if match["namespace"] else ""
        prefix = f"{self.cluster}/k8s/{scope}{match['plural']}/"
        group = f"{match['group'] or 'k8s.io'}/"
        for kind, found in self.state.resources.items():
            if kind.startswith(group):
                for name, each in found.items():
                    if name.startswith(prefix):
                        yield name.removeprefix(prefix), controllers.with_status(self.state, self.cluster, each)

    def _rules(self, namespace: str) -> Iterator[Mapping[str, Any]]:
        bindings = [*self._bindings("ClusterRoleBinding", ""), *self._bindings("RoleBinding", namespace)]
        for scope, binding in bindings:
            if any(each["kind"] == "User" and each["name"] == self.user for each in binding.get("subjects", ())):
                ref = binding["roleRef"]
                within = f"namespaces/{scope}/roles" if ref["kind"] == "Role" else "clusterroles"
                role = self.state.get(f"rbac.authorization.k8s.io/{ref['kind']}", f"{self.cluster}/k8s/{within}/{ref['name']}")
                yield from (role or {}).get("rules") or ()

    def _bindings(self, kind: str, namespace: str) -> Iterator[tuple[str, Fields]]:
        for each in self._of_kind(f"rbac.authorization.k8s.io/{kind}"):
            if kind == "ClusterRoleBinding" or each["metadata"].get("namespace") == namespace:
                yield namespace, each


def _allows(rule: Mapping[str, Any], verb: str, group: str, resource: str) -> bool:
    wanted = (("verbs", verb), ("apiGroups", group), ("resources", resource))
    return all(value in rule.get(key, ()) or "*" in rule.get(key, ()) for key, value in wanted)


def _selected(found: Fields, selector: str) -> bool:
    labels = found.get("metadata", {}).get("labels", {})
    return all(labels.get(key) == value for key, _, value in (each.partition("=") for each in selector.split(",") if each))


def _status(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": message}
