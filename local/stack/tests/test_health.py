"""How Airflow's own health report is judged, and its processes are found."""

from __future__ import annotations

from typing import Any

import pytest

from local.stack import marks
from local.stack.airflow import component_pids, unhealthy

pytestmark = pytest.mark.unit

SINCE = 1_700_000_000.0
BEFORE, AFTER = "2023-11-14T22:13:19+00:00", "2023-11-14T22:13:21+00:00"


def _report(**changes: Any) -> dict[str, Any]:
    beats = {
        name: {"status": "healthy", f"latest_{name}_heartbeat": AFTER} for name in ("scheduler", "triggerer", "dag_processor")
    }
    return {"metadatabase": {"status": "healthy"}, **beats, **changes}


def test_all_beat() -> None:
    assert unhealthy(_report(), SINCE) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"metadatabase": {"status": "unhealthy"}}, "metadatabase is unhealthy"),
        ({"scheduler": {"status": "unhealthy", "latest_scheduler_heartbeat": AFTER}}, "scheduler is unhealthy"),
        ({"triggerer": {"status": None, "latest_triggerer_heartbeat": None}}, "triggerer is None"),
        (
            {"dag_processor": {"status": "healthy", "latest_dag_processor_heartbeat": None}},
            "dag_processor has not reported yet",
        ),
        # The word is still that of a component which was killed a moment ago.
        ({"scheduler": {"status": "healthy", "latest_scheduler_heartbeat": BEFORE}}, "scheduler has not reported yet"),
    ],
)
def test_one_does_not(changes: dict[str, Any], problem: str) -> None:
    assert unhealthy(_report(**changes), SINCE) == problem


def test_a_child_that_ends_while_it_is_looked_at_is_no_component(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of children names one that is gone when its command is read; the kernel gives no process so high an id."""
    monkeypatch.setattr(marks, "children", lambda parent: {1 << 30: "S"})

    assert component_pids(1, "scheduler") == []
