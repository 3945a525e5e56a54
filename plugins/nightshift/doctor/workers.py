"""What the workers' account may write in the bucket: nothing but objects below its own prefix.

The doctor has no token of that account, so it reads the bucket's policy (``buckets.getIamPolicy``), if the connection's account
may. Rights that come from the project or a folder, and roles of an organisation's own, it does not see.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from nightshift.doctor import fixes
from nightshift.doctor.context import Surroundings
from nightshift.doctor.findings import Failed, Finding, Ok, Skipped
from nightshift.run.names import WORKERS
from nightshift.settings import JOB_MARK, SettingsError

NAME: Final = "workers' rights"
BREAKS: Final = "the proof: a pod that was taken over could write plans, manifests and other jobs' chunks"
LACKING: Final = "infer: no worker could keep what it computes"
WRITING: Final = frozenset(
    f"roles/{name}"
    for name in (
        *("storage.objectCreator", "storage.objectUser", "storage.objectAdmin", "storage.admin"),
        *("storage.legacyBucketWriter", "storage.legacyBucketOwner", "storage.legacyObjectOwner", "storage.folderAdmin"),
        *("owner", "editor"),
    )
)
"""Google's roles that create, replace or delete objects."""
READING: Final = frozenset(
    f"roles/storage.{name}"
    for name in ("objectViewer", "legacyObjectReader", "legacyBucketReader", "bucketViewer", "insightsCollectorService")
)
_ANYBODY: Final = ("allUsers", "allAuthenticatedUsers")


def rights(here: Surroundings) -> Iterator[Finding]:
    bucket = here.settings.bucket
    if here.settings.local_folder:
        yield Skipped(NAME, "pods of the local runtime have no account")
        return
    try:
        whose = _whose(here)
    except SettingsError as error:
        yield Failed(NAME, str(error), BREAKS, "write another name as job: in its file")
        return
    reply = here.connections.google().ask(
        "GET", f"{here.storage}/storage/v1/b/{quote(bucket, safe='')}/iam?optionsRequestedPolicyVersion=3"
    )
    if reply.status != 200:
        shows = f"gcloud storage buckets get-iam-policy gs://{bucket} --format=json"
        because = f"this account may not read the policy of gs://{bucket} (HTTP {reply.status}); look with: {shows}"
        yield Skipped(NAME, because)
        return
    bindings = json.loads(reply.body).get("bindings", ())
    held = [(binding, member) for binding in bindings for member in binding["members"] if _is_worker(here, member)]
    if not held:
        who = here.settings.service_account
        yield Skipped(NAME, f"the policy of gs://{bucket} names no account {who} of namespace {here.settings.namespace}")
        return
    found = [finding for binding, member in held if (finding := _judged(here, binding, member)) is not None]
    writing = [binding for binding, _ in held if binding["role"] not in READING]
    if not writing:
        yield Skipped(NAME, f"the policy of gs://{bucket} gives {held[0][1]} no role that creates objects; its project may")
        return
    if not any(_reaches(here, binding) for binding in writing):
        member = held[0][1]
        wrong = f"{member} may not create objects below gs://{bucket}/{_prefix(here)}: its conditions name other prefixes"
        found = [Failed(NAME, wrong, LACKING, fixes.own_prefix(here.settings, member, "", _prefix(here)))]
    yield from found or (Ok(NAME, f"{whose} below gs://{bucket}/{_prefix(here)} only"),)


def _whose(here: Surroundings) -> str:
    """Which account writes, and for whom. Raises SettingsError if it is that of something else."""
    name = here.settings.service_account
    if JOB_MARK not in name:
        return f"{name}, the account of all jobs, writes"
    return (
        f"{here.settings.account_of(here.job.job)}, the account of {here.job.job} alone, writes"
        if here.job
        else f"each {name} writes"
    )


def _judged(here: Surroundings, binding: Mapping[str, Any], member: str) -> Finding | None:
    """What is wrong with a binding of a worker's, or unknown; None if nothing is."""
    role, expression = binding["role"], (binding.get("condition") or {}).get("expression")
    if role in READING:
        return None
    if role not in WRITING:
        return Skipped(NAME, f"whether {role}, which {member} has, lets it write is not known here")
    if expression is None:
        wrong = f"{member} may write anywhere in gs://{here.settings.bucket}: its {role} has no condition"
        return Failed(NAME, wrong, BREAKS, fixes.own_prefix(here.settings, member, role, _prefix(here)))
    of_all, own = (_condition(here.settings.bucket, prefix) for prefix in (f"{WORKERS}/", _prefix(here)))
    plain = re.sub(r"\s", "", expression).replace("'", '"')
    if plain == own and role == "roles/storage.objectCreator":
        return None
    if plain == of_all and role == "roles/storage.objectCreator":
        wrong = f"{member} may write other jobs' chunks: its condition names {WORKERS}/, not {_prefix(here)}"
        return Failed(NAME, wrong, BREAKS, fixes.own_prefix(here.settings, member, "", _prefix(here)))
    return Skipped(NAME, f"whether {role} of {member} ends at {_prefix(here)} cannot be told from its condition: {expression}")


def _reaches(here: Surroundings, binding: Mapping[str, Any]) -> bool:
    """Whether a binding may let a worker write what it commits: not if its condition is one that names another prefix."""
    expression = re.sub(r"\s", "", (binding.get("condition") or {}).get("expression") or "").replace("'", '"')
    start, end = _condition(here.settings.bucket, "\0").split("\0")
    if not expression.startswith(start) or not expression.endswith(end) or '"' in (named := expression[len(start) : -len(end)]):
        return True
    if here.job is None:
        return f"{WORKERS}/".startswith(named) or named.startswith(f"{WORKERS}/")
    return f"{WORKERS}/{here.job.job}/".startswith(named)


def _prefix(here: Surroundings) -> str:
    """The prefix at which the rights of the worker that is asked about end."""
    if JOB_MARK not in here.settings.service_account or here.job is None:
        return f"{WORKERS}/"
    return f"{WORKERS}/{here.job.job}/"


def _condition(bucket: str, prefix: str) -> str:
    return f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/{prefix}")'


def _is_worker(here: Surroundings, member: str) -> bool:
    """Whether a member of a policy is, or includes, a pod of the deployment's: by workload identity's names."""
    settings = here.settings
    job = "[a-z][-a-z0-9]*" if here.job is None else re.escape(here.job.job)
    account = job.join(map(re.escape, settings.service_account.split(JOB_MARK)))
    namespace = re.escape(settings.namespace)
    named = rf".*/subject/ns/{namespace}/sa/{account}|.*/namespace/{namespace}|serviceAccount:.*\[{namespace}/{account}\]"
    pool = r"principalSet://iam\.googleapis\.com/.*\.svc\.id\.goog/\*"
    return member in _ANYBODY or re.fullmatch(f"{named}|{pool}", member) is not None
