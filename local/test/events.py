"""A plugin of pytest: writes what becomes of each test to a file at once, a JSON object a line, for `local.test.progress`.

pytest -p local.test.events --events FILE
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--events", type=Path)


def pytest_configure(config: pytest.Config) -> None:
    # xdist's workers report to the process that started them.
    if (path := config.getoption("--events")) is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Events(path))


class Events:
    """``{"collected": {file: tests}}`` once, and of each phase of a test, and of each file that cannot be collected::

    {"test": "FILE::test_y", "when": "setup" | "call" | "teardown" | "collect" | "???" (a worker died),
     "outcome": "passed" | "skipped" | "failed", "seconds": 0.1, "text": traceback and output, or why it was skipped}
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=1)
        self._collected = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Every worker collects the same."""
        self._collect(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collect([item.nodeid for item in session.items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(_event(report, "collect", 0.0, report.longreprtext))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        text = ""
        if report.skipped:
            text = (
                report.longrepr[2].removeprefix("Skipped: ")
                if isinstance(report.longrepr, tuple)
                else getattr(report, "wasxfail", "")
            )
        elif report.failed:
            text = "\n".join([report.longreprtext, *(f"--- {name}\n{said}" for name, said in report.sections)])
        self._write(_event(report, str(report.when), report.duration, text))

    def _collect(self, ids: Sequence[str]) -> None:
        if ids and not self._collected:
            self._collected = True
            self._write({"collected": dict(Counter(each.partition("::")[0] for each in ids))})

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(json.dumps(event) + "\n")


def _event(report: pytest.TestReport | pytest.CollectReport, when: str, seconds: float, text: str) -> dict[str, Any]:
    return {"test": report.nodeid, "when": when, "outcome": report.outcome, "seconds": seconds, "text": text}
