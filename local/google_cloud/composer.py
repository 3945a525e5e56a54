"""Cloud Composer 3: an environment, what is installed in it, and a DAG that is started there."""

from __future__ import annotations

import configparser
import json
import re
from collections.abc import Callable
from typing import Final

import yaml

from local.google_cloud import access, night, storage
from local.google_cloud import state as types
from local.google_cloud.cloud import Cloud, Refused
from local.google_cloud.command_line import Given
from local.google_cloud.state import Fields, full_name

CREATION_S: Final = 1500
UPDATE_S: Final = 900
READING_S: Final = 90
"""Until a new file is a DAG."""
"""An update builds and rolls the environment: 10 to 30 minutes."""
PACKAGE: Final = "airflow-provider-nightshift"

Renderer = Callable[[str, str, dict[str, str]], str]
"""(text of a job's file, partition, environment) -> the JobSet as YAML."""


def _name(project: str, location: str, environment: str) -> str:
    return full_name("composer", "projects", project, "locations", location, "environments", environment)


def _find(cloud: Cloud, given: Given, project: str) -> Fields:
    return cloud.find(types.ENVIRONMENT, _name(project, given.value("location"), given.arguments[0]))


def make(cloud: Cloud, given: Given, project: str) -> str:
    location, account = given.value("location"), given.value("service-account")
    if location not in cloud.zones:
        raise Refused(f"PERMISSION_DENIED: Location {location} is not found or access is unauthorized.")
    if cloud.account(account) is None:
        raise Refused(f"INVALID_ARGUMENT: Service account {account or '(none)'} does not exist.")
    if "composer.worker" not in access.roles(cloud.project(project), f"serviceAccount:{account}"):
        raise Refused(f"FAILED_PRECONDITION: {account} is missing roles/composer.worker, which an environment's account needs.")
    bucket = f"{location}-{given.arguments[0]}-bucket"
    fields: Fields = {
        "config": {
            "airflowUri": f"https://{given.arguments[0]}-dot-{location}.composer.googleusercontent.com",
            "dagGcsPrefix": f"gs://{bucket}/dags",
            "nodeConfig": {"serviceAccount": account},
            "softwareConfig": {
                "imageVersion": given.value("image-version"),
                "envVariables": given.pairs("env-variables"),
                "pypiPackages": {},
            },
        }
    }
    cloud.make(types.ENVIRONMENT, _name(project, location, given.arguments[0]), fields)
    cloud.state.put(types.BUCKET, full_name("storage", bucket), {"location": location.upper()})
    cloud.state.seconds += CREATION_S
    return f"Creating environment {given.arguments[0]}...done."


def update(cloud: Cloud, given: Given, project: str) -> str:
    software = _find(cloud, given, project)["config"]["softwareConfig"]
    cloud.state.seconds += UPDATE_S
    if given.has("update-env-variables"):
        software["envVariables"] |= given.pairs("update-env-variables")
    if given.has("update-pypi-packages-from-file"):
        lines = (cloud.machine.folder / given.value("update-pypi-packages-from-file")).read_text().splitlines()
        if problem := _cannot_install(cloud, given, project, lines):
            raise Refused(f"Failed to install Python packages. {problem}")
        software["pypiPackages"] |= dict(line.partition("==")[::2] for line in lines)
    return f"Updating environment {given.arguments[0]}...done."


def _cannot_install(cloud: Cloud, given: Given, project: str, lines: list[str]) -> str:
    """What pip says in the environment, which reads config/pip/pip.conf of its bucket; or ''."""
    config = _find(cloud, given, project)["config"]
    ours = next((line for line in lines if line.startswith(f"{PACKAGE}==")), "")
    settings = configparser.ConfigParser()
    settings.read_string(storage.read(cloud, f"{config['dagGcsPrefix'].removesuffix('/dags')}/config/pip/pip.conf") or "")
    index = settings.get("global", "index-url", fallback="")  # without it, pip asks PyPI, which does not have ours
    match = re.fullmatch(r"https://([\w-]+)-python\.pkg\.dev/([\w-]+)/([\w-]+)/simple/", index)
    if match is None:
        return f"ERROR: No matching distribution found for {ours}"
    path = ["projects", match[2], "locations", match[1], "repositories"]
    virtual = cloud.state.get(types.REPOSITORY, full_name("artifactregistry", *path, match[3]))
    policies = (virtual or {}).get("virtualRepositoryConfig", {}).get("upstreamPolicies", [])
    names = [
        full_name("artifactregistry", *path, match[3]),
        *(f"//artifactregistry.googleapis.com/{each['repository']}" for each in policies),
    ]
    reader = f"serviceAccount:{config['nodeConfig']['serviceAccount']}"
    for name in names:
        if "artifactregistry.reader" not in access.roles(cloud.state.get(types.REPOSITORY, name), reader):
            return f"ERROR: 403 Client Error: Forbidden for url: {index} ({reader} may not read {name})"
    version = ours.partition("==")[2]
    if not any(cloud.state.get(types.PACKAGE, f"{name}/packages/{PACKAGE}/versions/{version}") is not None for name in names):
        return f"ERROR: No matching distribution found for {ours}"
    return ""


