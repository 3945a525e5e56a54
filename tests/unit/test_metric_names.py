"""Every metric of every program: its name, its unit, its help, its series before anything has happened.

The conventions are those of prometheus.io/docs/practices/naming and .../instrumentation.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from nightshift.batcher import metrics as batcher
from nightshift.driver.metrics import BuildInfo, StatsCollector
from nightshift.driver.run_metrics import Night, RunCollector
from nightshift.driver.stats import Stats
from nightshift.run.ledger import Chunks
from nightshift.stream.metrics import StreamCollector, TargetCollector
from nightshift.stream.stats import StreamStats
from tests.builders import a_plan
from tests.stream_manifests import a_stream

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "docs/operate/metrics.md").read_text(), (ROOT / "docs/parts/batcher.md").read_text()
NOT_BASE = re.compile(r"_(ms|millis|milliseconds|minutes|hours|days|kb|mb|kib|mib|gib|percent|pct)(_|$)")
LABELS = {
    *("outcome", "reason", "direction", "result", "stage", "currency", "component", "version", "partition", "task", "model"),
    *("endpoint", "status", "why", "kind", "when", "subscription_id"),
}
"""All of them have few values; a run has one of `partition` and `model`."""


class Worker:
    committed = Chunks(4)
    dead_letters = 0


def registries() -> dict[str, CollectorRegistry]:
    """Of each program, as it is before its first event."""
    run = RunCollector(
        a_plan(10, 3, 2),
        0,
        {"partition": "2026-11-20", "task": "chat", "model": "m"},
        Night(deadline=1.0, price=1.0, currency="USD"),
        born=time.monotonic(),
        start_up=lambda: {"weights": 1.0},
        allowed=1,
    )
    run.worker = Worker()
    driver: list[Collector] = [BuildInfo("driver"), StatsCollector(Stats()), run]
    stream: list[Collector] = [
        BuildInfo("stream"),
        StatsCollector(Stats()),
        StreamCollector(StreamStats()),
        TargetCollector(a_stream()),
    ]
    found = {"driver": CollectorRegistry(), "stream": CollectorRegistry(), "batcher": batcher.Metrics().registry}
    for name, collectors in (("driver", driver), ("stream", stream)):
        for each in collectors:
            found[name].register(each)
    return found


def own() -> Iterator[tuple[str, Metric]]:
    """Each metric with the program that has it, without those of every Python process."""
    for program, registry in registries().items():
        for family in registry.collect():
            if not family.name.startswith(("process_", "python_")):
                yield program, family


FAMILIES = list(own())


@pytest.mark.parametrize(("program", "family"), FAMILIES, ids=lambda value: getattr(value, "name", value))
def test_its_name_and_help_are_as_the_conventions_have_them(program: str, family: Metric) -> None:
    names = {sample.name for sample in family.samples} or {family.name}

    prefixes = {"driver": "driver|run", "stream": "driver|stream", "batcher": "batcher"}[program]
    assert re.fullmatch(f"nightshift_(build|{prefixes})(_[a-z]+)*", family.name)
    assert not NOT_BASE.search(family.name), "not a base unit"
    assert family.documentation.endswith("."), family.documentation
    if family.type == "histogram":
        assert family.name.endswith(("_seconds", "_items", "_callers")), "its unit is missing"
    if family.type == "counter":
        assert {name for name in names if not name.endswith("_created")} == {f"{family.name}_total"}
    else:
        assert not any(name.endswith("_total") for name in names)
    assert {label for sample in family.samples for label in sample.labels} <= LABELS | {"le"}


@pytest.mark.parametrize(("program", "family"), FAMILIES, ids=lambda value: getattr(value, "name", value))
def test_it_has_a_series_before_anything_has_happened(program: str, family: Metric) -> None:
    assert family.samples, f"{program} has no series of {family.name}"
    if family.type in ("counter", "histogram"):
        values = {sample.value for sample in family.samples if not sample.name.endswith("_created")}
        assert max(values) < 0.1, "only a machine's cost has begun to grow"


@pytest.mark.parametrize(("program", "family"), FAMILIES, ids=lambda value: getattr(value, "name", value))
def test_a_page_lists_it(program: str, family: Metric) -> None:
    name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
    short = name.removeprefix("nightshift_batcher_")

    assert f"`{name}" in PAGES[0] or (program == "batcher" and re.search(rf"`{short}[`{{]", PAGES[1]))


def test_the_page_lists_none_that_does_not_exist() -> None:
    known = {sample.name for _, family in FAMILIES for sample in family.samples} | {family.name for _, family in FAMILIES}
    listed = set(re.findall(r"`(nightshift_(?:driver|run|stream|build)_[a-z_]*[a-z])(?:\{[a-z,]+\})?`", PAGES[0]))

    assert listed - known == set()


def said(*names: str) -> Iterator[str]:
    """The texts that the batcher's code gives to counters of these names, or to its functions that count."""
    for path in (ROOT / "plugins/nightshift/batcher").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func).rpartition("_metrics.")[2].rpartition("self.metrics.")[2] in names
            ):
                yield from (
                    each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
                )


@pytest.mark.parametrize(
    ("counter", "values"),
    [("passed", batcher.PASSED), ("errors", batcher.ERRORS), ("gone", batcher.GONE), ("rejected", batcher.REJECTED)],
)
def test_what_the_batcher_counts_is_among_the_values_from_the_start(counter: str, values: tuple[str, ...]) -> None:
    assert set(said(f"{counter}.labels")) <= set(values)
    assert set(re.findall(r"`([a-z]+)`", next(line for line in PAGES[1].splitlines() if PAGE_NAMES[counter] in line))) == set(
        values
    )


PAGE_NAMES = {
    "passed": "`passed_through_total{why}`",
    "errors": "`upstream_errors_total{kind}`",
    "gone": "`disconnected_total{when}`",
    "rejected": "`rejected_total{reason}`",
}
