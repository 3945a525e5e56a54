"""What the package says of itself: its entry points, what Airflow lists about it, and the versions that it accepts."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import airflow
import pytest
from airflow._shared.module_loading import import_string
from jsonschema import Draft7Validator  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.version import Version

from nightshift.plugin import NightshiftPlugin
from nightshift.provider import provider_info

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
IMPORTED_AS = {"prometheus-client": "prometheus_client", "pyyaml": "yaml", "jsonschema-rs": "jsonschema_rs"}


def pins(name: str) -> dict[str, Version]:
    """What a file of requirements/ installs, by package."""
    text = (ROOT / "requirements" / name).read_text()
    return {package: Version(version) for package, version in re.findall(r"^([a-z0-9.-]+)==([^\s;]+)", text, re.MULTILINE)}


def imported(places: set[str]) -> set[str]:
    """The packages that modules below these places of plugins/nightshift import."""
    found = set()
    for place in places:
        path = ROOT / "plugins" / "nightshift" / place
        for file in path.rglob("*.py") if path.is_dir() else [path]:
            found |= set(re.findall(r"^\s*(?:from|import) (\w+)", file.read_text(), re.MULTILINE))
    return found


class TestEntryPoints:
    def test_airflow_finds_the_plugin(self) -> None:
        (place,) = PROJECT["entry-points"]["airflow.plugins"].values()

        assert import_string(place.replace(":", ".")) is NightshiftPlugin

    def test_airflow_finds_the_provider(self) -> None:
        (place,) = PROJECT["entry-points"]["apache_airflow_provider"].values()

        assert import_string(place.replace(":", ".")) is provider_info


class TestTheProvider:
    def test_airflow_accepts_it(self) -> None:
        """With this schema it checks every provider at its start, and with this name."""
        schema = json.loads((Path(airflow.__path__[0]) / "provider_info.schema.json").read_text())

        assert [error.message for error in Draft7Validator(schema).iter_errors(provider_info())] == []
        assert provider_info()["package-name"] == PROJECT["name"]

    def test_everything_that_it_names_is_there(self) -> None:
        info = provider_info()
        modules = [
            module for kind in ("operators", "hooks", "triggers") for entry in info[kind] for module in entry["python-modules"]
        ]

        assert [module for module in modules if not (ROOT / "plugins" / f"{module.replace('.', '/')}.py").is_file()] == []
        assert [import_string(link).__name__ for link in info["extra-links"]] == ["RunFolderLink", "GKEJobSetLink"]


class TestVersions:
    @pytest.mark.parametrize(
        ("requirements", "file"),
        [
            pytest.param(PROJECT["dependencies"] + EXTRAS["driver"], "driver.txt", id="driver"),
            pytest.param(PROJECT["dependencies"] + EXTRAS["driver"] + EXTRAS["stream"], "stream.txt", id="stream"),
            pytest.param(PROJECT["dependencies"] + EXTRAS["airflow"], "airflow.txt", id="airflow"),
            pytest.param(PROJECT["dependencies"] + EXTRAS["airflow"], "composer.txt", id="composer"),
        ],
    )
    def test_the_pins_are_within_the_ranges(self, requirements: list[str], file: str) -> None:
        installed = pins(file)
        wanted = [Requirement(text) for text in requirements]

        assert [str(each) for each in wanted if not each.specifier.contains(installed[each.name])] == []

    def test_the_driver_installs_what_the_package_asks_for(self) -> None:
        direct = {line for line in (ROOT / "requirements/driver.in").read_text().split("\n") if line and line[0] != "#"}
        asked = {Requirement(text).name for text in PROJECT["dependencies"] + EXTRAS["driver"]}

        assert {Requirement(line).name for line in direct} == asked

    def test_airflow_needs_nothing_of_the_drivers(self) -> None:
        """Neither at a DAG's parse nor in a task: an Airflow without the extra `driver` lacks it."""
        rooms = {path.name for path in (ROOT / "plugins/nightshift").iterdir()} - {
            "__pycache__",
            "driver",
            "batch",
            "batcher",
            "stream",
        }
        drivers = {Requirement(text).name for text in EXTRAS["driver"]}
        base = {Requirement(text).name for text in PROJECT["dependencies"]}

        found = imported(rooms)

        assert found & {IMPORTED_AS.get(name, name) for name in drivers} == set()
        assert {IMPORTED_AS.get(name, name) for name in base} <= found
