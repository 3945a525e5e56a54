"""Prometheus' own tool reads every query, and plays each alert through: healthy, ill, mended (rules_test.yaml)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from monitoring import table
from tests.integration import prometheus

pytestmark = [pytest.mark.integration, pytest.mark.gate]

TESTS: Final = yaml.safe_load((Path(__file__).parent / "rules_test.yaml").read_text())
RULES: Final = yaml.safe_load(table.RULES.read_text())
ALERTS: Final = [rule["alert"] for group in RULES["groups"] for rule in group["rules"]]
Promtool = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def promtool() -> Promtool:
    try:
        program = prometheus.promtool()
    except prometheus.Missing as error:
        pytest.skip(str(error))
    return lambda *words: subprocess.run([program, *words], text=True, capture_output=True)


def played(promtool: Promtool, folder: Path, alert: str, expression: str | None = None) -> subprocess.CompletedProcess[str]:
    """The tests of one alert. expression: in the place of its own."""
    rules = yaml.safe_load(table.RULES.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            if rule["alert"] == alert and expression:
                rule["expr"] = expression
    tests = [test for test in TESTS["tests"] if any(each["alertname"] == alert for each in test["alert_rule_test"])]
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    (folder / "tests.yaml").write_text(yaml.safe_dump({**TESTS, "tests": tests}))
    return promtool("test", "rules", folder / "tests.yaml")


def test_the_rules_are_rules(promtool: Promtool) -> None:
    done = promtool("check", "rules", "--lint-fatal", table.RULES)

    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_every_query_of_a_panel_is_promql(promtool: Promtool, tmp_path: Path) -> None:
    queries = [
        table.VARIABLE.sub(".*", query.expr)
        for board in table.dashboards().dashboards.values()
        for panel in board.panels
        for query in panel.queries
    ]
    rules: list[Any] = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))

    assert promtool("check", "rules", file).returncode == 0
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": [*rules, {"record": "p", "expr": "sum("}]}]}))
    assert promtool("check", "rules", file).returncode != 0


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_for_what_it_is_for_and_ends(promtool: Promtool, tmp_path: Path, alert: str) -> None:
    done = played(promtool, tmp_path, alert)

    assert (done.returncode, done.stdout + done.stderr) == (0, f"Unit Testing:  {tmp_path / 'tests.yaml'}\n  SUCCESS\n\n")


@pytest.mark.parametrize("expression", ["vector(1)", "vector(1) > 1"], ids=["always", "never"])
@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_that_fires_always_or_never_is_noticed(
    promtool: Promtool, tmp_path: Path, alert: str, expression: str
) -> None:
    assert played(promtool, tmp_path, alert, expression).returncode == 1


@pytest.mark.parametrize("alert", ALERTS)
def test_the_times_of_an_alert_are_before_in_and_after_it(alert: str) -> None:
    """One of its tests at least; the others have further causes."""
    shapes = [
        [bool(each["exp_alerts"]) for each in test["alert_rule_test"] if each["alertname"] == alert] for test in TESTS["tests"]
    ]

    assert any(shape[0] is False and True in shape and shape[-1] is False for shape in shapes if shape)
