"""docs/parts/batcher.md says what the batcher's code says: options and defaults, headers, endpoints, metrics."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from nightshift import cli
from nightshift.batcher import headers
from nightshift.batcher.metrics import Metrics
from nightshift.batcher.routes import NAMES

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).parents[2] / "docs/parts/batcher.md").read_text()


def section(heading: str) -> str:
    return PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    return [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]


def parser() -> argparse.ArgumentParser:
    commands = next(each for each in cli.command_parser()._actions if isinstance(each, argparse._SubParsersAction))
    found: argparse.ArgumentParser = commands.choices["batcher"]
    return found


def test_every_option_is_there_with_its_default() -> None:
    rows = [line.split("|")[1:3] for line in section("Options").splitlines() if line.startswith("| `")]
    listed = {name: default.strip() for names, default in rows for name in re.findall(r"--[a-z-]+", names)}

    actions = {each.option_strings[-1]: each.default for each in parser()._actions if each.option_strings[-1] != "--help"}
    assert listed.keys() == actions.keys()
    plain = {name: default for name, default in actions.items() if name not in ("--host", "--port")}
    said = {None: "", (): "", 600.0: "600"}
    expected = {name: said.get(tuple(value) if value == [] else value, str(value)) for name, value in plain.items()}
    assert {name: listed[name] for name in plain} == {**expected, "--endpoints": "all"}
    assert listed["--host"] == listed["--port"] == f"{actions['--host']}, {actions['--port']}"


def test_the_headers_that_do_not_count() -> None:
    bullets = " ".join(line for line in section("Headers").splitlines() if line.startswith(("- ", "  ")))
    listed = {name.lower() for name in re.findall(r"`([^`]+)`", bullets)}

    written_by_the_client = {"accept", "accept-encoding", "content-length", "host"}
    assert listed == headers.IGNORED | written_by_the_client
    always = re.search(r"always counts: (.*?)\. A request", section("Headers"), re.DOTALL)
    assert always is not None
    assert {name.lower() for name in re.findall(r"`([^`]+)`", always[1])} == headers.ALWAYS_COUNT


def test_every_metric_is_there_with_its_labels() -> None:
    listed = {name for cell in first_cells(section("Health, drain and metrics")) for name in re.findall(r"`([^`]+)`", cell)}
    collectors = [value for value in vars(Metrics()).values() if hasattr(value, "_labelnames")]

    expected = set()
    for each in collectors:
        name = each._name.removeprefix("nightshift_batcher_") + ("_total" if each._type == "counter" else "")
        expected.add(name + (f"{{{','.join(each._labelnames)}}}" if each._labelnames else ""))
    assert listed == expected


def test_every_endpoint_has_a_name_to_choose() -> None:
    assert f"`{','.join(NAMES)}`" in section("Options")
