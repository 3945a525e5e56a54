"""The pretended cloud as one person at a shell sees it: its state, what the person's machine remembers, and how it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from local.google_cloud import state as types
from local.google_cloud.state import Fields, State, full_name

PERSON: Final = "somebody@example.com"
"""The owner of the projects, who is logged in."""


class Refused(Exception):
    """What a program prints on stderr before it ends. code: its exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


@dataclass
class Machine:
    """folder: where commands run. project, cluster: the current ones of gcloud and kubectl (the cluster by FULL_NAME).

    registries: hosts that docker may log in to. images: names of images that were built here, with their platform.
    packages: what pip installed, by folder of the environment. variables: the shell's exported variables of this command.
    """

    folder: Path
    project: str = ""
    cluster: str = ""
    registries: set[str] = field(default_factory=set)
    images: dict[str, str] = field(default_factory=dict)
    packages: dict[str, set[str]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Cloud:
    """zones: region -> zone -> machine types that it has. sold_out: (zone, machine type, how) without capacity tonight."""

    state: State
    machine: Machine
    zones: dict[str, dict[str, set[str]]] = field(default_factory=dict)
    sold_out: set[tuple[str, str, str]] = field(default_factory=set)

    def project(self, name: str) -> Fields:
        """Raises Refused."""
        found = self.state.get(types.PROJECT, full_name("cloudresourcemanager", "projects", name))
        if found is None:
            raise Refused(f"PERMISSION_DENIED: The caller does not have permission on project {name!r} (or it may not exist)")
        return found

    def number(self, project: str) -> str:
        return str(self.project(project)["projectNumber"])

    def needs(self, api: str, project: str) -> None:
        """Raises Refused unless the API (``compute``) is enabled in the project."""
        number = self.number(project)
        service = f"{api}.googleapis.com"
        found = self.state.get(types.SERVICE, full_name("serviceusage", "projects", project, "services", service))
        if not found or found.get("state") != "ENABLED":
            raise Refused(
                f"PERMISSION_DENIED: {service} has not been used in project {number} before or it is disabled. Enable it by "
                f"visiting https://console.developers.google.com/apis/api/{service}/overview?project={number} then retry. "
                "(reason: SERVICE_DISABLED)"
            )

    def enforces(self, project: str, constraint: str) -> bool:
        """Whether an organization's policy holds in a project."""
        policy = self.state.get(types.ORG_POLICY, full_name("orgpolicy", "projects", project, "policies", constraint)) or {}
        return any(rule.get("enforce") for rule in policy.get("spec", {}).get("rules", []))

    def make(self, kind: str, name: str, fields: Fields, exists: str = "") -> Fields:
        """Raises Refused if there is one of that name. exists: its words, if they are not the usual ones."""
        if self.state.get(kind, name) is not None:
            raise Refused(exists or f"ALREADY_EXISTS: Resource {name.partition('.com/')[2]!r} already exists.")
        self.state.put(kind, name, fields)
        return fields

    def find(self, kind: str, name: str) -> Fields:
        """Raises Refused."""
        found = self.state.get(kind, name)
        if found is None:
            raise Refused(f"NOT_FOUND: Resource {name.partition('.com/')[2]!r} was not found.")
        return found

    def account(self, email: str) -> Fields | None:
        """A service account of any project, Google's own agents among them."""
        return next((each for each in self.state.of(types.SERVICE_ACCOUNT).values() if each["email"] == email), None)

    def region_of(self, zone: str) -> str | None:
        return next((region for region, zones in self.zones.items() if zone in zones), None)


def new_project(state: State, project: str, number: int = 123456789012) -> None:
    """A project as Google makes it: an owner, a default network, and no API of ours enabled.

    It has no legacy account of Cloud Build: new projects do not get one ("Cloud Build default service account change", 2024).
    """
    owner = {"role": "roles/owner", "members": [f"user:{PERSON}"]}
    fields = {"projectId": project, "projectNumber": str(number), "iamPolicy": {"bindings": [owner]}}
    state.put(types.PROJECT, full_name("cloudresourcemanager", "projects", project), fields)
    state.put(types.NETWORK, full_name("compute", "projects", project, "global", "networks", "default"), {"name": "default"})


def without_default_network(state: State, project: str) -> None:
    """The same in an organization with the policy ``compute.skipDefaultNetworkCreation``."""
    policy = {"spec": {"rules": [{"enforce": True}]}}
    constraint = "compute.skipDefaultNetworkCreation"
    state.put(types.ORG_POLICY, full_name("orgpolicy", "projects", project, "policies", constraint), policy)
    state.remove(types.NETWORK, full_name("compute", "projects", project, "global", "networks", "default"))
