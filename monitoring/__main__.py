"""Writes what is made from the tables: `python -m monitoring`. Its tests fail if that was forgotten."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from monitoring import table, to_google, to_grafana

HEAD: Final = """\
# Made from monitoring/prometheus/rules.yaml by `python -m monitoring`. GlobalRules, because Rules and ClusterRules see only the
# metrics of their own cluster, not Pub/Sub's or Composer's (Google's "Managed rule evaluation and alerting").
apiVersion: monitoring.googleapis.com/v1
kind: GlobalRules
metadata:
  name: nightshift
spec:
"""
GLOBAL_RULES: Final = table.ROOT.parent / "k8s/components/alert-rules/rules.yaml"


def made() -> Iterator[tuple[Path, str]]:
    """Every file, with its text."""
    found = table.dashboards()
    for name, board in found.dashboards.items():
        yield table.ROOT / f"grafana/{name}.json", to_grafana.text(name, board, found.variables)
        yield table.ROOT / f"google/{name}.json", to_google.dashboard_text(board, found.variables)
    rules, sections = table.rules(), table.runbook()
    for group in rules.groups:
        for rule in group.rules:
            yield table.ROOT / f"google/alerts/{rule.file}.json", to_google.policy_text(group, rule, sections[rule.alert])
    text = table.RULES.read_text()
    yield GLOBAL_RULES, HEAD + textwrap.indent(text[text.index("groups:\n") :], "  ")


def main() -> int:
    files = dict(made())
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for path in [*table.ROOT.glob("grafana/*.json"), *table.ROOT.glob("google/**/*.json")]:
        if path not in files:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
