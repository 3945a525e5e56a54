"""Airflow's task state store, for tests that execute a task without Airflow."""

from __future__ import annotations

import json
from typing import Any


class KeptState(dict[str, Any]):
    """Outlives an attempt, and takes only what JSON can hold."""

    def set(self, key: str, value: Any) -> None:
        self[key] = json.loads(json.dumps(value))
