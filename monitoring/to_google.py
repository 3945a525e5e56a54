"""A dashboard and an alert rule of the tables as Cloud Monitoring's JSON, by its own messages."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from google.cloud.monitoring_dashboard_v1.types import (
    Dashboard,
    DashboardFilter,
    MosaicLayout,
    TimeSeriesQuery,
    Widget,
    XyChart,
)
from google.cloud.monitoring_v3 import AlertPolicy
from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import MessageToDict
from google.protobuf.wrappers_pb2 import BoolValue

from monitoring.table import RUNBOOK_NAME, VARIABLE, Group, Panel, Rule, Unit, Variable
from monitoring.table import Dashboard as Board

UNITS: Final[dict[Unit, str]] = {
    "rows": "1",
    "messages": "1",
    "requests": "1",
    "pods": "1",
    "tokens/s": "1/s",
    "rows/s": "1/s",
    "messages/s": "1/s",
    "requests/s": "1/s",
    "%": "%",
    "s": "s",
    "s/s": "1",
    "money": "1",
}
"""In UCUM, as Cloud Monitoring writes units."""
COLUMNS: Final = 48
"""Of Cloud Monitoring's grid."""
WIDTH: Final = 24
HEIGHT: Final = 16
INTERVAL_S: Final = 60
CLOSE_S: Final = 1800
"""An incident without data ends after this long, the least that Cloud Monitoring takes: a night that is over has none."""
CONTENT_MAX: Final = 8192
"""Characters of an alert policy's documentation (google.monitoring.v3.AlertPolicy.Documentation)."""
SEVERITIES: Final = {"warning": AlertPolicy.Severity.WARNING, "critical": AlertPolicy.Severity.CRITICAL}
_LABEL: Final = re.compile(r"\{\{ ?\$labels\.(\w+) ?\}\}")
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def dashboard_text(board: Board, variables: dict[str, Variable]) -> str:
    tiles = [
        MosaicLayout.Tile(
            x_pos=number * WIDTH % COLUMNS,
            y_pos=number * WIDTH // COLUMNS * HEIGHT,
            width=WIDTH,
            height=HEIGHT,
            widget=_widget(panel),
        )
        for number, panel in enumerate(board.panels)
    ]
    return _text(
        Dashboard(
            display_name=f"nightshift: {board.title}",
            dashboard_filters=[_filter(name, variables[name]) for name in board.variables],
            mosaic_layout=MosaicLayout(columns=COLUMNS, tiles=tiles),
            labels={"nightshift": ""},
        )
    )


def _filter(name: str, variable: Variable) -> DashboardFilter:
    """Without a value it lets everything through: Cloud Monitoring then puts .* where a query names it."""
    kind = DashboardFilter.FilterType
    return DashboardFilter(
        label_key=variable.label,
        template_variable=name,
        filter_type=kind.RESOURCE_LABEL if variable.resource else kind.METRIC_LABEL,
    )


def _widget(panel: Panel) -> Widget:
    sets = [
        XyChart.DataSet(
            time_series_query=TimeSeriesQuery(
                prometheus_query=VARIABLE.sub(r"${\1.value}", query.expr), unit_override=UNITS[panel.unit]
            ),
            plot_type=XyChart.DataSet.PlotType.LINE,
            legend_template=re.sub(r"\{\{(\w+)\}\}", r"${labels.\1}", query.legend),
        )
        for query in panel.queries
    ]
    return Widget(title=panel.title, xy_chart=XyChart(data_sets=sets))


def policy_text(group: Group, rule: Rule, runbook: str) -> str:
    """runbook: the section about it, which the notification shows.

    Its placeholders are written as `gcloud monitoring policies migrate` writes those of a Prometheus rule.
    """
    summary = _LABEL.sub(r"${metric_or_resource.label.\1}", rule.annotations.summary)
    # The page's links lead nowhere from a notification.
    content = "\n\n".join([summary, _LINK.sub(r"\1", runbook), f"({RUNBOOK_NAME}, {rule.alert})"])
    if len(content) > CONTENT_MAX:
        raise ValueError(
            f"{rule.alert}: its section in {RUNBOOK_NAME} is too long for Cloud Monitoring, by {len(content) - CONTENT_MAX}"
        )
    condition = AlertPolicy.Condition.PrometheusQueryLanguageCondition(
        query=rule.expr.strip(),
        duration=Duration(seconds=rule.for_s),
        evaluation_interval=Duration(seconds=INTERVAL_S),
        rule_group=group.name,
        alert_rule=rule.alert,
        # Before the first night there is no such metric yet.
        disable_metric_validation=True,
    )
    return _text(
        AlertPolicy(
            display_name=f"nightshift: {rule.alert}",
            documentation=AlertPolicy.Documentation(content=content, mime_type="text/markdown", subject=summary),
            user_labels={"product": "nightshift", "severity": rule.labels.severity},
            conditions=[AlertPolicy.Condition(display_name=rule.alert, condition_prometheus_query_language=condition)],
            combiner=AlertPolicy.ConditionCombinerType.OR,
            enabled=BoolValue(value=True),
            alert_strategy=AlertPolicy.AlertStrategy(auto_close=Duration(seconds=CLOSE_S)),
            severity=SEVERITIES[rule.labels.severity],
        )
    )


def _text(message: Any) -> str:
    # Sorted: a message does not keep the order of a map.
    return json.dumps(MessageToDict(type(message).pb(message)), indent=2, ensure_ascii=False, sort_keys=True) + "\n"
