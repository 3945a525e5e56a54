"""The AlloyDB behind a stream's table, as far as its API says: states, network, IAM authentication, the database's users.

Which instance it is, its address tells (`nightshift.doctor.subscriber`). What only the database knows (its extensions, the
rights of a role) a subscriber checks at its start. Fields: AlloyDB API v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightshift.doctor import fixes, gke, google_api, subscriber
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, NotKnown, Ok
from nightshift.hooks.services import Google, Wrong

NAME: Final = "alloydb"
NETWORK: Final = "alloydb network"
LOGIN: Final = "alloydb login"
FLAG: Final = "alloydb.iam_authentication"
IAM_USER: Final = "ALLOYDB_IAM_USER"
MAY_LOG_IN: Final = {
    "alloydb.databaseUser": frozenset(("roles/alloydb.databaseUser", "roles/alloydb.admin", "roles/owner")),
    "serviceusage.serviceUsageConsumer": frozenset(
        ("roles/serviceusage.serviceUsageConsumer", "roles/serviceusage.serviceUsageAdmin", "roles/editor", "roles/owner")
    ),
}
"""What an account needs on the project (AlloyDB, "Manage IAM authentication"): the role to grant, and all that hold it."""
ACTS_AS: Final = frozenset(("roles/iam.workloadIdentityUser",))
BREAKS: Final = "the stream: answers wait in memory, and pulling stops"
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """instance, cluster: of the API. login: the user who logs in; '' if that is not known."""

    instance: Document
    cluster: Document
    login: str

    @property
    def flags(self) -> str:
        """Of gcloud, for the instance."""
        _, project, _, region, _, cluster, *_ = str(self.instance["name"]).split("/")
        return f"--cluster={cluster} --region={region} --project={project}"

    @property
    def short_name(self) -> str:
        return str(self.instance["name"]).rpartition("/")[2]


def states(here: Surroundings) -> Iterator[Finding]:
    found = _found(here)
    describe = f"gcloud alloydb instances describe {found.short_name} {found.flags}"
    for what, document in (("cluster", found.cluster), ("instance", found.instance)):
        if document.get("state") != "READY":
            yield Failed(NAME, f"the {what} {document['name']} is {document.get('state')}", BREAKS, describe)
            return
    yield Ok(NAME, f"{found.instance['name']}, READY")


def network(here: Surroundings) -> Iterator[Finding]:
    """Whether pods can reach its private address: private services access puts it into one network."""
    found, cluster = _found(here), gke.cluster(here)
    if found.cluster.get("pscConfig", {}).get("pscEnabled"):
        raise NotKnown("it is reached by Private Service Connect, whose endpoint is the network's own")
    theirs = str(found.cluster.get("networkConfig", {}).get("network") or found.cluster.get("network", ""))
    ours = str(cluster.get("networkConfig", {}).get("network", ""))
    if theirs.rpartition("/networks/")[2] != ours.rpartition("/networks/")[2]:
        project = gke.place(here).project
        again = (
            f"gcloud alloydb clusters create ANOTHER --project={project} --network={ours} --region=REGION --password=PASSWORD"
        )
        yield Failed(NETWORK, f"it is in {theirs}, and the pods are in {ours}, without a way between them", BREAKS, again)
    else:
        yield Ok(NETWORK, f"{theirs}, as the pods")


def login(here: Surroundings) -> Iterator[Finding]:
    """IAM authentication: the instance's flag, and the user."""
    found = _found(here)
    cluster = str(found.instance["name"]).partition("/instances/")[0]
    project = cluster.split("/")[1]
    users = list(
        google_api.read_all(here.connections.google(), google_api.ALLOYDB, f"v1/{cluster}/users", "users", project=project)
    )
    iam = [str(each["name"]).rpartition("/")[2] for each in users if each.get("userType") == IAM_USER]
    named = next((each for each in users if str(each["name"]).rpartition("/")[2] == found.login), None)
    if found.login and named is None:
        kind = "IAM_BASED" if "@" in found.login else "BUILT_IN"
        create = f"gcloud alloydb users create {found.login} --type={kind} {found.flags}"
        yield Failed(LOGIN, f"it has no user {found.login}, as whom the stream logs in", BREAKS, create)
    elif iam and found.instance.get("databaseFlags", {}).get(FLAG) not in ("on", "true"):
        update = f"gcloud alloydb instances update {found.short_name} {found.flags} --database-flags={FLAG}=on"
        wrong = f"{', '.join(iam)} can only log in by IAM, and the instance's flag {FLAG} is not on"
        yield Failed(LOGIN, wrong, BREAKS, f"{update} (and its other flags: the list is replaced)")
    elif found.login in iam:
        yield from _by_iam(here, project, found.login)
    elif found.login:
        yield Ok(LOGIN, f"{found.login}, with a password")
    else:
        yield Ok(LOGIN, f"users by IAM: {', '.join(iam) or 'none'}; as whom the stream logs in is not known")


