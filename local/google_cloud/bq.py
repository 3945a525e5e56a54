"""bq: datasets, and the queries that a page types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from local.google_cloud import access
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud, Refused
from local.google_cloud.state import full_name

FLAGS: Final = {
    "--location",
    "--project_id",
    "--dataset",
    "--force",
    "--use_legacy_sql",
    "--label",
    "--default_kms_key",
    "--format",
}
"""Of `mk` and `query`, from bq's own help, as far as pages use them."""
_GRANT: Final = re.compile(r"GRANT `(roles/[\w.]+)` ON SCHEMA `([\w-]+)\.(\w+)` TO '(.*)'")
_CREATE: Final = re.compile(r"CREATE (?:OR REPLACE )?TABLE `?(?:([\w-]+)\.)?(\w+)\.(\w+)`?\s+.*\bAS\b", re.DOTALL)


def run(cloud: Cloud, words: Sequence[str]) -> str:
    flags = dict(word.partition("=")[::2] for word in words if word.startswith("--"))
    if unknown := [name for name in flags if name not in FLAGS]:
        raise Refused(f"FATAL Flags parsing error: Unknown command line flag '{unknown[0].lstrip('-')}'", 1)
    command, *arguments = [word for word in words if not word.startswith("--")]
    project = flags.get("--project_id") or cloud.machine.project
    cloud.needs("bigquery", project)
    if command == "mk":
        return _make(cloud, arguments[0], flags)
    if command == "query":
        return _query(cloud, project, arguments[0], flags)
    raise Refused(f"FATAL Unknown command '{command}'")


def _make(cloud: Cloud, target: str, flags: dict[str, str]) -> str:
    project, _, dataset = target.partition(":")
    cloud.needs("bigquery", project)
    name = full_name("bigquery", "projects", project, "datasets", dataset)
    if "--force" in flags and cloud.state.get(types.DATASET, name) is not None:
        return ""
    exists = f"BigQuery error in mk operation: Dataset '{target}' already exists."
    cloud.make(types.DATASET, name, {"location": flags.get("--location", "US")}, exists)
    return f"Dataset '{target}' successfully created."


def _query(cloud: Cloud, project: str, sql: str, flags: dict[str, str]) -> str:
    if flags.get("--use_legacy_sql") != "false":
        raise Refused("Error in query string: Encountered unexpected input: legacy SQL is the default")
    if match := _GRANT.fullmatch(sql):
        role, owner, dataset, member = match.groups()
        found = _dataset(cloud, owner, dataset, flags)
        try:
            access.check_member(cloud, member)
        except Refused as error:
            raise Refused(f"Error in query string: IAM setPolicy failed for Dataset {owner}:{dataset}: {error}") from None
        access.add(found, role, member)
    elif match := _CREATE.match(sql):
        _dataset(cloud, match[1] or project, match[2], flags).setdefault("tables", []).append(match[3])
    elif not sql.startswith("SELECT"):
        raise Refused(f"Error in query string: the stand-in does not know the statement {sql[:60]!r}")
    return ""


def _dataset(cloud: Cloud, project: str, dataset: str, flags: dict[str, str]) -> types.Fields:
    found = cloud.state.get(types.DATASET, full_name("bigquery", "projects", project, "datasets", dataset))
    location = flags.get("--location", "US")
    if found is None or found["location"].lower() != location.lower():
        raise Refused(f"Error in query string: Not found: Dataset {project}:{dataset} was not found in location {location}")
    return found
