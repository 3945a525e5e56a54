"""The two tables, read and checked. Anything wrong in a file raises pydantic's ValidationError, which names the place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

ROOT: Final = Path(__file__).parent
DASHBOARDS: Final = ROOT / "dashboards.yaml"
RULES: Final = ROOT / "prometheus/rules.yaml"
RUNBOOK: Final = ROOT.parent / "docs/operate/alerts.md"
RUNBOOK_NAME: Final = "docs/operate/alerts.md"
VARIABLE: Final = re.compile(r"\$([a-z]+)")
"""How a query names a variable of its dashboard; always inside a regular expression (=~)."""

Unit = Literal[
    "rows", "messages", "requests", "pods", "tokens/s", "rows/s", "messages/s", "requests/s", "%", "s", "s/s", "money"
]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Variable(_Strict):
    """label: whose values it takes. of: a metric that has it. resource: whether Cloud Monitoring has it on the resource."""

    label: str
    of: str
    resource: bool = False


class Query(_Strict):
    """expr: PromQL. legend: how a line is called; ``{{label}}`` stands for a label's value."""

    expr: str
    legend: str


class Panel(_Strict):
    """about: what one reads off it, in a sentence."""

    title: str
    unit: Unit
    about: str
    queries: Annotated[tuple[Query, ...], Field(min_length=1)]


class Dashboard(_Strict):
    title: str
    about: str
    variables: tuple[str, ...]
    panels: Annotated[tuple[Panel, ...], Field(min_length=1)]


class Dashboards(_Strict):
    variables: dict[str, Variable]
    dashboards: dict[str, Dashboard]

    @model_validator(mode="after")
    def _every_variable_is_there(self) -> Dashboards:
        for name, dashboard in self.dashboards.items():
            for panel in dashboard.panels:
                for query in panel.queries:
                    if unknown := set(VARIABLE.findall(query.expr)) - set(dashboard.variables):
                        raise ValueError(
                            f"{name}, panel {panel.title!r}: ${unknown.pop()} is not among the dashboard's variables"
                        )
            if missing := set(dashboard.variables) - self.variables.keys():
                raise ValueError(f"{name}: there is no variable {missing.pop()}")
        return self


class Labels(_Strict):
    severity: Literal["warning", "critical"]


class Annotations(_Strict):
    """runbook: the page and the heading that says what to do."""

    summary: str
    runbook: str


class Rule(_Strict):
    alert: Annotated[str, Field(pattern=r"^Nightshift[A-Za-z]+$")]
    expr: str
    for_: Annotated[str, Field(alias="for", pattern=r"^\d+m$")]
    labels: Labels
    annotations: Annotations

    @property
    def for_s(self) -> int:
        return 60 * int(self.for_.removesuffix("m"))

    @property
    def file(self) -> str:
        """The name of what is made from it, without its ending."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", self.alert.removeprefix("Nightshift")).lower()

    @model_validator(mode="after")
    def _names_its_section(self) -> Rule:
        if self.annotations.runbook != (own := f"{RUNBOOK_NAME}#{self.alert.lower()}"):
            raise ValueError(f"{self.alert}: its runbook must be {own}")
        return self


class Group(_Strict):
    name: str
    rules: Annotated[tuple[Rule, ...], Field(min_length=1)]


class Rules(_Strict):
    groups: tuple[Group, ...]


def dashboards() -> Dashboards:
    return Dashboards.model_validate(yaml.safe_load(DASHBOARDS.read_text()))


def rules() -> Rules:
    return Rules.model_validate(yaml.safe_load(RULES.read_text()))


def runbook() -> dict[str, str]:
    """The runbook's sections: what stands below each heading of the second level that is an alert's name."""
    found = {}
    for section in re.split(r"^## ", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        if re.fullmatch(r"Nightshift[A-Za-z]+", heading):
            found[heading] = text.strip()
    return found