def _by_iam(here: Surroundings, project: str, user: str) -> Iterator[Finding]:
    """The account's role on the project, and whether the subscribers may act as it."""
    google, account = here.connections.google(), f"{user}.gserviceaccount.com"
    whole, who = google_api.project_policy(google, project), re.compile(re.escape(f"serviceAccount:{account}"))
    for role, roles in MAY_LOG_IN.items():
        if not google_api.grants(whole, who, roles):
            grant = fixes.project_role(project, role, account)
            yield Failed(LOGIN, f"{account} may not log in to databases of {project}: it has not {role}", BREAKS, grant)
            return
    if subscriber.google_account(here) == account:
        yield from _acting(here, account)
    else:
        yield Ok(LOGIN, f"{user}, by IAM")


def _acting(here: Surroundings, account: str) -> Iterator[Finding]:
    """Whether the subscribers' Kubernetes account may act as the Google account."""
    pool, name = f"{gke.place(here).project}.svc.id.goog", f"{here.settings.namespace}/{subscriber.name(here)}"
    member = f"serviceAccount:{pool}[{name}]"
    project = account.partition("@")[2].partition(".")[0]
    path = f"v1/projects/{project}/serviceAccounts/{account}:getIamPolicy"
    grant = (
        f"gcloud iam service-accounts add-iam-policy-binding {account} --project={project} --member='{member}' "
        "--role=roles/iam.workloadIdentityUser"
    )
    try:
        google = here.connections.google()
        own = google_api.read(google, google_api.ACCOUNT_POLICIES, path, project=project, method="POST")
    except google_api.NotThere:
        create = f"gcloud iam service-accounts create {account.partition('@')[0]} --project={project}"
        yield Failed(LOGIN, f"there is no account {account}, as which the subscribers act", BREAKS, f"{create} && {grant}")
        return
    if google_api.grants(own, re.compile(re.escape(member)), ACTS_AS):
        yield Ok(LOGIN, f"{account}, by IAM, as which {subscriber.name(here)} acts")
    else:
        yield Failed(LOGIN, f"the subscribers' Kubernetes account may not act as {account}", BREAKS, grant)


def _found(here: Surroundings) -> Found:
    """The instance that the stream writes to, by its address. Raises NotKnown if there is none."""
    if not here.named_stream.sink.PORTS:
        raise NotKnown(f"the sink of {here.named_stream.job} is no database")
    database, google = subscriber.database(here), here.connections.google()
    projects = list(dict.fromkeys((gke.place(here).project, here.settings.project)))
    silent: NotKnown | None = None
    for project in projects:
        try:
            for instance in _instances(google, project):
                if database.host in (instance.get("ipAddress"), instance.get("publicIpAddress"), _dns(instance)):
                    cluster = str(instance["name"]).partition("/instances/")[0]
                    whole = google_api.read(google, google_api.ALLOYDB, f"v1/{cluster}", project=project)
                    return Found(instance, whole, database.login)
        except NotKnown as error:
            silent = error
    where = " and ".join(projects)
    nobody = f"no AlloyDB instance of {where} has the address {database.host}: it may be another PostgreSQL, or a proxy"
    raise silent or NotKnown(nobody)


def _instances(google: Google, project: str) -> Iterator[Document]:
    """None of a project that does not use AlloyDB at all."""
    path = f"v1/projects/{project}/locations/-/clusters/-/instances"
    try:
        yield from google_api.read_all(google, google_api.ALLOYDB, path, "instances", project=project)
    except Wrong:
        return


def _dns(instance: Document) -> str | None:
    name = instance.get("pscInstanceConfig", {}).get("pscDnsName")
    return str(name).removesuffix(".") if name else None
