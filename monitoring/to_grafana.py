"""A dashboard of the table as Grafana's JSON, by Grafana's own types."""

from __future__ import annotations

import json
from typing import Final

from grafana_foundation_sdk.builders import common as common_builder
from grafana_foundation_sdk.builders import dashboard as builder
from grafana_foundation_sdk.builders import prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common, dashboard

from monitoring.table import Dashboard, Panel, Unit, Variable

UNITS: Final[dict[Unit, str]] = {
    "rows": "short",
    "messages": "short",
    "requests": "short",
    "pods": "short",
    "tokens/s": "cps",
    "rows/s": "rowsps",
    "messages/s": "mps",
    "requests/s": "reqps",
    "%": "percent",
    "s": "s",
    "s/s": "short",
    "money": "short",
}
"""Grafana's name of each unit (packages/grafana-data/src/valueFormats/categories.ts)."""
ALL: Final = ".*"
WIDTH: Final = 12
HEIGHT: Final = 8
SOURCE: Final = dashboard.DataSourceRef(type_val="prometheus", uid="${datasource}")


def text(name: str, board: Dashboard, variables: dict[str, Variable]) -> str:
    """name: of the file, and of the dashboard's address in Grafana."""
    made = (
        builder.Dashboard(f"nightshift: {board.title}")
        .uid(f"nightshift-{name}")
        .description(board.about)
        .tags(["nightshift"])
        .timezone("utc")
        .time("now-12h", "now")
        .refresh("1m")
        .readonly()
        .with_variable(builder.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for variable in board.variables:
        made.with_variable(_variable(variable, board, variables))
    for panel in board.panels:
        made.with_panel(_panel(panel))
    return json.dumps(made.build(), cls=JSONEncoder, indent=2) + "\n"


def _variable(name: str, board: Dashboard, variables: dict[str, Variable]) -> builder.QueryVariable:
    """Its choices are narrowed by the variables before it."""
    own = variables[name]
    before = [each for each in board.variables[: board.variables.index(name)] if variables[each].resource == own.resource]
    narrowed = ",".join(f'{variables[each].label}=~"${each}"' for each in before)
    return (
        builder.QueryVariable(name)
        .datasource(SOURCE)
        .query(f"label_values({own.of}{{{narrowed}}}, {own.label})" if narrowed else f"label_values({own.of}, {own.label})")
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(ALL)
        .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
    )


def _panel(panel: Panel) -> timeseries.Panel:
    made = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.about)
        .datasource(SOURCE)
        .unit(UNITS[panel.unit])
        .min(0)
        .span(WIDTH)
        .height(HEIGHT)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            common_builder.VizLegendOptions()
            .show_legend(True)
            .display_mode(common.LegendDisplayMode.TABLE)
            .placement(common.LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(common_builder.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )
    for number, query in enumerate(panel.queries):
        made.with_target(
            prometheus.Dataquery()
            .expr(query.expr)
            .legend_format(query.legend)
            .ref_id("ABCDEFGH"[number])
            .datasource(SOURCE)
            .range()
        )
    return made
