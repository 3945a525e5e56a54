"""Dashboards and alerts: made from their tables, valid for whom they are made; every metric and every runbook is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.cloud import monitoring_v3
from google.cloud.monitoring_dashboard_v1.types import Dashboard
from google.protobuf.json_format import ParseDict, ParseError
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as grafana
from pydantic import ValidationError

from monitoring import table
from monitoring.__main__ import GLOBAL_RULES, made

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
GRAFANA = sorted((table.ROOT / "grafana").glob("*"))
BOARDS = sorted((table.ROOT / "google").glob("*.*"))
POLICIES = sorted((table.ROOT / "google/alerts").glob("*"))
RULES = [rule for group in table.rules().groups for rule in group.rules]
FOREIGN = re.compile(r"\b(kube_\w+|DCGM_\w+|vllm:\w+|pubsub_googleapis_com:\w+|composer_googleapis_com:\w+|airflow_\w+)")
OWN = re.compile(r"\bnightshift_(?:driver|run|stream|batcher)_\w+")
COMMAND = re.compile(r"`(?:kubectl|nightshift) [^`]+`|\bTrigger the DAG\b")


def queries() -> Iterator[str]:
    for board in table.dashboards().dashboards.values():
        for panel in board.panels:
            yield from (query.expr for query in panel.queries)
    yield from (rule.expr for rule in RULES)


def test_what_is_made_is_what_the_tables_say() -> None:
    """If not: python -m monitoring"""
    texts = dict(made())

    assert {path: path.read_text() for path in [*GRAFANA, *BOARDS, *POLICIES, GLOBAL_RULES]} == texts


@pytest.mark.parametrize("path", GRAFANA, ids=lambda path: path.name)
def test_grafanas_own_types_read_every_field_of_a_dashboard(path: Path) -> None:
    register_default_plugins()
    written = json.loads(path.read_text())

    read = grafana.Dashboard.from_json(written)
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == written
    assert json.loads(json.dumps(grafana.Dashboard.from_json({**written, "panles": []}), cls=JSONEncoder)) == written
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in written["panels"]}) == len(written["panels"])


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.name)
def test_cloud_monitorings_own_message_reads_a_dashboard(path: Path) -> None:
    written = json.loads(path.read_text())

    board = parsed(Dashboard, written)
    tiles = board.mosaic_layout.tiles
    assert len({(tile.x_pos, tile.y_pos) for tile in tiles}) == len(tiles)
    names = {each.template_variable for each in board.dashboard_filters}
    assert set(re.findall(r"\$\{(\w+)\.value\}", path.read_text())) == names
    with pytest.raises(ParseError):
        parsed(Dashboard, {**written, "mosaicLayuot": {}})


@pytest.mark.parametrize("path", POLICIES, ids=lambda path: path.name)
def test_cloud_monitorings_own_message_reads_an_alert_policy(path: Path) -> None:
    written = json.loads(path.read_text())

    policy = parsed(monitoring_v3.AlertPolicy, written)
    [condition] = policy.conditions
    assert condition.condition_prometheus_query_language.query
    # Limits of the API: google.monitoring.v3.AlertPolicy.
    assert len(policy.documentation.subject) <= 255
    assert len(policy.documentation.content.encode()) <= 10240
    assert condition.condition_prometheus_query_language.evaluation_interval.seconds % 30 == 0
    assert "{{" not in policy.documentation.content
    with pytest.raises(ParseError):
        parsed(monitoring_v3.AlertPolicy, {**written, "severity": "DREADFUL"})


def parsed(kind: Any, written: dict[str, Any]) -> Any:
    """Raises ParseError for a field that the message does not have."""
    message = kind()
    ParseDict(written, kind.pb(message), ignore_unknown_fields=False)
    return message


def test_managed_prometheus_gets_the_same_rules() -> None:
    assert yaml.safe_load(GLOBAL_RULES.read_text())["spec"] == yaml.safe_load(table.RULES.read_text())


def test_every_alert_has_its_section_and_every_section_its_alert() -> None:
    sections = table.runbook()

    assert sorted(sections) == sorted(rule.alert for rule in RULES)
    assert [name for name, text in sections.items() if not COMMAND.search(text)] == []


def test_the_page_names_the_critical_ones() -> None:
    said = re.search(r"`critical` \(page the person on call\): (.*?)\.", table.RUNBOOK.read_text(), re.DOTALL)
    assert said

    assert set(re.findall(r"\w+", said[1])) == {rule.alert for rule in RULES if rule.labels.severity == "critical"}


def test_every_metric_of_a_query_is_on_a_page() -> None:
    """Ours on the page of metrics; those of others, and what makes the cluster export them, on the page of alerts."""
    ours, theirs = (ROOT / "docs/operate/metrics.md").read_text(), table.RUNBOOK.read_text()
    text = "\n".join(queries())
    own = {re.sub(r"_bucket$", "", name) for name in OWN.findall(text)}
    cluster = {name for name in FOREIGN.findall(text) if name.startswith(("kube_", "DCGM_"))}

    assert len(own) > 20
    assert sorted(name for name in own if name not in ours) == []
    assert sorted(name for name in cluster if f"`{name}`" not in theirs) == []


def test_vllm_has_the_metrics_that_are_asked_of_it() -> None:
    source = ROOT / ".envs/server/lib"
    files = list(source.glob("python3*/site-packages/vllm/v1/metrics/loggers.py"))
    if not files:
        pytest.skip("vLLM is not installed here: python3 local/environments.py server")
    names = {name.removesuffix("_total") for name in FOREIGN.findall("\n".join(queries())) if name.startswith("vllm:")}

    assert names
    assert sorted(name for name in names if f'"{name}"' not in files[0].read_text()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found["dashboards"]["nights"]["panels"][0].update(colour="red"), "colour"),
        (lambda found: found["dashboards"]["nights"]["panels"][0].update(unit="parsecs"), "unit"),
        (lambda found: found["dashboards"]["nights"].update(variables=["job"]), "$run is not among the dashboard's variables"),
        (lambda found: found["dashboards"]["nights"].update(variables=["job", "run", "moon"]), "there is no variable moon"),
    ],
)
def test_a_mistake_in_the_table_of_dashboards_is_named(change: Any, said: str) -> None:
    found = yaml.safe_load(table.DASHBOARDS.read_text())
    change(found)

    with pytest.raises(ValidationError, match=re.escape(said)):
        table.Dashboards.model_validate(found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rule: rule.update({"for": "soon"}), "for"),
        (lambda rule: rule["labels"].update(severity="dreadful"), "severity"),
        (lambda rule: rule["annotations"].update(runbook="docs/operate/alerts.md#other"), "its runbook must be"),
        (lambda rule: rule.pop("annotations"), "annotations"),
    ],
)
def test_a_mistake_in_the_table_of_rules_is_named(change: Any, said: str) -> None:
    found = yaml.safe_load(table.RULES.read_text())
    change(found["groups"][0]["rules"][0])

    with pytest.raises(ValidationError, match=said):
        table.Rules.model_validate(found)


def test_the_cluster_exports_what_the_page_says() -> None:
    """By hand, and by Terraform, which calls one of them by another name."""
    packages = set(re.findall(r"^\| `([A-Z]+)` \|", table.RUNBOOK.read_text(), re.MULTILINE))
    typed = re.findall(r"--monitoring=([A-Z,]+)", (ROOT / "k8s/README.md").read_text())
    applied = re.search(
        r"monitoring_config \{\s*enable_components = \[([^\]]+)\]", (ROOT / "infra/modules/cluster/main.tf").read_text()
    )
    assert applied is not None

    assert len(packages) > 3
    assert [set(each.split(",")) for each in typed] == [packages] * len(typed) != []
    assert {name.removesuffix("_COMPONENTS") for name in re.findall(r"\w+", applied[1])} == packages