def describe(cloud: Cloud, given: Given, project: str) -> str:
    """Of the format only one value is known: ``value(config.dagGcsPrefix)`` and the like."""
    found: object = _find(cloud, given, project)
    for key in given.value("format").removeprefix("value(").removesuffix(")").split("."):
        found = found[key] if isinstance(found, dict) else ""
    return str(found)


COMMANDS: Final = {"dags": "3.3.0", "tasks": "3.3.0", "variables": "3.3.0", "connections": "3.3.0", "pools": "3.3.0"}
"""Of Airflow, those that gcloud passes on, each below a version (gcloud 578, its own SUBCOMMAND_ALLOWLIST)."""


def run(cloud: Cloud, given: Given, project: str) -> str:
    """``environments run``, which refuses what it does not know before it asks the environment."""
    image = str(_find(cloud, given, project)["config"]["softwareConfig"]["imageVersion"])
    command, version = given.arguments[1], image.partition("-airflow-")[2]
    if command not in COMMANDS:
        raise Refused(f"Invalid choice: {command!r}.", 2)
    if _numbers(version) >= _numbers(COMMANDS[command]):
        raise Refused(f'The subcommand "{command}" is not supported for Composer environments with Airflow version {version}.')
    raise Refused("the stand-in knows Airflow's API alone")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(each) for each in version.split("."))


def ask(cloud: Cloud, url: str, data: str, render: Renderer) -> str:
    """A request to an environment's Airflow: what curl prints. data: the body of a POST; empty for a GET. Raises Refused."""
    for found in cloud.state.of(types.ENVIRONMENT).values():
        if url.startswith(found["config"]["airflowUri"]):
            return json.dumps(_airflow(cloud, found, url.partition("/api/v2/")[2].partition("?")[0], data, render))
    raise Refused(f"curl: (6) Could not resolve host: {url.split('/')[2]}", 6)


def _airflow(cloud: Cloud, found: Fields, path: str, data: str, render: Renderer) -> Fields:
    installed = PACKAGE in found["config"]["softwareConfig"]["pypiPackages"]
    folder = found["config"]["dagGcsPrefix"]
    files = storage.names(cloud, folder)
    if path == "providers":
        return {"providers": [{"package_name": PACKAGE}] if installed else []}
    if path == "importErrors":
        return {"import_errors": [file for file in files if file.endswith(".py")] if not installed else []}
    seen = installed and cloud.state.seconds >= storage.changed_at(cloud, folder) + READING_S
    dags = {"nightshift_doctor"} if "nightshift_doctor.py" in files else set()
    dags |= {file.removeprefix("jobs/").removesuffix(".yaml") for file in files if re.fullmatch(r"jobs/[\w-]+\.yaml", file)}
    match = re.fullmatch(r"dags/([\w-]+)(/dagRuns)?", path)
    if match is None or not seen or match[1] not in dags:
        raise Refused(
            f"curl: (22) The requested URL returned error: 404: the Dag with ID: `{path.split('/')[1]}` was not found", 22
        )
    if not match[2]:
        return {"dag_id": match[1]}
    body = json.loads(data)
    if "logical_date" not in body:
        raise Refused('curl: (22) The requested URL returned error: 422: {"loc": ["body", "logical_date"]}', 22)
    if match[1] != "nightshift_doctor":
        text = storage.read(cloud, f"{folder}/jobs/{match[1]}.yaml") or ""
        table, variables = yaml.safe_load(text)["destination"]["table"], found["config"]["softwareConfig"]["envVariables"]
        night.start(cloud, found, table, lambda: render(text, body["conf"]["partition"], variables))
    return {"dag_id": match[1], "state": "queued"}
