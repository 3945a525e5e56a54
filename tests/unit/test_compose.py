"""docker-compose.yaml, held against the images and against what the local stack gives its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from local.containers.images import IMAGES
from local.demo.given import Given
from local.environments import ROOT
from local.stack import airflow, environment
from local.stack.folder import Folder

pytestmark = pytest.mark.unit

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
COMPONENTS = {name: SERVICES[name] for name in ("api-server", "scheduler", "dag-processor", "triggerer")}


def test_every_component_of_airflow_has_a_process_of_its_own() -> None:
    assert set(COMPONENTS) == set(airflow.COMPONENTS)
    assert [each["command"][:2] for each in COMPONENTS.values()] == [["airflow", name] for name in COMPONENTS]


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"postgres"}))
def test_a_service_builds_the_image_that_make_images_builds(name: str) -> None:
    [image] = [image for image in IMAGES if image.name == SERVICES[name]["image"]]
    assert SERVICES[name]["build"]["dockerfile"] == image.dockerfile
    default = SERVICES[name]["build"]["args"]["BASE"].split(":-")[1].rstrip("}")
    assert f"ARG BASE={default}\n" in (ROOT / image.dockerfile).read_text()


@pytest.mark.parametrize("name", sorted({*COMPONENTS, "agent", "demo"}))
def test_a_service_has_every_variable_that_the_local_stack_gives(name: str, tmp_path: Path) -> None:
    ports = {"storage": 9023, "bigquery": 9050, "bigquery_grpc": 9060}
    wanted = environment.clients(Folder.at(tmp_path), ports)
    given = SERVICES[name]["environment"]
    hosts = {
        "STORAGE_EMULATOR_HOST": "storage",
        "BIGQUERY_EMULATOR_HOST": "bigquery",
        "BIGQUERY_STORAGE_EMULATOR_HOST": "bigquery",
    }
    for variable, value in wanted.items():
        here = value.replace("127.0.0.1", hosts.get(variable, "")).replace(str(Folder.at(tmp_path).runtime), "/runtime")
        assert given[variable] == here


def test_up_waits_for_the_end_of_what_runs_once() -> None:
    """Otherwise `docker compose up --wait` takes that end for a failure; a service with a profile is not started by it."""
    started = [service for service in SERVICES.values() if "profiles" not in service]
    waits = {
        name
        for service in started
        for name, wait in service.get("depends_on", {}).items()
        if wait["condition"] == "service_completed_successfully"
    }
    assert waits == {"migrate", "bucket"}


def test_both_images_with_vllm_share_the_layer_that_holds_it() -> None:
    def steps(dockerfile: str) -> list[str]:
        lines = [line for line in (ROOT / dockerfile).read_text().splitlines() if not line.startswith("#")]
        return lines[: 1 + next(number for number, line in enumerate(lines) if line.startswith("RUN python3"))]

    assert steps("local/Dockerfile") == steps("images/server-cpu/Dockerfile")
    assert "environments.py server" in steps("local/Dockerfile")[-1]


def test_nothing_is_published_beyond_this_machine() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_service_of_airflow_has_a_plugins_folder() -> None:
    assert not [name for name in COMPONENTS if "PLUGINS" in str(SERVICES[name]["environment"]).upper()]
    assert "/plugins" not in (ROOT / "images/airflow/Dockerfile").read_text().replace("plugins/nightshift", "")


def test_the_demo_finds_airflow_by_an_address() -> None:
    given = Given("http://admin:p%40ss@api-server:8080")
    assert given.airflow() == {"url": "http://api-server:8080", "user": "admin", "password": "p@ss"}
    assert SERVICES["demo"]["command"][-1].startswith("--at=http://admin:")


def test_the_demo_finds_nightshift_which_no_environment_of_airflow_holds() -> None:
    """`python -m` adds the working folder, where `local` is; the folder plugins is named, as in the Makefile."""
    assert "DEMO = PYTHONPATH=plugins " in (ROOT / "Makefile").read_text()
    assert "WORKDIR /nightshift\n" in (ROOT / "local/Dockerfile").read_text()
    assert SERVICES["demo"]["environment"]["PYTHONPATH"] == "/nightshift/plugins"
